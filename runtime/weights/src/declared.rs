//! Tensors that are whatever they are asked for as: of made-up weights, and of a file of packed ones, whose
//! arrays have digests of the names, shapes and formats that they were made of.

use crate::file::Bytes;
use crate::made_up::MadeUp;
use crate::packed::digest;
use crate::{Tensor, WeightsError};
use monomorph_formats::Format;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tensors that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    /// Of made-up weights.
    seed: Option<u64>,
    tensors: Grown<(String, Vec<usize>)>,
}

impl Declared {
    pub(crate) fn made_up(seed: u64) -> Declared {
        Declared { seed: Some(seed), ..Declared::default() }
    }

    /// Whether numbers are made up.
    pub(crate) fn is_made_up(&self) -> bool {
        self.seed.is_some()
    }

    /// A tensor as it is asked for; `path` is where it is said to be.
    ///
    /// # Errors
    /// When no tensor is like that.
    pub(crate) fn tensor<'a>(
        &'a self,
        path: &'a Path,
        name: &str,
        shape: &[usize],
        format: Format,
    ) -> Result<Tensor<'a>, WeightsError> {
        let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let len = elements.and_then(|elements| format.bytes(elements)).ok_or_else(|| {
            WeightsError::mismatch(path, format!("tensor `{name}` cannot be {format} {shape:?}"))
        })?;
        let (name, shape) = self.tensors.push((name.to_owned(), shape.to_owned()));
        let bytes = match self.seed {
            Some(seed) => Bytes::made_up(MadeUp::new(seed ^ digest(name.as_bytes()), shape, format), len),
            None => Bytes::packed(path, len),
        };
        Ok(Tensor { name, shape, format, bytes })
    }
}

/// A list that grows while what is in it is borrowed: block `n` has room for `2^n`.
#[derive(Debug)]
struct Grown<T> {
    next: AtomicUsize,
    blocks: [OnceLock<Box<[OnceLock<T>]>>; 32],
}

impl<T> Default for Grown<T> {
    fn default() -> Grown<T> {
        Grown { next: AtomicUsize::new(1), blocks: [const { OnceLock::new() }; 32] }
    }
}

impl<T> Grown<T> {
    fn push(&self, value: T) -> &T {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let block = at.ilog2();
        let room = || (0..1usize << block).map(|_| OnceLock::new()).collect();
        self.blocks[block as usize].get_or_init(room)[at - (1 << block)].get_or_init(|| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_grows_while_it_is_borrowed() {
        let list = Grown::default();
        let all: Vec<&usize> = std::thread::scope(|scope| {
            let push = |from: usize| (from..from + 500).map(|it| list.push(it)).collect::<Vec<_>>();
            let threads = [0, 500].map(|from| scope.spawn(move || push(from)));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.into_iter().copied().eq(0..1000));
    }

    #[test]
    fn a_tensor_is_what_it_is_asked_for_as() {
        let (packed, made_up) = (Declared::default(), Declared::made_up(3));
        let path = Path::new("a.packed");
        let tensor = packed.tensor(path, "a", &[4, 32], Format::Q4_1).unwrap();
        assert_eq!((tensor.name, tensor.shape, tensor.bytes.len()), ("a", &[4, 32][..], 80));
        let refused = tensor.bytes.read().unwrap_err().to_string();
        assert!(refused.contains("a.packed: holds weights as they were packed"), "{refused}");
        let tensor = |name| made_up.tensor(path, name, &[4, 32], Format::F32).unwrap().bytes.read().unwrap();
        assert_eq!(tensor("a"), tensor("a"));
        assert_ne!(tensor("a"), tensor("b"));
        let refused = made_up.tensor(path, "a", &[4, 31], Format::Q4_1).unwrap_err().to_string();
        assert!(refused.contains("tensor `a` cannot be q4_1 [4, 31]"), "{refused}");
    }
}
