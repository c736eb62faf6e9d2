//! The book is complete: its index names every page and every decision by title, and no link or anchor is
//! dead.

use super::read;
use crate::pages;
use std::collections::BTreeMap;
use std::path::Path;

pub fn breaches(root: &Path) -> Vec<String> {
    let docs = root.join("docs");
    let index = match read(&docs.join("README.md")) {
        Ok(index) => index,
        Err(why) => return vec![why],
    };
    [pages_missing(&docs, &index), decisions(&docs, &index), links_to_nothing(root)].concat()
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The paths and anchors of a page's links within the book; either may be empty.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    targets.filter(|link| !link.contains("://")).map(|link| link.split_once('#').unwrap_or((link, "")))
}

/// Whether a page has a heading with this anchor, as GitHub makes anchors of headings.
fn has_anchor(page: &str, anchor: &str) -> bool {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|line| line.trim_start_matches('#').trim().to_lowercase()).any(|heading| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).eq(anchor.chars())
    })
}

fn pages_missing(docs: &Path, index: &str) -> Vec<String> {
    let names = pages::of(docs).into_iter().map(|page| name(&page));
    let missing = names.filter(|page| page != "README.md" && !links(index).any(|(link, _)| link == page));
    missing.map(|page| format!("docs/README.md: {page} is not named")).collect()
}

/// Checks that a row of the index has a decision's number, path and title as the page itself does, and that
/// the path matches the title.
fn decisions(docs: &Path, index: &str) -> Vec<String> {
    let row = |line: &str| {
        let (link, title) = line.strip_prefix("| [0")?.strip_suffix(" |")?.split_once(") | ")?;
        let (number, path) = link.split_once("](")?;
        Some((path.to_owned(), (format!("0{number}"), title.to_owned())))
    };
    let mut rows: BTreeMap<String, (String, String)> = index.lines().filter_map(row).collect();
    let mut found = Vec::new();
    for page in pages::of(&docs.join("adr")) {
        let path = format!("adr/{}", name(&page));
        let text = match read(&page) {
            Ok(text) => text,
            Err(why) => {
                found.push(why);
                continue;
            }
        };
        let heading = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
        let Some((number, title)) = heading.split_once(": ") else {
            found.push(format!("docs/{path}: `{heading}` is not a number and a title"));
            continue;
        };
        if !path.starts_with(&format!("adr/{number}-")) {
            found.push(format!("docs/{path}: it is titled {number}"));
        }
        match rows.remove(&path) {
            None => found.push(format!("docs/README.md: {path} is not listed")),
            Some(row) if row != (number.to_owned(), title.to_owned()) => {
                found.push(format!("docs/README.md: {path} is listed as {} {:?}", row.0, row.1));
            }
            Some(_) => {}
        }
    }
    found.extend(rows.into_keys().map(|path| format!("docs/README.md: there is no {path}")));
    found
}

fn links_to_nothing(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (page, name, text) in pages::all(root) {
        match text {
            Err(why) => found.push(why),
            Ok(text) => {
                let beside = page.parent().unwrap_or(root);
                for (link, anchor) in links(&text) {
                    let path = if link.is_empty() { page.clone() } else { beside.join(link) };
                    if !path.exists() {
                        found.push(format!("{name}: {link} is not there"));
                    } else if !anchor.is_empty() && !read(&path).is_ok_and(|text| has_anchor(&text, anchor)) {
                        found.push(format!("{name}: {link} has no heading #{anchor}"));
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const WHOLE: [(&str, &str); 4] = [
        ("README.md", "[a page](docs/a.md)\n# Part\n"),
        ("docs/README.md", "[a](a.md)\n| [0001](adr/0001-so.md) | So it is |\n"),
        (
            "docs/a.md",
            "## It is `so`\n[up](../README.md#part), [elsewhere](https://example.com#x), [here](#it-is-so)",
        ),
        ("docs/adr/0001-so.md", "# 0001: So it is\n"),
    ];

    #[test]
    fn a_whole_book_has_no_breach_and_each_hole_is_named() {
        assert_eq!(breaches(planted(&WHOLE).path()), [""; 0]);
        for ((path, text), expected) in [
            (("docs/b.md", ""), "docs/README.md: b.md is not named"),
            (
                ("docs/adr/0002-other.md", "# 0002: Other\n"),
                "docs/README.md: adr/0002-other.md is not listed",
            ),
            (
                ("docs/adr/0001-so.md", "# 0001: Not so\n"),
                "docs/README.md: adr/0001-so.md is listed as 0001 \"So it is\"",
            ),
            (("docs/adr/0001-so.md", "# 0003: So it is\n"), "docs/adr/0001-so.md: it is titled 0003"),
            (("docs/adr/0001-so.md", "So it is\n"), "docs/adr/0001-so.md: `` is not a number and a title"),
            (("docs/a.md", "[gone](gone.md)"), "docs/a.md: gone.md is not there"),
            (("docs/a.md", "[up](../README.md#parts)"), "docs/a.md: ../README.md has no heading #parts"),
            (("docs/a.md", "# Here\n[here](#there)"), "docs/a.md:  has no heading #there"),
            (("generated/README.md", "[gone](gone.md)"), "generated/README.md: gone.md is not there"),
            (("tests/reference/README.md", "[x](#x)"), "tests/reference/README.md:  has no heading #x"),
        ] {
            let root = planted(&[&WHOLE[..], &[(path, text)]].concat());
            assert!(breaches(root.path()).contains(&expected.to_owned()), "{:?}", breaches(root.path()));
        }
    }
}
