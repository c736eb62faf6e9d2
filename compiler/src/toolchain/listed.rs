//! The committed list of what the kernels of all targets take, from which a survey knows most of them without
//! compiling them.

use super::cubin::Usage;
use super::nvcc::Compiler;
use super::{BuildError, replace};
use std::collections::BTreeMap;
use std::path::Path;

/// Characters of a kernel's digest in the list.
const KEY: usize = 32;
/// Kernels whose digest begins with this are compiled although they are listed: one in sixteen. Whenever
/// anything of a kernel changes it draws again.
const SAMPLED: char = '0';

/// Resources by kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The nvcc that compiled them. Digests include it, so kernels of another are all unlisted.
    compiler: String,
    usages: BTreeMap<String, Usage>,
}

impl Listed {
    /// A list without kernels, for one compiler.
    pub fn new(compiler: &Compiler) -> Listed {
        Listed { compiler: build(compiler), usages: BTreeMap::new() }
    }

    /// Whether a compiler made it.
    pub fn is_of(&self, compiler: &Compiler) -> bool {
        self.compiler == build(compiler)
    }

    /// Reads a list.
    ///
    /// # Errors
    /// When the file cannot be read, or a line is not what [`Listed::write`] would write.
    pub fn read(path: &Path) -> Result<Listed, BuildError> {
        let text = std::fs::read_to_string(path).map_err(|error| BuildError::Io(path.to_owned(), error))?;
        parse(&text).map_err(|why| BuildError::Tool(format!("{}:{why}", path.display())))
    }

    /// Writes it, a line a kernel, sorted.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), BuildError> {
        replace(path, render(self).as_bytes())
    }

    /// Adds a kernel by its whole digest.
    pub(super) fn add(&mut self, key: &str, usage: &Usage) {
        self.usages.insert(key[..KEY].to_owned(), usage.clone());
    }

    /// What a kernel takes.
    pub(super) fn get(&self, key: &str) -> Option<&Usage> {
        self.usages.get(&key[..KEY])
    }

    /// The digests that `needed` lacks.
    pub(super) fn without(&self, needed: &Listed) -> Vec<String> {
        self.usages.keys().filter(|key| !needed.usages.contains_key(*key)).cloned().collect()
    }
}

/// Whether a kernel is compiled although it is listed.
pub fn sampled(key: &str) -> bool {
    key.starts_with(SAMPLED)
}

/// Last line of `nvcc --version`, which names the build.
fn build(compiler: &Compiler) -> String {
    compiler.version().lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// The figures of a line, in its order.
fn figures(usage: &mut Usage) -> [&mut u32; 7] {
    let Usage { registers, spill_stores, spill_loads, stack, local, static_shared, barriers } = usage;
    [registers, static_shared, barriers, spill_stores, spill_loads, stack, local]
}

fn render(list: &Listed) -> String {
    let mut text = format!("{}\n", list.compiler);
    for (key, usage) in &list.usages {
        text += key;
        // Most kernels have nothing in local memory: zeros at the end are left out.
        let figures = figures(&mut usage.clone()).map(|it| *it);
        let count = figures.iter().rposition(|it| *it != 0).map_or(0, |at| at + 1);
        figures[..count].iter().for_each(|figure| text += &format!(" {figure}"));
        text += "\n";
    }
    text
}

fn parse(text: &str) -> Result<Listed, String> {
    let (compiler, rest) = text.split_once('\n').ok_or("1: there is no compiler")?;
    let mut list = Listed { compiler: compiler.to_owned(), usages: BTreeMap::new() };
    for (at, line) in rest.lines().enumerate() {
        let mut words = line.split(' ');
        let key = words.next().unwrap_or_default();
        let numbers: Option<Vec<u32>> = words.map(|word| word.parse().ok()).collect();
        let hexadecimal = key.len() == KEY && key.bytes().all(|it| b"0123456789abcdef".contains(&it));
        let last = list.usages.last_key_value().map_or("", |(last, _)| last);
        let numbers = numbers.filter(|it| it.len() <= 7 && hexadecimal && last < key);
        let numbers = numbers.ok_or(format!("{}: `{line}` is no line of a sorted list", at + 2))?;
        let mut usage = Usage::default();
        figures(&mut usage).into_iter().zip(numbers).for_each(|(figure, number)| *figure = number);
        list.usages.insert(key.to_owned(), usage);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::{KEY, Listed, parse, render};
    use crate::toolchain::cubin::Usage;

    #[test]
    fn a_list_is_read_as_it_was_written_and_in_no_other_form() {
        let mut list = Listed { compiler: "Build 1".to_owned(), ..Listed::default() };
        let plain = Usage { registers: 40, barriers: 1, ..Usage::default() };
        let spilling = Usage { registers: 255, spill_stores: 8, local: 16, ..Usage::default() };
        for (digit, usage) in [("b", &spilling), ("a", &plain), ("c", &Usage::default())] {
            list.add(&digit.repeat(64), usage);
        }
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(KEY));
        let text = format!("Build 1\n{a} 40 0 1\n{b} 255 0 0 8 0 0 16\n{c}\n");
        assert_eq!(render(&list), text);
        assert_eq!(parse(&text), Ok(list.clone()));
        assert_eq!(list.get(&"b".repeat(64)), Some(&spilling));
        for (wrong, line) in [
            (text.replace(" 40", " forty"), "2: "),
            (text.replace(" 16", " 16 0"), "3: "),
            (text.replace(&b, &"a".repeat(KEY)), "3: "),
            (text.replace(&b, &"B".repeat(KEY)), "3: "),
            (text.replace(&c, "<<<<<<<"), "4: "),
            (String::new(), "1: "),
        ] {
            let why = parse(&wrong).expect_err(&wrong);
            assert!(why.starts_with(line), "{why}");
        }
    }
}
