//! HARDWARE.toml, validated.

/// A piece of hardware, as HARDWARE.toml describes it.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Directory name.
    pub name: String,
    /// Bytes of memory that weights, K/V and scratch share.
    pub memory_bytes: u64,
    /// Bytes per second that one stream of reads achieves over the whole chip.
    pub bandwidth: f64,
    /// Seconds one phase boundary costs.
    pub boundary_seconds: f64,
    /// Bytes per second at which sequences are copied between device memory and host memory.
    pub copy_bandwidth: f64,
    /// Properties particular to its kind.
    pub kind: HardwareKind,
}

impl Hardware {
    /// The triple of the host that its servers are linked for; `None` for the machine that builds.
    pub fn host(&self) -> Option<&str> {
        match &self.kind {
            HardwareKind::Cpu(cpu) => cpu.host.as_deref(),
            HardwareKind::Cuda(cuda) => Some(&cuda.host),
        }
    }

    /// Its CPU properties, if it is a CPU.
    pub fn cpu(&self) -> Option<&Cpu> {
        match &self.kind {
            HardwareKind::Cpu(cpu) => Some(cpu),
            HardwareKind::Cuda(_) => None,
        }
    }

    /// Its CUDA properties, if it is a CUDA device.
    pub fn cuda(&self) -> Option<&Cuda> {
        match &self.kind {
            HardwareKind::Cpu(_) => None,
            HardwareKind::Cuda(cuda) => Some(cuda),
        }
    }
}

/// The kinds of hardware that have a backend.
#[derive(Clone, Debug)]
pub enum HardwareKind {
    /// A CPU with its caches and instruction set.
    Cpu(Cpu),
    /// One NVIDIA GPU.
    Cuda(Cuda),
}

impl HardwareKind {
    /// Name in TOML files and reports.
    pub fn name(&self) -> &'static str {
        match self {
            HardwareKind::Cpu(_) => "cpu",
            HardwareKind::Cuda(_) => "cuda",
        }
    }
}

/// A CPU, its instruction set fixed at build time.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Processor as `-C target-cpu` takes it; `native` is the build machine's.
    pub target_cpu: String,
    /// Further `-C target-feature` names, without sign.
    pub features: Vec<String>,
    /// Rust target triple; `None` is that of the build machine.
    pub host: Option<String>,
    /// Threads the figures were measured with.
    pub threads: usize,
    /// int8 multiply-adds per second over all threads.
    pub int8_rate: f64,
    /// f32 multiply-adds per second over all threads.
    pub f32_rate: f64,
}

/// One NVIDIA GPU and its host. Sizes are what a kernel may claim, as CUDA's device attributes state them.
#[derive(Clone, Debug)]
pub struct Cuda {
    /// Architecture as `nvcc -arch` takes it, with its suffix: `sm_90a`, `sm_121a`.
    pub architecture: String,
    /// Compute capability, major and minor, from the architecture's name.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most bytes of shared memory one block may claim (opt-in).
    pub shared_per_block: u32,
    /// Bytes of shared memory of one multiprocessor; each resident block takes 1 KiB besides what it claims.
    pub shared_per_multiprocessor: u32,
    /// Most registers one thread may have.
    pub registers_per_thread: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Whether warpgroup products (`wgmma`) exist.
    pub wgmma: bool,
    /// Whether thread block clusters with distributed shared memory are worth using.
    pub clusters: bool,
    /// bf16 multiply-adds per second on tensor cores with f32 sums, dense.
    pub bf16_rate: f64,
    /// f64 multiply-adds per second on tensor cores, which exact products use.
    pub f64_rate: f64,
    /// f32 multiply-adds per second outside tensor cores.
    pub f32_rate: f64,
    /// Bytes of nvfp4 per second, with scales, that a product of few rows decodes: its bound if memory is
    /// faster.
    pub nvfp4_rate: f64,
    /// Rust target triple of its host.
    pub host: String,
    /// How it exchanges values with others of its kind in one host, if that was measured.
    pub peers: Option<Peers>,
}

/// Exchanges between GPUs of one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peers {
    /// Seconds of an exchange of a few values, besides its launch.
    pub exchange_seconds: f64,
    /// Bytes per second that a GPU sends to another.
    pub bandwidth: f64,
}
