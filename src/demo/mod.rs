//! `watermaster demo`.

pub mod setup;
