//! One capacity for all instances of a group, in seats.
//!
//! A *seat* is a transactional id, and its last committed state is the truth about it. Capacity moves between seats by
//! such states. The process that initialises a seat's transactional id last owns the seat: the brokers refuse every
//! earlier owner. So the capacity of a member that stopped, and the knowledge of what it had admitted, go to others as
//! soon as its stop is noticed. There is no leader, and no clock of another machine matters.
//!
//! A state is written *ahead* of admissions: it says how many records its author may admit before its next state.
//!
//! - [`state`]: the records of the control log
//! - [`wire`]: the records as Kafka keys and values
//! - [`ledger`]: the last state of each seat, as one reader knows it
//! - [`member`]: the rules by which a member opens its seat, writes states, gives, takes and claims
//! - [`driver`]: a member with its throttle and its log
//! - [`control`]: the trait through which a member talks to the log

mod charged;
pub mod control;
pub mod driver;
pub mod ledger;
pub mod member;
pub mod state;
pub mod wire;
