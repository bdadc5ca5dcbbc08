//! Room for what most never need: a name's state is made and moved for every acquisition.

use std::ops::{Deref, DerefMut};

/// What a value is that nobody has written to.
pub(super) trait Nothing: Default + 'static {
    fn nothing() -> &'static Self;
}

/// A value that is made when it is first written to, and until then costs a pointer.
pub(super) struct Lazy<T>(Option<Box<T>>);

impl<T> Lazy<T> {
    /// The value, if it was ever written to: what only takes something back need not make it.
    pub(super) fn made(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Nothing> Deref for Lazy<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::nothing())
    }
}

impl<T: Nothing> DerefMut for Lazy<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
