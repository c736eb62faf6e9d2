//! The rotation of vectors before they are stored in few levels.

/// Widest head that is rotated.
pub const MAX_ROTATED: usize = 512;

/// Signs of a vector's elements, by bits from the lowest of the first word on; a narrower head takes the
/// first. Numbers of splitmix64 from 0 on: any would do that has no pattern. Without them an offset that all
/// channels share would gather in one element. They are part of the formats: other signs are other formats.
pub const SIGNS: [u64; MAX_ROTATED / 64] = signs();

/// `R = d^-1/2 H diag(s)`, with `H[i][j] = (-1)^popcount(i & j)` and `s` the signs. It keeps lengths and
/// products: scores of rotated queries with rotated keys are those of the plain ones, and a sum of rotated
/// values is the rotated sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    width: usize,
}

impl Rotation {
    /// The rotation of heads of this width.
    ///
    /// # Errors
    /// When the width is no power of two from 16 to [`MAX_ROTATED`].
    #[inline]
    pub fn new(width: usize) -> Result<Rotation, String> {
        if width.is_power_of_two() && (super::GROUP..=MAX_ROTATED).contains(&width) {
            return Ok(Rotation { width });
        }
        Err(format!("heads of {width} cannot be rotated: a power of two from 16 to {MAX_ROTATED} can"))
    }

    /// Rotates a vector: signs, then additions and subtractions of neighbours 1, 2, 4, … apart, then the
    /// factor. Each operation is rounded to f32, in this order.
    ///
    /// # Panics
    /// If the vector has another width.
    #[inline]
    pub fn apply(self, vector: &mut [f32]) {
        self.signed(vector);
        self.mixed(vector);
    }

    /// Rotates a vector back: the same stages, then the factor and the signs.
    ///
    /// # Panics
    /// If the vector has another width.
    #[inline]
    pub fn undo(self, vector: &mut [f32]) {
        self.mixed(vector);
        self.signed(vector);
    }

    #[inline]
    fn signed(self, vector: &mut [f32]) {
        assert_eq!(vector.len(), self.width, "a vector of the head's width");
        for (at, value) in vector.iter_mut().enumerate() {
            if SIGNS[at / 64] >> (at % 64) & 1 == 1 {
                *value = -*value;
            }
        }
    }

    #[inline]
    fn mixed(self, vector: &mut [f32]) {
        let mut apart = 1;
        while apart < self.width {
            for pair in vector.chunks_exact_mut(2 * apart) {
                let (low, high) = pair.split_at_mut(apart);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            apart *= 2;
        }
        let factor = 1.0 / (self.width as f32).sqrt();
        vector.iter_mut().for_each(|it| *it *= factor);
    }
}

const fn signs() -> [u64; MAX_ROTATED / 64] {
    let (mut words, mut at, mut state) = ([0; MAX_ROTATED / 64], 0, 0u64);
    while at < words.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        words[at] = z ^ (z >> 31);
        at += 1;
    }
    words
}
