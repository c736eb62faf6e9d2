//! One file a verb.
fn main() {}
