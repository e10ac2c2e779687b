//! Tells records that were lost from records that still wait.
//!
//! The throttler commits which source records it has completed. A completed record that is in neither topic is lost.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use watermaster_core::{offset_map, tracker::Tracker};
use watermaster_kafka::ask::{AskError, Asker};
use watermaster_kafka::consumer::group_id;
use watermaster_kafka::load::{NAME, RecordPosition};
use watermaster_kafka::topics::{SourceIndex, SourcePartition, Topics};
use watermaster_settings::{Kafka, Service};

use super::account::Account;

/// A committed offset with its metadata.
type Committed = (SourcePartition, (i64, Vec<u8>));

/// The time that the coordinator of the group may take.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(15);

/// The completed records of the group are not known.
#[derive(Debug, thiserror::Error)]
pub enum CompletedError {
    #[error("the completed records could not be read: {0}")]
    Unread(#[from] AskError),
    #[error("{group} has an offset that watermaster did not commit: {source}")]
    Foreign { group: String, source: offset_map::DecodeError },
}

/// Counts as lost the waiting records that the group of the service has completed.
pub fn find(kafka: &Kafka, service: &Service, account: &mut Account) -> Result<(), CompletedError> {
    let partitions: BTreeSet<_> =
        account.waiting().filter_map(|(_, topic, place)| partition_of(topic, place)).collect();
    let partitions: Vec<_> = partitions.into_iter().collect();
    if partitions.is_empty() {
        return Ok(());
    }
    let group = group_id(kafka, service);
    let topics = Topics::new(account.plan.topics.iter().map(String::as_str));
    let asked = Asker::named(kafka, NAME).map_err(AskError::from);
    match asked.and_then(|asker| asker.committed(&group, &topics, &partitions, true, COORDINATOR_TIMEOUT)) {
        Ok(committed) => judge(committed, account).map_err(|source| CompletedError::Foreign { group, source }),
        Err(why) => Err(why.into()),
    }
}

/// Counts as lost the waiting records that the offset or the map of their partition records as completed.
fn judge(committed: impl IntoIterator<Item = Committed>, account: &mut Account) -> Result<(), offset_map::DecodeError> {
    let mut completed = HashMap::new();
    for (partition, (offset, metadata)) in committed {
        let map = offset_map::decode(offset, &metadata)?;
        completed.insert(partition, Tracker::restore(offset, &map.completed));
    }
    let waiting: Vec<_> = account.waiting().collect();
    for (number, topic, place) in waiting {
        let tracker = partition_of(topic, place).and_then(|partition| completed.get(&partition));
        if tracker.is_some_and(|tracker| tracker.is_completed(place.offset)) {
            account.lose(number);
        }
    }
    Ok(())
}

fn partition_of(topic: usize, place: RecordPosition) -> Option<SourcePartition> {
    Some((SourceIndex(u16::try_from(topic).ok()?), place.partition))
}

#[cfg(test)]
mod tests {
    use watermaster_core::offset_map::MapBudget;

    use super::super::account::{Event, tests::sent};
    use super::super::plan::tests::plan;
    use super::*;

    /// Builds an account with waiting records at these offsets of partition 3.
    fn waiting_at(offsets: &[i64]) -> Account {
        let mut account =
            Account::new(plan("[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"burst\"\nrecords = 1\n"));
        for (number, offset) in offsets.iter().enumerate() {
            account.apply(&sent(0, 1, Duration::ZERO));
            account.apply(&Event::Delivered { number, place: RecordPosition { partition: 3, offset: *offset } });
        }
        account
    }

    /// Builds the commit of a group that has completed all offsets below 10, and 12.
    fn committed() -> (i64, Vec<u8>) {
        let mut tracker = Tracker::new(10);
        (10..=12).for_each(|offset| _ = tracker.observe(offset));
        tracker.complete(12);
        let text = offset_map::encode(MapBudget::default(), &tracker, 1_000, &[], None).unwrap();
        (tracker.base(), text.into_bytes())
    }

    #[test]
    fn completed_records_without_an_output_are_lost() {
        let mut account = waiting_at(&[9, 10, 11, 12, 13]);
        let (offset, metadata) = committed();
        judge(vec![((SourceIndex(0), 3), (offset, metadata.clone()))], &mut account).unwrap();
        assert_eq!((account.total().lost, account.total().waiting), (2, 3));
        let mut elsewhere = waiting_at(&[9]);
        judge(vec![((SourceIndex(0), 2), (offset, metadata))], &mut elsewhere).unwrap();
        assert_eq!((elsewhere.total().lost, elsewhere.total().waiting), (0, 1));
    }

    #[test]
    fn foreign_offsets_are_an_error() {
        let mut account = waiting_at(&[9]);
        assert!(judge(vec![((SourceIndex(0), 3), (10, b"other".to_vec()))], &mut account).is_err());
        assert_eq!(account.total().lost, 0);
    }
}
