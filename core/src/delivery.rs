//! Delivery: sends what was decided and commits it, at least once or exactly once.
//!
//! - `round`: the outputs that were decided since the last commit
//! - `kafka`: the trait through which a delivery talks to Kafka, and its errors
//! - `machine`: the state machine that delivers a round, one bounded call at a time
//! - `outcome`: what the machine reports: steps, events, fatal errors
//!
//! Payloads belong to the owner of the round; the core only carries them.

mod kafka;
mod machine;
mod outcome;
mod round;

pub use kafka::{
    ClientError, Commit, Committed, ErrorClass, ErrorKind, Failure, Foreign, Kafka, OffsetsError, SendError,
    TransactionError,
};
pub use machine::{DeliveryRules, Machine, Strategy};
pub use outcome::{AttemptOutcome, DeliveryError, Event, FatalError, Phase, ReplaceCause, Step};
pub use round::{Form, Output, Rejected, Round};
