//! Files of a crate import each other in no circle (docs/adr/0042): what both sides need goes into a file
//! below them.
//!
//! An edge leads from a file to the one that defines what it names, whatever re-exports lie between. Only
//! sources count, not tests: `#[cfg(test)]` items and files are left out. A parent may hold types that the
//! files of its folder use, and may itself use those files: edges between the two do not count.

use super::source::Source;
use super::{files, read};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

/// The one file in circles, whose edges do not count. Its list makes the closed enums of all kinds of mixer,
/// op and phase, so it imports every block; the blocks implement its traits, and spec, graph and plan hold
/// its enums.
const CLOSED: (&str, &str) = ("compiler", "blocks/mod.rs");

pub fn breaches(root: &Path) -> Vec<String> {
    let runtime = std::fs::read_dir(root.join("runtime")).into_iter().flatten().flatten();
    let runtime = runtime.map(|entry| format!("runtime/{}", entry.file_name().to_string_lossy()));
    let mut crates: Vec<String> =
        ["compiler", "tests", "xtask"].map(str::to_owned).into_iter().chain(runtime).collect();
    crates.sort();
    crates.iter().flat_map(|name| of_crate(root, name)).collect()
}

fn of_crate(root: &Path, name: &str) -> Vec<String> {
    let (src, mut found, mut sources) = (root.join(name).join("src"), Vec::new(), BTreeMap::new());
    files::walk(&src, &mut |path| {
        let below = path.strip_prefix(&src).unwrap_or(path).to_string_lossy().into_owned();
        match (below.ends_with(".rs"), read(path)) {
            (true, Ok(text)) => drop(sources.insert(below, text)),
            (true, Err(why)) => found.push(why),
            (false, _) => {}
        }
    });
    let open = |file: &str| (name, file) != CLOSED;
    for circle in circles(&edges(&sources), open) {
        let circle = circle.join(" -> ");
        found.push(format!("{name}/src: {circle}: what they need of each other goes into a file below them"));
    }
    found
}

/// The module of a file below `src`: its names from the crate's root.
fn module(file: &str) -> Vec<String> {
    let stem = file.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if matches!(stem, "lib" | "main") { Vec::new() } else { stem.split('/').map(str::to_owned).collect() }
}

/// A module right below another.
fn child(of: &[String], name: &str) -> Vec<String> {
    of.iter().map(String::as_str).chain([name]).map(str::to_owned).collect()
}

/// Which file names what is in which others. `files` are texts by path below `src`.
fn edges(files: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let library = files.contains_key("lib.rs");
    let mut modules: BTreeMap<Vec<String>, (&str, Source)> = files
        .iter()
        .filter(|(file, _)| !(library && *file == "main.rs"))
        .map(|(file, text)| (module(file), (file.as_str(), Source::read(text))))
        .collect();
    let tests: Vec<Vec<String>> = modules
        .iter()
        .flat_map(|(of, (_, source))| source.tests.iter().map(|name| child(of, name)))
        .collect();
    modules.retain(|of, _| !tests.iter().any(|test| of.starts_with(test)));
    let crate_ = Crate { modules: &modules };
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (of, (file, source)) in &modules {
        let to = source.paths.iter().filter_map(|path| crate_.defining(of, path, true, 0));
        let to = to.filter(|to| !to.starts_with(of) && !of.starts_with(to));
        edges.insert(file, to.map(|to| modules[to].0).collect());
    }
    edges
}

struct Crate<'a> {
    modules: &'a BTreeMap<Vec<String>, (&'a str, Source)>,
}

impl<'a> Crate<'a> {
    /// The module that defines what `path` names in module `of`; `None` if it is in another crate, or the
    /// path is that of a module. `inline` paths may begin with a name that the module imports.
    fn defining(
        &self,
        of: &[String],
        path: &[String],
        inline: bool,
        depth: usize,
    ) -> Option<&'a Vec<String>> {
        // Imports that name each other end somewhere.
        if depth > 16 {
            return None;
        }
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => of.to_vec(),
            "super" => {
                let ups = rest.iter().take_while(|it| *it == "super").count();
                rest = &rest[ups..];
                of[..of.len().checked_sub(1 + ups)?].to_vec()
            }
            name if self.modules.contains_key(&child(of, name)) => {
                rest = path;
                of.to_vec()
            }
            name if inline => {
                let import = self.modules[of].1.imports.get(name)?;
                return self.defining(of, &[&import[..], rest].concat(), false, depth + 1);
            }
            _ => return None,
        };
        while let Some((next, behind)) = rest.split_first() {
            let below = child(&at, next);
            if !self.modules.contains_key(&below) {
                break;
            }
            (at, rest) = (below, behind);
        }
        let (module, (_, source)) = self.modules.get_key_value(&at)?;
        let name = rest.first()?;
        if source.defines.contains(name) {
            return Some(module);
        }
        if let Some(import) = source.imports.get(name) {
            return self.defining(&at, &[&import[..], &rest[1..]].concat(), false, depth + 1);
        }
        let mut globs = source.globs.iter();
        let through = globs.find_map(|glob| {
            let to = self.defining(&at, &[&glob[..], rest].concat(), false, depth + 1)?;
            self.modules[to].1.defines.contains(name).then_some(to)
        });
        // What is defined by no line of a file is made by one of its macros.
        through.or(Some(module))
    }
}

/// The shortest circle through each file that is in one, the files of earlier ones aside.
fn circles<'a>(
    edges: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    open: impl Fn(&str) -> bool,
) -> Vec<Vec<&'a str>> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for start in edges.keys().filter(|file| open(file)) {
        if known.contains(start) {
            continue;
        }
        let (mut before, mut queue) = (BTreeMap::new(), VecDeque::from([*start]));
        while let Some(file) = queue.pop_front() {
            for next in edges[file].iter().filter(|next| open(next)) {
                if before.contains_key(next) {
                    continue;
                }
                before.insert(*next, file);
                queue.push_back(next);
            }
        }
        if !before.contains_key(start) {
            continue;
        }
        let mut circle = vec![*start, before[start]];
        while circle.last() != Some(start) {
            circle.push(before[circle[circle.len() - 1]]);
        }
        circle.reverse();
        known.extend(circle.iter().copied());
        found.push(circle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn a_circle_is_named_in_order_and_what_is_none_is_not() {
        let root = planted(&[
            (
                "runtime/a/src/lib.rs",
                "mod one;\nmod two;\nmod three;\npub use one::One;\npub use two::Two;\n",
            ),
            ("runtime/a/src/one.rs", "use crate::three;\npub struct One(three::Three);\n"),
            // Through a re-export, and in a line that is no import.
            ("runtime/a/src/two.rs", "pub struct Two;\nfn f() { crate::One::new() }\n"),
            ("runtime/a/src/three/mod.rs", "mod four;\npub use four::*;\n"),
            (
                "runtime/a/src/three/four.rs",
                "use super::super::{Two, other::{self}};\npub struct Three(Two);\n",
            ),
            // Neither comments, strings, tests, nor a parent and its child.
            (
                "compiler/src/lib.rs",
                "mod up;\nmod down;\n#[cfg(test)]\nmod walk;\nmod parent;\nmod blocks;\npub struct Of;\n",
            ),
            ("compiler/src/up.rs", "use crate::down::Down;\npub struct Up;\n"),
            (
                "compiler/src/down.rs",
                "pub struct Down; // crate::up::Up\nconst TEXT: &str = \"crate::up::Up\";\n\
                 fn f<'a>(x: &'a str) { quote! { use crate::up::Up; } }\n\
                 #[cfg(test)]\nmod tests {\n    use crate::up::Up;\n}\n",
            ),
            ("compiler/src/walk.rs", "use crate::up::Up;\npub struct Walk;\n"),
            ("compiler/src/parent/mod.rs", "mod child;\npub struct Parent(child::Child);\n"),
            ("compiler/src/parent/child.rs", "pub struct Child(super::Parent, crate::Of);\n"),
            ("compiler/src/blocks/mod.rs", "mod block;\nuse crate::graph::Graph;\npub enum Block {}\n"),
            ("compiler/src/graph.rs", "use crate::blocks::Block;\npub struct Graph;\n"),
        ]);
        assert_eq!(
            breaches(root.path()),
            [
                "runtime/a/src: one.rs -> three/four.rs -> two.rs -> one.rs: what they need of each other goes \
                 into a file below them"
            ]
        );
    }
}
