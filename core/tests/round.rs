//! The bookkeeping of a round.

mod sim;

use std::{sync::Arc, time::Duration};

use sim::START;
use watermaster_core::delivery::{Form, Round};
use watermaster_core::reason::{Grounds, Reason};
use watermaster_core::throttle::{Rejection, Throttle};

#[test]
fn bytes_of_a_round_are_those_of_its_remaining_outputs() {
    let mut throttle = Throttle::new(sim::policy(10, Duration::from_secs(1)), START);
    let mut round = Round::default();
    round.admit((0, 7), "admitted", 100, None);
    round.admit((1, 3), "committed by its previous owner", 20, None);
    let rejection = Rejection { reason: Reason::Anonymous, retry_after: Duration::ZERO, client: None };
    round.reject((2, 5), ("rejected", Form::Whole), 3, (rejection, Grounds::default()), Arc::from(""));
    assert_eq!((round.len(), round.bytes()), (3, 123));
    round.forget(2);
    round.drop_orphans(&mut throttle);
    assert_eq!((round.len(), round.bytes()), (2, 120));
    round.retain(|partition, _| partition != 1);
    assert_eq!((round.len(), round.bytes()), (1, 100));
    round.clear();
    assert_eq!((round.len(), round.bytes()), (0, 0));
}
