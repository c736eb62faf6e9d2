//! Mistakes in specs: file, line, key, the mistake and the remedy.

use super::types::SpecFile;
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Columns at which a rendered diagnostic is wrapped.
const WIDTH: usize = 110;

/// One mistake in a spec.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The file, relative to the targets directory.
    pub file: PathBuf,
    /// Line of the first label, from 1; `None` if the mistake is not inside a file.
    pub line: Option<usize>,
    /// Dotted path of the key, such as `mixer.attention.heads`; empty for a whole file.
    pub key: String,
    /// Description of the mistake.
    pub message: String,
    /// Description of what would be right.
    pub help: String,
    /// Whether the specs are valid, but the hardware is too small for them.
    pub too_large: bool,
    /// Byte ranges of the file, each with its label; the first is the mistake itself.
    labels: Vec<(Range<usize>, String)>,
    text: Rc<str>,
}

impl Diagnostic {
    /// A mistake without a place in a file, such as a missing file.
    pub(crate) fn outside(file: &Path, message: String, help: String) -> Diagnostic {
        let file = file.to_owned();
        let (key, labels) = (String::new(), vec![]);
        Diagnostic { file, line: None, key, message, help, too_large: false, labels, text: "".into() }
    }

    /// Marks it as a lack of memory rather than a mistake of the specs.
    pub(crate) fn too_large(mut self) -> Diagnostic {
        self.too_large = true;
        self
    }

    /// Adds a second relevant place in the same file.
    pub(crate) fn also(mut self, span: Range<usize>, label: &str) -> Diagnostic {
        self.labels.push((span, label.to_owned()));
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostic {}

impl miette::Diagnostic for Diagnostic {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let spans = self.labels.iter().enumerate().map(|(index, (span, label))| {
            let (label, span) = (Some(label.clone()), span.clone());
            match index {
                0 => LabeledSpan::new_primary_with_span(label, span),
                _ => LabeledSpan::new_with_span(label, span),
            }
        });
        (!self.labels.is_empty()).then(|| Box::new(spans) as Box<dyn Iterator<Item = LabeledSpan>>)
    }
}

/// Everything wrong with a target, in order of file and line. Never empty.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The mistakes.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Renders the mistakes with their source lines, `colour`ed for a terminal or in plain ASCII.
    pub fn render(&self, colour: bool) -> String {
        let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::none() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(WIDTH).with_links(false);
        let mut out = String::new();
        for diagnostic in &self.list {
            let name = diagnostic.file.to_string_lossy();
            let source = NamedSource::new(name, diagnostic.text.to_string());
            let report = WithSource { diagnostic, source };
            if handler.render_report(&mut out, &report).is_err() {
                // The labels do not fit the text: report the mistake without them.
                out.push_str(&format!("{}: {}\n", diagnostic.file.display(), diagnostic.message));
            }
            out.push('\n');
        }
        let count = self.list.len();
        out.push_str(&format!("{count} mistake{} in the specs\n", if count == 1 { "" } else { "s" }));
        out
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

/// A diagnostic with the text that its labels point into, in miette's form.
#[derive(Debug)]
struct WithSource<'a> {
    diagnostic: &'a Diagnostic,
    source: NamedSource<String>,
}

impl fmt::Display for WithSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.diagnostic.fmt(f)
    }
}

impl std::error::Error for WithSource<'_> {}

impl miette::Diagnostic for WithSource<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        miette::Diagnostic::help(self.diagnostic)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.diagnostic.labels()
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.diagnostic.line.is_some().then_some(&self.source as &dyn SourceCode)
    }
}

/// Collects the mistakes of one target.
#[derive(Default)]
pub(crate) struct Sink {
    list: RefCell<Vec<Diagnostic>>,
}

impl Sink {
    /// Records a mistake.
    pub(crate) fn push(&self, diagnostic: Diagnostic) {
        self.list.borrow_mut().push(diagnostic);
    }

    /// Whether nothing was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// The recorded mistakes, or `value` if there are none.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, Diagnostics> {
        let mut list = self.list.into_inner();
        match value {
            Some(value) if list.is_empty() => Ok(value),
            _ => {
                // Stable: files keep the order they were read in, and lines ascend within each.
                let mut files: Vec<PathBuf> = Vec::new();
                for diagnostic in &list {
                    if !files.contains(&diagnostic.file) {
                        files.push(diagnostic.file.clone());
                    }
                }
                let file = |it: &Diagnostic| files.iter().position(|file| *file == it.file);
                list.sort_by_key(|it| (file(it), it.labels.first().map(|(span, _)| span.start)));
                Err(Diagnostics { list })
            }
        }
    }
}

/// A spec file, and the sink for its mistakes.
#[derive(Clone)]
pub(crate) struct Source<'a> {
    /// Path relative to the targets directory.
    pub(crate) name: PathBuf,
    /// The whole text.
    pub(crate) text: Rc<str>,
    /// Receives the mistakes.
    pub(crate) sink: &'a Sink,
}

impl Source<'_> {
    /// Name and digest, by which a build says what it was read from.
    pub(crate) fn file(&self) -> SpecFile {
        let hash = Sha256::digest(self.text.as_bytes());
        let sha256 = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        SpecFile { name: self.name.display().to_string(), sha256 }
    }

    /// A mistake in the value of `key` at `span`; `label` is printed under the span.
    pub(crate) fn mistake(
        &self,
        span: Range<usize>,
        key: &str,
        message: String,
        label: &str,
        help: String,
    ) -> Diagnostic {
        let span = self.inside(span);
        Diagnostic {
            file: self.name.clone(),
            line: Some(1 + self.text[..span.start].matches('\n').count()),
            key: key.to_owned(),
            message,
            help,
            too_large: false,
            labels: vec![(span, label.to_owned())],
            text: self.text.clone(),
        }
    }

    /// Records a mistake: see [`Source::mistake`].
    pub(crate) fn report(&self, span: Range<usize>, key: &str, message: String, label: &str, help: String) {
        self.sink.push(self.mistake(span, key, message, label, help));
    }

    /// The part of a span that lies inside the text, at character boundaries.
    fn inside(&self, span: Range<usize>) -> Range<usize> {
        let floor = |mut at: usize| {
            at = at.min(self.text.len());
            while !self.text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let start = floor(span.start);
        start..floor(span.end).max(start)
    }
}
