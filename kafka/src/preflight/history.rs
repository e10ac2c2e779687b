//! Looks at the offsets at which a service starts, and at the records that wait for a group which has committed nothing
//! yet.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Message as _, Offset};
use watermaster_core::offset_map::{self, DecodeError};
use watermaster_settings::{Kafka, OnDataLoss, OnForeignOffset, Service, Settings};

use super::problem::Problem;
use crate::ask::{AskError, Asker};
use crate::assign::{LEADERLESS, remaining, watermarks};
use crate::client::{KafkaError, LoggingContext};
use crate::consumer::{FatalConsumerError, ForeignOffset, group_id};
use crate::topics::{SourcePartition, Topics};

/// The longest wait for the first record of each partition: a partition may hold nothing but transaction markers.
const OLDEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The records in the sources of a service.
struct History {
    /// The offsets in all partitions: as many as there are records, or more after compaction and transactions.
    offsets: u64,
    /// The time of the oldest first record of a partition, if one came in time.
    oldest: Option<SystemTime>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records", self.offsets)?;
        let Some(oldest) = self.oldest else { return Ok(()) };
        let age = Duration::from_secs(oldest.elapsed().unwrap_or_default().as_secs());
        let time = humantime::format_rfc3339_seconds(oldest);
        write!(f, ", the oldest {} old ({time})", humantime::format_duration(age))
    }
}

/// Tells where a service starts if its group has committed no offset of a source and the sources hold records, or if it
/// committed one that is not this program's.
pub(super) fn check(
    settings: &Settings, service: &Service, partitions: &[SourcePartition], timeout: Duration,
) -> Option<Problem> {
    let kafka = &settings.kafka;
    let group = group_id(kafka, service);
    match look(kafka, service, &group, partitions, timeout) {
        Ok(Start::Own) => None,
        Ok(Start::Foreign { foreign, more }) => {
            let replay = kafka.on_foreign_offset == OnForeignOffset::Replay;
            let does = if replay {
                "goes on there, and may repeat or skip records"
            } else {
                "stops, unless it is told to go on"
            };
            let more = if more > 0 { format!(". {more} more partitions have such an offset") } else { String::new() };
            Some(Problem::warning(format!("an instance that starts {does}: {foreign}{more}")))
        }
        Ok(Start::Lost(why)) => {
            let does = if kafka.on_data_loss == OnDataLoss::Stop { "stops" } else { "goes on" };
            Some(Problem::warning(format!("an instance that starts {does}: {why}")))
        }
        Ok(Start::Fresh(history)) if settings.start_from_is_written => Some(Problem::note(format!(
            "the group {group} has committed nothing: start_from is \"{}\", and the sources hold {history}",
            kafka.start_from
        ))),
        Ok(Start::Fresh(history)) => {
            let text = format!(
                "the group {group} has committed nothing, and the sources hold {history}. Write in [kafka] start_from \
                 = \"earliest\" to read them all, or start_from = \"latest\" to begin with the records that come from \
                 now on"
            );
            let in_shadow = "; in shadow mode the service reads them all, and admits each at once";
            let enforces = service.policy.enforce;
            Some(if enforces { Problem::error(text) } else { Problem::warning(text + in_shadow) })
        }
        Err(why) => {
            Some(Problem::warning(format!("it was not checked whether the group {group} starts at old records: {why}")))
        }
    }
}

/// The offsets at which a service starts.
enum Start {
    /// The offsets of this program, or the first ones of sources that hold nothing.
    Own,
    /// One of them is another program's, and so are these more.
    Foreign { foreign: ForeignOffset, more: usize },
    /// The records behind one of them are gone.
    Lost(FatalConsumerError),
    /// The group has none, and records wait.
    Fresh(History),
}

fn look(
    kafka: &Kafka, service: &Service, group: &str, partitions: &[SourcePartition], timeout: Duration,
) -> Result<Start, AskError> {
    let topics = Topics::new(service.sources.iter().map(|source| source.topic.as_str()));
    let (asker, deadline) = (Asker::new(kafka, group)?, Instant::now() + timeout);
    // Offsets of a transaction that a predecessor left open would hold up the answer until it times out. Those that
    // were committed before answer the question as well.
    let committed = asker.committed(group, &topics, partitions, false, timeout)?;
    if !committed.is_empty() {
        let next: Vec<_> = committed.iter().map(|(at, (offset, _))| (*at, *offset)).collect();
        let mut foreign = committed.into_iter().filter_map(|((source, partition), (offset, metadata))| {
            match offset_map::decode(offset, &metadata) {
                // An instance starts at a copy of an own offset.
                Ok(_) | Err(DecodeError::Copied { .. }) => None,
                Err(why) => {
                    Some(ForeignOffset { topic: topics.name(source).to_owned(), partition, offset, source: why })
                }
            }
        });
        let Some(first) = foreign.next() else {
            let edges = watermarks(&asker.consumer, &topics, partitions, LEADERLESS, deadline);
            let edges = edges.map_err(KafkaError::from)?;
            let lost = next.into_iter().find_map(|(at, offset)| {
                let (low, high) = *edges.get(&at)?;
                let (topic, partition) = (topics.name(at.0).to_owned(), at.1);
                let why = FatalConsumerError::DataLoss { topic, partition, offset, low, high };
                (!(low..=high).contains(&offset)).then_some(why)
            });
            return Ok(lost.map_or(Start::Own, Start::Lost));
        };
        return Ok(Start::Foreign { foreign: first, more: foreign.count() });
    }
    let filled = watermarks(&asker.consumer, &topics, partitions, LEADERLESS, deadline).map_err(KafkaError::from)?;
    let filled: Vec<_> = filled.into_iter().filter(|(_, (low, high))| low < high).collect();
    let offsets = filled.iter().map(|(_, (low, high))| high.abs_diff(*low)).sum();
    let firsts = filled.into_iter().map(|(partition, (low, _))| (partition, low));
    if offsets == 0 {
        return Ok(Start::Own);
    }
    Ok(Start::Fresh(History { offsets, oldest: oldest(&asker.consumer, &topics, firsts.collect()) }))
}

/// Returns the time of the oldest of these records.
fn oldest(
    reader: &BaseConsumer<LoggingContext>, topics: &Topics, firsts: Vec<(SourcePartition, i64)>,
) -> Option<SystemTime> {
    let list = topics.list_at(firsts.iter().map(|(partition, low)| (*partition, Offset::Offset(*low))));
    reader.assign(&list).ok()?;
    let mut unread: HashSet<SourcePartition> = firsts.into_iter().map(|(partition, _)| partition).collect();
    let (deadline, mut oldest) = (Instant::now() + OLDEST_TIMEOUT, None);
    while !unread.is_empty() && Instant::now() < deadline {
        let Some(Ok(record)) = reader.poll(remaining(deadline)) else { continue };
        let is_first = topics.find(record.topic()).is_some_and(|source| unread.remove(&(source, record.partition())));
        let time = record.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok()).filter(|_| is_first);
        oldest = [oldest, time].into_iter().flatten().min();
    }
    oldest.map(|ms| UNIX_EPOCH + Duration::from_millis(ms))
}
