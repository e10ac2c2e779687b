//! The outcome of one fault.

use crate::{flow::SourcePartition, plan::now_ms};

/// The evidence that a fault took effect, or the reason why it did not.
#[derive(Debug, Clone)]
pub enum Effect {
    Observed(String),
    Missing(String),
}

impl Effect {
    /// Returns the effect with this description: observed if `observed` holds, missing otherwise.
    pub fn when(observed: bool, description: String) -> Effect {
        if observed { Effect::Observed(description) } else { Effect::Missing(description) }
    }

    pub fn is_observed(&self) -> bool {
        matches!(self, Effect::Observed(_))
    }

    pub fn description(&self) -> &str {
        let (Effect::Observed(text) | Effect::Missing(text)) = self;
        text
    }
}

/// A fault that was injected.
pub struct Outcome {
    pub target: String,
    pub effect: Effect,
    /// Start and end of the fault, in ms since 1970. The end is when killed processes have been started and held
    /// requests released.
    pub began: u64,
    pub ended: u64,
    /// The partitions that another instance has to take over.
    pub partitions: Vec<SourcePartition>,
}

impl Outcome {
    /// Creates an outcome; `span` is the start and the end of the fault.
    pub fn new(target: impl Into<String>, span: (u64, u64), effect: Effect) -> Outcome {
        Outcome { target: target.into(), effect, began: span.0, ended: span.1, partitions: Vec::new() }
    }

    /// Adds the partitions that another instance has to take over.
    pub fn with_partitions(self, partitions: Vec<SourcePartition>) -> Outcome {
        Outcome { partitions, ..self }
    }

    /// Creates the outcome of a fault that found no target.
    pub fn no_target(why: &str) -> Outcome {
        Outcome::new("-", (now_ms(), now_ms()), Effect::Missing(why.to_owned()))
    }
}
