//! The instance as a member of its group: the core's [`Member`], the control log that connects it with the others, and
//! the throttle that keeps to its part of the capacity.
//!
//! The member is served in the loop, and between the steps of a round: the other members wait for its posts.

mod agreement;
mod open;

use std::hash::{BuildHasher, RandomState};
use std::{collections::VecDeque, sync::Arc, time::Duration};

use tracing::{info, warn};
use watermaster_core::group::demand::DemandMeter;
use watermaster_core::group::member::{Member, MemberState, Restart};
use watermaster_core::group::record::{Key, Progress, Record, Terms};
use watermaster_core::group::seats::Seat;
use watermaster_core::group::{Clocks, GroupParams, targets::Shares};
use watermaster_core::policy::{Policy, Scope};
use watermaster_core::{throttle::Throttle, units::Time};

use super::{Job, StopCause, link::Link};
use crate::clock::Clock;
use crate::snapshot::{GroupSnapshot, MemberSnapshot, OtherMembers};
use agreement::Agreement;
use watermaster_kafka::consumer::Consumer;
use watermaster_kafka::control::{ControlLog, ControlLogError};
use watermaster_settings::{Delivery, PaceSettings};

/// The longest wait for the commits of all partitions.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(15);
/// The time after which a member that has not joined yet logs why, and between two such lines.
const JOINING_WARN_INTERVAL: Duration = Duration::from_secs(30);
/// The longest wait for the last post to arrive.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// This instance in its group.
pub(super) struct GroupMember {
    /// `None` after the log was lost, until it is opened again.
    log: Option<ControlLog>,
    reopen_at: Time,
    /// The log was closed for so long that each member that goes on has posted meanwhile.
    has_waited: bool,
    /// While the member joins: the time of the next line of the log that says so.
    warn_at: Option<Time>,
    member: Member,
    params: GroupParams,
    meter: DemandMeter,
    /// The splits of the capacity of which the throttle knows its parts.
    splits: u64,
    /// The member may post: with `exactly_once`, the brokers refuse all former processes with this instance id.
    began: bool,
    /// Admissions from before the group began were charged.
    remembers: bool,
    /// The limit that the throttle was told last.
    told: Option<(u64, Time, u64)>,
    state: MemberState,
    agreement: Agreement,
    /// Posts tell the admissions, for the instance that searches for the capacity.
    tells_progress: bool,
    /// The capacity follows the search, so that instances may differ in it.
    follows_search: bool,
    counts: GroupSnapshot,
    /// Own posts that were not read back, with the time at which each was handed over.
    sent: VecDeque<(u64, Time)>,
}

impl GroupMember {
    /// Joins the group of a service, if its capacity is shared.
    ///
    /// # Errors
    /// The control topic is missing and can't be made, or can't be read.
    pub(super) fn join(job: &Job, clock: &Clock) -> Result<Option<GroupMember>, StopCause> {
        let policy = &job.service.policy;
        if policy.scope == Scope::Instance {
            return Ok(None);
        }
        let Some(log) = open::wait_for(job)? else { return Ok(None) };
        let params = GroupParams::new(policy, job.service.group_lease);
        let member = Member::new(params.clone(), Shares::new(policy), new_key(job), log.start(), clock.clocks());
        let (meter, state) = (DemandMeter::default(), MemberState::Joining);
        Ok(Some(GroupMember {
            log: Some(log),
            reopen_at: Time::ZERO,
            has_waited: false,
            warn_at: None,
            member,
            params,
            meter,
            splits: 0,
            began: false,
            remembers: false,
            told: None,
            state,
            agreement: Agreement::default(),
            tells_progress: job.service.pace.is_some(),
            follows_search: job.service.pace.as_ref().is_some_and(PaceSettings::applies),
            counts: GroupSnapshot::default(),
            sent: VecDeque::new(),
        }))
    }

    /// Reads the log, posts what is due, and tells the throttle its part. Does nothing before the producer was ready
    /// once.
    pub(super) fn serve(
        &mut self, job: &Job, clock: &Clock, throttle: &mut Throttle, link: &Link<'_>,
    ) -> Result<(), StopCause> {
        self.note_joining(job, clock);
        let exactly_once = job.kafka.delivery == Delivery::ExactlyOnce;
        if !self.began && exactly_once && !link.producer.transactions().is_initialised() {
            return Ok(());
        }
        if self.log.is_none() && !self.reopen(job, clock, throttle)? {
            return Ok(());
        }
        match self.take_part(job, clock, throttle, link.consumer) {
            Err(StopCause::Control(error)) if error.passes_by() => {
                warn!(service = job.service.name, "opening the control log again: {error}");
                // A log that was made anew does not tell the holds of members that have not noticed yet.
                let silence = self.params.lengthened(self.params.lease) + self.params.window();
                let wait = match error {
                    ControlLogError::TooLarge { .. } => {
                        self.meter.shrink();
                        open::RETRY_INTERVAL
                    }
                    _ if error.is_lost_history() => silence,
                    _ => Duration::ZERO,
                };
                self.lose_log(clock.now(), throttle, wait);
                Ok(())
            }
            taken => taken,
        }
    }

    /// Takes a user and a password that were read again.
    pub(super) fn renew_login(&self) {
        self.log.iter().for_each(|log| log.renew_login());
    }

    /// Opens the log again, with other connections.
    pub(super) fn reconnect(&mut self, now: Time, throttle: &mut Throttle) {
        self.lose_log(now, throttle, Duration::ZERO);
    }

    fn log(&self) -> &ControlLog {
        self.log.as_ref().expect("an open log")
    }

    /// Gives the log up, and all knowledge from it. The instance admits nothing until it has read the log again, which
    /// it opens after `wait`.
    fn lose_log(&mut self, now: Time, throttle: &mut Throttle, wait: Duration) {
        (self.log, self.reopen_at, self.has_waited) = (None, now + wait, wait >= self.params.lease);
        (self.told, self.state) = (None, MemberState::Joining);
        throttle.handle_limit(now, 0, Time::ZERO, 0);
    }

    /// Opens the log again if it is time. Returns whether it is open.
    fn reopen(&mut self, job: &Job, clock: &Clock, throttle: &mut Throttle) -> Result<bool, StopCause> {
        let now = clock.now();
        if now < self.reopen_at {
            return Ok(false);
        }
        match open::open(job) {
            Ok(log) => {
                let (params, shares) = (self.params.clone(), Shares::new(throttle.policy()));
                self.member = Member::new(params, shares, new_key(job), log.start(), clock.clocks());
                self.log = Some(log);
                self.counts.put_out += 1;
                self.sent.clear();
                throttle.begin_window();
                Ok(true)
            }
            Err(cause) if open::passes_by(&cause) => {
                self.reopen_at = now + open::RETRY_INTERVAL;
                Ok(false)
            }
            Err(cause) => Err(cause),
        }
    }

    fn take_part(
        &mut self, job: &Job, clock: &Clock, throttle: &mut Throttle, consumer: &Consumer,
    ) -> Result<(), StopCause> {
        let exactly_once = job.kafka.delivery == Delivery::ExactlyOnce;
        if self.log().was_emptied() && !self.has_waited {
            // Members that go on would be unknown until their next posts, and so would their holds.
            let lease = self.params.lengthened(self.params.lease);
            let service = &job.service.name;
            warn!(service, "the records of the control topic were deleted: listening for other members for {lease:?}");
            self.lose_log(clock.now(), throttle, lease);
            return Ok(());
        }
        while let Some((offset, record)) = self.log().poll(Duration::ZERO)? {
            // The clock is read after the record: if this process stood still in between, a time from before would make
            // a member that posted meanwhile look silent for as long.
            let now = clock.clocks();
            self.note_exchange(now.slow, &record);
            self.note_refusal(now, &job.service.name, &record);
            self.member.handle_record(now, offset, &record);
        }
        let now = clock.clocks();
        self.log().take_failed().into_iter().for_each(|seq| self.member.handle_failed(seq));
        if !self.member.seats().is_complete() && self.log().is_caught_up()? {
            self.member.handle_caught_up(now);
            // Only before the first post: later, another process with this id may have fenced this one.
            if exactly_once && !std::mem::replace(&mut self.began, true) {
                self.member.handle_fenced(now);
            }
        }
        if let Some(why) = self.member.restart(now) {
            warn!(service = job.service.name, "joining the group again: {why}");
            if let Restart::LostHistory(_) = why {
                self.lose_log(now.slow, throttle, Duration::ZERO);
                return Ok(());
            }
            self.counts.put_out += 1;
            self.sent.clear();
            // The admissions so far stay charged to the former key.
            self.member.rejoin(now, new_key(job).incarnation);
            throttle.begin_window();
        }
        if self.member.is_first() && !std::mem::replace(&mut self.remembers, true) {
            self.charge_memory(job, now, consumer);
        }
        if now.slow >= self.member.next_look() {
            self.look(now, throttle)?;
            self.compare_configurations(now, &job.service.name);
        }
        self.tell(job, now, throttle);
        Ok(())
    }

    /// Charges the records that instances admitted before the group began: with `scope = "instance"`, or through
    /// another control topic.
    fn charge_memory(&mut self, job: &Job, now: Clocks, consumer: &Consumer) {
        let (service, capacity) = (&job.service.name, self.params.capacity);
        let count = consumer.admitted_lately(MEMORY_TIMEOUT).unwrap_or_else(|error| {
            warn!(service, "recent admissions are not known, so nothing is admitted for a cycle: {error}");
            capacity
        });
        if count > 0 {
            info!(service, count, "the group is new: records that were admitted before count for a cycle");
            self.member.charge_memory(now, count);
        }
    }

    fn look(&mut self, now: Clocks, throttle: &mut Throttle) -> Result<(), StopCause> {
        let loads = self.meter.measure(now.slow, &self.params, throttle, |client| self.member.part(client));
        let need = throttle.window_need(now.slow, self.member.target());
        if self.tells_progress {
            let admitted = throttle.delays().counts.iter().sum();
            self.member.note_progress(Progress { admitted, waits: throttle.backlog().0 > 0 });
        }
        let records = self.member.look(now, need, loads);
        self.append(now.slow, &records)?;
        let splits = self.member.splits();
        if std::mem::replace(&mut self.splits, splits) != splits {
            throttle.handle_parts(now.slow, |client| self.member.part(client));
        }
        Ok(())
    }

    fn compare_configurations(&mut self, now: Clocks, service: &str) {
        let (own, refuses) = (self.member.key(), self.member.conflict(now).is_some());
        let own_terms = self.params.terms();
        // A limit that follows the search for the capacity reaches one instance after the other.
        let capacity = |posted| if self.follows_search { own_terms.capacity } else { posted };
        let terms = |seat: &Seat| Terms { capacity: capacity(seat.terms.capacity), ..seat.terms };
        let others = self.member.seats().live().filter(|(key, _)| *key != own).map(|(key, seat)| (key, terms(seat)));
        self.agreement.compare(service, own_terms, others, refuses);
    }

    fn append(&mut self, now: Time, records: &[Record]) -> Result<(), StopCause> {
        for record in records {
            let seq = if let Record::Post(post) = record { post.seq } else { 0 };
            if seq > 0 {
                self.counts.posts += 1;
                self.sent.push_back((seq, now));
            }
            self.log().append(record, seq)?;
        }
        Ok(())
    }

    /// Measures the time from a post until it is read back.
    fn note_exchange(&mut self, now: Time, record: &Record) {
        let Record::Post(post) = record else { return };
        if post.key != *self.member.key() {
            return;
        }
        while let Some(&(seq, sent)) = self.sent.front().filter(|(seq, _)| *seq <= post.seq) {
            self.sent.pop_front();
            if seq == post.seq {
                self.counts.exchange.record(now.since(sent));
            }
        }
    }

    /// Logs that an instance with another cycle or mode does not join: of two that start together, both post first.
    fn note_refusal(&self, now: Clocks, service: &str, record: &Record) {
        let Record::Post(post) = record else { return };
        if post.left && self.member.conflict(now).is_none() && !post.terms.agree_with(&self.params.terms()) {
            let (instance, differences) = (&post.key.instance, self.conflicts_with(post.terms));
            warn!(service, "instance {instance} does not join the group: it has another {differences}");
        }
    }

    /// Logs now and then that the member has not joined yet, and why.
    fn note_joining(&mut self, job: &Job, clock: &Clock) {
        if self.state != MemberState::Joining {
            self.warn_at = None;
            return;
        }
        let now = clock.now();
        if now >= *self.warn_at.get_or_insert(now + JOINING_WARN_INTERVAL) {
            self.warn_at = Some(now + JOINING_WARN_INTERVAL);
            let (service, topic) = (&job.service.name, &job.service.control_topic);
            let reason = match &self.log {
                None => format!("{topic} is to be opened again"),
                Some(_) if !self.member.seats().is_complete() => format!("{topic} is not read to its end"),
                Some(_) => self.trouble(clock).unwrap_or_default(),
            };
            warn!(service, "still joining the group, nothing is admitted: {reason}");
        }
    }

    /// The settings that keep members with these terms out.
    fn conflicts_with(&self, terms: Terms) -> String {
        let differences = self.params.terms().differences(terms).filter(|name| *name == "cycle" || *name == "mode");
        differences.collect::<Vec<_>>().join(" and ")
    }

    /// Returns the group as this instance sees it.
    pub(super) fn snapshot(&self, clock: &Clock) -> GroupSnapshot {
        let (now, member) = (clock.clocks(), &self.member);
        let own_lease = member.lease_end().since(now.fast);
        let members = member.seats().iter().map(|(key, seat)| {
            let age = now.slow.since(seat.received);
            let lease = if key == member.key() { own_lease } else { seat.lease.saturating_sub(age) };
            MemberSnapshot {
                instance: Arc::clone(&key.instance),
                incarnation: format!("{:016x}", key.incarnation),
                state: seat.state.into_str(),
                hold: seat.hi,
                want: seat.want,
                target: member.target_of(key),
                capacity: seat.terms.capacity,
                configuration: format!("{:08x}", seat.terms.digest),
                lease_seconds: if seat.is_live() { lease.as_secs_f64() } else { 0.0 },
                post_age_seconds: age.as_secs_f64(),
            }
        });
        GroupSnapshot {
            state: Some(self.state.into_str()),
            capacity: member.capacity(),
            hold: member.hold(),
            target: member.target(),
            unclaimed: member.capacity().saturating_sub(member.seats().held()),
            lease_seconds: own_lease.as_secs_f64(),
            configurations: self.agreement.configurations(),
            members: members.collect(),
            others: self.others(),
            ..self.counts.clone()
        }
    }

    fn others(&self) -> OtherMembers {
        let (own, seats) = (self.member.key(), self.member.seats());
        let others: Vec<_> = seats.live().filter(|(key, _)| *key != own).collect();
        let is_behind = |(key, seat): &(&Key, &Seat)| *key > own && seat.progress.is_some();
        let progress = || others.iter().filter_map(|(_, seat)| seat.progress);
        OtherMembers {
            is_first: self.state == MemberState::Active && others.iter().all(is_behind),
            limit: others.first().map(|(_, seat)| seat.terms.capacity),
            admitted: progress().map(|progress| progress.admitted).sum(),
            lives: others.iter().map(|(key, _)| key.incarnation).collect(),
            wait: progress().any(|progress| progress.waits),
        }
    }

    /// Tells the throttle its part, if it changed.
    fn tell(&mut self, job: &Job, now: Clocks, throttle: &mut Throttle) {
        let pace = self.member.pace(now);
        let until = now.slow + self.member.lease_end().since(now.fast);
        let part = (self.member.limit(now), until, pace);
        if self.told.replace(part) != Some(part) {
            throttle.handle_limit(now.slow, part.0, part.1, part.2);
        }
        let state = self.member.state(now);
        if state != self.state {
            self.state = state;
            let service = &job.service.name;
            match state {
                MemberState::Expired => {
                    self.counts.expired += 1;
                    warn!(service, "the control topic does not answer: nothing is admitted");
                }
                state => info!(service, "member of the group: {}", state.into_str()),
            }
        }
    }

    /// Takes over another policy.
    pub(super) fn change(&mut self, job: &Job, policy: &Policy) {
        self.params = GroupParams::new(policy, job.service.group_lease);
        self.member.change(self.params.clone(), Shares::new(policy));
    }

    /// Takes over another capacity from the search for it.
    pub(super) fn change_capacity(&mut self, job: &Job, policy: &Policy) {
        self.follows_search = true;
        self.change(job, policy);
    }

    /// Leaves the group, and waits until the others can know.
    pub(super) fn leave(&mut self, job: &Job, clock: &Clock, throttle: &mut Throttle) {
        let now = clock.clocks();
        if self.log.is_none() {
            return;
        }
        let records = self.member.leave(now, throttle.window_count(now.slow));
        let left = self.append(now.slow, &records).and_then(|()| Ok(self.log().flush(LEAVE_TIMEOUT)?));
        if let Err(error) = left {
            warn!(service = job.service.name, "the group does not know yet that this instance left: {error}");
        }
    }

    /// Returns the reason for which the instance may not admit.
    pub(super) fn trouble(&self, clock: &Clock) -> Option<String> {
        let conflict = || {
            let (key, seat) = self.member.conflict(clock.clocks())?;
            Some(format!("instance {} of the group has another {}", key.instance, self.conflicts_with(seat.terms)))
        };
        let waits = || "waiting for a part of the group's capacity".to_owned();
        (self.state != MemberState::Active).then(|| conflict().unwrap_or_else(waits))
    }

    /// The time until the next look.
    pub(super) fn next_look(&self) -> Time {
        if self.log.is_some() { self.member.next_look() } else { self.reopen_at }
    }
}

/// A key that no life of an instance had before.
fn new_key(job: &Job) -> Key {
    let incarnation = RandomState::new().hash_one(std::process::id());
    Key { instance: job.kafka.instance_id.as_str().into(), incarnation }
}
