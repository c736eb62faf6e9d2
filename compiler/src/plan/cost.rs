//! What a phase moves and computes, and how long HARDWARE.toml's figures say that takes.

use crate::spec::types::{Hardware, HardwareKind};

/// Work of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Bytes of keys and values read and written.
    pub kv_bytes: f64,
    /// Bytes of activations read and written.
    pub activation_bytes: f64,
    /// Multiply-adds on int8.
    pub int8_products: f64,
    /// Multiply-adds on f32.
    pub f32_products: f64,
}

impl Cost {
    /// Bytes that come from memory: activations stay in caches.
    pub fn memory_bytes(&self) -> f64 {
        self.weight_bytes + self.kv_bytes
    }

    /// Two for each multiply-add.
    pub fn flops(&self) -> f64 {
        2.0 * (self.int8_products + self.f32_products)
    }

    /// Seconds at the hardware's limits: bytes or products, whichever take longer.
    pub fn floor(&self, hardware: &Hardware) -> f64 {
        let HardwareKind::Cpu(cpu) = &hardware.kind;
        let products = self.int8_products / cpu.int8_rate + self.f32_products / cpu.f32_rate;
        products.max(self.memory_bytes() / hardware.bandwidth)
    }

    /// The floor and one phase boundary.
    pub fn predicted(&self, hardware: &Hardware) -> f64 {
        self.floor(hardware) + hardware.boundary_seconds
    }
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            activation_bytes: self.activation_bytes + other.activation_bytes,
            int8_products: self.int8_products + other.int8_products,
            f32_products: self.f32_products + other.f32_products,
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
    /// A prompt: products at full rate or bytes over the bandwidth, whichever take longer.
    pub prefill_floor: f64,
    /// A prompt: the phases' predicted times.
    pub prefill: f64,
}

impl Prediction {
    /// Tokens in the cache when the predicted decode step begins: the middle of a bench run of 128 after 32.
    pub const DECODE_CONTEXT: usize = 96;
    /// Length of the predicted prompt.
    pub const PREFILL_TOKENS: usize = 512;

    /// Tokens a second: decode's limit and prediction, prefill's limit and prediction.
    pub fn rates(&self) -> [f64; 4] {
        let prompt = Self::PREFILL_TOKENS as f64;
        [1.0 / self.decode_floor, 1.0 / self.decode, prompt / self.prefill_floor, prompt / self.prefill]
    }
}
