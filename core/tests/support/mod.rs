//! What tests of the core share.

// Each test crate that includes this module uses a part of it.
#![allow(dead_code)]

pub mod forge;
pub mod random;
