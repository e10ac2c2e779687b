//! What the consumer group and the brokers tell us while we poll: rebalances, errors, connectivity.

mod restart;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{IsError as _, KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;

use super::assign::{self, Refusal, Rules, SourcePartition, Topics};
use super::consumer::{Assignment, Event, ForeignOffset};
use super::trouble::{self, Missing, Trouble};
use super::{client, ffi};
use crate::seldom::Seldom;

/// The longest that one attempt to find out where partitions start takes. A shutdown waits for it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two attempts other partitions are read.
const SETTLE_INTERVAL: Duration = Duration::from_millis(500);
/// How often brokers are asked whether they are back.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// The consumer's context. rdkafka calls it inside of `poll`, on the polling thread, and shares it, hence the lock
/// that nobody ever waits for.
pub(super) struct Membership {
    service: String,
    group: String,
    topics: Arc<Topics>,
    rules: Rules,
    /// There are events or chores: one load tells the hot path that there are none.
    busy: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event<'static>>,
    /// Where each partition that is ours started, or went on without a record that would tell.
    starts: BTreeMap<SourcePartition, i64>,
    /// Assigned, but where they start could not be found out yet. The group waits for us.
    unsettled: Option<Vec<SourcePartition>>,
    /// The generation that was over when partitions were lost, until there are others.
    expelled_from: Option<i32>,
    next_attempt: Option<Instant>,
    /// Nothing can be reached.
    down: bool,
    /// A position fell out of what the broker keeps.
    out_of_range: bool,
    /// Why something can't be read; the service has to stop before it reads on.
    unreadable: Option<String>,
    missing: Missing,
    next_probe: Option<Instant>,
    /// librdkafka and its brokers may repeat themselves with each attempt.
    seldom: Seldom,
}

impl State {
    fn has_chores(&self) -> bool {
        let broken = self.down || self.out_of_range || self.unreadable.is_some();
        broken || self.unsettled.is_some() || self.missing.is_suspected()
    }
}

impl Membership {
    pub fn new(service: &str, group: &str, topics: Arc<Topics>, rules: Rules) -> Membership {
        Membership {
            service: service.to_owned(),
            group: group.to_owned(),
            topics,
            rules,
            busy: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether [`tend`](Membership::tend) has something to do or [`next_event`](Membership::next_event) to say.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// The oldest event that was not told yet.
    pub fn next_event(&self) -> Option<Event<'static>> {
        if !self.is_busy() {
            return None;
        }
        let mut state = self.state();
        let event = state.events.pop_front();
        self.busy.store(state.has_chores() || !state.events.is_empty(), Ordering::Release);
        event
    }

    /// Whether a partition is ours.
    pub fn owns(&self, partition: SourcePartition) -> bool {
        self.state().starts.contains_key(&partition)
    }

    /// The generation that this consumer was thrown out of, as long as it got nothing since.
    pub fn expelled_from(&self) -> Option<i32> {
        self.state().expelled_from
    }

    /// Brokers answered.
    pub fn reached(&self) {
        if self.is_busy() && std::mem::take(&mut self.state().down) {
            self.tell(Event::Up);
        }
    }

    /// Does what waits to be done: an assignment to settle, a position out of range, brokers to look for.
    pub fn tend(&self, consumer: &BaseConsumer<Membership>, paused: &BTreeSet<SourcePartition>) {
        let unreadable = self.state().unreadable.take();
        if let Some(reason) = unreadable {
            self.tell_unreadable(consumer, &reason);
            return;
        }
        if self.may_attempt() {
            let unsettled = self.state().unsettled.take();
            if let Some(partitions) = unsettled {
                self.settle(consumer, partitions);
            }
            if self.may_restart(consumer) {
                self.restart(consumer, paused);
            }
        }
        self.probe(consumer);
    }

    fn is_unsettled(&self) -> bool {
        let state = self.state();
        state.unsettled.is_some() || state.out_of_range
    }

    fn may_attempt(&self) -> bool {
        self.state().next_attempt.is_none_or(|next| Instant::now() >= next)
    }

    fn attempt_later(&self) {
        self.state().next_attempt = Some(Instant::now() + SETTLE_INTERVAL);
    }

    fn warn_seldom(&self, what: &'static str, text: &str) {
        let tell = |left_out| tracing::warn!(service = self.service, left_out, "{text}");
        self.state().seldom.tell(what, Instant::now(), tell);
    }

    fn tell(&self, event: Event<'static>) {
        self.state().events.push_back(event);
        self.busy.store(true, Ordering::Release);
    }

    fn tell_down(&self, why: String) {
        if !std::mem::replace(&mut self.state().down, true) {
            self.tell(Event::Down(why));
        }
    }

    fn tell_unreadable(&self, consumer: &BaseConsumer<Membership>, reason: &str) {
        let positions = self.positions(consumer).unwrap_or_else(|_| self.state().starts.clone());
        let name = |(source, partition)| format!("{}-{partition}", self.topics.name(source));
        let positions: Vec<_> = positions.into_iter().map(|(partition, at)| (name(partition), at)).collect();
        self.tell(Event::Fatal(trouble::unreadable(&self.service, &self.group, reason, &positions)));
    }

    // ## Rebalances

    /// Finds out where the partitions start and starts them, or keeps them for a later attempt. The group waits until
    /// we do, for `max.poll.interval.ms` at most.
    fn settle(&self, consumer: &BaseConsumer<Membership>, partitions: Vec<SourcePartition>) {
        match self.resolve(consumer, &partitions) {
            Ok(assignments) => {
                if !partitions.is_empty() {
                    self.reached();
                }
                self.begin(consumer, assignments);
            }
            Err(Unsettled::Later(why)) => {
                self.state().unsettled = Some(partitions);
                self.attempt_later();
                self.tell_down(why);
            }
            Err(Unsettled::Never(event)) => {
                // The service stops; the group must not wait for it.
                self.assign(consumer, &TopicPartitionList::new());
                self.tell(event);
            }
        }
    }

    fn begin(&self, consumer: &BaseConsumer<Membership>, assignments: Vec<Assignment>) {
        let starts: Vec<_> = assignments.iter().map(|one| ((one.source, one.partition), one.base)).collect();
        let list = self.topics.list(starts.iter().map(|(partition, base)| (*partition, Offset::Offset(*base))));
        // Having nothing to do is having joined, too.
        if self.assign(consumer, &list) {
            let mut state = self.state();
            state.starts.extend(starts);
            state.expelled_from = None;
            drop(state);
            self.tell(Event::Assigned(assignments));
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Membership>, list: &TopicPartitionList) -> bool {
        let done = match consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => consumer.assign(list),
            RebalanceProtocol::None | RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        };
        // A partition that was paused when it was revoked must not come back paused.
        let done = done.and_then(|()| if list.count() > 0 { consumer.resume(list) } else { Ok(()) });
        done.map_err(|error| {
            self.tell(Event::Fatal(format!("service {}: can't take its partitions: {error}", self.service)))
        })
        .is_ok()
    }

    fn revoke(&self, consumer: &BaseConsumer<Membership>, list: &TopicPartitionList) {
        let (partitions, lost) = (self.topics.partitions(list), consumer.assignment_lost());
        let expelled_from = ffi::GroupMetadata::of(consumer.client()).filter(|_| lost).map(|me| me.generation());
        let done = match consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => consumer.unassign(),
            RebalanceProtocol::None | RebalanceProtocol::Cooperative => {
                // A restart that failed half-way has given some back already. The group waits for an answer all the same.
                consumer
                    .incremental_unassign(list)
                    .or_else(|_| consumer.incremental_unassign(&self.still_assigned(consumer, &partitions)?))
            }
        };
        if let Err(error) = done {
            tracing::warn!(service = self.service, "giving partitions back: {error}");
        }
        let mut state = self.state();
        state.expelled_from = expelled_from;
        state.starts.retain(|partition, _| !partitions.contains(partition));
        if let Some(unsettled) = &mut state.unsettled {
            unsettled.retain(|partition| !partitions.contains(partition));
        }
        drop(state);
        if !partitions.is_empty() {
            self.tell(Event::Revoked { partitions, lost });
        }
    }

    fn resolve(
        &self,
        consumer: &BaseConsumer<Membership>,
        partitions: &[SourcePartition],
    ) -> Result<Vec<Assignment>, Unsettled> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let committed = assign::committed(consumer, &self.topics, partitions, assign::remaining(deadline))
            .map_err(|error| self.unsettled("committed offsets", &error))?;
        let edges = assign::watermarks(consumer, &self.topics, partitions, deadline)
            .map_err(|error| self.unsettled("watermarks", &error))?;
        let mut assignments = Vec::with_capacity(committed.len());
        for (at, committed) in committed {
            let (source, partition) = at;
            let topic = self.topics.name(source);
            let &(low, high) =
                edges.get(&at).ok_or_else(|| Unsettled::Later(format!("no watermarks of {topic}-{partition}")))?;
            let start = assign::start(&committed, low, high, self.rules).map_err(|refusal| {
                Unsettled::Never(match refusal {
                    Refusal::Foreign { offset, why } => {
                        Event::Refused(ForeignOffset { topic: topic.to_owned(), partition, offset, why })
                    }
                    Refusal::OutOfRange { offset } => {
                        Event::Fatal(trouble::data_loss(topic, partition, offset, low, high))
                    }
                })
            })?;
            assignments.push(Assignment {
                source,
                partition,
                base: start.base,
                map: start.map,
                low,
                high,
                lost: start.lost,
                commit_first: start.commit_first,
            });
        }
        Ok(assignments)
    }

    fn unsettled(&self, what: &str, error: &ClientError) -> Unsettled {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if Trouble::of(code) == Trouble::MissingTopic {
            self.state().missing.suspect(Instant::now());
        }
        match self.denied(code) {
            Some(text) => Unsettled::Never(Event::Fatal(text)),
            None => Unsettled::Later(format!("{what} of group {}: {error}", self.group)),
        }
    }

    // ## Connectivity

    /// While something is wrong: asks now and then whether it still is.
    fn probe(&self, consumer: &BaseConsumer<Membership>) {
        let now = Instant::now();
        let mut state = self.state();
        if !state.down && !state.missing.is_suspected() || state.next_probe.is_some_and(|next| now < next) {
            return;
        }
        state.next_probe = Some(now + PROBE_INTERVAL);
        drop(state);
        let answer = missing_topic(consumer, &self.topics);
        // Not enough for partitions that are still to be settled: they say themselves when it is.
        if answer.is_ok() && !self.is_unsettled() {
            self.reached();
        }
        let missing = answer.as_ref().ok().map(Option::is_some);
        let really = self.state().missing.learn(Instant::now(), missing);
        if let (true, Ok(Some(topic))) = (really, answer) {
            self.tell(Event::Fatal(format!("service {}: source topic {topic} does not exist (any more): create it, or take it out of the configuration", self.service)));
        }
    }

    fn denied(&self, code: Code) -> Option<String> {
        trouble::denied(code, &self.service, &self.group, &self.topics.names())
    }
}

/// Why partitions have not started.
enum Unsettled {
    /// Brokers can't be asked now.
    Later(String),
    /// The service has to stop.
    Never(Event<'static>),
}

/// The first source topic that does not exist, as far as one broker knows.
fn missing_topic(consumer: &BaseConsumer<Membership>, topics: &Topics) -> Result<Option<String>, ClientError> {
    for name in topics.names() {
        let metadata = consumer.fetch_metadata(Some(name), PROBE_TIMEOUT)?;
        let error = metadata.topics().first().and_then(|topic| topic.error()).map(Code::from);
        if matches!(error, Some(Code::UnknownTopicOrPartition | Code::UnknownTopic)) {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

impl ClientContext for Membership {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match Trouble::of(code) {
            Trouble::Down => self.tell_down(reason.to_owned()),
            // While all are lost, each attempt to reach one is an error.
            Trouble::BrokerLost if self.state().down => {}
            Trouble::BrokerLost => self.tell(Event::BrokerLost(reason.to_owned())),
            Trouble::OutOfRange => {
                self.warn_seldom("out of range", reason);
                self.state().out_of_range = true;
            }
            Trouble::MissingTopic => {
                self.warn_seldom("missing topic", reason);
                self.state().missing.suspect(Instant::now());
            }
            Trouble::Unreadable => {
                self.state().unreadable.get_or_insert_with(|| format!("{reason} ({code})"));
            }
            Trouble::Denied => {
                self.denied(code).into_iter().for_each(|text| self.tell(Event::Fatal(text)));
            }
            Trouble::Failed => self.tell(Event::Fatal(trouble::failed(&self.service, reason))),
            Trouble::Nothing => return,
            Trouble::Passing => self.warn_seldom("passing", &format!("consumer: {reason} ({code})")),
        }
        self.busy.store(true, Ordering::Release);
    }
}

impl ConsumerContext for Membership {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        debug_assert!(error.is_error(), "librdkafka tells the kind of rebalance as an error code");
        if consumer.closed() {
            // Nobody waits for an answer any more, and librdkafka leaves most questions of a group that has ended unanswered.
            return;
        }
        if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.settle(consumer, self.topics.partitions(list));
        } else {
            self.revoke(consumer, list);
        }
    }
}
