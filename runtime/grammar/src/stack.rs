//! A large stack for the library, which recurses as deep as the source.

/// Bytes of stack for compiling, checking and dropping a grammar. Only touched pages take memory, and they
/// are freed at the end. `tests/bounds.rs` goes up to each bound with the frames of an unoptimised build, on
/// a quarter of this.
pub(crate) const STACK_BYTES: usize = 512 << 20;

/// A trial has half of it, so a grammar that just fits there fits here with room to spare.
pub(crate) const TRIAL_BYTES: usize = STACK_BYTES / 2;

/// Runs work on a thread with a large stack.
///
/// # Errors
/// When there is no memory for the stack, or `work` panics.
pub(crate) fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    with_stack(STACK_BYTES, work)
}

/// Runs work on a thread with `bytes` of stack.
pub(crate) fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(bytes);
        let thread =
            thread.spawn_scoped(scope, work).map_err(|error| format!("no thread for it: {error}"))?;
        thread.join().map_err(|_| "the compiler of grammars panicked".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trial_has_room_for_fits_twice() {
        assert_eq!(STACK_BYTES / TRIAL_BYTES, 2);
    }

    #[test]
    fn work_that_panics_is_an_error() {
        assert_eq!(with_room(|| 5), Ok(5));
        let panicked = with_room(|| assert_eq!(1, 2, "it does"));
        assert_eq!(panicked, Err("the compiler of grammars panicked".to_owned()));
    }
}
