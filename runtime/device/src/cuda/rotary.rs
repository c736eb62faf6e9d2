//! Tables of rotary angles, computed once with the arithmetic of the reference interpreter.

use super::driver::Stream;
use super::fault::Fault;
use super::memory::Memory;
use super::pointer::Pointer;

/// Positions a thread computes at a time.
const PIECE: usize = 512;

/// f32 `[positions][pairs][cosine, sine]`, multiplied by `factor`. The angle of pair `i` at position `p` is
/// `p as f32 * inverse_frequencies[i]` in f32.
pub(crate) fn table(inverse_frequencies: &[f32], factor: f32, positions: usize, threads: usize) -> Vec<f32> {
    let width = 2 * inverse_frequencies.len();
    let mut table = vec![0.0; positions * width];
    let pieces = std::sync::Mutex::new(table.chunks_mut(PIECE * width).enumerate());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, positions.div_ceil(PIECE).max(1)) {
            scope.spawn(|| {
                loop {
                    let piece = pieces.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                    let Some((index, piece)) = piece else { break };
                    for (at, row) in piece.chunks_exact_mut(width).enumerate() {
                        let position = (index * PIECE + at) as f32;
                        for (pair, frequency) in
                            row.as_chunks_mut::<2>().0.iter_mut().zip(inverse_frequencies)
                        {
                            let (sine, cosine) = (position * frequency).sin_cos();
                            *pair = [cosine * factor, sine * factor];
                        }
                    }
                }
            });
        }
    });
    table
}

/// Uploads the table for all positions of the longest sequence.
pub(crate) fn load(
    stream: &Stream,
    memory: &mut Memory,
    inverse_frequencies: &[f32],
    factor: f32,
    threads: usize,
) -> Result<Pointer, Fault> {
    let positions = memory.context();
    let at = memory.take((8 * positions * inverse_frequencies.len()) as u64)?;
    fill(stream, at, inverse_frequencies, (factor, positions), threads)?;
    Ok(at)
}

/// Uploads the table of so many positions to memory of its size.
pub(crate) fn fill(
    stream: &Stream,
    at: Pointer,
    inverse_frequencies: &[f32],
    (factor, positions): (f32, usize),
    threads: usize,
) -> Result<(), Fault> {
    let table = table(inverse_frequencies, factor, positions, threads);
    let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
    // SAFETY: taken from the arena with this size; the driver has copied these pageable bytes once the wait
    // ends.
    unsafe { stream.upload(at.0, &bytes) }?;
    stream.wait()
}

#[cfg(test)]
mod tests {
    #[test]
    fn angles_are_the_interpreters() {
        let frequencies = [1.0f32, 0.1, 0.000_123];
        let table = super::table(&frequencies, 0.5, 1030, 3);
        for position in [0usize, 1, 511, 512, 1029] {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                let at = (position * 3 + pair) * 2;
                assert_eq!(table[at..at + 2], [cos * 0.5, sin * 0.5]);
            }
        }
    }
}
