//! Clients for demonstrations, load and tests, which `run` does not need.

pub mod embedded;
pub mod load;
