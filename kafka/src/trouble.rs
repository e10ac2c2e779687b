//! What errors of the consumer mean, and what people are told of them.
//!
//! All come through the client's error callback: what concerns a partition too, in order with its records.

use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;

/// A broker that has just started, or a topic that has just been created: not all brokers know all topics yet.
const MISSING_GRACE: Duration = Duration::from_secs(30);

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No broker can be reached, or none lets us in.
    Down,
    /// A broker can't be reached; what it leads is not read.
    BrokerLost,
    /// A partition's position is not in what the broker keeps; librdkafka has stopped reading it.
    OutOfRange,
    /// A source topic seems not to exist: see [`Missing`].
    MissingTopic,
    /// Something that is there can't be read. librdkafka tries again, or goes on *behind* it, even at an offset that it made
    /// up: what it leaves out looks like offsets that hold no record, so nothing may be read after this.
    Unreadable,
    /// Only people can mend it, outside of this program.
    Denied,
    /// The client is of no use any more.
    Failed,
    /// Nothing happened.
    Nothing,
    /// librdkafka tries again by itself, losing nothing, or a rebalance follows.
    Passing,
}

impl Trouble {
    /// What this code means when the consumer says it.
    pub fn of(code: Code) -> Trouble {
        match code {
            Code::AllBrokersDown | Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => Trouble::Down,
            Code::BrokerTransportFailure | Code::Resolve | Code::OperationTimedOut | Code::NetworkException => {
                Trouble::BrokerLost
            }
            Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation => Trouble::OutOfRange,
            Code::UnknownTopicOrPartition | Code::UnknownTopic => Trouble::MissingTopic,
            // A wrong checksum (`check.crcs`); a batch that can't be unpacked; a format that is not known, which is left
            // out; a log that the broker itself finds damaged.
            Code::BadMessage | Code::BadCompression | Code::NotImplemented | Code::InvalidMessage => {
                Trouble::Unreadable
            }
            Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed | Code::InvalidGroupId => Trouble::Denied,
            Code::Fatal | Code::FencedInstanceId => Trouble::Failed,
            Code::PartitionEOF | Code::NoError => Trouble::Nothing,
            // Seen or read of, and left to librdkafka: coordinators that move or load, members that are expelled
            // (`PollExceeded`, `UnknownMemberId`, `IllegalGeneration`: a rebalance follows), commits that fail (whoever
            // commits is told), memory that ran out while unpacking (`CriticalSystemResource`: it is fetched again), and
            // `MessageSizeTooLarge`, which is also said of compacted batches that are empty.
            _ => Trouble::Passing,
        }
    }
}

/// Whether a source topic is missing. One answer is not enough to stop for: brokers have to say so, each time that they are
/// asked, for a while.
#[derive(Debug, Default)]
pub(super) struct Missing {
    since: Option<Instant>,
}

impl Missing {
    /// Brokers ought to be asked.
    pub fn is_suspected(&self) -> bool {
        self.since.is_some()
    }

    /// An error says so.
    pub fn suspect(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// A broker was asked: whether a topic is missing, or `None` if it did not answer. True, once, if it really is.
    pub fn learn(&mut self, now: Instant, missing: Option<bool>) -> bool {
        let Some(since) = self.since else { return false };
        let really = missing == Some(true) && now.saturating_duration_since(since) > MISSING_GRACE;
        self.since = match missing {
            Some(true) if !really => Some(since),
            Some(_) => None,
            // Whoever comes back has its grace from then on.
            None => Some(now),
        };
        really
    }
}

/// What to do about an error that only people can mend.
pub(super) fn denied(code: Code, service: &str, group: &str, topics: &[&str]) -> Option<String> {
    match code {
        Code::GroupAuthorizationFailed => {
            Some(format!("service {service}: not allowed to use the consumer group {group}: grant READ on it"))
        }
        Code::TopicAuthorizationFailed => Some(format!(
            "service {service}: not allowed to read its source topics ({}): grant READ and DESCRIBE on them",
            topics.join(", ")
        )),
        Code::InvalidGroupId => Some(format!("service {service}: the brokers refuse the group id {group}")),
        _ => None,
    }
}

pub(super) fn failed(service: &str, reason: &str) -> String {
    let advice = if reason.contains("ConsumerGroupHeartbeat") {
        " (if the brokers do not know kafka.group_protocol = \"consumer\": set it to \"classic\")"
    } else {
        ""
    };
    format!("service {service}: the consumer failed: {reason}{advice}")
}

pub(super) fn data_loss(topic: &str, partition: i32, offset: i64, low: i64, high: i64) -> String {
    let why = if offset > high { "the topic is not what it was" } else { "records were deleted before they were read" };
    format!(
        "{topic}-{partition}: offset {offset} is to be read next, but the topic holds {low} to {high}: {why} \
         (started with kafka.on_data_loss = \"continue\", it goes on at {low} and counts what is lost)"
    )
}

/// `positions`: what is read next of each partition, by name.
pub(super) fn unreadable(service: &str, group: &str, reason: &str, positions: &[(String, i64)]) -> String {
    format!(
        "service {service}: a record of {} can't be read, and is not passed over: {reason}. If another replica is good, \
         let it lead the partition; else, to give the record up, commit an offset behind it for the group {group} while \
         nothing runs, and start with --accept-foreign-offsets once",
        suspects(positions, offset_in(reason))
    )
}

/// Librdkafka tells the offset, not the partition. It is the one that stands there, unless its batch began before.
fn suspects(positions: &[(String, i64)], offset: Option<i64>) -> String {
    let there: Vec<&str> =
        positions.iter().filter(|(_, at)| Some(*at) == offset).map(|(name, _)| name.as_str()).collect();
    let all = || positions.iter().map(|(name, _)| name.as_str()).collect();
    let names: Vec<&str> = if there.is_empty() { all() } else { there };
    match names.as_slice() {
        [] => "a source".to_owned(),
        [one] => (*one).to_owned(),
        some if some.len() <= 5 => format!("one of {}", some.join(", ")),
        many => format!("one of {} and {} more", many[..5].join(", "), many.len() - 5),
    }
}

/// The offset that a reason speaks of: "… at offset 7 …", "… of message at 7 of 90 bytes …".
fn offset_in(reason: &str) -> Option<i64> {
    reason.split(" at ").skip(1).find_map(|rest| {
        let rest = rest.strip_prefix("offset ").unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_read_is_never_passing() {
        for code in [Code::BadMessage, Code::BadCompression, Code::NotImplemented, Code::InvalidMessage] {
            assert_eq!(Trouble::of(code), Trouble::Unreadable, "{code:?}");
        }
    }

    #[test]
    fn what_is_denied_has_words() {
        for code in [Code::GroupAuthorizationFailed, Code::TopicAuthorizationFailed, Code::InvalidGroupId] {
            assert_eq!(Trouble::of(code), Trouble::Denied, "{code:?}");
            assert!(denied(code, "kyc", "wm.kyc", &["loans"]).is_some(), "{code:?}");
        }
        assert_eq!(denied(Code::UnknownTopic, "kyc", "wm.kyc", &["loans"]), None);
    }

    #[test]
    fn a_topic_is_missing_when_all_answers_say_so_for_long() {
        let start = Instant::now();
        // Each case: what brokers answered at which second after the first error, and when it was believed.
        let gone = (0..=40).map(|second| (second, Some(true))).collect::<Vec<_>>();
        let with = |at: usize, answer| {
            let mut answers = gone.clone();
            answers[at].1 = answer;
            answers
        };
        let cases = [
            (gone.clone(), Some(31)),
            (with(20, Some(false)), None),
            // Nobody answered, then one that has just started.
            (with(35, None), Some(31)),
            (with(20, None), None),
            (vec![(300, None), (301, Some(true))], None),
            (vec![(300, None), (331, Some(true))], Some(331)),
        ];
        for (answers, expected) in cases {
            let mut missing = Missing::default();
            missing.suspect(start);
            let believed =
                answers.iter().find(|(second, answer)| missing.learn(start + Duration::from_secs(*second), *answer));
            assert_eq!(believed.map(|(second, _)| *second), expected, "{answers:?}");
            assert!(expected.is_none() || !missing.is_suspected());
        }
    }

    #[test]
    fn librdkafkas_words_tell_the_offset() {
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
    fn the_partition_is_named_as_well_as_it_is_known() {
        let standing = |count: i64| (0..count).map(|n| (format!("loans-{n}"), n * 10)).collect::<Vec<_>>();
        let cases = [
            (3, Some(20), "loans-2"),
            (1, Some(7), "loans-0"),
            (3, Some(7), "one of loans-0, loans-1, loans-2"),
            (3, None, "one of loans-0, loans-1, loans-2"),
            (7, None, "one of loans-0, loans-1, loans-2, loans-3, loans-4 and 2 more"),
            (0, Some(1), "a source"),
        ];
        for (count, offset, expected) in cases {
            assert_eq!(suspects(&standing(count), offset), expected);
        }
    }
}
