//! Rules that change while the program runs.
//!
//! - [`log`]: the log of changes, from which all instances know the same versions

pub mod log;
