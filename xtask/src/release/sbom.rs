//! What a program is made of, in CycloneDX's JSON: every crate that is linked into it, and who needs whom.

use crate::image::notices;
use crate::licences::metadata;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The list for a crate in `directory`, linked for `triple`, under the name of the program.
pub fn of(directory: &Path, triple: &str, name: &str) -> Result<String, String> {
    let metadata = metadata(directory, &["--filter-platform", triple])?;
    let lock = Path::new(text(&metadata["workspace_root"])).join("Cargo.lock");
    let io = |error: &dyn std::fmt::Display| format!("{}: {error}", lock.display());
    let locked = std::fs::read_to_string(&lock).map_err(|error| io(&error))?;
    let locked: toml::Table = toml::from_str(&locked).map_err(|error| io(&error))?;
    let linked = notices::linked(&metadata, directory, triple)?;
    let manifest = std::fs::canonicalize(directory).map_err(|error| io(&error))?.join("Cargo.toml");
    bom(&metadata["resolve"], &linked, &checksums(&locked), &manifest, name)
}

fn bom(
    resolve: &Value,
    linked: &[&Value],
    checksums: &BTreeMap<(String, String), String>,
    manifest: &Path,
    name: &str,
) -> Result<String, String> {
    let of_manifest = |it: &&&Value| Path::new(text(&it["manifest_path"])) == manifest;
    let root =
        linked.iter().find(of_manifest).ok_or_else(|| format!("{} is no package", manifest.display()))?;
    let reference = |package: &Value| match package["id"] == root["id"] {
        true => name.to_owned(),
        false => purl(package),
    };
    let by_id: BTreeMap<&str, String> = linked.iter().map(|it| (text(&it["id"]), reference(it))).collect();
    let component = |package: &Value| {
        let key = (text(&package["name"]).to_owned(), text(&package["version"]).to_owned());
        let mut component = json!({
            "type": "library",
            "bom-ref": reference(package),
            "name": package["name"],
            "version": package["version"],
        });
        if let Some(checksum) = checksums.get(&key) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        if let Some(licence) = package["license"].as_str() {
            // Old ones have a slash for the word.
            component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
        }
        component["purl"] = purl(package).into();
        component
    };
    let mut components: Vec<Value> =
        linked.iter().filter(|it| it["id"] != root["id"]).map(|it| component(it)).collect();
    components.sort_by(|a, b| text(&a["bom-ref"]).cmp(text(&b["bom-ref"])));
    let mut dependencies = BTreeMap::new();
    for node in resolve["nodes"].as_array().into_iter().flatten() {
        let Some(one) = by_id.get(text(&node["id"])) else { continue };
        let normal = |it: &&Value| {
            it["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let deps = node["deps"].as_array().into_iter().flatten().filter(normal);
        let on: BTreeSet<&String> = deps.filter_map(|it| by_id.get(text(&it["pkg"]))).collect();
        dependencies.insert(one, on);
    }
    let dependencies: Vec<Value> =
        dependencies.into_iter().map(|(one, on)| json!({ "ref": one, "dependsOn": on })).collect();
    let bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": name,
                "name": name,
                "version": root["version"],
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())? + "\n")
}

/// A package's name among all of the world's.
fn purl(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]).replace('+', "%2B"))
}

/// Digests of packages from a registry, by name and version.
fn checksums(lock: &toml::Table) -> BTreeMap<(String, String), String> {
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let one = |package: &toml::Value| {
        let field = |name: &str| Some(package.get(name)?.as_str()?.to_owned());
        Some(((field("name")?, field("version")?), field("checksum")?))
    };
    packages.into_iter().flatten().filter_map(one).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_made_of_what_is_linked_and_says_who_needs_whom() {
        let package = |name: &str, licence: &str| {
            json!({ "id": name, "name": name, "version": "1.0.0+a", "license": licence,
                    "manifest_path": format!("/{name}/Cargo.toml") })
        };
        let (own, serde) = (package("own", "MIT"), package("serde", "MIT/Apache-2.0"));
        let dependency = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let resolve = json!({ "nodes": [
            { "id": "own", "deps": [dependency("serde", Value::Null), dependency("cc", "build".into())] },
            { "id": "serde", "deps": [] },
            { "id": "cc", "deps": [] },
        ] });
        let lock = "[[package]]\nname = \"serde\"\nversion = \"1.0.0+a\"\nchecksum = \"abc\"\n";
        let sums = checksums(&lock.parse().expect("TOML"));
        let manifest = Path::new("/own/Cargo.toml");
        let made = bom(&resolve, &[&own, &serde], &sums, manifest, "a/b/c").expect("it is made");
        let made: Value = serde_json::from_str(&made).expect("JSON");
        assert_eq!(made["components"].as_array().map(Vec::len), Some(1));
        let component = &made["components"][0];
        assert_eq!(component["purl"], "pkg:cargo/serde@1.0.0%2Ba");
        assert_eq!(component["hashes"][0]["content"], "abc");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        let needs = json!({ "ref": "a/b/c", "dependsOn": ["pkg:cargo/serde@1.0.0%2Ba"] });
        assert_eq!(made["dependencies"][0], needs);
        assert!(bom(&resolve, &[&serde], &sums, manifest, "a/b/c").is_err());
    }
}
