//! Which offsets of a partition are completed.
