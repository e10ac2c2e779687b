//! A value that several threads read and write.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that threads share. One that panicked while it had the value does not keep it from the others.
#[derive(Debug, Default)]
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub fn new(value: T) -> Shared<T> {
        Shared(Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the value. The others need not wait while the former one is taken apart.
    pub fn set(&self, value: T) {
        let former = std::mem::replace(&mut *self.lock(), value);
        drop(former);
    }
}

impl<T: Clone> Shared<T> {
    pub fn get(&self) -> T {
        self.lock().clone()
    }
}
