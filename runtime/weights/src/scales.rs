//! Static scales of cached keys and values, as checkpoints have them.

use crate::{Checkpoint, Tensor, WeightsError};

impl Checkpoint {
    /// The static scale of each of `heads` heads: a tensor of floats that has one for each, or one for all.
    /// Of made-up weights they are 1.
    ///
    /// # Errors
    /// [`WeightsError::Mismatch`] naming the tensor if it is missing, has another number of elements, is
    /// quantised, or has a scale that is not positive and finite; or the file cannot be read.
    pub fn static_scales(&self, name: &str, heads: usize) -> Result<Vec<f32>, WeightsError> {
        if self.is_made_up() {
            return Ok(vec![1.0; heads]);
        }
        let mismatch = |what: String| WeightsError::mismatch(self.path(), what);
        let Tensor { shape, format, bytes, .. } = self.tensor(name)?;
        let count = shape.iter().try_fold(1, |product: usize, size| product.checked_mul(*size));
        let Some(count) = count.filter(|count| [1, heads].contains(count) && !format.is_quantised()) else {
            return Err(mismatch(format!(
                "tensor `{name}` should be 1 static scale or {heads}, one a head, in floats, and is {format} {shape:?}"
            )));
        };
        let mut scales = vec![0.0; count];
        monomorph_formats::decode(format, &bytes.read()?, &mut scales);
        let wrong = scales.iter().enumerate().find(|(_, scale)| !(scale.is_finite() && **scale > 0.0));
        if let Some((head, scale)) = wrong {
            let of = if count == 1 { String::new() } else { format!(" for head {head}") };
            return Err(mismatch(format!(
                "tensor `{name}` has a static scale of {scale}{of}: positive and finite ones multiply codes"
            )));
        }
        Ok(if count == 1 { vec![scales[0]; heads] } else { scales })
    }
}
