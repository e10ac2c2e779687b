//! Resyncing: compares a round of unknown outcome with the group's committed offsets.

use std::collections::{BTreeMap, BTreeSet};

use super::super::kafka::{Committed, Foreign, Kafka};
use super::super::outcome::{Event, FatalError, Step};
use super::{State, StepContext};
use crate::offset_map::{self, OffsetMap};

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    /// Drops the outputs that are recorded as completed from the round.
    pub(super) fn resync(&mut self, warned: bool) -> Result<Step, FatalError> {
        self.machine.state = State::Resyncing { warned };
        // Until the new producer has its epoch, a commit of the old one may still be under way.
        if let Some(step) = self.machine.ready(self.kafka, self.now)? {
            return Ok(step);
        }
        self.round.drop_orphans(self.throttle);
        // Partitions without outputs are asked for as well: the answer shows that the group's coordinator is there.
        let outputs = self.round.outputs.iter().map(|output| output.partition);
        let partitions: BTreeSet<u32> = outputs.chain(self.throttle.touched()).collect();
        let partitions: Vec<u32> = partitions.into_iter().collect();
        if !partitions.is_empty() {
            match self.kafka.committed(&partitions) {
                Ok(committed) => self.drop_recorded(committed)?,
                Err(error) => {
                    if !warned {
                        self.machine.events.push(Event::CommittedUnreadable(error));
                    }
                    self.machine.state = State::Resyncing { warned: true };
                    return Ok(Step::Backoff);
                }
            }
        }
        // The group may have moved on unnoticed, and would refuse the next attempt, too.
        self.machine.state = State::Starting;
        Ok(Step::PollGroup)
    }

    fn drop_recorded(&mut self, committed: Vec<Committed>) -> Result<(), FatalError> {
        let mut recorded: BTreeMap<u32, (i64, OffsetMap)> = BTreeMap::new();
        for Committed { partition, offset } in committed {
            let Some((offset, metadata)) = offset else { continue };
            let map = match offset_map::decode(offset, &metadata) {
                Ok(map) => map,
                Err(_) if self.machine.rules.replay_foreign => OffsetMap::default(),
                Err(source) => return Err(FatalError::Foreign(Foreign { partition, offset, source })),
            };
            let known = self.throttle.ledger().partition(partition).map(|view| view.base);
            if let Some(known) = known.filter(|known| offset > *known) {
                self.machine.events.push(Event::Overtaken { partition, committed: offset, known });
            }
            recorded.insert(partition, (offset, map));
        }
        let before = self.round.len();
        self.round.retain(|partition, offset| {
            let done = |(base, map): &(i64, OffsetMap)| offset < *base || map.completed.contains(offset);
            !recorded.get(&partition).is_some_and(done)
        });
        self.machine.events.push(Event::Compared { done: before - self.round.len(), left: self.round.len() });
        Ok(())
    }
}
