//! Probes what the system lets a store do before anything depends on it.

use crate::error::OpenError;
use crate::file::{self, Named};
use crate::page::{ALIGN, Page, PageMemory};
use crate::ring::Pages;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Largest page in bytes, far below the limit of one transfer.
const LARGEST: usize = 1 << 30;
/// Most transfers at a time that a ring is made for.
const DEEPEST: u32 = 4096;

/// How pages are moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub ring: bool,
    pub direct: bool,
}

/// A file, the way its pages are transferred, and a ring where the system has one.
pub(crate) fn prepare<M: PageMemory>(
    directory: &Path,
    options: Options,
    report: &impl Fn(std::fmt::Arguments),
) -> Result<(File, How, Option<Pages<M>>), OpenError> {
    let make = |bytes, direct| {
        let file = file::create(directory, bytes, direct)?;
        // Nothing is in it yet.
        probe(&file, directory, options.page_bytes, true).map(|()| file)
    };
    prepare_with(directory, options, make, report)
}

/// The same of a file that has a name, which is made where it is not there.
pub(crate) fn prepare_named<M: PageMemory>(
    named: &Named,
    options: Options,
    report: &impl Fn(std::fmt::Arguments),
) -> Result<(File, How, Option<Pages<M>>), OpenError> {
    let open = |bytes, direct| {
        let file = file::open_named(named, bytes, direct)?;
        probe(&file, named.directory, options.page_bytes, false).map(|()| file)
    };
    prepare_with(named.directory, options, open, report)
}

fn prepare_with<M: PageMemory>(
    directory: &Path,
    Options { page_bytes, capacity_bytes, depth }: Options,
    open: impl Fn(u64, bool) -> Result<File, OpenError>,
    report: &impl Fn(std::fmt::Arguments),
) -> Result<(File, How, Option<Pages<M>>), OpenError> {
    if page_bytes == 0 || !page_bytes.is_multiple_of(ALIGN) || page_bytes > LARGEST {
        return Err(OpenError::PageSize { bytes: page_bytes });
    }
    let pages = capacity_bytes / page_bytes as u64;
    if pages == 0 || pages > u64::from(u32::MAX) {
        return Err(OpenError::Capacity { bytes: capacity_bytes, page: page_bytes });
    }
    let bytes = pages * page_bytes as u64;
    let (file, direct) = match open(bytes, true) {
        Err(OpenError::Io { error, .. }) if error.kind() == io::ErrorKind::InvalidInput => {
            report(format_args!(
                "{}: this file system reads and writes through the system's cache only",
                directory.display()
            ));
            (open(bytes, false)?, false)
        }
        file => (file?, true),
    };
    let ring = file.try_clone().and_then(|file| Pages::new(file, depth.clamp(1, DEEPEST)));
    let ring = ring.map_err(|error| {
        report(format_args!(
            "{}: no io_uring here ({error}); pages are read and written one after another",
            directory.display()
        ));
    });
    let ring = ring.ok();
    Ok((file, How { ring: ring.is_some(), direct }, ring))
}

/// Reads the first page of a file, and before that writes it if it may.
fn probe(file: &File, directory: &Path, page_bytes: usize, write: bool) -> Result<(), OpenError> {
    let probe = || -> io::Result<()> {
        let mut page = Page::zeroed(page_bytes);
        if write {
            file.write_all_at(page.bytes(), 0)?;
        }
        file.read_exact_at(page.bytes_mut(), 0)
    };
    probe().map_err(|error| OpenError::Io {
        what: "writing and reading a page",
        directory: directory.to_owned(),
        error,
    })
}

/// Options of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a page: a multiple of [`ALIGN`](crate::ALIGN), see [`whole_page`](crate::whole_page).
    pub page_bytes: usize,
    /// Bytes of all pages, claimed at once and rounded down to whole pages.
    pub capacity_bytes: u64,
    /// Most transfers at a time; at least 1.
    pub depth: u32,
}
