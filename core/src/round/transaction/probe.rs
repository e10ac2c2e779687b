//! Probing => Fencing: which records are refused is found out in transactions that are always aborted.

use std::collections::BTreeSet;

use super::super::halves::Halves;
use super::super::kafka::Kafka;
use super::super::outcome::{Note, Step, Stop};
use super::super::{Refused, Round};
use super::{Attempt, Desk, Purpose, State, Transactions, sort_failures};
use crate::throttle::Throttle;

impl<O> Transactions<O> {
    pub(super) fn probe<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        mut halves: Halves,
    ) -> Result<Step, Stop> {
        let Desk { round, throttle, kafka, now } = desk;
        if let Some(step) = self.ready(kafka, now)? {
            self.state = State::Probing(halves);
            return Ok(step);
        }
        match halves.next_group() {
            Some(tags) => self.begin(Desk { round, throttle, kafka, now }, tags, Purpose::Probe(halves)),
            None => {
                self.state = State::Fencing;
                Ok(Step::Again)
            }
        }
    }

    pub(super) fn judge<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        mut attempt: Attempt<O>,
    ) -> Result<Step, Stop> {
        let Desk { round, throttle, kafka, .. } = desk;
        let Purpose::Probe(mut halves) = attempt.purpose else { unreachable!("only probes are judged") };
        if !attempt.landed {
            // What the abort gave up is reported too, unless the producer went.
            kafka.flush();
            sort_failures(kafka.failures(), &mut attempt.sent)?;
            let refused: BTreeSet<usize> = attempt.sent.refused.iter().map(|(tag, _)| *tag).collect();
            // Whatever was not refused is looked at once more: it may just not have been reached.
            attempt.sent.again = attempt.tags.iter().copied().filter(|tag| !refused.contains(tag)).collect();
        }
        attempt.sent.sort();
        if attempt.late {
            // The same group would take too long again.
            halves.divide(&mut attempt.sent.again);
        }
        let step = if attempt.sent.again.is_empty() { Step::Again } else { Step::Breathe };
        if let Some((tag, why)) = halves.sort_out(attempt.tags.len(), attempt.sent)
            && self.refuse(round, throttle, tag, why)?
        {
            halves.push(tag);
        }
        self.state = State::Probing(halves);
        Ok(step)
    }

    /// Marks a record that its topic refuses for good. True: it, or a stub of it, goes to the dead-letter topic.
    pub fn refuse<P>(
        &mut self,
        round: &mut Round<P>,
        throttle: &mut Throttle,
        tag: usize,
        why: String,
    ) -> Result<bool, Stop> {
        let (partition, offset) = (round.outputs[tag].partition, round.outputs[tag].offset);
        match round.refuse(tag, throttle) {
            Refused::DeadLettered => self.notes.push(Note::Undeliverable { partition, offset, why }),
            Refused::Stubbed => self.notes.push(Note::Stubbed { partition, offset, why }),
            Refused::Again if self.rules.discard_undeliverable => {
                round.discard(tag);
                self.notes.push(Note::Discarded { partition, offset, why });
                return Ok(false);
            }
            Refused::Again => return Err(Stop::Undeliverable { partition, offset, why }),
        }
        Ok(true)
    }
}
