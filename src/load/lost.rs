//! What did not come out: does it still wait, or did the throttler lose it?
//!
//! The throttler commits which source records it has completed. One that it completed but that is in neither topic is lost.

use std::collections::HashMap;
use std::time::Duration;

use watermaster_core::map;
use watermaster_core::tracker::Tracker;

use super::account::Account;
use crate::kafka::load::committed;
use crate::kafka::record::SourceIndex;
use crate::settings::{Kafka, Service};

/// How long the group's coordinator may take.
const ASK: Duration = Duration::from_secs(15);

/// Marks as lost what the service's group has completed. Answers with why it could not be found out.
pub fn find(kafka: &Kafka, service: &Service, account: &mut Account) -> Option<String> {
    let waiting: Vec<_> = account.waiting().collect();
    if waiting.is_empty() {
        return None;
    }
    let key = |topic: usize, partition: i32| Some((SourceIndex(u16::try_from(topic).ok()?), partition));
    let mut partitions: Vec<_> = waiting.iter().filter_map(|(_, topic, place)| key(*topic, place.partition)).collect();
    partitions.sort();
    partitions.dedup();
    let group = format!("{}.{}", kafka.group_id, service.name);
    let committed = match committed(kafka, &group, &account.plan().topics, &partitions, ASK) {
        Ok(committed) => committed,
        Err(error) => return Some(format!("what {group} has completed could not be read: {error}")),
    };
    let mut completed = HashMap::new();
    for (partition, offset, metadata) in committed {
        match map::decode(offset, &metadata) {
            Ok(map) => _ = completed.insert(partition, Tracker::restore(offset, &map.completed)),
            Err(why) => return Some(format!("{group} has an offset that watermaster did not commit: {why}")),
        }
    }
    for (number, topic, place) in waiting {
        let tracker = key(topic, place.partition).and_then(|partition| completed.get(&partition));
        if tracker.is_some_and(|tracker| tracker.is_completed(place.offset)) {
            account.lose(number);
        }
    }
    None
}
