//! The controller of the capacity: against its oracle, and its laws.

mod laws;
mod oracle;
mod window;
