//! An archive that is an OCI image layout and what `docker load` reads, of one set of blobs.

use super::layer::{Layer, hex};
use monomorph_abi::serve::PORT;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;
use std::path::Path;

/// User and group of the server: nobody whom a host knows.
pub const USER: u32 = 65_532;

/// The server in the image.
pub const SERVER: &str = "/server";

/// Where an image has its weights, or they are mounted.
pub const WEIGHTS: &str = "/weights";

/// The one directory that a server writes to, its user's home, on a root that may be read-only.
pub const SCRATCH: &str = "/tmp";

/// What the server is run with. Loopback, its default, cannot be reached from outside a container.
pub const ARGUMENTS: [&str; 5] = ["serve", "--bind", "0.0.0.0", "--weights", WEIGHTS];

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// What an image runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    Amd64,
    Arm64,
}

impl Platform {
    /// As OCI, Kubernetes and Debian name it.
    pub fn architecture(self) -> &'static str {
        match self {
            Platform::Amd64 => "amd64",
            Platform::Arm64 => "arm64",
        }
    }
}

impl Platform {
    /// The triple that servers for it are linked for.
    pub fn triple(self) -> &'static str {
        match self {
            Platform::Amd64 => "x86_64-unknown-linux-gnu",
            Platform::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Label of a machine of GitHub's that builds for it without a cross compiler.
    pub fn runner(self) -> &'static str {
        match self {
            Platform::Amd64 => "ubuntu-24.04",
            Platform::Arm64 => "ubuntu-24.04-arm",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "linux/{}", self.architecture())
    }
}

/// An image of one platform.
pub struct Image {
    /// Repository and tag.
    pub name: String,
    pub platform: Platform,
    pub labels: Value,
    pub environment: Vec<String>,
    /// The lowest first.
    pub layers: Vec<Layer>,
}

impl Image {
    /// Bytes of its layers as they are stored.
    pub fn layers(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }

    fn config(&self) -> Blob {
        let uncompressed = self.layers.iter().map(|it| format!("sha256:{}", it.uncompressed));
        Blob::of(
            CONFIG,
            &json!({
                "created": "1970-01-01T00:00:00Z",
                "architecture": self.platform.architecture(),
                "os": "linux",
                "config": {
                    "User": format!("{USER}:{USER}"),
                    "Env": self.environment,
                    "Entrypoint": [SERVER],
                    "Cmd": ARGUMENTS,
                    "ExposedPorts": { format!("{PORT}/tcp"): {} },
                    "WorkingDir": "/",
                    "Labels": self.labels,
                },
                "rootfs": { "type": "layers", "diff_ids": uncompressed.collect::<Vec<_>>() },
                "history": self.layers.iter().map(|_| json!({
                    "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask image",
                })).collect::<Vec<_>>(),
            }),
        )
    }

    fn manifest(&self, config: &Blob) -> Blob {
        let layers = self.layers.iter().map(|it| descriptor(it.media_type, &it.digest, it.bytes));
        Blob::of(
            MANIFEST,
            &json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config.descriptor(),
                "layers": layers.collect::<Vec<_>>(),
                "annotations": self.labels,
            }),
        )
    }
}

/// A small blob.
struct Blob {
    media_type: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn of(media_type: &'static str, value: &Value) -> Blob {
        let bytes = value.to_string().into_bytes();
        Blob { media_type, digest: hex(Sha256::new_with_prefix(&bytes)), bytes }
    }

    fn descriptor(&self) -> Value {
        descriptor(self.media_type, &self.digest, self.bytes.len() as u64)
    }
}

fn descriptor(media_type: &str, digest: &str, size: u64) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size })
}

/// Path of a blob in a layout.
fn place(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

/// What an archive holds.
pub struct Archive<'a> {
    blobs: Vec<Blob>,
    layers: Vec<&'a Layer>,
    /// The layout's entry point.
    index: Value,
    /// Docker's, which knows one platform.
    docker: Option<Value>,
}

impl<'a> Archive<'a> {
    /// One image.
    pub fn of(image: &'a Image) -> Archive<'a> {
        let config = image.config();
        let manifest = image.manifest(&config);
        let docker = json!([{
            "Config": place(&config.digest),
            "RepoTags": [image.name],
            "Layers": image.layers.iter().map(|it| place(&it.digest)).collect::<Vec<_>>(),
        }]);
        let index = named(manifest.descriptor(), &image.name);
        Archive {
            blobs: vec![config, manifest],
            layers: image.layers.iter().collect(),
            index,
            docker: Some(docker),
        }
    }

    /// One name for images of several platforms.
    pub fn index(name: &str, images: &[&'a Image]) -> Archive<'a> {
        let (mut blobs, mut manifests) = (Vec::new(), Vec::new());
        for image in images {
            let config = image.config();
            let manifest = image.manifest(&config);
            let mut descriptor = manifest.descriptor();
            descriptor["platform"] = json!({ "architecture": image.platform.architecture(), "os": "linux" });
            manifests.push(descriptor);
            blobs.extend([config, manifest]);
        }
        let index =
            Blob::of(INDEX, &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }));
        let descriptor = named(index.descriptor(), name);
        blobs.push(index);
        let layers = images.iter().flat_map(|image| &image.layers).collect();
        Archive { blobs, layers, index: descriptor, docker: None }
    }

    /// Writes it as a tar.
    pub fn write(self, path: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let directory = path.parent().expect("an archive is in a directory");
        std::fs::create_dir_all(directory).map_err(failed)?;
        let fresh = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        self.tar(io::BufWriter::new(&fresh)).map_err(failed)?;
        fresh.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    fn tar(mut self, to: impl io::Write) -> io::Result<()> {
        let mut builder = tar::Builder::new(to);
        let mut file = |name: &str, size: u64, from: &mut dyn io::Read| {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(0);
            header.set_mode(0o644);
            header.set_size(size);
            builder.append_data(&mut header, name, from)
        };
        let mut text = |name: &str, value: Value| {
            let text = value.to_string();
            file(name, text.len() as u64, &mut text.as_bytes())
        };
        text("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }))?;
        text("index.json", json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [self.index] }))?;
        if let Some(docker) = self.docker {
            text("manifest.json", docker)?;
        }
        self.blobs.sort_by(|a, b| a.digest.cmp(&b.digest));
        for blob in &self.blobs {
            file(&place(&blob.digest), blob.bytes.len() as u64, &mut &blob.bytes[..])?;
        }
        self.layers.sort_by(|a, b| a.digest.cmp(&b.digest));
        self.layers.dedup_by(|a, b| a.digest == b.digest);
        for layer in &self.layers {
            file(&place(&layer.digest), layer.bytes, &mut layer.read()?)?;
        }
        builder.into_inner()?.flush()
    }
}

/// A descriptor under the names that engines give an image: OCI's is the tag, containerd's the whole.
fn named(mut descriptor: Value, name: &str) -> Value {
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    descriptor["annotations"] = json!({
        "org.opencontainers.image.ref.name": tag,
        "io.containerd.image.name": format!("docker.io/{name}"),
    });
    descriptor
}

#[cfg(test)]
mod tests {
    use super::super::layer::{Content, Entry};
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    fn image(platform: Platform, text: &str) -> Image {
        let entries = [Entry { path: "server".into(), content: Content::Text(text.into()) }];
        let layers = vec![Layer::compressed(&entries).expect("it is written")];
        let name = "monomorph/some:thing".to_owned();
        Image { name, platform, labels: json!({}), environment: Vec::new(), layers }
    }

    /// An archive's files.
    fn files(archive: Archive) -> BTreeMap<String, Vec<u8>> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("it.tar");
        archive.write(&path).expect("it is written");
        let mut tar = tar::Archive::new(std::fs::File::open(path).expect("it is there"));
        let read = |entry: io::Result<tar::Entry<std::fs::File>>| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("UTF-8").display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("a whole file");
            (name, bytes)
        };
        tar.entries().expect("a tar").map(read).collect()
    }

    fn followed(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
        let digest =
            descriptor["digest"].as_str().and_then(|it| it.strip_prefix("sha256:")).expect("a digest");
        let bytes = &files[&place(digest)];
        assert_eq!(descriptor["size"], bytes.len());
        assert_eq!(hex(Sha256::new_with_prefix(bytes)), digest);
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    #[test]
    fn an_index_leads_to_the_image_of_each_platform() {
        let [amd, arm] = [(Platform::Amd64, "a"), (Platform::Arm64, "b")].map(|(it, text)| image(it, text));
        let files = files(Archive::index("monomorph/some:thing", &[&amd, &arm]));
        assert!(!files.contains_key("manifest.json"), "Docker's knows one platform");
        let entry: Value = serde_json::from_slice(&files["index.json"]).expect("JSON");
        let index = followed(&files, &entry["manifests"][0]);
        for (at, architecture) in ["amd64", "arm64"].into_iter().enumerate() {
            let descriptor = &index["manifests"][at];
            assert_eq!(descriptor["platform"]["architecture"], architecture);
            let manifest = followed(&files, descriptor);
            let config = followed(&files, &manifest["config"]);
            assert_eq!(config["architecture"], architecture);
            followed(&files, &manifest["layers"][0]);
        }
    }

    #[test]
    fn docker_finds_config_and_layers_where_oci_does() {
        let image = image(Platform::Amd64, "a");
        let files = files(Archive::of(&image));
        let docker: Value = serde_json::from_slice(&files["manifest.json"]).expect("JSON");
        assert_eq!(docker[0]["RepoTags"][0], "monomorph/some:thing");
        let places = [&docker[0]["Config"], &docker[0]["Layers"][0]];
        assert!(places.iter().all(|it| files.contains_key(it.as_str().expect("a path"))));
        let config: Value =
            serde_json::from_slice(&files[places[0].as_str().expect("a path")]).expect("JSON");
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", image.layers[0].uncompressed));
        assert_eq!(config["config"]["User"], "65532:65532");
    }
}
