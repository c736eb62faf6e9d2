//! What a phase has to do in a step, and how long that takes by a hardware's figures: of the compiler's
//! predictions, and of what a profiling build prints beside its times.

/// The work of a phase in a step. What grows with the tokens in the cache is given of none of them and of
/// each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseWork {
    /// Bytes from memory: weights, state, keys and values. Activations stay in caches and do not count.
    pub bytes: f64,
    /// Further bytes for each token in the cache, of all sequences.
    pub bytes_each: f64,
    /// Seconds of the products at their full rates.
    pub products: f64,
    /// Further seconds for each token in the cache.
    pub products_each: f64,
    /// Tokens in the cache from which on nothing grows: a sliding window's.
    pub most: f64,
    /// Seconds that decoding its weights takes longer than reading them.
    pub decoding: f64,
    /// Seconds of boundaries, and of exchanges between ranks.
    pub overhead: f64,
}

impl PhaseWork {
    /// Bytes from memory after so many tokens.
    pub fn bytes_after(&self, context: f64) -> f64 {
        self.bytes + self.bytes_each * context.min(self.most)
    }

    fn products_after(&self, context: f64) -> f64 {
        self.products + self.products_each * context.min(self.most)
    }

    /// Seconds at the hardware's limits: products, or bytes at so many a second, whichever takes longer.
    pub fn limit(&self, context: f64, bandwidth: f64) -> f64 {
        self.products_after(context).max(self.bytes_after(context) / bandwidth)
    }

    /// Seconds as predicted: the limit with slower decoding, and the overhead.
    pub fn predicted(&self, context: f64, bandwidth: f64) -> f64 {
        let bytes = self.bytes_after(context) / bandwidth + self.decoding;
        self.products_after(context).max(bytes) + self.overhead
    }
}
