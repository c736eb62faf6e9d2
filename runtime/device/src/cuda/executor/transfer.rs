//! Uploads before a step's kernels, and downloads after them.

use super::super::fault::Fault;
use super::super::host::Pinned;
use super::super::wire::{Header, bytes_of};
use super::{Executor, Want};
use monomorph_abi::images::PatchGrids;
use std::mem::offset_of;
use std::ops::Range;

impl Executor {
    /// Uploads header, block tables, history, biases and masks of the step at hand, and its token rows if
    /// kernels read them. The steps' stream waits for the upload.
    pub(super) fn upload(&mut self, index: usize, tokens: bool) -> Result<(), Fault> {
        let (flight, buffer) = (&mut self.flights[index], &self.buffer);
        let header = bytes_of(std::slice::from_ref(&*buffer.header));
        let starts = bytes_of(std::slice::from_ref(&*buffer.starts));
        let (blocks, sliding) = (bytes_of(&buffer.blocks), bytes_of(&buffer.sliding));
        let starts = if buffer.slides() { starts } else { &[] };
        let [of_drafts, shifts] = buffer.before_blocks();
        let parts = [header, starts, of_drafts, shifts, blocks, sliding];
        let images = if tokens { bytes_of(&buffer.images) } else { &[] };
        let tokens = if tokens { bytes_of(&buffer.tokens) } else { &[] };
        let both = fill(&mut flight.tokens, &[tokens, images]);
        let (tokens, images) = both.split_at(tokens.len());
        for (to, pinned) in [
            (flight.tables.header, fill(&mut flight.header, &parts)),
            (flight.tables.tokens, tokens),
            (flight.tables.images, images),
        ] {
            // SAFETY: the tables were allocated for the largest step. They and the pinned bytes belong to
            // this flight, whose last step has been collected: nothing reads or copies them any more.
            unsafe { self.uploads.upload(to.0, pinned) }?;
        }
        self.upload_behind(index)
    }

    /// Uploads the header at hand as that of a tower's step, with its images' sides behind it. The steps'
    /// stream waits for the upload.
    pub(super) fn upload_seen(&mut self, index: usize, grids: &PatchGrids) -> Result<(), Fault> {
        let (flight, buffer) = (&mut self.flights[index], &self.buffer);
        let header = bytes_of(std::slice::from_ref(&*buffer.header));
        let pinned = fill(&mut flight.header, &[header, bytes_of(std::slice::from_ref(grids))]);
        // SAFETY: as in `upload`; the header's tables have room for the sides.
        unsafe { self.uploads.upload(flight.tables.header.0, pinned) }?;
        flight.uploaded.record(&self.uploads)?;
        self.quiet.gpu.stream().wait_for(&flight.uploaded)
    }

    /// Uploads the sampling inputs, over those uploaded with the step at hand. The steps' stream waits for
    /// the upload.
    pub(super) fn upload_sampling(&mut self, index: usize) -> Result<(), Fault> {
        // Pinned bytes must not be written during their copy.
        self.flights[index].uploaded.wait()?;
        let from = offset_of!(Header, sampling);
        let header = &bytes_of(std::slice::from_ref(&*self.buffer.header))[from..];
        let flight = &mut self.flights[index];
        flight.header.bytes_mut()[from..][..header.len()].copy_from_slice(header);
        let pinned = &flight.header.bytes()[from..][..header.len()];
        // SAFETY: as in `upload`; running kernels read only what comes before.
        unsafe { self.uploads.upload(flight.tables.header.0 + from as u64, pinned) }?;
        self.upload_behind(index)
    }

    /// Uploads history, biases and masks of the step at hand, which completes its upload.
    fn upload_behind(&mut self, index: usize) -> Result<(), Fault> {
        let (flight, buffer) = (&mut self.flights[index], &self.buffer);
        let parts = [bytes_of(&buffer.history), bytes_of(&buffer.biases), bytes_of(&buffer.masks)];
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        if bytes > flight.history.bytes().len() {
            flight.history = Pinned::zeroed(bytes.next_power_of_two())?;
        }
        let pinned = fill(&mut flight.history, &parts);
        // SAFETY: as in `upload`.
        unsafe { self.uploads.upload(flight.tables.history.0, pinned) }?;
        flight.uploaded.record(&self.uploads)?;
        self.quiet.gpu.stream().wait_for(&flight.uploaded)
    }

    /// Uploads the header again with other output rows, in order on the steps' stream.
    pub(super) fn upload_group(
        &mut self,
        index: usize,
        rows: Range<usize>,
        number: usize,
    ) -> Result<(), Fault> {
        self.buffer.select(rows);
        let flight = &mut self.flights[index];
        let header = bytes_of(std::slice::from_ref(&*self.buffer.header));
        let pinned = &mut flight.groups.bytes_mut()[number * header.len()..][..header.len()];
        pinned.copy_from_slice(header);
        // SAFETY: as in `upload`; each group has its own pinned bytes.
        unsafe { self.quiet.gpu.stream().upload(flight.tables.header.0, pinned) }
    }

    /// Downloads the logits of output rows `rows` if they are wanted. This waits for the copy: logits serve
    /// comparison with other implementations, not speed.
    pub(super) fn fetch_logits(&mut self, index: usize, rows: Range<usize>) -> Result<(), Fault> {
        if !self.buffer.outputs[rows.clone()].iter().any(|output| output.logits) {
            return Ok(());
        }
        let (flight, stream) = (&mut self.flights[index], self.quiet.gpu.stream());
        let mut bytes = vec![0; rows.len() * self.vocabulary * 4];
        // SAFETY: the logits have that many rows; the bytes are not pinned, and are read after the wait.
        unsafe { stream.download(self.logits.0, &mut bytes) }?;
        stream.wait()?;
        let values = bytes.chunks_exact(self.vocabulary * 4);
        for (output, row) in self.buffer.outputs[rows].iter().zip(values) {
            if let (true, (_, Want::Logits(logits))) = (output.logits, &mut flight.wants[output.sequence]) {
                logits.extend(row.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)));
            }
        }
        Ok(())
    }
}

/// Writes parts back to back into pinned memory; returns the range they take.
fn fill<'a>(pinned: &'a mut Pinned, parts: &[&[u8]]) -> &'a [u8] {
    let mut end = 0;
    for part in parts {
        pinned.bytes_mut()[end..][..part.len()].copy_from_slice(part);
        end += part.len();
    }
    &pinned.bytes()[..end]
}
