//! Tests of the allocator on one level and on two: an independent oracle, laws, and the examples of the documents.

mod cases;
mod examples;
mod laws;
mod levels;
mod oracle;
