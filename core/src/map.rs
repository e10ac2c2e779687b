//! The text that travels in a commit's metadata.

/// Room for one partition's map in the commit metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapBudget {
    /// The broker counts UTF-16 units (Apache Kafka): 15 bits fit in each.
    Chars(usize),
    /// The broker counts bytes: 6 bits fit in each.
    Bytes(usize),
}
