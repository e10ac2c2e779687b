//! Resyncing: compares a round of unknown outcome with the group's committed offsets.

use std::collections::{BTreeMap, BTreeSet};

use super::super::kafka::{Committed, Foreign, Kafka};
use super::super::outcome::{Event, FatalError, Step};
use super::{super::round::Round, Machine, State, StepContext};
use crate::offset_map::{self, OffsetMap};
use crate::throttle::Throttle;

impl<O> Machine<O> {
    /// Drops the outputs that are recorded as completed from the round.
    pub(super) fn resync<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, warned: bool,
    ) -> Result<Step, FatalError> {
        let StepContext { round, throttle, kafka, now } = context;
        self.state = State::Resyncing { warned };
        // Until the new producer has its epoch, a commit of the old one may still be under way.
        if let Some(step) = self.ready(kafka, now)? {
            return Ok(step);
        }
        round.drop_orphans(throttle);
        // Partitions without outputs are asked for as well: the answer shows that the group's coordinator is there.
        let outputs = round.outputs.iter().map(|output| output.partition);
        let partitions: BTreeSet<u32> = outputs.chain(throttle.touched()).collect();
        let partitions: Vec<u32> = partitions.into_iter().collect();
        if !partitions.is_empty() {
            match kafka.committed(&partitions) {
                Ok(committed) => self.drop_recorded(round, throttle, committed)?,
                Err(error) => {
                    if !warned {
                        self.events.push(Event::CommittedUnreadable(error));
                    }
                    self.state = State::Resyncing { warned: true };
                    return Ok(Step::Backoff);
                }
            }
        }
        // The group may have moved on unnoticed, and would refuse the next attempt, too.
        self.state = State::Starting;
        Ok(Step::PollGroup)
    }

    fn drop_recorded<P>(
        &mut self, round: &mut Round<P>, throttle: &Throttle, committed: Vec<Committed>,
    ) -> Result<(), FatalError> {
        let mut recorded: BTreeMap<u32, (i64, OffsetMap)> = BTreeMap::new();
        for Committed { partition, offset } in committed {
            let Some((offset, metadata)) = offset else { continue };
            let map = match offset_map::decode(offset, &metadata) {
                Ok(map) => map,
                Err(_) if self.rules.replay_foreign => OffsetMap::default(),
                Err(source) => return Err(FatalError::Foreign(Foreign { partition, offset, source })),
            };
            let known = throttle.ledger().partition(partition).map(|view| view.base);
            if let Some(known) = known.filter(|known| offset > *known) {
                self.events.push(Event::Overtaken { partition, committed: offset, known });
            }
            recorded.insert(partition, (offset, map));
        }
        let before = round.len();
        round.retain(|partition, offset| {
            let done = |(base, map): &(i64, OffsetMap)| {
                offset < *base || map.completed.iter().any(|run| run.contains(&offset))
            };
            !recorded.get(&partition).is_some_and(done)
        });
        self.events.push(Event::Compared { done: before - round.len(), left: round.len() });
        Ok(())
    }
}
