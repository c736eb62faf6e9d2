//! Flags of swapping, and how its options are reported.

use crate::process::memory::Host;
use crate::process::out;
use monomorph_engine::{SwapDisk, SwapOptions};
use monomorph_model::{ModelSpec, SlidingSpec};
use std::path::PathBuf;

/// Where pre-empted sequences are swapped to.
#[derive(Clone, Debug, clap::Args)]
pub struct SwapArgs {
    /// GB of the machine's memory for what sequences that have to make room had computed; they go on from
    /// there. With 0 they are computed again.
    #[arg(long, value_name = "GB", default_value_t = 0.0, allow_negative_numbers = true)]
    pub swap_space: f64,
    /// A directory for a file behind that memory, best on an NVMe drive of its own. The file has no name
    /// there, and is gone with the server.
    #[arg(long, value_name = "DIR", requires = "swap_disk")]
    pub swap_dir: Option<PathBuf>,
    /// GB of that file, claimed at once.
    #[arg(long, value_name = "GB", requires = "swap_dir", allow_negative_numbers = true)]
    pub swap_disk: Option<f64>,
    /// Which of them are copied: those that are sooner copied than computed again, as the plan of this build
    /// predicts it, or always those that there is room for [default: sooner].
    #[arg(long, value_name = "sooner|always", value_enum)]
    pub swap_when: Option<When>,
}

/// When a sequence is copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// When that takes less time than to compute it again.
    Sooner,
    /// Whenever there is room.
    Always,
}

impl SwapArgs {
    /// The engine's options; `report` receives a line when a disk fails.
    ///
    /// # Errors
    /// When a size is out of range, holds no sequence, or is not available.
    pub(crate) fn options(
        &self,
        spec: &ModelSpec,
        sliding: Option<SlidingSpec>,
        report: fn(std::fmt::Arguments),
    ) -> Result<SwapOptions, String> {
        let host_bytes = bytes("--swap-space", self.swap_space)?;
        let disk = match (&self.swap_dir, self.swap_disk) {
            (Some(directory), Some(size)) => {
                Some(SwapDisk { directory: directory.clone(), bytes: bytes("--swap-disk", size)? })
            }
            _ => None,
        };
        if self.swap_when.is_some() && host_bytes == 0 {
            return Err("--swap-when: nothing is copied, for --swap-space is 0".to_owned());
        }
        let always = self.swap_when == Some(When::Always);
        let options = SwapOptions { host_bytes, disk, always, report, ..SwapOptions::default() };
        options.check(spec, sliding)?;
        let available = Host::read().available;
        if host_bytes > available {
            return Err(format!(
                "--swap-space {} is {}, and this machine has {} of memory left",
                self.swap_space,
                out::bytes(host_bytes),
                out::bytes(available)
            ));
        }
        Ok(options)
    }
}

/// A size in bytes.
fn bytes(flag: &str, size: f64) -> Result<u64, String> {
    if (0.0..1e9).contains(&size) {
        return Ok((size * out::GB) as u64);
    }
    Err(format!("{flag} {size}: must be a number of GB, 0 or more"))
}

/// The swap space in words: how much, and for how many tokens.
pub(crate) fn describe(spec: &ModelSpec, swap: &SwapOptions) -> String {
    if swap.host_bytes == 0 {
        return String::new();
    }
    // Layers with a window take no more for a longer sequence.
    let bytes = |blocks: usize| swap.bytes_of(blocks * spec.block_tokens, spec, None);
    let block = bytes(2) - bytes(1);
    let tokens = |bytes: u64| bytes / block.max(1) * spec.block_tokens as u64;
    let disk = swap.disk.as_ref().map_or(String::new(), |disk| {
        let (size, held) = (out::bytes(disk.bytes), tokens(disk.bytes));
        format!(" and {size} of disk in {} ({held} tokens)", disk.directory.display())
    });
    format!("; swap space {} ({} tokens){disk}", out::bytes(swap.host_bytes), tokens(swap.host_bytes))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_gigabytes() {
        assert_eq!(bytes("--swap-space", 1.5), Ok(1_500_000_000));
        assert_eq!(bytes("--swap-space", 0.0), Ok(0));
        for nonsense in [-1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(bytes("--swap-space", nonsense).unwrap_err().starts_with("--swap-space "));
        }
    }
}
