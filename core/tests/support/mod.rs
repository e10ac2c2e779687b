//! Helpers shared by the tests of the core.

// Each test crate that includes this module uses a part of it.
#![allow(dead_code)]

pub mod forge;
pub mod random;
pub mod rule;
