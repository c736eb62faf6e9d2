//! A part of a state that its successors share until one of them changes it.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared<T>(Rc<T>);

impl<T> Shared<T> {
    pub fn new(of: T) -> Shared<T> {
        Shared(Rc::new(of))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Rc::make_mut(&mut self.0)
    }
}
