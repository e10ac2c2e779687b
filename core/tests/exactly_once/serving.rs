//! An instance in its group: partitions come and go.

use watermaster_core::offset_map::{self, OffsetMap};
use watermaster_core::round::{Kafka, Stop};

use super::client::{Cluster, Op};
use super::group::Partitions;
use super::instance::Instance;
use super::link::Link;
use super::planted::Plant;
use super::source::PARTITIONS;
use super::trace::note;

impl Instance {
    /// Serves what there is; records that come while a round is late are put aside.
    pub(super) fn serve_group(&mut self, cluster: &mut Cluster) -> Result<(), Stop> {
        while let Some(op) = self.client.next_op() {
            match op {
                Op::Assign(_) => {}
                Op::Revoke { partitions, lost } => {
                    note(&self.client.name, || format!("gives back {partitions:#08b}, lost: {lost}"));
                    cluster.broker.coverage.lost_revokes += u64::from(lost);
                    cluster.broker.coverage.revoked_in_round += u64::from(self.in_round.is_some());
                    if cluster.has(Plant::NoPurgeOnRevoke) {
                        continue;
                    }
                    self.revoked(partitions);
                }
            }
        }
        if self.client.unsettled != 0 {
            self.settle(cluster)?;
        }
        // What was fetched ahead comes all the same.
        for _ in 0..if self.in_round.is_some() && !self.held_back { 3 } else { 0 } {
            let Some(record) = self.poll(cluster) else { break };
            cluster.broker.coverage.put_aside += 1;
            self.stash.push(record);
        }
        self.held_back |= self.in_round.is_some() && !self.stash.is_empty();
        Ok(())
    }

    /// Finds out where the new partitions start.
    fn settle(&mut self, cluster: &mut Cluster) -> Result<(), Stop> {
        let new = self.client.unsettled;
        let numbers: Vec<u32> = (0..PARTITIONS as u32).filter(|partition| new & 1 << partition != 0).collect();
        let answer = Link { client: &mut self.client, cluster }.committed(&numbers);
        let Ok(committed) = answer else { return Ok(()) };
        self.client.unsettled = 0;
        self.revoked(new & self.assigned);
        for committed in committed {
            let partition = committed.partition;
            let source = &mut cluster.broker.sources[partition as usize];
            let (base, map) = match committed.offset {
                None => (source.start, OffsetMap::default()),
                Some((offset, metadata)) => (offset, offset_map::decode(offset, &metadata).unwrap_or_default()),
            };
            let end = source.end(cluster.now);
            note(&self.client.name, || format!("starts {partition} at {base}, {:?}", map.completed));
            self.throttle.handle_assigned(cluster.now, partition, base, &map, end);
            self.positions[partition as usize] = base;
            self.assigned |= 1 << partition;
            self.paused &= !(1 << partition);
        }
        Ok(())
    }

    fn revoked(&mut self, partitions: Partitions) {
        for partition in (0..PARTITIONS as u32).filter(|partition| partitions & 1 << partition != 0) {
            for slot in self.throttle.handle_revoked(partition) {
                self.held[slot.0 as usize] = None;
            }
            self.round.forget(partition);
            self.stash.retain(|record| record.partition != partition);
        }
        self.assigned &= !partitions;
    }
}
