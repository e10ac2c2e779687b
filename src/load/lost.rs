//! What did not come out: does it still wait, or did the throttler lose it?
//!
//! The throttler commits which source records it has completed. One that it completed but that is in neither topic is lost.

use std::collections::HashMap;
use std::time::Duration;

use watermaster_core::offset_map;
use watermaster_core::tracker::Tracker;

use super::account::Account;
use watermaster_kafka::load::{RecordPosition, committed};
use watermaster_kafka::record::SourceIndex;
use watermaster_settings::{Kafka, Service};

/// A source and one of its partitions.
type SourcePartition = (SourceIndex, i32);

/// How long the group's coordinator may take.
const ASK: Duration = Duration::from_secs(15);

/// Marks as lost what the service's group has completed. Answers with why it could not be found out.
pub fn find(kafka: &Kafka, service: &Service, account: &mut Account) -> Option<String> {
    let mut partitions: Vec<_> = account.waiting().filter_map(|(_, topic, place)| partition_of(topic, place)).collect();
    partitions.sort();
    partitions.dedup();
    if partitions.is_empty() {
        return None;
    }
    let group = format!("{}.{}", kafka.group_id, service.name);
    let committed = match committed(kafka, &group, &account.plan().topics, &partitions, ASK) {
        Ok(committed) => committed,
        Err(error) => return Some(format!("what {group} has completed could not be read: {error}")),
    };
    judge(committed, account).err().map(|why| format!("{group} has an offset that watermaster did not commit: {why}"))
}

type Committed = (SourcePartition, i64, Vec<u8>);

/// Marks as lost what waits though its partition's offset or map says that it is completed.
fn judge(committed: Vec<Committed>, account: &mut Account) -> Result<(), offset_map::DecodeError> {
    let mut completed = HashMap::new();
    for (partition, offset, metadata) in committed {
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

    use super::super::account::{Event, Sent};
    use super::super::plan::tests::plan;
    use super::super::schedule::Shape;
    use super::*;

    /// Records at these offsets of partition 3, none of which came out.
    fn waiting_at(offsets: &[i64]) -> Account {
        let mut account =
            Account::new(plan("[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"burst\"\nrecords = 1\n"));
        for (number, offset) in offsets.iter().enumerate() {
            let (shape, at) = (Shape { value_bytes: 1, key: 0 }, Duration::ZERO);
            account.apply(Event::Sent(Sent { client: 0, shape, attempt: 1, intended: at, due: at, at }));
            account.apply(Event::Delivered { number, place: RecordPosition { partition: 3, offset: *offset } });
        }
        account
    }

    /// What a group commits that has completed all offsets below 10, and 12.
    fn committed() -> (i64, Vec<u8>) {
        let mut tracker = Tracker::new(10);
        (10..=12).for_each(|offset| _ = tracker.observe(offset));
        tracker.complete(12);
        let text = offset_map::encode(MapBudget::default(), &tracker, 1_000, &[]).unwrap();
        (tracker.base(), text.into_bytes())
    }

    #[test]
    fn what_is_completed_and_did_not_come_out_is_lost_and_the_rest_waits() {
        let mut account = waiting_at(&[9, 10, 11, 12, 13]);
        let (offset, metadata) = committed();
        judge(vec![((SourceIndex(0), 3), offset, metadata.clone())], &mut account).unwrap();
        assert_eq!((account.total().lost, account.total().waiting), (2, 3));
        let mut elsewhere = waiting_at(&[9]);
        judge(vec![((SourceIndex(0), 2), offset, metadata)], &mut elsewhere).unwrap();
        assert_eq!((elsewhere.total().lost, elsewhere.total().waiting), (0, 1));
    }

    #[test]
    fn offsets_of_others_say_nothing() {
        let mut account = waiting_at(&[9]);
        assert!(judge(vec![((SourceIndex(0), 3), 10, b"other".to_vec())], &mut account).is_err());
        assert_eq!(account.total().lost, 0);
    }
}
