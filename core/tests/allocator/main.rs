//! The allocator against an independent oracle, its laws, and the examples of the documents.

mod cases;
mod examples;
mod laws;
mod oracle;
