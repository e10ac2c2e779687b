//! Follows the topic of a service's rules: hands the rules of run time to the engine, and changes to the topic.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{error, info, warn};
use watermaster_api::{RuleChangeView, rfc3339};
use watermaster_core::rules::log::{
    InForce, LogAction, MAX_TOMBSTONES_PER_SECOND, Precondition, RulesLog, WriteOutcome, WriteRefusal, WriteRequest,
    WriteTicket,
};
use watermaster_kafka::control::ensure_rules_topic;
use watermaster_kafka::rules_log::RulesTopic;
use watermaster_settings::{Kafka, Service};

use crate::clock::{self, Clock};
use crate::rules::{KnownRule, LogState, RulesOrder, UNREADABLE, WriteAnswer};
use crate::services::{Change, ServiceHandle};

/// The longest wait for a record, in which an order waits, too.
const WAIT: Duration = Duration::from_millis(10);
/// The longest wait for the brokers, in which orders wait, too.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two attempts to find or make the topic.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
const CLEAN_INTERVAL: Duration = Duration::from_secs(1);
/// An engine takes other rules over at most this often.
const TELL_INTERVAL: Duration = Duration::from_millis(100);
/// Thirty days after its end a rule of run time is deleted.
const KEPT_AFTER_END_MS: i64 = 30 * 86_400_000;
/// The author of these deletions.
const EXPIRY: &str = "expiry";

/// The state of the thread.
struct Follower<'a> {
    service: &'a Service,
    handle: &'a ServiceHandle,
    topic: RulesTopic,
    orders: Receiver<RulesOrder>,
    /// The authors that wait for the outcome of a change, with what the change is.
    waiting: HashMap<WriteTicket, (Option<oneshot::Sender<WriteAnswer>>, &'static str)>,
    /// All rules have to be noted: they were read anew, or other ones of them count.
    are_anew: bool,
    /// The rules differ from those that the engine has.
    is_news: bool,
    told_at: Option<Instant>,
    cleaned_at: Instant,
    /// The largest capacity that a rule may set.
    max_capacity: u64,
    is_failing: bool,
}

/// Follows the topic until the service or the program stops.
pub(super) fn follow(kafka: &Kafka, service: &Service, handle: &ServiceHandle, stop: &AtomicBool) {
    let Some(topic) = &service.rules_topic else { return };
    let ends = || stop.load(Ordering::Relaxed) || handle.is_stopped();
    let group = watermaster_kafka::consumer::group_id(kafka, service);
    let orders = handle.rules.receiver();
    while let Err(why) = ensure_rules_topic(kafka, topic, TIMEOUT) {
        warn!(service = service.name, "the rules can't be read: {why}");
        let until = Instant::now() + RETRY_INTERVAL;
        while Instant::now() < until && !ends() {
            while let Ok(order) = orders.try_recv() {
                if let RulesOrder::Write { answer, .. } = order {
                    let _ = answer.send(Err(WriteRefusal::Reading));
                }
            }
            thread::sleep(super::CHECK_INTERVAL);
        }
        if ends() {
            return;
        }
    }
    let mut secrets = kafka.secrets.other_changes();
    let mut follower = Follower {
        service,
        handle,
        topic: RulesTopic::new(kafka, &group, topic, RandomState::new().hash_one(&service.name), TIMEOUT),
        orders,
        waiting: HashMap::new(),
        are_anew: false,
        is_news: false,
        told_at: None,
        cleaned_at: Instant::now(),
        max_capacity: handle.rules.known().max_capacity,
        is_failing: false,
    };
    let clock = Clock::start();
    while !ends() {
        // A living client does not take another certificate.
        let changes = kafka.secrets.other_changes();
        if std::mem::replace(&mut secrets, changes) != changes {
            follower.topic.reconnect();
        }
        if !follower.step(&clock) {
            thread::sleep(super::CHECK_INTERVAL);
        }
    }
}

impl Follower<'_> {
    /// Takes orders, reads on, and tells the engine. Returns false after an error of the brokers.
    fn step(&mut self, clock: &Clock) -> bool {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                // The author of this change has stopped waiting.
                RulesOrder::Write { answer, .. } if answer.is_closed() => {}
                RulesOrder::Write { write, answer } => self.write(clock, write, Some(answer)),
                RulesOrder::AcceptLoss => self.topic.accept_loss(),
            }
        }
        let read = self.topic.poll(clock.now(), WAIT);
        let is_fine = read.is_ok();
        match read {
            Ok(None) => {}
            Ok(Some(news)) => self.take(news),
            Err(why) if !self.is_failing => warn!(service = self.service.name, "the rules stay as they are: {why}"),
            Err(_) => {}
        }
        if std::mem::replace(&mut self.is_failing, !is_fine) && is_fine {
            info!(service = self.service.name, "the rules can be read again");
        }
        let max_capacity = self.handle.rules.known().max_capacity;
        let is_other = std::mem::replace(&mut self.max_capacity, max_capacity) != max_capacity;
        self.are_anew |= is_other && self.topic.log().known().is_some();
        let tells = self.told_at.is_none_or(|at| at.elapsed() >= TELL_INTERVAL);
        if tells && std::mem::take(&mut self.are_anew) {
            self.note_all();
        }
        self.note_position();
        if self.cleaned_at.elapsed() >= CLEAN_INTERVAL {
            self.cleaned_at = Instant::now();
            self.clean(clock);
        }
        if tells && std::mem::take(&mut self.is_news) {
            self.told_at = Some(Instant::now());
            self.handle.inbox.leave(Change { rules: Some(self.handle.rules.to_take()), ..Change::default() });
        }
        is_fine
    }

    fn write(&mut self, clock: &Clock, write: WriteRequest, answer: Option<oneshot::Sender<WriteAnswer>>) {
        let verb = if write.rule.is_some() { "put" } else { "delete" };
        match self.topic.write(clock.now(), write) {
            Ok(ticket) => _ = self.waiting.insert(ticket, (answer, verb)),
            Err(refusal) => {
                self.count(verb, "refused");
                answer.into_iter().for_each(|answer| _ = answer.send(Err(refusal.clone())));
            }
        }
    }

    fn count(&self, verb: &'static str, result: &'static str) {
        *self.handle.rules.known().counts.entry((verb, result)).or_default() += 1;
    }

    fn take(&mut self, news: LogAction) {
        let service = &self.service.name;
        match news {
            LogAction::Changed(name) => self.note(&name),
            LogAction::Known => self.are_anew = true,
            // No rules are in force that could be lost, and the engine waits for the first ones.
            LogAction::Lost if self.topic.log().known().is_none() => {
                warn!(service, "records of the rules went while they were read first: reading the others");
                self.topic.accept_loss();
            }
            LogAction::Lost => {
                error!(
                    service,
                    "records of the rules are gone: the rules stay, and can't be changed. Save them with `watermaster \
                     rules export` before `rules accept-loss` or a restart, which go on with what the topic has left"
                );
            }
            LogAction::Unreadable { offset, reason } => {
                warn!(service, offset, "a record of the rules is skipped: {reason}");
                self.count(UNREADABLE.0, UNREADABLE.1);
            }
            LogAction::Done(ticket, outcome) => {
                let Some((answer, verb)) = self.waiting.remove(&ticket) else { return };
                let result = match outcome {
                    WriteOutcome::InForce(_) => "in_force",
                    WriteOutcome::Refused(_) => "refused",
                    WriteOutcome::NotSent => "not_sent",
                    WriteOutcome::Unknown => "unknown",
                };
                self.count(verb, result);
                // An author that is gone does not wait.
                answer.into_iter().for_each(|answer| _ = answer.send(Ok(outcome.clone())));
            }
            LogAction::Begin(_) | LogAction::AskEnd | LogAction::Send { .. } => {}
        }
    }

    /// Notes a change that came in force.
    fn note(&mut self, name: &Arc<str>) {
        let Some(decides) = self.topic.log().decides(name) else { return };
        let known = self.known(name, decides);
        let change = &decides.change;
        let view = RuleChangeView {
            at: rfc3339(change.at),
            by: change.by.to_string(),
            name: name.to_string(),
            etag: (!change.deleted).then(|| decides.version.to_string()),
            rule: change.rule.as_deref().and_then(|rule| serde_json::from_str(rule).ok()).unwrap_or_default(),
        };
        let (service, version, by, deleted) = (&self.service.name, &decides.version, &change.by, change.deleted);
        let body = change.rule.as_deref();
        info!(service, rule = &**name, %version, %by, deleted, body, "another rule is in force");
        let mut all = self.handle.rules.known();
        match known {
            Some(rule) => _ = all.rules.insert(Arc::clone(name), rule),
            None => _ = all.rules.remove(name),
        }
        all.note_change(view);
        drop(all);
        self.is_news = true;
    }

    /// Notes all rules.
    fn note_all(&mut self) {
        let rules = self.topic.log().rules_within_bounds();
        let rules: BTreeMap<Arc<str>, KnownRule> =
            rules.iter().filter_map(|(name, rule)| Some((Arc::clone(name), self.known(name, rule)?))).collect();
        info!(service = self.service.name, rules = rules.len(), "the rules are known");
        self.handle.rules.known().rules = rules;
        self.is_news = true;
    }

    /// Reads a rule of the log; `None` for a change that deletes it.
    fn known(&self, name: &str, in_force: &InForce) -> Option<KnownRule> {
        let rule = KnownRule::read(name, in_force.version, &in_force.change, self.max_capacity)?;
        if let Some(doubt) = rule.doubt() {
            warn!(service = self.service.name, rule = name, "a rule has no effect here, or not its whole: {doubt}");
        }
        Some(rule)
    }

    fn note_position(&self) {
        let log: &RulesLog = self.topic.log();
        let mut known = self.handle.rules.known();
        known.state = match log.known() {
            // Records that are lost before the first reading ended leave the rules unknown.
            Some(_) if log.is_lost() => LogState::Lost,
            Some(_) if log.is_live() && !self.are_anew => LogState::Known,
            // Rules that were known stay in force while they are read anew.
            _ => known.state,
        };
        known.read_offset = log.known().unwrap_or(known.read_offset);
        known.sum = log.totals().sum;
        known.read_at = Instant::now().checked_sub(self.topic.age()).filter(|_| log.known().is_some());
    }

    /// Cleans the log, and deletes rules that ended long ago.
    fn clean(&mut self, clock: &Clock) {
        self.topic.renew_login();
        let snapshot = self.handle.cell.get();
        let is_first = snapshot.group.figures.state.is_none() || snapshot.group.others.is_first;
        self.topic.clean(clock.now(), is_first, MAX_TOMBSTONES_PER_SECOND);
        let ended = clock::wall_ms() - KEPT_AFTER_END_MS;
        let is_over =
            |known: &KnownRule| matches!(&known.rule, Ok(rule) if rule.until_ms.is_some_and(|until| until < ended));
        let over = {
            let known = self.handle.rules.known();
            let over = known.rules.iter().find(|(_, known)| is_over(known));
            over.map(|(name, known)| (Arc::clone(name), known.version))
        };
        if let Some((name, version)) = over.filter(|_| is_first && self.waiting.is_empty()) {
            let precondition = Precondition::Version(version);
            let at = clock::since_epoch().as_millis() as u64;
            let write = WriteRequest { name, precondition, rule: None, by: EXPIRY.into(), at };
            self.write(clock, write, None);
        }
    }
}
