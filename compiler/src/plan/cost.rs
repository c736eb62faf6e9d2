//! The cost of a phase in bytes and products, and its time by HARDWARE.toml's figures.

use crate::spec::types::{Hardware, HardwareKind};
use monomorph_abi::PhaseWork;

/// Work of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Bytes of nvfp4 weights among them.
    pub nvfp4_bytes: f64,
    /// Bytes of keys and values read and written.
    pub kv_bytes: f64,
    /// Bytes of recurrent state read and written.
    pub state_bytes: f64,
    /// Bytes of activations read and written.
    pub activation_bytes: f64,
    /// Multiply-adds on int8.
    pub int8_products: f64,
    /// Multiply-adds on f32.
    pub f32_products: f64,
    /// Multiply-adds on bf16.
    pub bf16_products: f64,
    /// Multiply-adds on e4m3.
    pub fp8_products: f64,
    /// Multiply-adds on f64: exact products on a CUDA device.
    pub f64_products: f64,
    /// Bytes that a rank sends to each of the others.
    pub exchanged_bytes: f64,
    /// Boundaries: loop nests on a CPU, launches on a CUDA device.
    pub boundaries: f64,
}

impl Cost {
    /// Bytes from memory. Activations stay in caches and do not count.
    pub fn memory_bytes(&self) -> f64 {
        self.weight_bytes + self.kv_bytes + self.state_bytes
    }

    /// Two operations for each multiply-add.
    pub fn flops(&self) -> f64 {
        let narrow = self.int8_products + self.bf16_products + self.fp8_products;
        2.0 * (narrow + self.f32_products + self.f64_products)
    }

    /// The work of `rows` sequences at once. Weights are read once for all of them, except experts: more rows
    /// touch more of them ([`touched_experts`]).
    pub fn of_rows(&self, rows: usize) -> Cost {
        let rows = rows as f64;
        Cost {
            weight_bytes: self.weight_bytes,
            nvfp4_bytes: self.nvfp4_bytes,
            kv_bytes: self.kv_bytes * rows,
            state_bytes: self.state_bytes * rows,
            activation_bytes: self.activation_bytes * rows,
            int8_products: self.int8_products * rows,
            f32_products: self.f32_products * rows,
            bf16_products: self.bf16_products * rows,
            fp8_products: self.fp8_products * rows,
            f64_products: self.f64_products * rows,
            exchanged_bytes: self.exchanged_bytes * rows,
            boundaries: self.boundaries,
        }
    }

    /// The cost of a part of a product's matrix rows.
    pub(crate) fn part(&self, part: f64) -> Cost {
        Cost {
            weight_bytes: self.weight_bytes * part,
            nvfp4_bytes: self.nvfp4_bytes * part,
            int8_products: self.int8_products * part,
            f32_products: self.f32_products * part,
            bf16_products: self.bf16_products * part,
            fp8_products: self.fp8_products * part,
            f64_products: self.f64_products * part,
            ..*self
        }
    }

    /// Seconds at the hardware's limits: bytes or products, whichever takes longer.
    pub fn floor(&self, hardware: &Hardware) -> f64 {
        self.work(hardware).limit(0.0, hardware.bandwidth)
    }

    fn products(&self, hardware: &Hardware) -> f64 {
        match &hardware.kind {
            HardwareKind::Cpu(cpu) => self.int8_products / cpu.int8_rate + self.f32_products / cpu.f32_rate,
            HardwareKind::Cuda(cuda) => {
                // Tensor cores that multiply e4m3 do so at twice the rate.
                (self.bf16_products + self.fp8_products / 2.0) / cuda.bf16_rate
                    + self.f64_products / cuda.f64_rate
                    + self.f32_products / cuda.f32_rate
            }
        }
    }

    /// Seconds of the floor, the boundaries and exchanges between ranks; nvfp4 counts at the rate of its
    /// decoding if that is slower than memory.
    pub fn predicted(&self, hardware: &Hardware) -> f64 {
        self.work(hardware).predicted(0.0, hardware.bandwidth)
    }

    /// The work that takes this time. It grows with nothing.
    pub(crate) fn work(&self, hardware: &Hardware) -> PhaseWork {
        let decoding = hardware.cuda().map_or(0.0, |cuda| {
            let slower = (1.0 / cuda.nvfp4_rate - 1.0 / hardware.bandwidth).max(0.0);
            self.nvfp4_bytes * slower
        });
        let peers = hardware.cuda().and_then(|cuda| cuda.peers).filter(|_| self.exchanged_bytes > 0.0);
        let exchange =
            peers.map_or(0.0, |peers| peers.exchange_seconds + self.exchanged_bytes / peers.bandwidth);
        PhaseWork {
            bytes: self.memory_bytes(),
            products: self.products(hardware),
            decoding,
            overhead: self.boundaries * hardware.boundary_seconds + exchange,
            ..PhaseWork::default()
        }
    }
}

/// Expected number of `experts` that `tokens` touch, each choosing `active` evenly: `experts * (1 - (1 -
/// active/experts)^tokens)`.
pub fn touched_experts(experts: usize, active: usize, tokens: usize) -> f64 {
    let part = active as f64 / experts as f64;
    experts as f64 * (1.0 - (1.0 - part).powf(tokens as f64))
}

/// The same of the rank that has most of them, where each of `ranks` holds an equal part of the experts: the
/// others wait for it. The parts are taken to be chosen independently, which is less than 1 % off.
pub fn touched_experts_of_busiest(experts: usize, active: usize, tokens: usize, ranks: usize) -> f64 {
    let (held, touched) = (experts / ranks, touched_experts(experts, active, tokens));
    if ranks == 1 || held == 0 {
        return touched;
    }
    let touched = touched / experts as f64;
    if touched >= 1.0 {
        return held as f64;
    }
    // The most of several binomial numbers: the sum over `n` of the probability that one is above it.
    let mut log = held as f64 * (1.0 - touched).ln();
    let (mut below, mut most) = (0.0, 0.0);
    for n in 0..held {
        below += log.exp();
        most += 1.0 - f64::min(below, 1.0).powf(ranks as f64);
        log += ((held - n) as f64 / (n + 1) as f64 * touched / (1.0 - touched)).ln();
    }
    most
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            nvfp4_bytes: self.nvfp4_bytes + other.nvfp4_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            state_bytes: self.state_bytes + other.state_bytes,
            activation_bytes: self.activation_bytes + other.activation_bytes,
            int8_products: self.int8_products + other.int8_products,
            f32_products: self.f32_products + other.f32_products,
            bf16_products: self.bf16_products + other.bf16_products,
            fp8_products: self.fp8_products + other.fp8_products,
            f64_products: self.f64_products + other.f64_products,
            exchanged_bytes: self.exchanged_bytes + other.exchanged_bytes,
            boundaries: self.boundaries + other.boundaries,
        }
    }
}

/// Seconds for a whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// One token: all bytes over the bandwidth.
    pub decode_floor: f64,
    /// One token: the phases' predicted times.
    pub decode: f64,
    /// A prompt: products at full rate or bytes over the bandwidth, whichever takes longer.
    pub prefill_floor: f64,
    /// A prompt: the phases' predicted times.
    pub prefill: f64,
}

impl Prediction {
    /// Tokens in the cache when the predicted decode step begins: the middle of a bench run of 128 after 32.
    pub const DECODE_CONTEXT: usize = 96;
    /// Length of the predicted prompt.
    pub const PREFILL_TOKENS: usize = 512;

    /// Tokens per second: decode's limit and prediction, prefill's limit and prediction.
    pub fn rates(&self) -> [f64; 4] {
        let prompt = Self::PREFILL_TOKENS as f64;
        [1.0 / self.decode_floor, 1.0 / self.decode, prompt / self.prefill_floor, prompt / self.prefill]
    }
}
