//! What a server does where no flag says otherwise. Its flags have these defaults, and what is printed of a
//! server before it runs (reports, images, manifests) says them too.

/// Port that it listens at.
pub const PORT: u16 = 8888;

/// Seconds that accepted requests get to finish once it is told to stop.
pub const DRAIN_SECONDS: u64 = 30;

/// Seconds after those at which its process has ended, whatever still runs.
pub const END_SECONDS: u64 = 5;

/// Longest sequence in tokens, if the model was made for so many.
pub const CONTEXT: usize = 8192;

/// Most tokens of an answer that may call tools and whose request names no limit.
pub const TOOL_MAX_TOKENS: usize = 8192;

/// Tokens of keys and values in host memory: eight sequences of 2,048. A GPU's take what its memory holds.
pub const KV_TOKENS: usize = 8 * 2048;

/// Part of the memory that it takes at most, of the GPU's or of the machine's.
pub const MEMORY_FRACTION: f64 = 0.9;

/// Bytes of the process beside the model: code, tokenizer, HTTP.
pub const PROCESS_BYTES: u64 = 96 << 20;

/// Bytes of host memory that the driver takes for each GPU. A context of driver 580 took 105 MB on an H200,
/// 75 of them pages of its libraries (2026-11-27).
pub const DRIVER_BYTES: u64 = 128 << 20;

/// Threads of HTTP, beside those of the model.
pub const HTTP_THREADS: usize = 2;

/// Most threads that pack weights for a GPU: more would wait for memory.
pub const PACKING_THREADS: usize = 16;

/// Most bytes of codes that each of them packs at a time, into one of its two buffers: large enough for PCIe,
/// small enough to share out evenly.
pub const PACKING_BYTES: usize = 8 << 20;

/// What the tensors of a drafter with a checkpoint of its own are called by before their own names, where
/// that stands beside its model's.
pub const DRAFTER_PREFIX: &str = "dflash.";
