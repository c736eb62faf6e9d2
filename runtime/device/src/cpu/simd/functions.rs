//! Elementary functions on vectors, accurate to f32.

use super::F32s;

/// `e^x`, relative error below 2e-7 in the normal range; 0 at and below -104, so that `exp` of minus infinity
/// is exactly 0.
#[inline(always)]
pub(crate) fn exp(x: F32s) -> F32s {
    // The order of the clamp's operands lets NaN through.
    let x = F32s::splat(-104.0).max(x);
    let x = F32s::splat(89.0).min(x);
    let n = (x * F32s::splat(std::f32::consts::LOG2_E)).round();
    // ln 2 in two parts, the first of few bits so that n times it is exact.
    let r = n.mul_add(F32s::splat(-0.693_359_4), x);
    let r = n.mul_add(F32s::splat(2.121_944_4e-4), r);
    // Taylor's series on |r| <= ln 2 / 2; its first dropped term is below 6e-9.
    let mut p = F32s::splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, F32s::splat(c));
    }
    p.scale_by_power(n)
}

/// `1 / (1 + e^-x)`, relative error below 3e-7.
#[inline(always)]
pub(crate) fn sigmoid(x: F32s) -> F32s {
    let one = F32s::splat(1.0);
    one / (one + exp(F32s::zero() - x))
}

/// `ln(1 + e^x)`, relative error below 3e-7 where the result is a normal number.
#[inline(always)]
pub(crate) fn softplus(x: F32s) -> F32s {
    // max(x, 0) + ln(1 + y) with y = e^-|x|, which neither overflows nor cancels.
    let zero = F32s::zero();
    let y = exp(zero - x.max(zero - x));
    // ln(1 + y) = 2 artanh(t) with t = y / (2 + y) <= 1/3; the series' first dropped term is below 2e-9.
    let t = y / (y + F32s::splat(2.0));
    let square = t * t;
    let mut p = F32s::splat(1.0 / 15.0);
    for c in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0] {
        p = p.mul_add(square, F32s::splat(c));
    }
    (t + t).mul_add(p, zero.max(x))
}

/// The error function, within 1.2e-7: a polynomial about 0, and `1 - e^p(|x|)` further out. The split and the
/// coefficients are N. Juffa's, designed for errors below one unit in the last place.
#[inline(always)]
pub(crate) fn erf(x: F32s) -> F32s {
    let zero = F32s::zero();
    let size = x.max(zero - x);
    let square = x * x;
    let mut near = F32s::splat(-5.967_617e-4);
    for c in [4.991_194e-3, -2.676_813_5e-2, 0.112_819_925, -0.376_125_34, 0.128_379_17] {
        near = near.mul_add(square, F32s::splat(c));
    }
    let near = near.mul_add(x, x);
    // Beyond 4 the result is 1 to f32's precision.
    let size = F32s::splat(4.0).min(size);
    let mut far = F32s::splat(-1.728_534_7e-5);
    for c in [3.831_971_3e-4, -3.883_964_4e-3, 2.425_462_2e-2, -0.106_777_88, -0.634_846_7, -0.128_717_51] {
        far = far.mul_add(size, F32s::splat(c));
    }
    let far = F32s::splat(1.0) - exp(far.mul_add(size, zero - size));
    let far = x.select_below(zero, zero - far, far);
    size.select_below(F32s::splat(0.921_875), near, far)
}
