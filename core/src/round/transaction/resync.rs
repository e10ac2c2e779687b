//! Resyncing => Fencing: a round that may be committed or not is compared with what the group has committed.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Round;
use super::super::kafka::{Committed, Foreign, Kafka};
use super::super::outcome::{Note, Step, Stop};
use super::{Desk, State, Transactions};
use crate::offset_map::{self, OffsetMap};
use crate::throttle::Throttle;

impl<O> Transactions<O> {
    /// Drops from the round what is recorded as done.
    pub(super) fn resync<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        told: bool,
    ) -> Result<Step, Stop> {
        let Desk { round, throttle, kafka, now } = desk;
        self.state = State::Resyncing { told };
        // Before this, a commit of the old producer may still be under way.
        if let Some(step) = self.ready(kafka, now)? {
            return Ok(step);
        }
        round.drop_orphans(throttle);
        // Also of those without outputs: the answer shows that the group's coordinator is there.
        let outputs = round.outputs.iter().map(|output| output.partition);
        let partitions: BTreeSet<u32> = outputs.chain(throttle.touched()).collect();
        let partitions: Vec<u32> = partitions.into_iter().collect();
        if !partitions.is_empty() {
            match kafka.committed(&partitions) {
                Ok(committed) => self.drop_recorded(round, throttle, committed)?,
                Err(why) => {
                    if !told {
                        self.notes.push(Note::Unlearnt(why));
                    }
                    self.state = State::Resyncing { told: true };
                    return Ok(Step::Breathe);
                }
            }
        }
        // The group may have moved on unheard, and would refuse the next attempt too.
        self.state = State::Fencing;
        Ok(Step::ServeGroup)
    }

    fn drop_recorded<P>(
        &mut self,
        round: &mut Round<P>,
        throttle: &Throttle,
        committed: Vec<Committed>,
    ) -> Result<(), Stop> {
        let mut recorded: BTreeMap<u32, (i64, OffsetMap)> = BTreeMap::new();
        for Committed { partition, offset } in committed {
            let Some((offset, metadata)) = offset else { continue };
            let map = match offset_map::decode(offset, &metadata) {
                Ok(map) => map,
                Err(_) if self.rules.replay_foreign => OffsetMap::default(),
                Err(why) => return Err(Stop::Foreign(Foreign { partition, offset, why })),
            };
            let known = throttle.partition(partition).map(|view| view.base);
            if let Some(known) = known.filter(|known| offset > *known) {
                self.notes.push(Note::Overtaken { partition, committed: offset, known });
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
        self.notes.push(Note::Compared { done: before - round.len(), left: round.len() });
        Ok(())
    }
}
