//! Room for what most never need: a name's state is made and moved for every acquisition.

use std::ops::Deref;

/// What a value is that was never made.
pub(super) trait Nothing: Default + 'static {
    fn nothing() -> &'static Self;
}

/// A value that costs a pointer until it is made. It can be read all the time; who writes says
/// whether it is to be made for that.
pub(super) struct Lazy<T>(Option<Box<T>>);

impl<T: Nothing> Lazy<T> {
    pub(super) fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }

    /// The value, if it was made: what only takes something back need not make it.
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
