//! Handles rebalances, errors and connectivity while the consumer is polled.

mod assignment;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{IsError as _, KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::{
    client::ClientContext, config::RDKafkaLogLevel, topic_partition_list::TopicPartitionList, types::RDKafkaRespErr,
};

use crate::consumer_error::{ConsumerErrorKind as Kind, FatalConsumerError, Outage, Reported, confirms_missing};
use crate::topics::{SourcePartition, Topics};
use crate::{assign::StartRules, client, event::Event, log_limiter::LogLimiter};

/// The longest attempt to find out where partitions start. A shutdown waits for it.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval between two attempts, in which other partitions are read.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(500);
/// The interval at which brokers are asked while they are down, or may be, or a topic is missing.
const BROKER_PROBE_INTERVAL: Duration = Duration::from_secs(1);
const BROKER_PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of unanswered probes in a row after which all brokers count as down.
const MAX_UNANSWERED_PROBES: u32 = 2;

/// The consumer's context. rdkafka calls it inside of `poll`, on the polling thread, but requires it to be `Sync`;
/// the lock is always free.
pub(super) struct Membership {
    service: String,
    group: String,
    topics: Arc<Topics>,
    rules: StartRules,
    /// True if there are events or pending work: one load on the hot path.
    busy: AtomicBool,
    closing: AtomicBool,
    /// True once a rebalance was answered while the client was being closed.
    answered_last: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    events: VecDeque<Event<'static>>,
    /// The offset at which each assigned partition started, or up to which no record is left to read.
    pub(crate) starts: BTreeMap<SourcePartition, i64>,
    /// Partitions that the caller paused. (A partition may have been revoked since.)
    pub(crate) paused: BTreeSet<SourcePartition>,
    /// Assigned partitions with an unknown start. The group waits for this member.
    pub(crate) unresolved: Option<Vec<SourcePartition>>,
    /// Assigned partitions without a leader, which start once they have one. The group does not wait for them.
    leaderless: VecDeque<SourcePartition>,
    /// A mirror copied the offset of a partition that was assigned together with them.
    leaderless_beside_copies: bool,
    /// The generation that ended when partitions were lost, until the next assignment.
    pub(crate) expelled_from: Option<i32>,
    next_attempt: Option<Instant>,
    down: bool,
    /// The last broken connection, if no broker has answered a probe since, and the number of unanswered probes.
    lost: Option<(Reported, u32)>,
    /// True if a position fell out of its broker's log.
    pub(crate) out_of_range: bool,
    /// The error about an unreadable record; the service has to stop before it reads on.
    unreadable: Option<Reported>,
    /// The time since which a source topic is suspected to be missing.
    missing_since: Option<Instant>,
    next_broker_probe: Option<Instant>,
    /// librdkafka and the brokers may repeat an error with each attempt.
    log_limiter: LogLimiter,
}

impl State {
    fn has_pending(&self) -> bool {
        let broken = self.down || self.lost.is_some() || self.out_of_range || self.unreadable.is_some();
        broken || self.unresolved.is_some() || !self.leaderless.is_empty() || self.missing_since.is_some()
    }
}

impl Membership {
    pub fn new(service: &str, group: &str, topics: Arc<Topics>, rules: StartRules) -> Membership {
        Membership {
            service: service.to_owned(),
            group: group.to_owned(),
            topics,
            rules,
            busy: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            answered_last: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns true if there is work for [`poll_pending`](Membership::poll_pending) or an event.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Notes that the client is about to be closed: from now on, one rebalance is answered, with an unassignment.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub fn next_event(&self) -> Option<Event<'static>> {
        if !self.is_busy() {
            return None;
        }
        let mut state = self.state();
        let event = state.events.pop_front();
        self.busy.store(state.has_pending() || !state.events.is_empty(), Ordering::Release);
        event
    }

    /// Notes that brokers answered.
    pub fn reached(&self) {
        if self.is_busy() && std::mem::take(&mut self.state().down) {
            self.push(Event::Up);
        }
    }

    /// Works on what is pending: an assignment to resolve, a position out of range, brokers to probe.
    pub fn poll_pending(&self, consumer: &BaseConsumer<Membership>) {
        let unreadable = self.state().unreadable.take();
        if let Some(reported) = unreadable {
            self.push_unreadable(consumer, reported);
            return;
        }
        if self.may_attempt() {
            let unresolved = self.state().unresolved.take();
            match unresolved {
                Some(partitions) => self.resolve_positions(consumer, partitions),
                None => self.start_leaderless(consumer),
            }
            if self.may_restart(consumer) {
                match self.restart(consumer) {
                    Ok(()) => {
                        self.state().out_of_range = false;
                        self.reached();
                    }
                    Err(error) => {
                        self.attempt_later();
                        self.push_down(self.unanswered("positions", error));
                    }
                }
            }
        }
        self.probe_brokers(consumer);
    }

    fn may_attempt(&self) -> bool {
        self.state().next_attempt.is_none_or(|next| Instant::now() >= next)
    }

    fn attempt_later(&self) {
        self.state().next_attempt = Some(Instant::now() + RESOLVE_INTERVAL);
    }

    fn warn(&self, kind: &'static str, text: impl std::fmt::Display) {
        let log = |suppressed| tracing::warn!(service = self.service, suppressed, "{text}");
        self.state().log_limiter.warn(kind, log);
    }

    fn push(&self, event: impl Into<Event<'static>>) {
        self.state().events.push_back(event.into());
        self.busy.store(true, Ordering::Release);
    }

    fn push_down(&self, outage: Outage) {
        if !std::mem::replace(&mut self.state().down, true) {
            self.push(Event::Down(outage));
        }
    }

    fn push_unreadable(&self, consumer: &BaseConsumer<Membership>, reported: Reported) {
        let positions = self.positions(consumer).unwrap_or_else(|_| self.state().starts.clone());
        let name = |(source, partition)| format!("{}-{partition}", self.topics.name(source));
        let positions = positions.into_iter().map(|(partition, at)| (name(partition), at)).collect();
        let group = self.group.clone();
        self.push(FatalConsumerError::Unreadable { group, reported, positions });
    }

    fn denied(&self, code: Code) -> Option<FatalConsumerError> {
        FatalConsumerError::denied(code, &self.group, &self.topics.names())
    }

    fn unanswered(&self, question: &'static str, source: ClientError) -> Outage {
        Outage::Unanswered { question, group: self.group.clone(), source }
    }

    /// Asks the brokers at intervals while they are down, or may be, or a topic is missing.
    ///
    /// librdkafka, too, reports that all brokers are down, but its build with CMake leaves out what that takes
    /// (`.cargo/config.toml`). So a broken connection is a reason to ask whether there is another one.
    fn probe_brokers(&self, consumer: &BaseConsumer<Membership>) {
        let now = Instant::now();
        let mut state = self.state();
        let needed = state.down || state.lost.is_some() || state.missing_since.is_some();
        if !needed || state.next_broker_probe.is_some_and(|next| now < next) {
            return;
        }
        state.next_broker_probe = Some(now + BROKER_PROBE_INTERVAL);
        let waits_for_positions = state.unresolved.is_some() || state.out_of_range;
        drop(state);
        let answer = missing_topic(consumer, &self.topics);
        let lost = self.state().lost.take();
        if let (true, Some((reported, unanswered))) = (answer.is_err(), lost) {
            if unanswered + 1 < MAX_UNANSWERED_PROBES {
                self.state().lost = Some((reported, unanswered + 1));
            } else {
                self.push_down(reported.into());
            }
        }
        // While positions are unknown, only the next attempt to resolve them tells that brokers are back.
        if answer.is_ok() && !waits_for_positions {
            self.reached();
        }
        let missing = answer.as_ref().ok().map(Option::is_some);
        let confirmed = confirms_missing(&mut self.state().missing_since, Instant::now(), missing);
        if let (true, Ok(Some(topic))) = (confirmed, answer) {
            self.push(FatalConsumerError::MissingTopic { topic });
        }
    }
}

/// Returns the first source topic that has to exist and does not, as far as one broker knows.
fn missing_topic(consumer: &BaseConsumer<Membership>, topics: &Topics) -> Result<Option<String>, ClientError> {
    let required = topics.required_names();
    if required.is_empty() {
        // Without a question there would be no answer, and brokers that are down would count as reached.
        consumer.fetch_metadata(topics.names().first().copied(), BROKER_PROBE_TIMEOUT)?;
    }
    for name in required {
        let metadata = consumer.fetch_metadata(Some(name), BROKER_PROBE_TIMEOUT)?;
        let error = metadata.topics().first().and_then(|topic| topic.error()).map(Code::from);
        if matches!(error, Some(Code::UnknownTopicOrPartition | Code::UnknownTopic)) {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

impl ClientContext for Membership {
    crate::oauth::makes_tokens!();

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        let reported = Reported { code, reason: reason.to_owned() };
        match Kind::of(code) {
            Kind::Down => self.push_down(reported.into()),
            // While all brokers are lost, each attempt to reach one is an error.
            Kind::BrokerLost if self.state().down => {}
            Kind::BrokerLost => {
                let unanswered = self.state().lost.as_ref().map_or(0, |(_, unanswered)| *unanswered);
                self.state().lost = Some((reported.clone(), unanswered));
                self.push(Event::BrokerLost(reported));
            }
            Kind::OutOfRange => {
                self.warn("out of range", reason);
                self.state().out_of_range = true;
            }
            Kind::MissingTopic => {
                self.warn("missing topic", reason);
                self.state().missing_since.get_or_insert_with(Instant::now);
            }
            Kind::Unreadable => _ = self.state().unreadable.get_or_insert(reported),
            Kind::Denied => self.denied(code).into_iter().for_each(|error| self.push(error)),
            Kind::Failed => self.push(FatalConsumerError::Failed { reported }),
            Kind::Nothing => return,
            Kind::Passing => self.warn("passing", format_args!("consumer: {reported}")),
        }
        self.busy.store(true, Ordering::Release);
    }
}

impl ConsumerContext for Membership {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        debug_assert!(error.is_error(), "librdkafka tells the kind of rebalance as an error code");
        if self.closing.load(Ordering::Acquire) {
            // The first answer takes all partitions away, and lets librdkafka leave the group. If an assignment was not
            // answered yet, closing reports its revocation, too. librdkafka may have left the group before the second
            // answer, and from then on it leaves most calls without a reply: the calling thread would wait forever.
            if !consumer.closed() && !self.answered_last.swap(true, Ordering::AcqRel) {
                self.revoke(consumer, list);
            }
        } else if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.resolve_positions(consumer, self.topics.partitions(list));
        } else {
            self.revoke(consumer, list);
        }
    }
}
