//! The delivery machine with a Kafka that fails on demand: how long it repeats a call, and how many failures stop it.

mod sim;

use std::time::Duration;

use sim::START;
use watermaster_core::delivery::{
    ClientError, Commit, Committed, DeliveryRules, ErrorClass, ErrorKind, Failure, FatalError, Kafka, Machine,
    OffsetsError, Output, Phase, Round, SendError, Step, Strategy, TransactionError,
};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::throttle::{Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

const SECOND: Duration = Duration::from_secs(1);

/// Every call succeeds, except for commits while there is an error for them.
#[derive(Default)]
struct Stub {
    commit_error: Option<TransactionError>,
    /// The time that a commit takes.
    stall: Duration,
    initialised: bool,
    in_transaction: bool,
    replaced: usize,
}

impl Kafka<()> for Stub {
    type Offsets = ();

    fn offsets(&mut self, _: &[Commit]) -> Result<(), OffsetsError> {
        Ok(())
    }

    fn send(&mut self, _: &mut Output<()>, _: usize) -> Result<(), SendError> {
        Ok(())
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        Vec::new()
    }

    fn replace(&mut self) -> Result<(), ClientError> {
        (self.initialised, self.in_transaction, self.replaced) = (false, false, self.replaced + 1);
        Ok(())
    }

    fn fatal(&self) -> Option<ClientError> {
        None
    }

    fn now(&self, step: Time) -> Time {
        step + self.stall
    }

    fn commit_offsets(&mut self, (): &()) -> Result<bool, OffsetsError> {
        Ok(true)
    }

    fn purge(&mut self) {}

    fn init(&mut self) -> Result<(), TransactionError> {
        self.initialised = true;
        Ok(())
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        self.in_transaction = true;
        Ok(())
    }

    fn send_offsets(&mut self, (): &()) -> Result<bool, TransactionError> {
        Ok(true)
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        self.commit_error.clone().map_or(Ok(()), Err)
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        self.in_transaction = false;
        Ok(())
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, ClientError> {
        Ok(partitions.iter().map(|&partition| Committed { partition, offset: None }).collect())
    }

    fn is_initialised(&self) -> bool {
        self.initialised
    }

    fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    fn failing(&self) -> bool {
        false
    }

    fn tainted(&self) -> bool {
        false
    }
}

/// A machine with a round of one record.
struct Delivery {
    machine: Machine<()>,
    round: Round<()>,
    throttle: Throttle,
    kafka: Stub,
    now: Time,
}

impl Delivery {
    fn failing_with(class: ErrorClass, kind: ErrorKind) -> Delivery {
        let strategy = Strategy::ExactlyOnce { timeout: 10 * SECOND };
        let rules = DeliveryRules { strategy, replay_foreign: false, discard_undeliverable: false };
        let mut throttle = Throttle::new(sim::policy(10, SECOND), START);
        throttle.handle_assigned(START, 0, 0, &OffsetMap::default(), 0);
        let arrival = Arrival { partition: 0, offset: 0, bytes: 1, sender: Sender::Client("A"), written_ms: None };
        assert!(matches!(throttle.handle_record(START, &arrival), Verdict::Admit(_)));
        let mut round = Round::default();
        round.admit((0, 0), (), 1, Some("A".into()));
        let commit_error = Some(TransactionError { class, kind, source: ClientError::new("planned") });
        let kafka = Stub { commit_error, ..Stub::default() };
        Delivery { machine: Machine::new(rules), round, throttle, kafka, now: START }
    }

    fn step(&mut self) -> Result<Step, FatalError> {
        self.machine.step(&mut self.round, &mut self.throttle, &mut self.kafka, self.now)
    }

    /// Takes steps until the next one commits.
    fn until_commit(&mut self) {
        while self.machine.phase() != Phase::Commit {
            self.step().expect("only commits fail");
        }
    }

    /// Fails to commit at this time after the start, and returns the error that stops the service.
    fn fail_at(&mut self, seconds: u32) -> Option<FatalError> {
        self.now = START + SECOND * seconds;
        self.until_commit();
        self.step().err()
    }
}

#[test]
fn a_commit_without_an_answer_is_repeated_for_15_s_then_the_producer_is_replaced() {
    let mut delivery = Delivery::failing_with(ErrorClass::Retriable, ErrorKind::Other);
    delivery.until_commit();
    for (seconds, replaced) in [(0, 0), (14, 0), (15, 1)] {
        assert!(delivery.fail_at(seconds).is_none());
        assert_eq!(delivery.kafka.replaced, replaced, "after {seconds} s");
    }
    assert_eq!(delivery.machine.phase(), Phase::Resync, "the commit may have been applied");
    delivery.kafka.commit_error = None;
    delivery.until_commit();
    assert_eq!(delivery.step(), Ok(Step::Done));
}

#[test]
fn a_producer_that_is_fenced_again_5_to_60_s_later_stops_the_service() {
    for (times, stops) in
        [(&[0, 4][..], false), (&[0, 6], true), (&[0, 59], true), (&[0, 61], false), (&[0, 61, 70], true)]
    {
        let mut delivery = Delivery::failing_with(ErrorClass::Fatal, ErrorKind::Fenced);
        let ends: Vec<_> = times.iter().map(|&seconds| delivery.fail_at(seconds)).collect();
        let stopped: Vec<bool> = ends.iter().map(|end| matches!(end, Some(FatalError::FencedTwice(_)))).collect();
        let (last, before) = stopped.split_last().expect("some times");
        assert!(*last == stops && !before.contains(&true), "{times:?}: {ends:?}");
    }
}

/// The bug: an instance that stood still in two commits, for longer than the coordinator leaves a transaction open,
/// took the ends of its transactions for the work of another instance, and stopped.
#[test]
fn a_producer_that_is_fenced_after_a_stall_in_the_commit_was_not_fenced_by_another_one() {
    for (stall, stops) in [(9, true), (10, false)] {
        let mut delivery = Delivery::failing_with(ErrorClass::Fatal, ErrorKind::Fenced);
        delivery.kafka.stall = SECOND * stall;
        assert_eq!(delivery.fail_at(0), None);
        let end = delivery.fail_at(30);
        assert_eq!(matches!(end, Some(FatalError::FencedTwice(_))), stops, "{stall} s: {end:?}");
    }
}

#[test]
fn six_producers_that_fail_within_ten_minutes_stop_the_service() {
    for (apart, stops) in [(0, true), (119, true), (121, false)] {
        let mut delivery = Delivery::failing_with(ErrorClass::Fatal, ErrorKind::Other);
        (0..5).for_each(|number| assert_eq!(delivery.fail_at(number * apart), None, "{apart} s apart"));
        let end = delivery.fail_at(5 * apart);
        assert_eq!(
            matches!(end, Some(FatalError::TooManyFailures { count: 6, .. })),
            stops,
            "{apart} s apart: {end:?}"
        );
    }
}

/// The engine aborts such a transaction, and its records may have no answer yet. The next ones would have their sequence
/// numbers.
#[test]
fn a_producer_with_a_transaction_that_was_given_up_commits_nothing_more() {
    let mut delivery = Delivery::failing_with(ErrorClass::Fatal, ErrorKind::Other);
    delivery.kafka.commit_error = None;
    let Delivery { machine, round, kafka, now, .. } = &mut delivery;
    machine.prepare(kafka, *now).expect("the producer is made ready");
    machine.open(round, kafka, *now);
    assert!(machine.is_open());
    kafka.abort().expect("the abort is answered");
    machine.forget_open();
    delivery.until_commit();
    assert_eq!(delivery.kafka.replaced, 1);
    assert_eq!(delivery.step(), Ok(Step::Done));
}
