//! A value that several threads read and write.

use parking_lot::{Mutex, MutexGuard};

/// A value that threads share.
#[derive(Debug, Default)]
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub fn new(value: T) -> Shared<T> {
        Shared(Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
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
