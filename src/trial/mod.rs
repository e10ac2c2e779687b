//! What the demo and the load generator share: traffic that a seed fixes, and measures of what came of it.

pub mod random;
pub mod signals;
pub mod window;
