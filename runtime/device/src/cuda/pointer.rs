//! Addresses on the device.

/// An address in the arena on the device, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Pointer(pub(super) u64);

impl Pointer {
    /// The argument for a parameter that a kernel's instantiation does not use.
    pub const NULL: Pointer = Pointer(0);

    /// Start and end of a range of `bytes` bytes that begins here.
    pub fn range(self, bytes: u64) -> [Pointer; 2] {
        [self, self.offset(bytes)]
    }

    pub(crate) fn offset(self, bytes: u64) -> Pointer {
        Pointer(self.0 + bytes)
    }

    pub(crate) fn before(self, bytes: u64) -> Pointer {
        Pointer(self.0 - bytes)
    }
}

/// The K/V blocks of the layers of one body.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    pub(super) start: Pointer,
    pub(super) layer_bytes: u64,
}

impl Cache {
    /// The K/V blocks of one layer, numbered within the body.
    pub fn layer(&self, layer: usize) -> Pointer {
        self.start.offset(self.layer_bytes * layer as u64)
    }
}
