//! Makes a book of HTML from docs/: mdBook lays it out, lychee checks the links of what came out.

use crate::{pages, paths};
use monomorph_compiler::toolchain::python::{environment, run};
use pulldown_cmark::{Event, Options, Parser, Tag};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The address of this repository, whose files that are no pages links of the book lead to.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The page that lists the others, and its name in the book, where it is the first.
const INDEX: [&str; 2] = ["README.md", "index.md"];
/// What is copied as it is.
const IMAGES: &str = "images";

/// Writes the book to `out` and returns its first page.
///
/// # Errors
/// Says what cannot be written, fetched or laid out, and which links are dead.
pub fn book(root: &Path, out: &Path) -> Result<PathBuf, String> {
    let [source, html] = ["src", "html"].map(|name| out.join(name));
    let config = out.join("book.toml");
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    // Pages that are gone must not stay, and the files of another program must.
    let others = !config.exists() && out.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if others {
        return Err(format!("{} has files of something else; name a directory for the book", out.display()));
    }
    if source.exists() {
        std::fs::remove_dir_all(&source).map_err(|error| named(&source, error))?;
    }
    let write = |path: &Path, text: &[u8]| {
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| named(path, error))?;
        std::fs::write(path, text).map_err(|error| named(path, error))
    };
    write(&config, settings().as_bytes())?;
    let docs = root.join("docs");
    for directory in ["", "adr"] {
        for page in pages::of(&docs.join(directory)) {
            let text = within(root, &page, &paths::read(&page)?);
            write(&source.join(place(below(&docs, &page))), text.as_bytes())?;
        }
    }
    for entry in docs.join(IMAGES).read_dir().map_err(|error| named(&docs.join(IMAGES), error))? {
        let path = entry.map_err(|error| named(&docs, error))?.path();
        let image = std::fs::read(&path).map_err(|error| named(&path, error))?;
        write(&source.join(below(&docs, &path)), &image)?;
    }
    write(&source.join("SUMMARY.md"), summary(&docs)?.as_bytes())?;

    let tools = root.join("target/venv-book");
    environment(&tools, &root.join("xtask/book/requirements.txt"))?;
    run(Command::new(tools.join("bin/mdbook")).arg("build").arg(out))?;
    let mut links = Command::new(tools.join("bin/lychee"));
    links.args(["--offline", "--include-fragments", "--no-progress", "--quiet"]);
    run(links.arg("--root-dir").arg(absolute(&html)?).arg(&html))
        .map_err(|why| format!("links of the book: {why}"))?;
    Ok(html.join("index.html"))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn below<'a>(directory: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(directory).unwrap_or(path)
}

/// Where a page of docs/ stands in the book.
fn place(page: &Path) -> &Path {
    if page == Path::new(INDEX[0]) { Path::new(INDEX[1]) } else { page }
}

fn settings() -> String {
    format!(
        "[book]\ntitle = \"Monomorph\"\nlanguage = \"en\"\n\n\
         [build]\nbuild-dir = \"html\"\ncreate-missing = false\n\n\
         [output.html]\ngit-repository-url = \"{REPOSITORY}\"\n\n\
         [output.html.print]\nenable = false\n"
    )
}

/// The order of the book: that of the tables of its index, whose headings are its parts.
fn summary(docs: &Path) -> Result<String, String> {
    let mut text = format!("# Summary\n\n[The book]({})\n", INDEX[1]);
    let mut part = None;
    for line in paths::read(&docs.join(INDEX[0]))?.lines() {
        part = line.strip_prefix("## ").or(part);
        let link = line.strip_prefix("| [").and_then(|row| row.split_once("](")?.1.split_once(')'));
        let Some((page, _)) = link else { continue };
        let title = paths::read(&docs.join(page))?;
        let title = title.lines().next().and_then(|line| line.strip_prefix("# "));
        let title = title.ok_or_else(|| format!("docs/{page}: it begins with no title"))?;
        part.take().into_iter().for_each(|part| text.push_str(&format!("\n# {part}\n\n")));
        text.push_str(&format!("- [{title}]({page})\n"));
    }
    Ok(text)
}

/// The text of a page with its links as the book needs them.
fn within(root: &Path, page: &Path, text: &str) -> String {
    let mut changed = text.to_owned();
    // Offsets before a link stay while those behind it move.
    let links: Vec<_> = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter().collect();
    for (event, range) in links.into_iter().rev() {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else { continue };
        let Some(to) = link(root, page, &dest_url) else { continue };
        let Some(at) = text[range.clone()].rfind(&format!("]({dest_url}")) else { continue };
        let from = range.start + at + "](".len();
        changed.replace_range(from..from + dest_url.len(), &to);
    }
    changed
}

/// Where a link of a page leads in the book, if not to where it says.
fn link(root: &Path, page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with('#') {
        return None;
    }
    let (path, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
    let mut to = page.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(to.pop()),
            part => to.push(part),
        }
    }
    let docs = root.join("docs");
    if let Ok(inside) = to.strip_prefix(&docs) {
        let is_index = inside == Path::new(INDEX[0]);
        return is_index.then(|| format!("{}{anchor}", path.replace(INDEX[0], INDEX[1])));
    }
    let kind = if to.is_dir() { "tree" } else { "blob" };
    Some(format!("{REPOSITORY}/{kind}/HEAD/{}{anchor}", below(root, &to).display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    #[test]
    fn the_index_is_the_order_and_links_out_of_the_book_lead_to_the_repository() {
        let root = planted(&[
            (
                "docs/README.md",
                "# The book\n\n## Begin\n\n| page | |\n|---|---|\n| [b.md](b.md) | What [a](a.md) is |\n\
                 | [a.md](a.md) | x |\n\n## Decisions\n\n| [0001](adr/0001-so.md) | So |\n\n## Rest\n",
            ),
            ("docs/a.md", "# It is `a`\n"),
            ("docs/b.md", "# B\n"),
            ("docs/adr/0001-so.md", "# 0001: So\n"),
            ("targets/x.toml", ""),
        ]);
        let docs = root.path().join("docs");
        let expected = "# Summary\n\n[The book](index.md)\n\n# Begin\n\n- [B](b.md)\n- [It is `a`](a.md)\n\n\
                        # Decisions\n\n- [0001: So](adr/0001-so.md)\n";
        assert_eq!(summary(&docs).expect("it is whole"), expected);
        let page = docs.join("adr/0001-so.md");
        let text = "[a](../a.md#x) [i](../README.md#begin), ![p](../images/p.png) `[no](../../x)`\n\
                    [t](../../targets) [x](../../targets/x.toml#L1) [w](https://example.com) [h](#here)\n";
        let expected = format!(
            "[a](../a.md#x) [i](../index.md#begin), ![p](../images/p.png) `[no](../../x)`\n\
             [t]({REPOSITORY}/tree/HEAD/targets) [x]({REPOSITORY}/blob/HEAD/targets/x.toml#L1) \
             [w](https://example.com) [h](#here)\n"
        );
        assert_eq!(within(root.path(), &page, text), expected);
    }

    #[test]
    fn a_directory_with_files_of_something_else_is_left_alone() {
        let root = planted(&[("out/src/mine", "x")]);
        let why = book(root.path(), &root.path().join("out")).expect_err("it is not a book");
        assert!(why.contains("has files of something else"), "{why}");
        assert!(root.path().join("out/src/mine").exists());
    }
}
