//! Epilogues of products, applied while the sums are in registers.

use super::loader::Vector;
use super::rows::Rows;
use super::simd::{F32s, LANES, at, erf, exp};

/// Consumes the sums of a product `[tokens, ROWS]`.
pub trait Epilogue<const ROWS: usize>: Sync {
    /// Consumes the sums of rows `from ..` (a vector of them) for `token`.
    ///
    /// # Safety
    /// No other lane accesses these elements meanwhile.
    #[doc(hidden)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s);
}

/// Writes the sums.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a, const ROWS: usize>(pub &'a Rows<ROWS>);

/// Writes the sums from column `COLUMN` of a row on; products beside this one write the others.
#[derive(Clone, Copy, Debug)]
pub struct StoreAt<'a, const COLUMN: usize, const WIDTH: usize>(pub &'a Rows<WIDTH>);

/// Adds the sums to the existing values (the residual stream).
#[derive(Clone, Copy, Debug)]
pub struct Add<'a, const ROWS: usize>(pub &'a Rows<ROWS>);

/// Multiplies the existing values by the sums: activated gates, which another product wrote, by what they
/// gate.
#[derive(Clone, Copy, Debug)]
pub struct Multiply<'a, const ROWS: usize>(pub &'a Rows<ROWS>);

/// Adds a bias and hands the sums on.
#[derive(Clone, Copy, Debug)]
pub struct Bias<'a, E, const ROWS: usize>(pub &'a Vector<ROWS>, pub E);

/// Writes the activation of the sums.
#[derive(Clone, Copy, Debug)]
pub struct Activated<'a, A, const ROWS: usize>(pub A, pub &'a Rows<ROWS>);

impl<A: Activation, const ROWS: usize> Epilogue<ROWS> for Activated<'_, A, ROWS> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // SAFETY: the caller's promise.
        A::apply(sums).store(unsafe { self.1.vector_mut(token, from) });
    }
}

impl<const ROWS: usize> Epilogue<ROWS> for Store<'_, ROWS> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // SAFETY: the caller's promise.
        sums.store(unsafe { self.0.vector_mut(token, from) });
    }
}

impl<const ROWS: usize, const COLUMN: usize, const WIDTH: usize> Epilogue<ROWS>
    for StoreAt<'_, COLUMN, WIDTH>
{
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        const {
            // The last vector of a product is padded: where others follow, it has to end with their rows.
            assert!(COLUMN + ROWS == WIDTH || COLUMN + ROWS < WIDTH && ROWS.is_multiple_of(LANES));
        }
        // SAFETY: the caller's promise.
        sums.store(unsafe { self.0.vector_mut(token, COLUMN + from) });
    }
}

impl<const ROWS: usize> Epilogue<ROWS> for Add<'_, ROWS> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.0.vector_mut(token, from) };
        (F32s::load(out) + sums).store(out);
    }
}

impl<const ROWS: usize> Epilogue<ROWS> for Multiply<'_, ROWS> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.0.vector_mut(token, from) };
        (F32s::load(out) * sums).store(out);
    }
}

impl<E: Epilogue<ROWS>, const ROWS: usize> Epilogue<ROWS> for Bias<'_, E, ROWS> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        let bias = F32s::load(at(self.0.padded(), from));
        // SAFETY: the caller's promise.
        unsafe { self.1.apply(token, from, sums + bias) }
    }
}

/// Consumes the sums of a gated pair of products `[tokens, WIDTH]`.
pub trait GatedEpilogue<const WIDTH: usize>: Sync {
    /// Consumes both sums of rows `from ..` (a vector of them) for `token`.
    ///
    /// # Safety
    /// No other lane accesses these elements meanwhile.
    #[doc(hidden)]
    unsafe fn apply(&self, token: usize, from: usize, gate: F32s, up: F32s);
}

/// Writes `activation(gate) * up`.
#[derive(Clone, Copy, Debug)]
pub struct Gated<'a, A, const WIDTH: usize>(pub A, pub &'a Rows<WIDTH>);

/// Adds the biases of gate and up projection and hands the sums on.
#[derive(Clone, Copy, Debug)]
pub struct GatedBias<'a, E, const WIDTH: usize>(pub &'a Vector<WIDTH>, pub &'a Vector<WIDTH>, pub E);

impl<A: Activation, const WIDTH: usize> GatedEpilogue<WIDTH> for Gated<'_, A, WIDTH> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, gate: F32s, up: F32s) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.1.vector_mut(token, from) };
        (A::apply(gate) * up).store(out);
    }
}

impl<E: GatedEpilogue<WIDTH>, const WIDTH: usize> GatedEpilogue<WIDTH> for GatedBias<'_, E, WIDTH> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, gate: F32s, up: F32s) {
        let gate = gate + F32s::load(at(self.0.padded(), from));
        let up = up + F32s::load(at(self.1.padded(), from));
        // SAFETY: the caller's promise.
        unsafe { self.2.apply(token, from, gate, up) }
    }
}

/// A scalar function, applied lane by lane.
pub trait Activation: Send + Sync + 'static {
    /// Applies the function to each lane.
    #[doc(hidden)]
    fn apply(x: F32s) -> F32s;
}

/// `x * sigmoid(x)`.
#[derive(Clone, Copy, Debug)]
pub struct Silu;

/// `x/2 * (1 + erf(x / sqrt 2))`.
#[derive(Clone, Copy, Debug)]
pub struct Gelu;

/// The tanh form of GELU.
#[derive(Clone, Copy, Debug)]
pub struct GeluTanh;

/// `max(x, 0)`.
#[derive(Clone, Copy, Debug)]
pub struct Relu;

/// `max(x, 0)^2`.
#[derive(Clone, Copy, Debug)]
pub struct Relu2;

/// `x / (1 + e^-by)`.
#[inline(always)]
pub(crate) fn sigmoid_times(x: F32s, by: F32s) -> F32s {
    x / (F32s::splat(1.0) + exp(F32s::zero() - by))
}

impl Activation for Silu {
    #[inline(always)]
    fn apply(x: F32s) -> F32s {
        sigmoid_times(x, x)
    }
}

impl Activation for Gelu {
    #[inline(always)]
    fn apply(x: F32s) -> F32s {
        let half = x * F32s::splat(0.5);
        half.mul_add(erf(x * F32s::splat(std::f32::consts::FRAC_1_SQRT_2)), half)
    }
}

impl Activation for GeluTanh {
    #[inline(always)]
    fn apply(x: F32s) -> F32s {
        // (1 + tanh u) / 2 = sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x³)
        let cube = x * x * x;
        let twice = F32s::splat(1.595_769) * cube.mul_add(F32s::splat(0.044_715), x);
        sigmoid_times(x, twice)
    }
}

impl Activation for Relu {
    #[inline(always)]
    fn apply(x: F32s) -> F32s {
        F32s::zero().max(x)
    }
}

impl Activation for Relu2 {
    #[inline(always)]
    fn apply(x: F32s) -> F32s {
        let x = F32s::zero().max(x);
        x * x
    }
}
