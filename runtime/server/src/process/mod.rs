//! The process and the machine under it: CPU features, memory, open files, the terminal, the clock.

pub(crate) mod allocator;
pub(crate) mod clock;
pub(crate) mod cpu;
pub(crate) mod descriptors;
pub(crate) mod end;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod notify;
pub(crate) mod out;
pub(crate) mod random;
pub(crate) mod switch;
