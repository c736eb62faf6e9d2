//! A typed reader of TOML documents that continues after a mistake. It reports each mistake with its span,
//! and every key that was never read as unknown.
//!
//! Every reading function returns `None` if there is no usable value; it has reported why.

use super::diagnostic::Source;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and its span.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
}

/// Parses a file; `None` after reporting every syntax error.
pub(crate) fn parse<'t>(source: &Source, text: &'t str) -> Option<Spanned<DeTable<'t>>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let message = format!("not valid TOML: {}", error.message().replace('\n', "; "));
        let help = "correct the syntax: https://toml.io/en/v1.1.0".to_owned();
        source.report(error.span().unwrap_or(0..0), "", message, "here", help);
    }
    errors.is_empty().then_some(root)
}

/// A table whose keys are read one by one; [`Table::finish`] reports those never read.
pub(crate) struct Table<'a> {
    source: &'a Source<'a>,
    map: &'a DeTable<'a>,
    path: String,
    span: Range<usize>,
    known: Vec<String>,
}

impl<'a> Table<'a> {
    /// The root table of a document.
    pub(crate) fn root(source: &'a Source<'a>, root: &'a Spanned<DeTable<'a>>) -> Table<'a> {
        Table { source, map: root.get_ref(), path: String::new(), span: 0..0, known: Vec::new() }
    }

    /// Start of the table.
    pub(crate) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The full name of one of its keys.
    pub(crate) fn key(&self, key: &str) -> String {
        // Keys such as "layers.{layer}.norm" are quoted as TOML requires.
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let key = if key.chars().all(bare) { key.to_owned() } else { format!("{key:?}") };
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    /// An optional value.
    pub(crate) fn optional(&mut self, key: &str) -> Option<Value<'a>> {
        self.known.push(key.to_owned());
        let value = self.map.get(key)?;
        Some(Value { source: self.source, value, path: self.key(key) })
    }

    /// A required value; `example` is a valid line.
    pub(crate) fn required(&mut self, key: &str, example: &str) -> Option<Value<'a>> {
        let value = self.optional(key);
        if value.is_none() {
            let (path, span) = (self.key(key), self.span.clone());
            let label = if self.path.is_empty() { "not in this file" } else { "not in this table" };
            self.source.report(
                span,
                &path,
                format!("`{path}` is missing"),
                label,
                format!("add `{example}`"),
            );
        }
        value
    }

    /// A required table.
    pub(crate) fn table(&mut self, key: &str) -> Option<Table<'a>> {
        let example = format!("[{}]", self.key(key));
        self.required(key, &example)?.table()
    }

    /// Every key with its span and value, for tables whose keys are data.
    pub(crate) fn entries(&mut self) -> Vec<(At<String>, Value<'a>)> {
        self.entries_that(|_| true)
    }

    /// Every key that is `wanted`, with its span and value, in the order of the file.
    pub(crate) fn entries_that(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(At<String>, Value<'a>)> {
        let entry = |(key, value): (&'a Spanned<_>, &'a Spanned<_>)| {
            let key: At<String> = At { value: String::clone(&cow(key)), span: key.span() };
            let value = Value { source: self.source, value, path: self.key(&key.value) };
            (key, value)
        };
        let mut entries: Vec<_> = self.map.iter().map(entry).filter(|(key, _)| wanted(&key.value)).collect();
        entries.sort_by_key(|(key, _)| key.span.start);
        self.known.extend(entries.iter().map(|(key, _)| key.value.clone()));
        entries
    }

    /// Reports every key that was never read.
    pub(crate) fn finish(self) {
        for (key, _) in self.map {
            let name = cow(key);
            if self.known.contains(&name) {
                continue;
            }
            let path = self.key(&name);
            let known = self.known.iter().map(String::as_str);
            let help = match nearest(&name, known.clone()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", list(known)),
            };
            self.source.report(key.span(), &path, format!("unknown key `{path}`"), "unknown", help);
        }
    }
}

fn cow(key: &Spanned<std::borrow::Cow<'_, str>>) -> String {
    key.get_ref().clone().into_owned()
}

/// A value of any type.
pub(crate) struct Value<'a> {
    source: &'a Source<'a>,
    value: &'a Spanned<DeValue<'a>>,
    path: String,
}

impl<'a> Value<'a> {
    /// Span of the value.
    pub(crate) fn span(&self) -> Range<usize> {
        self.value.span()
    }

    /// Whether it is a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::Table(_))
    }

    /// Whether it is a string.
    pub(crate) fn is_string(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::String(_))
    }

    /// The full name of its key.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    fn at<T>(&self, value: T) -> At<T> {
        At { value, span: self.span() }
    }

    /// Reports that the value is not `wanted`.
    pub(crate) fn wrong(&self, message: String, label: &str, help: String) {
        self.source.report(self.span(), &self.path, message, label, help);
    }

    fn wrong_type(&self, wanted: &str) {
        let found = match self.value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        let message = format!("`{}` is {found} where {wanted} is wanted", self.path);
        self.wrong(message, found, format!("write {wanted}"));
    }

    /// A whole number within `range`.
    pub(crate) fn integer(self, range: RangeInclusive<u64>) -> Option<At<u64>> {
        let DeValue::Integer(integer) = self.value.get_ref() else {
            self.wrong_type("an integer");
            return None;
        };
        match u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|it| range.contains(it)) {
            Some(value) => Some(self.at(value)),
            None => {
                let (low, high) = (range.start(), range.end());
                let message = format!("`{}` = {integer} is out of range", self.path);
                self.wrong(message, "out of range", format!("a whole number from {low} to {high}"));
                None
            }
        }
    }

    /// A dimension or count within `range`.
    pub(crate) fn size(self, range: RangeInclusive<u64>) -> Option<At<usize>> {
        let At { value, span } = self.integer(range)?;
        Some(At { value: usize::try_from(value).ok()?, span })
    }

    /// A finite number that `holds`; `what` describes the condition.
    pub(crate) fn number(self, what: &str, holds: impl Fn(f64) -> bool) -> Option<At<f64>> {
        let number = match self.value.get_ref() {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse::<f64>().ok(),
            _ => {
                self.wrong_type("a number");
                return None;
            }
        };
        match number.filter(|it| it.is_finite() && holds(*it)) {
            Some(value) => Some(self.at(value)),
            None => {
                let written = match self.value.get_ref() {
                    DeValue::Float(float) => float.to_string(),
                    DeValue::Integer(integer) => integer.to_string(),
                    _ => String::new(),
                };
                let message = format!("`{}` = {written} is out of range", self.path);
                self.wrong(message, "out of range", format!("a number {what}"));
                None
            }
        }
    }

    /// A finite number above 0.
    pub(crate) fn positive(self) -> Option<At<f64>> {
        self.number("above 0", |it| it > 0.0)
    }

    /// `true` or `false`.
    pub(crate) fn boolean(self) -> Option<At<bool>> {
        match self.value.get_ref() {
            DeValue::Boolean(value) => Some(self.at(*value)),
            _ => {
                self.wrong_type("`true` or `false`");
                None
            }
        }
    }

    /// A non-empty string.
    pub(crate) fn string(self) -> Option<At<String>> {
        match self.value.get_ref() {
            DeValue::String(value) if value.is_empty() => {
                self.wrong(format!("`{}` is empty", self.path), "empty", "write something".to_owned());
                None
            }
            DeValue::String(value) => Some(self.at(value.clone().into_owned())),
            _ => {
                self.wrong_type("a string");
                None
            }
        }
    }

    /// A string that `holds`; `what` describes the condition.
    pub(crate) fn string_that(self, what: &str, holds: impl Fn(&str) -> bool) -> Option<At<String>> {
        let (source, path) = (self.source, self.path.clone());
        let text = self.string()?;
        if holds(&text.value) {
            return Some(text);
        }
        let message = format!("`{path}` = {:?} is not {what}", text.value);
        source.report(text.span, &path, message, "malformed", format!("write {what}"));
        None
    }

    /// One of a few names.
    pub(crate) fn choice<T: Copy>(self, choices: &[(&str, T)]) -> Option<At<T>> {
        let (source, path) = (self.source, self.path.clone());
        let text = self.string()?;
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text.value) {
            return Some(At { value: *value, span: text.span });
        }
        let names = choices.iter().map(|(name, _)| *name);
        let near = nearest(&text.value, names.clone()).map(|near| format!("; did you mean {near:?}?"));
        let help = format!("known here: {}{}", list(names), near.unwrap_or_default());
        let message = format!("`{path}` = {:?} is not known", text.value);
        source.report(text.span, &path, message, "unknown", help);
        None
    }

    /// The elements of an array.
    pub(crate) fn array(self) -> Option<At<Vec<Value<'a>>>> {
        let DeValue::Array(array) = self.value.get_ref() else {
            self.wrong_type("an array");
            return None;
        };
        let element =
            |(index, value)| Value { source: self.source, value, path: format!("{}[{index}]", self.path) };
        Some(self.at(array.iter().enumerate().map(element).collect()))
    }

    /// An array whose elements are read by `read`; every bad element is reported.
    pub(crate) fn list<T>(self, read: impl Fn(Value<'a>) -> Option<T>) -> Option<At<Vec<T>>> {
        let At { value, span } = self.array()?;
        let read: Vec<Option<T>> = value.into_iter().map(read).collect();
        Some(At { value: read.into_iter().collect::<Option<_>>()?, span })
    }

    /// [`Value::list`] of an array with a fixed number of elements, called `what`.
    pub(crate) fn list_of<T>(
        self,
        count: RangeInclusive<usize>,
        what: &str,
        read: impl Fn(Value<'a>) -> Option<T>,
    ) -> Option<At<Vec<T>>> {
        let (source, path) = (self.source, self.path.clone());
        let list = self.list(read)?;
        if count.contains(&list.value.len()) {
            return Some(list);
        }
        let message = format!("`{path}` has {} {what}", list.value.len());
        let help = format!("write {} to {} {what}", count.start(), count.end());
        source.report(list.span, &path, message, "its length", help);
        None
    }

    /// The value as a table; records a diagnostic if it is not one.
    pub(crate) fn table(self) -> Option<Table<'a>> {
        let DeValue::Table(map) = self.value.get_ref() else {
            self.wrong_type("a table");
            return None;
        };
        Some(Table { source: self.source, map, span: self.span(), path: self.path, known: Vec::new() })
    }
}

/// Names joined for a sentence.
pub(crate) fn list(names: impl Iterator<Item = impl Display>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The known name that is most likely meant.
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let distance = |other: &str| strsim::damerau_levenshtein(name, other);
    let (distance, near) = known.map(|other| (distance(other), other)).min()?;
    (distance <= (name.chars().count() / 3).max(1)).then_some(near)
}
