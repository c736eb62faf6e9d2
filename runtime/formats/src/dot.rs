/// The sum of products of two rows of equal length.
///
/// Eight partial sums, so that the reference interpreter takes minutes rather than hours; in f64 their order
/// does not matter. It stands here because this crate is optimised in every build, and the interpreter's,
/// which is large, is not.
#[inline(never)]
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for i in 0..8 {
            sums[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}
