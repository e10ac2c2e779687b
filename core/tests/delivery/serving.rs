//! Polling the group: assigned and revoked partitions.

use watermaster_core::delivery::{FatalError, Kafka};
use watermaster_core::offset_map::{self, OffsetMap};

use super::client::{Cluster, Op};
use super::{group::Partitions, instance::Instance, planted::Plant, planted::Planted, source::PARTITIONS, trace::note};

impl Instance {
    /// Handles assignments and revocations; records that arrive while a round is late are deferred.
    pub(super) fn serve_group(&mut self, cluster: &mut Cluster) -> Result<(), FatalError> {
        while let Some(op) = self.client.next_op() {
            match op {
                Op::Assign(_) => {}
                Op::Revoke { partitions, lost } => {
                    note(&self.client.name, || format!("{partitions:#08b} are revoked, lost: {lost}"));
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
            self.resolve_positions(cluster)?;
        }
        // Records that were fetched before the pause still arrive.
        for _ in 0..if self.in_round.is_some() && !self.reading_paused { 3 } else { 0 } {
            let Some(record) = self.poll(cluster) else { break };
            cluster.broker.coverage.deferred += 1;
            self.deferred.push(record);
        }
        self.reading_paused |= self.in_round.is_some() && !self.deferred.is_empty();
        Ok(())
    }

    /// Reads the committed offsets of new partitions and starts them there.
    fn resolve_positions(&mut self, cluster: &mut Cluster) -> Result<(), FatalError> {
        let new = self.client.unsettled;
        let numbers: Vec<u32> = (0..PARTITIONS as u32).filter(|partition| new & 1 << partition != 0).collect();
        let answer = Planted::new(&mut self.client, cluster).committed(&numbers);
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
            // Records of other clients follow sooner or later.
            self.throttle.handle_sole_client(
                partition,
                Some(crate::instance::CLIENTS[partition as usize % crate::instance::CLIENTS.len()]),
            );
            let in_flight =
                self.client.producer.in_flight.iter().filter(|(_, record, _)| record.partition == partition);
            let in_flight = in_flight.fold(0, |set, (_, record, _)| set | 1 << record.offset);
            self.client.sent[partition as usize] = cluster.broker.checker.sent_by_next_owner(partition, in_flight);
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
            self.deferred.retain(|record| record.partition != partition);
        }
        self.assigned &= !partitions;
    }
}
