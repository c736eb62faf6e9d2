//! Packed weights, and where they come from: packed into memory of this process, or mapped from a file that
//! was packed before. One that packs the file lets each go when it is written.

use super::mapped::Mapping;
use super::memory::Memory;
use monomorph_abi::packed_file::AGAIN;
use monomorph_weights::{Packed, Packing, WeightsError, digest};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that kernels read, and that nobody writes any more.
pub(crate) struct Array {
    start: NonNull<u8>,
    len: usize,
    /// What `start` points into, as long as this lives.
    _owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Memory {
        _it: Memory<u8>,
    },
    Mapping {
        _it: Arc<Mapping>,
    },
    /// Of no bytes.
    Nothing,
}

// SAFETY: memory that is only read, and whose owner may be sent and shared.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    /// Bytes `at .. at + len`.
    #[inline(always)]
    pub(crate) fn slice(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at, "out of the array");
        // SAFETY: in bounds by the check, initialised, and never written: this was made of memory that it
        // owns since, or of a mapping.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    fn of(bytes: &[u8], owner: Owner) -> Array {
        Array { start: NonNull::from(bytes).cast(), len: bytes.len(), _owner: owner }
    }

    /// Without bytes.
    fn nothing() -> Array {
        Array::of(&[], Owner::Nothing)
    }
}

impl From<Memory<u8>> for Array {
    fn from(mut memory: Memory<u8>) -> Array {
        let bytes = memory.all_mut();
        Array {
            start: NonNull::from(&mut *bytes).cast(),
            len: bytes.len(),
            _owner: Owner::Memory { _it: memory },
        }
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({})", self.len)
    }
}

/// What an array is, so that none is taken for another.
#[derive(Clone, Debug)]
pub(super) struct Made {
    /// For people: kind, format, dimensions, and the first tensor.
    pub(super) name: String,
    /// Of that, and of all tensors and which of their rows.
    digest: u64,
}

impl Made {
    /// Of what a line says for people, and what is to be the same besides.
    pub(super) fn new(name: String, rest: &str) -> Made {
        let digest = digest(format!("{name}\n{rest}").as_bytes());
        Made { name, digest }
    }
}

/// Where arrays come from and go to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrays<'a> {
    /// Packed, and kept in memory.
    Packed,
    /// Packed, written to a file, and let go.
    Written(&'a Mutex<Packing>),
    /// Found in a mapping.
    Mapped(&'a Mapped<'a>),
}

impl Arrays<'_> {
    /// The next arrays, of so many bytes each. `pack` packs them, where that is still to be done.
    ///
    /// # Errors
    /// Those of `pack`; when the file is not the one, or cannot be written.
    pub(super) fn next<const N: usize>(
        &self,
        made: impl FnOnce() -> [Made; N],
        bytes: [usize; N],
        pack: impl FnOnce() -> Result<[Memory<u8>; N], WeightsError>,
    ) -> Result<[Array; N], WeightsError> {
        match self {
            Arrays::Packed => Ok(pack()?.map(Array::from)),
            Arrays::Written(packing) => {
                for (made, mut memory) in made().iter().zip(pack()?) {
                    write(packing, made, memory.all_mut())?;
                }
                Ok([(); N].map(|()| Array::nothing()))
            }
            Arrays::Mapped(mapped) => {
                let mut taken = [(); N].map(|()| Array::nothing());
                for (taken, (made, bytes)) in taken.iter_mut().zip(made().iter().zip(bytes)) {
                    let bytes = mapped.next(made, bytes)?;
                    *taken = Array::of(bytes, Owner::Mapping { _it: Arc::clone(&mapped.mapping) });
                }
                Ok(taken)
            }
        }
    }

    /// The next array of so many f32, which are few, and everyone has for himself.
    ///
    /// # Errors
    /// As [`Arrays::next`].
    pub(super) fn next_floats(
        &self,
        made: impl FnOnce() -> Made,
        count: usize,
        read: impl FnOnce() -> Result<Vec<f32>, WeightsError>,
    ) -> Result<Vec<f32>, WeightsError> {
        match self {
            Arrays::Packed => read(),
            Arrays::Written(packing) => {
                let values = read()?;
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                write(packing, &made(), &bytes)?;
                Ok(values)
            }
            Arrays::Mapped(mapped) => {
                let bytes = mapped.next(&made(), count * size_of::<f32>())?;
                Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
            }
        }
    }

    /// Whether nothing is packed any more.
    pub(super) fn are_mapped(&self) -> bool {
        matches!(self, Arrays::Mapped(_))
    }
}

fn write(packing: &Mutex<Packing>, made: &Made, bytes: &[u8]) -> Result<(), WeightsError> {
    let mut packing = packing.lock().unwrap_or_else(PoisonError::into_inner);
    packing.put(&made.name, made.digest, bytes)
}

/// A file of packed weights whose arrays are taken one after the other.
#[derive(Debug)]
pub(super) struct Mapped<'a> {
    packed: &'a Packed,
    mapping: Arc<Mapping>,
    next: AtomicUsize,
}

impl<'a> Mapped<'a> {
    /// Maps the file, which must be of this build.
    ///
    /// # Errors
    /// When it is of another one, or the system refuses.
    pub(super) fn open(packed: &'a Packed, build: &str) -> Result<Mapped<'a>, WeightsError> {
        let header = packed.header();
        if header.build != build {
            let what = format!("holds packed weights of {}, and this server is {build}", header.build);
            return Err(WeightsError::Mismatch { path: packed.path().to_owned(), what });
        }
        let io = |error| WeightsError::Io { path: packed.path().to_owned(), error };
        let bytes = usize::try_from(packed.bytes());
        let bytes = bytes.map_err(|_| io(std::io::Error::from(std::io::ErrorKind::FileTooLarge)))?;
        let mapping = Arc::new(Mapping::of(packed.file(), bytes).map_err(io)?);
        mapping.name_if_lost(packed.path());
        Ok(Mapped { packed, mapping, next: AtomicUsize::new(0) })
    }

    /// The bytes of the next array.
    fn next(&self, made: &Made, bytes: usize) -> Result<&[u8], WeightsError> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let arrays = self.packed.arrays();
        let Some(array) = arrays.get(at) else {
            return Err(self.other(format!("it has {at} arrays, and {} is wanted after them", made.name)));
        };
        let length = array.piece.place.end - array.piece.place.start;
        if array.made != made.digest || length != bytes as u64 {
            return Err(self.other(format!(
                "array {at} is {} in {length} bytes, and {} in {bytes} bytes is wanted",
                array.name, made.name
            )));
        }
        // Within the file, and so within the address space: that was checked when it was opened.
        Ok(&self.mapping.bytes()[array.piece.place.start as usize..array.piece.place.end as usize])
    }

    /// Checks that all arrays were taken.
    ///
    /// # Errors
    /// When some were not.
    pub(super) fn finish(&self) -> Result<(), WeightsError> {
        let (taken, all) = (self.next.load(Ordering::Relaxed), self.packed.arrays().len());
        if taken == all {
            return Ok(());
        }
        Err(self.other(format!("it has {all} arrays, and {taken} are wanted")))
    }

    fn other(&self, what: String) -> WeightsError {
        let what = format!("was packed by another build of {}: {what}; {AGAIN}", self.packed.header().build);
        WeightsError::Mismatch { path: self.packed.path().to_owned(), what }
    }
}
