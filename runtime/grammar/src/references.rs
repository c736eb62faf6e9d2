//! The references of a schema: JSON pointers, decoded, are redirected to `$defs` with plain names. Schemas
//! that nothing refers to are not read.

use crate::source::{MAX_BYTES, size};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The parts of a pointer, decoded.
pub(crate) type Pointer = Vec<String>;

/// A target of a reference that has not been read yet.
pub(crate) struct Target<'a> {
    /// Its name in `$defs`.
    pub(crate) name: String,
    /// Its path, as in errors.
    pub(crate) path: String,
    pub(crate) schema: &'a Value,
}

/// The references of a schema.
pub(crate) struct References<'a> {
    root: &'a Value,
    /// The names of the targets, by their decoded pointers.
    names: BTreeMap<Pointer, String>,
    taken: BTreeSet<String>,
    waiting: Vec<Target<'a>>,
    bytes: usize,
}

impl<'a> References<'a> {
    pub(crate) fn new(root: &'a Value) -> References<'a> {
        References { root, names: BTreeMap::new(), taken: BTreeSet::new(), waiting: Vec::new(), bytes: 0 }
    }

    /// A reference to the same target in `$defs`.
    ///
    /// # Errors
    /// Why it leads nowhere.
    pub(crate) fn follow(&mut self, reference: &str) -> Result<String, String> {
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err("leads out of this schema, which is not followed".to_owned());
        };
        let parts = parts(fragment)?;
        if let Some(name) = self.names.get(&parts) {
            return Ok(format!("#/$defs/{name}"));
        }
        let (mut schema, mut path) = (self.root, String::new());
        for part in &parts {
            let (next, at) = match schema {
                Value::Array(items) => {
                    let at = part.parse::<usize>().ok();
                    (at.and_then(|at| items.get(at)), format!("[{part}]"))
                }
                Value::Object(members) => (members.get(part), format!(".{part}")),
                _ => (None, String::new()),
            };
            schema = next.ok_or_else(|| format!("leads to nothing in this schema: {reference:?}"))?;
            path.push_str(&at);
        }
        // Nested parts of the schema may each be referred to.
        self.bytes += size(schema);
        if self.bytes > 2 * MAX_BYTES {
            return Err(format!(
                "is one of too many: what is referred to has more than {} bytes",
                2 * MAX_BYTES
            ));
        }
        let name = self.name(&parts);
        self.taken.insert(name.clone());
        self.waiting.push(Target { name: name.clone(), path, schema });
        self.names.insert(parts, name.clone());
        Ok(format!("#/$defs/{name}"))
    }

    /// The target's own name, if it has one that needs no escapes.
    fn name(&self, parts: &[String]) -> String {
        let is_plain = |name: &str| {
            !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || "_-.".contains(it))
        };
        if let [definitions, name] = parts
            && ["$defs", "definitions"].contains(&definitions.as_str())
            && is_plain(name)
            && !self.taken.contains(name)
        {
            return name.clone();
        }
        let mut count = self.taken.len();
        loop {
            let name = format!("at-{count}");
            if !self.taken.contains(&name) {
                return name;
            }
            count += 1;
        }
    }

    /// A target that has not been read yet.
    pub(crate) fn next(&mut self) -> Option<Target<'a>> {
        self.waiting.pop()
    }
}

/// The parts of a pointer after `#`.
///
/// # Errors
/// Why it is not a pointer.
pub(crate) fn parts(fragment: &str) -> Result<Pointer, String> {
    let pointer = unescaped(fragment)
        .ok_or("has an invalid escape: it must be `%` and two hexadecimal digits, of UTF-8")?;
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let Some(pointer) = pointer.strip_prefix('/') else {
        return Err(format!(
            "must be `#`, or lead from there as `#/$defs/name`, and is {:?}",
            format!("#{pointer}")
        ));
    };
    let part = |part: &str| {
        let mut rest = part;
        while let Some(at) = rest.find('~') {
            rest = &rest[at + 1..];
            if !rest.starts_with(['0', '1']) {
                return Err("has a `~` that is neither `~0`, which is `~`, nor `~1`, which is `/`".to_owned());
            }
        }
        Ok(part.replace("~1", "/").replace("~0", "~"))
    };
    pointer.split('/').map(part).collect()
}

/// Decodes percent escapes.
fn unescaped(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &behind[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pointers_are_decoded_once_and_in_their_order() {
        let split = |fragment| parts(fragment).map_err(|why| why.chars().take(12).collect::<String>());
        let owned = |parts: &[&str]| Ok(parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(split(""), owned(&[]));
        assert_eq!(split("/"), owned(&[""]));
        assert_eq!(split("/$defs/a~1b"), owned(&["$defs", "a/b"]));
        assert_eq!(split("/$defs/a~01"), owned(&["$defs", "a~1"]));
        assert_eq!(split("/$defs/50%25"), owned(&["$defs", "50%"]));
        assert_eq!(split("/%24defs/a%20%C3%A9"), owned(&["$defs", "a é"]));
        assert_eq!(split("/a%2Fb"), owned(&["a", "b"]), "addresses are decoded first");
        for bad in ["/a%", "/a%2", "/a%zz", "/%FF", "/a~", "/a~2", "anchor"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn targets_have_names_of_their_own_and_are_read_once() {
        let root = json!({"$defs": {"a": 1, "b c": 2, "a.-_9": 6, "": 7}, "definitions": {"a": 3}, "items": [4, {"x": 5}]});
        let mut references = References::new(&root);
        for (reference, name) in [
            ("#/$defs/a", "a"),
            ("#/$defs/a", "a"),
            ("#/definitions/a", "at-1"),
            ("#/$defs/b%20c", "at-2"),
            ("#/items/1/x", "at-3"),
            ("#/$defs/a.-_9", "a.-_9"),
            ("#/$defs/", "at-5"),
            ("#/$defs/b c", "at-2"),
            ("#", "at-6"),
        ] {
            assert_eq!(references.follow(reference), Ok(format!("#/$defs/{name}")), "{reference}");
        }
        let mut found: Vec<_> =
            std::iter::from_fn(|| references.next()).map(|it| (it.name, it.path)).collect();
        found.sort();
        let expected = [
            ("a", ".$defs.a"),
            ("a.-_9", ".$defs.a.-_9"),
            ("at-1", ".definitions.a"),
            ("at-2", ".$defs.b c"),
            ("at-3", ".items[1].x"),
            ("at-5", ".$defs."),
            ("at-6", ""),
        ];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
        for bad in ["#/gone", "#/items/2", "#/items/x", "#/$defs/a/b", "other", "#x"] {
            assert!(references.follow(bad).is_err(), "{bad}");
        }
        // A name that is given to another is passed over.
        let root = json!({"x": 1, "$defs": {"at-1": 2, "at-2": 3}});
        let mut references = References::new(&root);
        let names = ["#/$defs/at-1", "#/x", "#/$defs/at-2", "#"]
            .map(|it| references.follow(it).expect("it leads somewhere"));
        assert_eq!(names, ["#/$defs/at-1", "#/$defs/at-2", "#/$defs/at-3", "#/$defs/at-4"]);
    }

    #[test]
    fn what_is_referred_to_has_as_many_bytes_as_two_sources() {
        // Each of four is half as large as a source.
        let text = |bytes: usize| Value::from("a".repeat(bytes - 2));
        let half = MAX_BYTES / 2;
        for (last, fits) in [(half, true), (half + 1, false)] {
            let root = json!({"a": text(half), "b": text(half), "c": text(half), "d": text(last)});
            let mut references = References::new(&root);
            let followed = ["#/a", "#/b", "#/c", "#/a", "#/d"].map(|it| references.follow(it).is_ok());
            assert_eq!(followed, [true, true, true, true, fits]);
        }
    }
}
