//! Records what readers ask for as JSON schemas: the OpenAPI document is made by running them on samples.

use crate::error::ApiError;
use crate::openapi::schema::{about, any_of, request, words};
use serde_json::Value;
use std::cell::RefCell;

thread_local! {
    /// The objects read since a description began, if one did.
    static READ: RefCell<Option<Vec<Object>>> = const { RefCell::new(None) };
}

/// Whether what is read on this thread is to be described.
pub(super) fn recording() -> bool {
    READ.with_borrow(Option::is_some)
}

/// The schema of the object that `read` finds at `path`, as it reads `samples`: one for each kind of object.
/// No sample may be refused.
pub(crate) fn described<T>(
    path: &str,
    samples: impl IntoIterator<Item = Value>,
    read: impl Fn(&Value) -> Result<T, ApiError>,
) -> Value {
    let outer = READ.replace(Some(Vec::new()));
    for sample in samples {
        let taken = read(&sample);
        debug_assert!(taken.is_ok(), "{sample} is refused: {:?}", taken.err());
    }
    let objects = READ.replace(outer).unwrap_or_default();
    of_path(&objects, &without_indices(path))
}

/// The schema of the objects that stand at a path.
fn of_path(objects: &[Object], path: &str) -> Value {
    let mut kinds: Vec<Object> = Vec::new();
    for object in objects.iter().filter(|object| object.path == path) {
        match kinds.iter_mut().find(|kind| kind.is_as(object)) {
            Some(kind) => kind.merge(object),
            None => kinds.push(object.clone()),
        }
    }
    debug_assert!(!kinds.is_empty(), "no sample has an object at {path:?}");
    let mut schemas: Vec<Value> = kinds.iter().map(|kind| kind.schema(objects)).collect();
    if schemas.len() == 1 { schemas.remove(0) } else { any_of(schemas) }
}

fn without_indices(path: &str) -> String {
    path.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// An object that is read.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Indices left out.
    path: String,
    properties: Vec<Property>,
    next: Next,
}

#[derive(Clone, Debug, PartialEq)]
struct Property {
    name: &'static str,
    /// An object where there is none.
    schema: Option<Value>,
    about: Option<String>,
    required: bool,
    /// The words by which kinds of objects are told from each other.
    tags: Vec<String>,
}

/// Description of the next field.
#[derive(Clone, Debug, Default)]
struct Next {
    schema: Option<Value>,
    about: Option<String>,
}

impl Object {
    pub(super) fn new(path: &str) -> Object {
        Object { path: without_indices(path), properties: Vec::new(), next: Next::default() }
    }

    pub(super) fn next_is(&mut self, schema: Value) {
        self.next.schema = Some(schema);
    }

    pub(super) fn next_about(&mut self, text: String) {
        self.next.about = Some(text);
    }

    fn property(&mut self, name: &str) -> Option<&mut Property> {
        self.properties.iter_mut().find(|property| property.name == name)
    }

    /// If a field is read twice, its first description counts.
    pub(super) fn add(&mut self, name: &'static str, schema: Option<Value>) {
        let next = std::mem::take(&mut self.next);
        if self.property(name).is_none() {
            let (schema, about) = (next.schema.or(schema), next.about);
            self.properties.push(Property { name, schema, about, required: false, tags: Vec::new() });
        }
    }

    pub(super) fn holds(&mut self, name: &str) {
        if let Some(property) = self.property(name) {
            property.required = true;
        }
    }

    pub(super) fn has_only(&mut self, name: &str) {
        self.properties.retain(|property| property.name == name);
        self.holds(name);
    }

    pub(super) fn lacks(&mut self, names: &[&str]) {
        self.properties.retain(|property| !names.contains(&property.name));
    }

    pub(super) fn tagged(&mut self, name: &str, word: &str) {
        if let Some(property) = self.property(name) {
            property.tags.push(word.to_owned());
        }
    }

    /// It was read to its end.
    pub(super) fn told(self) {
        READ.with_borrow_mut(|read| read.iter_mut().for_each(|read| read.push(self.clone())));
    }

    /// Whether another is of the same kind, but for the words of tags.
    fn is_as(&self, other: &Object) -> bool {
        let untagged = |object: &Object| -> Vec<Property> {
            let properties = object.properties.iter().cloned();
            properties.map(|property| Property { tags: Vec::new(), ..property }).collect()
        };
        untagged(self) == untagged(other)
    }

    fn merge(&mut self, other: &Object) {
        for (own, other) in self.properties.iter_mut().zip(&other.properties) {
            let more = other.tags.iter().filter(|tag| !own.tags.contains(tag));
            let more: Vec<String> = more.cloned().collect();
            own.tags.extend(more);
        }
    }

    fn schema(&self, objects: &[Object]) -> Value {
        let of = |property: &Property| {
            let below = || match self.path.as_str() {
                "" => of_path(objects, property.name),
                path => of_path(objects, &format!("{path}.{}", property.name)),
            };
            let schema = match &property.schema {
                _ if !property.tags.is_empty() => words(&property.tags),
                Some(schema) => schema.clone(),
                None => below(),
            };
            (property.name, property.about.iter().fold(schema, |schema, text| about(text, schema)))
        };
        let required = self.properties.iter().filter(|it| it.required).map(|it| it.name);
        request(&required.collect::<Vec<_>>(), self.properties.iter().map(of).collect())
    }
}

/// Where objects were read, so that a test may see that every reader is described.
#[cfg(test)]
pub(crate) mod seen {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::panic::Location;

    thread_local!(static SEEN: RefCell<BTreeSet<(&'static str, u32)>> = RefCell::default());

    #[track_caller]
    pub(in crate::request) fn reader() {
        let at = Location::caller();
        SEEN.with_borrow_mut(|seen| seen.insert((at.file(), at.line())));
    }

    /// Files and lines that read objects since this was called last.
    pub(crate) fn take() -> BTreeSet<(&'static str, u32)> {
        SEEN.take()
    }
}
