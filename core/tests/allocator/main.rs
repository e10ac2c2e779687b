//! Tests of the allocator: an independent oracle, laws, and the examples of the documents.

mod cases;
mod examples;
mod laws;
mod oracle;
