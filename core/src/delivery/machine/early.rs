//! Exactly once: a transaction that begins shortly before its round is due. The coordinator then knows the partitions,
//! and the first outputs are on their way, when the round begins: about 1 ms less for a record in the median.

use super::super::kafka::Kafka;
use super::super::outcome::{DeliveryError, FatalError, Step};
use super::super::round::Round;
use super::{Attempt, Machine, Purpose, State, StepContext, Strategy, Then};
use crate::units::Time;

impl<O> Machine<O> {
    /// Begins the transaction of a round that will be due soon, and sends the outputs that are there; called again, it
    /// sends those that came since. Until the next [`step`](Machine::step), outputs may be added and the group may be
    /// served. A revocation makes that step abort the transaction, if it has outputs of the partition. The call does
    /// nothing while the producer is not fit for a transaction: the round then begins when it is due.
    pub fn open<P, K: Kafka<P, Offsets = O>>(&mut self, round: &mut Round<P>, kafka: &mut K, now: Time) {
        let mut sent = match self.state {
            State::Open { sent } => sent,
            State::Starting if self.is_fit(kafka) && kafka.begin().is_ok() => {
                self.began = Some(now);
                0
            }
            _ => return,
        };
        // An orphan is dropped when the round begins, which changes the tags of those behind it. An output that the
        // producer does not take now is for the round, too.
        while let Some(output) = round.outputs.get_mut(sent).filter(|output| output.is_wanted()) {
            if kafka.send(output, sent).is_err() {
                break;
            }
            sent += 1;
        }
        self.state = State::Open { sent };
    }

    /// Returns whether a transaction is open for a round that has not begun.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Forgets such a transaction, because its round is given up. Its owner aborts it.
    pub fn forget_open(&mut self) {
        if self.is_open() {
            self.state = State::Starting;
            self.producers.in_doubt = true;
        }
    }

    fn is_fit<P, K: Kafka<P, Offsets = O>>(&self, kafka: &K) -> bool {
        matches!(self.rules.strategy, Strategy::ExactlyOnce { .. })
            && self.most == usize::MAX
            && !self.producers.in_doubt
            && kafka.is_initialised()
            && !kafka.in_transaction()
            && kafka.fatal().is_none()
            && !kafka.tainted()
    }
}

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    /// Open: takes the offsets, now that the round is due, and goes on with the outputs that were not sent.
    pub(super) fn go_on_from(&mut self, sent: usize) -> Result<Step, FatalError> {
        if self.round.outputs[..sent].iter().any(|output| output.orphan) {
            return self.give_up_open();
        }
        let Ok((tags, offsets)) = self.next_offsets()? else { return self.give_up_open() };
        let deadline = self.machine.began.unwrap_or(self.now) + self.send_timeout();
        let attempt = Attempt::new(tags, Purpose::Commit(offsets), deadline);
        self.go_on(State::Filling { attempt, next: sent, emptied: false })
    }

    /// Aborts the transaction, which may have outputs in flight.
    fn give_up_open(&mut self) -> Result<Step, FatalError> {
        let has_landed = self.kafka.flush();
        self.machine.producers.in_doubt |= !has_landed || !self.kafka.failures().is_empty();
        self.give_up(DeliveryError::GroupMoved, Then::Resync)
    }
}
