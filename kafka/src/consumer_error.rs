//! Classifies errors of the consumer, and words those that stop a service.
//!
//! All of them come through the client's error callback, including those of a partition, in order with its records.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};

/// The time that brokers have to know a topic: one of them may have just started, or the topic may be new.
const MISSING_TOPIC_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_SUSPECTS: usize = 5;

/// The meaning of an error code that the consumer reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConsumerErrorKind {
    /// No broker can be reached, or none accepts the client's credentials.
    Down,
    /// One broker can't be reached; its partitions are not read.
    BrokerLost,
    /// A partition's position is outside the broker's log; librdkafka has stopped reading the partition.
    OutOfRange,
    /// A source topic seems not to exist: see [`confirms_missing`].
    MissingTopic,
    /// A record that exists can't be read. librdkafka tries again, or goes on *behind* it, even at an offset that it
    /// made up. Skipped records would look like offsets without a record, so nothing may be read after this.
    Unreadable,
    /// An operator has to change permissions or names.
    Denied,
    /// The client can't be used any more.
    Failed,
    /// Not an error.
    Nothing,
    /// librdkafka tries again by itself and loses nothing, or a rebalance follows.
    Passing,
}

impl ConsumerErrorKind {
    pub fn of(code: Code) -> ConsumerErrorKind {
        use ConsumerErrorKind as Kind;
        match code {
            Code::AllBrokersDown | Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => Kind::Down,
            Code::BrokerTransportFailure | Code::Resolve | Code::OperationTimedOut | Code::NetworkException => {
                Kind::BrokerLost
            }
            Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation => Kind::OutOfRange,
            Code::UnknownTopicOrPartition | Code::UnknownTopic => Kind::MissingTopic,
            // A wrong checksum (`check.crcs`); a batch that can't be unpacked; an unknown format, which librdkafka
            // skips; a log that the broker itself finds damaged.
            Code::BadMessage | Code::BadCompression | Code::NotImplemented | Code::InvalidMessage => Kind::Unreadable,
            Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed | Code::InvalidGroupId => Kind::Denied,
            Code::Fatal | Code::FencedInstanceId => Kind::Failed,
            Code::PartitionEOF | Code::NoError => Kind::Nothing,
            // Left to librdkafka: coordinators that move or load; expelled members (`PollExceeded`, `UnknownMemberId`,
            // `IllegalGeneration`: a rebalance follows); failed commits (the caller of the commit gets the error);
            // memory that ran out while unpacking (`CriticalSystemResource`: it is fetched again); and
            // `MessageSizeTooLarge`, which librdkafka also reports for compacted batches that are empty.
            _ => Kind::Passing,
        }
    }
}

/// An error as librdkafka reports it. Its text may hold a secret.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason} ({code})")]
pub struct Reported {
    pub code: Code,
    pub reason: String,
}

/// A reason to consider all brokers down.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Outage {
    #[error(transparent)]
    Reported(#[from] Reported),
    /// The brokers did not answer a question about the partitions of the group.
    #[error("{question} of group {group}: {source}")]
    Unanswered { question: &'static str, group: String, source: ClientError },
}

/// An error that stops the service. The text says how to resolve it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FatalConsumerError {
    #[error("not allowed to use the consumer group {group}: grant READ on it")]
    GroupDenied { group: String },
    #[error("not allowed to read its source topics ({topics}): grant READ and DESCRIBE on them")]
    TopicsDenied { topics: String },
    #[error("the brokers refuse the group id {group}")]
    GroupIdRefused { group: String },
    #[error("source topic {topic} does not exist: create it, or remove it from the configuration")]
    MissingTopic { topic: String },
    #[error("the partitions can't be assigned: {0}")]
    Assignment(#[source] ClientError),
    #[error("the consumer failed: {reported}{}", advice(.reported))]
    Failed { reported: Reported },
    #[error(
        "{topic}-{partition}: offset {offset} is next, but the topic holds {low} to {high}: {} \
         (with kafka.on_data_loss = \"continue\" the service goes on at {low} and counts the lost records)",
        loss(*.offset, *.high)
    )]
    DataLoss { topic: String, partition: i32, offset: i64, low: i64, high: i64 },
    #[error(
        "{topic}-{partition}: the committed offset {offset} is one of a former topic of this name, which was deleted \
         (with kafka.on_data_loss = \"continue\" the service goes on at {low}, the first record of the new topic)"
    )]
    MadeAnew { topic: String, partition: i32, offset: i64, low: i64 },
    /// `positions` are the next offsets of all partitions, by name.
    #[error(
        "a record of {} can't be read, and is not skipped: {reported}. If another replica is \
         intact, let it lead the partition. Otherwise give the record up: stop all instances, commit an offset behind \
         it for the group {group}, and start once with --accept-foreign-offsets",
        suspects(.positions, offset_in(&.reported.reason))
    )]
    Unreadable { group: String, reported: Reported, positions: Vec<(String, i64)> },
}

impl FatalConsumerError {
    /// Returns the error for a code of the kind [`Denied`](ConsumerErrorKind::Denied).
    pub(super) fn denied(code: Code, group: &str, topics: &[&str]) -> Option<FatalConsumerError> {
        let group = group.to_owned();
        match code {
            Code::GroupAuthorizationFailed => Some(FatalConsumerError::GroupDenied { group }),
            Code::TopicAuthorizationFailed => Some(FatalConsumerError::TopicsDenied { topics: topics.join(", ") }),
            Code::InvalidGroupId => Some(FatalConsumerError::GroupIdRefused { group }),
            _ => None,
        }
    }
}

/// Returns advice on a failure. Only the text tells the request that the brokers do not know.
fn advice(reported: &Reported) -> &'static str {
    if reported.reason.contains("ConsumerGroupHeartbeat") {
        " (if the brokers do not know kafka.group_protocol = \"consumer\": set it to \"classic\")"
    } else {
        ""
    }
}

/// Returns the reason why an offset is not between the first and the last one.
fn loss(offset: i64, high: i64) -> &'static str {
    if offset > high { "the topic was created anew or truncated" } else { "records were deleted before they were read" }
}

/// Names the partitions that may hold an unreadable record: librdkafka reports its offset, not its partition.
///
/// The record is in a partition with the reported offset as its next one, unless its batch began before that offset.
fn suspects(positions: &[(String, i64)], offset: Option<i64>) -> String {
    let at_offset: Vec<&str> =
        positions.iter().filter(|(_, at)| Some(*at) == offset).map(|(name, _)| name.as_str()).collect();
    let all = || positions.iter().map(|(name, _)| name.as_str()).collect();
    let names: Vec<&str> = if at_offset.is_empty() { all() } else { at_offset };
    match names.as_slice() {
        [] => "a source".to_owned(),
        [one] => (*one).to_owned(),
        some if some.len() <= MAX_SUSPECTS => format!("one of {}", some.join(", ")),
        many => format!("one of {} and {} more", many[..MAX_SUSPECTS].join(", "), many.len() - MAX_SUSPECTS),
    }
}

/// Finds the offset in librdkafka's text: "… at offset 7 …", "… of message at 7 of 90 bytes …".
fn offset_in(reason: &str) -> Option<i64> {
    reason.split(" at ").skip(1).find_map(|rest| {
        let rest = rest.strip_prefix("offset ").unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

/// Decides whether a source topic is missing that is suspected `since` then. One answer is not enough: brokers must
/// report the topic missing in every answer for [`MISSING_TOPIC_TIMEOUT`].
///
/// `missing` is a broker's answer, or `None` if no broker answered. Returns true, once, when the topic is to be
/// considered missing; ends or renews the suspicion if the answer asks for it.
pub(super) fn confirms_missing(since: &mut Option<Instant>, now: Instant, missing: Option<bool>) -> bool {
    let Some(began) = *since else { return false };
    let confirmed = missing == Some(true) && now.saturating_duration_since(began) > MISSING_TOPIC_TIMEOUT;
    *since = match missing {
        Some(true) if !confirmed => Some(began),
        Some(_) => None,
        // A broker that comes back has all the time again.
        None => Some(now),
    };
    confirmed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_records_are_never_skipped() {
        for code in [Code::BadMessage, Code::BadCompression, Code::NotImplemented, Code::InvalidMessage] {
            assert_eq!(ConsumerErrorKind::of(code), ConsumerErrorKind::Unreadable, "{code:?}");
        }
    }

    #[test]
    fn each_denied_code_has_an_error() {
        for code in [Code::GroupAuthorizationFailed, Code::TopicAuthorizationFailed, Code::InvalidGroupId] {
            assert_eq!(ConsumerErrorKind::of(code), ConsumerErrorKind::Denied, "{code:?}");
            assert!(FatalConsumerError::denied(code, "wm.kyc", &["loans"]).is_some(), "{code:?}");
        }
        assert!(FatalConsumerError::denied(Code::UnknownTopic, "wm.kyc", &["loans"]).is_none());
    }

    #[test]
    fn a_topic_is_missing_after_31_seconds_of_negative_answers() {
        let start = Instant::now();
        // Each case: the answers by second after the first error, and the second at which the topic counts as missing.
        let gone = (0..=40).map(|second| (second, Some(true))).collect::<Vec<_>>();
        let with = |at: usize, answer| {
            let mut answers = gone.clone();
            answers[at].1 = answer;
            answers
        };
        let cases = [
            (gone.clone(), Some(31)),
            (with(20, Some(false)), None),
            // No answer for a while, then one from a broker that has just started.
            (with(35, None), Some(31)),
            (with(20, None), None),
            (vec![(300, None), (301, Some(true))], None),
            (vec![(300, None), (331, Some(true))], Some(331)),
        ];
        for (answers, expected) in cases {
            let mut since = Some(start);
            let confirmed = answers
                .iter()
                .find(|(second, answer)| confirms_missing(&mut since, start + Duration::from_secs(*second), *answer));
            assert_eq!(confirmed.map(|(second, _)| *second), expected, "{answers:?}");
            assert!(expected.is_none() || since.is_none());
        }
    }

    #[test]
    fn the_offset_is_found_in_the_text_of_librdkafka() {
        let reasons = [
            ("MessageSet at offset 70 (123 bytes) failed CRC32C check (original 0x1 != calculated 0x2)", Some(70)),
            (
                "Decompression (codec 0x3) of message at 71 of 500 bytes failed: Local: Invalid compressed data",
                Some(71),
            ),
            ("Unsupported Message(Set) MagicByte 7 at offset 72", Some(72)),
            ("Fetch from broker 1 failed at offset 73 (leader epoch 0): Broker: Invalid message", Some(73)),
            ("Message at relative offset 2 (90 bytes) failed CRC32 check", None),
            ("something else", None),
        ];
        for (reason, offset) in reasons {
            assert_eq!(offset_in(reason), offset, "{reason}");
        }
    }

    #[test]
    fn all_partitions_that_may_hold_the_record_are_named() {
        let at = |count: i64| (0..count).map(|n| (format!("loans-{n}"), n * 10)).collect::<Vec<_>>();
        let cases = [
            (3, Some(20), "loans-2"),
            (1, Some(7), "loans-0"),
            (3, Some(7), "one of loans-0, loans-1, loans-2"),
            (3, None, "one of loans-0, loans-1, loans-2"),
            (7, None, "one of loans-0, loans-1, loans-2, loans-3, loans-4 and 2 more"),
            (0, Some(1), "a source"),
        ];
        for (count, offset, expected) in cases {
            assert_eq!(suspects(&at(count), offset), expected);
        }
    }
}
