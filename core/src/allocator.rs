//! The exact allocator (see docs/algorithm.md).
