//! The instance as a member of its group: the core's [`Driver`] with the control log that connects it with the others.
//!
//! The member is served in the loop, and between the steps of a round: the other members wait for its states.

mod agreement;
mod former;
mod open;

use std::hash::{BuildHasher, RandomState};
use std::{sync::Arc, thread, time::Duration};

use tracing::{info, warn};
use watermaster_api::{GroupFigures, MemberView};
use watermaster_core::delivery::Kafka as _;
use watermaster_core::group::ledger::LastState;
use watermaster_core::group::member::{Member, MemberState};
use watermaster_core::group::state::{StateKind, Terms};
use watermaster_core::group::{Clocks, GroupParams, driver::Driver, targets::Shares};
use watermaster_core::policy::{Policy, Scope};
use watermaster_core::{throttle::Throttle, units::Time};

use super::rules::PolicyInForce;
use super::{Job, StopCause, link::Link};
use crate::clock::Clock;
use crate::snapshot::{GroupSnapshot, OtherMembers};
use agreement::Agreement;
use watermaster_kafka::consumer::Consumer;
use watermaster_kafka::control::{SeatLog, SeatLogError};
use watermaster_settings::PaceSettings;

/// The longest wait for the commits of all partitions.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(15);
/// The time after which a member that has not joined yet logs why, and between two such lines.
const JOINING_WARN_INTERVAL: Duration = Duration::from_secs(30);
/// The time between two looks into the log while the engine is busy.
const SERVE_INTERVAL: Duration = Duration::from_millis(2);
/// The longest wait until the last state is committed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two looks for the end of that.
const LEAVE_INTERVAL: Duration = Duration::from_millis(5);
/// A member whose states are not committed for this time says that it is in trouble.
const TROUBLE_AFTER: Duration = Duration::from_secs(2);

/// This instance in its group.
pub(super) struct GroupMember {
    /// `None` after the log was lost, until it is opened again.
    log: Option<SeatLog>,
    reopen_at: Time,
    served_at: Time,
    driver: Driver,
    state: MemberState,
    /// The time since which the member has waited for a state to be committed.
    waits_since: Option<Time>,
    /// While the member joins: the time of the next line of the log that says so.
    warn_at: Option<Time>,
    agreement: Agreement,
    /// The capacity follows the search, so that instances may differ in it.
    follows_search: bool,
}

impl GroupMember {
    /// Joins the group of a service, if its capacity is shared. Waits until brokers answer, and until no member of the
    /// former version is live.
    ///
    /// # Errors
    /// The control topic is missing and can't be made, or can't be read.
    pub(super) fn join(
        job: &Job, configured: &PolicyInForce, policy: &Policy, clock: &Clock,
    ) -> Result<Option<GroupMember>, StopCause> {
        if policy.scope == Scope::Instance {
            return Ok(None);
        }
        let Some(log) = open::wait_for(job, clock)? else { return Ok(None) };
        let seat = job.kafka.instance_id.as_str().into();
        let member =
            Member::new(params(job, configured, policy), Shares::new(policy), seat, new_life(), clock.clocks());
        let pace = job.service.pace.as_ref();
        Ok(Some(GroupMember {
            log: Some(log),
            reopen_at: Time::ZERO,
            served_at: Time::ZERO,
            driver: Driver::new(member, pace.is_some()),
            state: MemberState::Joining,
            waits_since: None,
            warn_at: None,
            agreement: Agreement::default(),
            follows_search: pace.is_some_and(PaceSettings::applies),
        }))
    }

    /// Reads the log, writes the states that are due, and tells the throttle its part.
    pub(super) fn serve(
        &mut self, job: &Job, clock: &Clock, throttle: &mut Throttle, link: &Link<'_>,
    ) -> Result<(), StopCause> {
        let now = clock.now();
        if now < self.served_at + SERVE_INTERVAL {
            return Ok(());
        }
        self.served_at = now;
        self.note_joining(job, clock);
        if !self.reopen(job, clock)? {
            return Ok(());
        }
        let looked = self.drive(job, clock, throttle, link)?;
        if self.driver.member().is_replaced() {
            let (service, instance_id) = (job.service.name.clone(), job.kafka.instance_id.clone());
            return Err(StopCause::SeatTaken { service, instance_id });
        }
        if looked {
            self.compare_configurations(now, &job.service.name);
        }
        self.note_state(job, clock.clocks(), throttle);
        Ok(())
    }

    /// Returns whether the member looked.
    fn drive(&mut self, job: &Job, clock: &Clock, throttle: &mut Throttle, link: &Link<'_>) -> Result<bool, StopCause> {
        let Some(log) = &mut self.log else { return Ok(false) };
        let capacity = self.driver.member().params().capacity;
        // The brokers do not tell the commits while the own transaction, which is about to commit them, is open.
        let memory = || {
            let is_free = !link.in_transaction();
            is_free.then(|| recent_admissions(&job.service.name, link.consumer, capacity))
        };
        match self.driver.serve(|| clock.clocks(), throttle, log, memory) {
            Err(error) if error.passes_by() => {
                warn!(service = job.service.name, "opening the control log again: {error}");
                if matches!(error, SeatLogError::Refused { .. }) {
                    self.driver.shrink_loads();
                }
                self.lose_log(clock, throttle);
                Ok(false)
            }
            served => Ok(served?),
        }
    }

    /// Takes a user and a password that were read again.
    pub(super) fn renew_login(&self) {
        self.log.iter().for_each(|log| log.renew_login());
    }

    /// Opens the log again, with other connections.
    pub(super) fn reconnect(&mut self, clock: &Clock, throttle: &mut Throttle) {
        self.lose_log(clock, throttle);
        self.reopen_at = clock.now();
    }

    /// Gives the log up, and all knowledge from it. The instance admits nothing until it has opened its seat again.
    fn lose_log(&mut self, clock: &Clock, throttle: &mut Throttle) {
        let now = clock.clocks();
        (self.log, self.reopen_at) = (None, now.slow + open::RETRY_INTERVAL);
        self.driver.restart(now, new_life(), throttle);
        (self.state, self.waits_since) = (MemberState::Joining, None);
    }

    /// Opens the log again if it is time. Returns whether it is open.
    fn reopen(&mut self, job: &Job, clock: &Clock) -> Result<bool, StopCause> {
        if self.log.is_some() || clock.now() < self.reopen_at {
            return Ok(self.log.is_some());
        }
        match open::open(job, || Ok(())) {
            Ok(log) => self.log = Some(log),
            Err(cause) if open::passes_by(&cause) => self.reopen_at = clock.now() + open::RETRY_INTERVAL,
            Err(cause) => return Err(cause),
        }
        Ok(self.log.is_some())
    }

    /// The other live members.
    fn others(&self) -> impl Iterator<Item = (&Arc<str>, &LastState)> {
        let member = self.driver.member();
        member.ledger().live(member.silence_limit()).filter(|(seat, _)| *seat != member.seat())
    }

    fn compare_configurations(&mut self, now: Time, service: &str) {
        let own = self.driver.member().params().terms();
        // A limit that follows the search for the capacity reaches one instance after the other.
        let capacity = |told| if self.follows_search { own.capacity } else { told };
        let terms = |state: &LastState| Terms { capacity: capacity(state.state.terms.capacity), ..state.state.terms };
        let others: Vec<_> = self.others().map(|(seat, state)| (Arc::clone(seat), terms(state))).collect();
        self.agreement.compare(now, service, own, &others, self.driver.member().has_conflict());
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
                Some(_) => self.conflict().unwrap_or_else(|| format!("the seat in {topic} is not open yet")),
            };
            warn!(service, "still joining the group, nothing is admitted: {reason}");
        }
    }

    /// Returns the difference that keeps this instance out of the group.
    fn conflict(&self) -> Option<String> {
        let member = self.driver.member();
        let bank = member.bank_terms().filter(|_| member.has_conflict())?;
        let differences = member.params().terms().differences(bank).filter(|name| ["cycle", "mode"].contains(name));
        Some(format!("the group has another {}", differences.collect::<Vec<_>>().join(" and ")))
    }

    /// Returns the group as this instance sees it.
    pub(super) fn snapshot(&self, clock: &Clock) -> GroupSnapshot {
        let (now, member) = (clock.clocks(), self.driver.member());
        let limit = member.silence_limit();
        let members = member.ledger().seats().map(|(seat, last)| {
            let LastState { state, read, silence } = last;
            let kind = match state.kind {
                StateKind::Own if *silence >= limit => "silent",
                StateKind::Own | StateKind::Bank => "live",
                StateKind::Left => "left",
                StateKind::Claimed => "claimed",
            };
            MemberView {
                instance: seat.to_string(),
                life: format!("{:016x}", state.author),
                state: kind.into(),
                hold: state.hold,
                used: state.used(),
                target: member.target_of(seat),
                ahead: state.ahead,
                capacity: state.terms.capacity,
                configuration: format!("{:08x}", state.terms.digest),
                rules_checksum: member.ledger().rules(seat),
                state_age_seconds: now.slow.since(*read).as_secs_f64(),
            }
        });
        let figures = GroupFigures {
            state: Some(self.state.into_str().into()),
            capacity: member.capacity(),
            hold: member.hold(),
            target: member.target(),
            ahead: member.ahead(),
            circulating: member.ledger().circulating(),
            configurations: self.agreement.configurations(),
            members: members.collect(),
        };
        GroupSnapshot {
            figures,
            others: self.other_members(),
            counts: self.driver.counts().clone(),
            log_behind: self.driver.log_behind(now.slow),
        }
    }

    fn other_members(&self) -> OtherMembers {
        let member = self.driver.member();
        let progress = |seat: &Arc<str>| member.ledger().progress(seat);
        let others: Vec<_> = self.others().collect();
        let is_behind = |(seat, _): &(&Arc<str>, &LastState)| *seat > member.seat();
        let is_first = self.state == MemberState::Active && others.iter().all(is_behind);
        let known = || others.iter().filter_map(|(seat, _)| progress(seat));
        OtherMembers {
            is_first,
            searches: is_first && known().count() == others.len(),
            limit: others.first().map(|(_, last)| last.state.terms.capacity),
            admitted: known().map(|progress| progress.admitted).sum(),
            lives: others.iter().map(|(_, last)| last.state.author).collect(),
            wait: known().any(|progress| progress.waits),
        }
    }

    /// Notes the member's state, and logs when it begins and ends to be in trouble.
    fn note_state(&mut self, job: &Job, now: Clocks, throttle: &Throttle) {
        let (service, before) = (&job.service.name, self.is_waiting_long(now.slow));
        let state = self.driver.member().state(now, throttle.admitted());
        let former = std::mem::replace(&mut self.state, state);
        if (former == MemberState::Joining) != (state == MemberState::Joining) {
            info!(service, "member of the group: {}", state.into_str());
        }
        let waits = self.state == MemberState::Waiting;
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now.slow));
        match (before, self.is_waiting_long(now.slow)) {
            (false, true) => warn!(service, "the control topic takes no states: nothing is admitted"),
            (true, false) => info!(service, "the control topic takes states again"),
            _ => {}
        }
    }

    /// Returns whether the member waits for longer than the time in which a state is committed. Under full load, it may
    /// wait for its next state now and then.
    fn is_waiting_long(&self, now: Time) -> bool {
        self.waits_since.is_some_and(|since| now >= since + TROUBLE_AFTER)
    }

    /// Takes over another policy.
    pub(super) fn change(&mut self, job: &Job, configured: &PolicyInForce, policy: &Policy) {
        self.driver.change(params(job, configured, policy), policy);
        self.served_at = Time::ZERO;
    }

    /// Takes over another capacity from the search for it.
    pub(super) fn change_capacity(&mut self, job: &Job, configured: &PolicyInForce, policy: &Policy) {
        self.follows_search = true;
        self.change(job, configured, policy);
    }

    /// Returns the groups of clients that the members' loads name, perhaps repeatedly.
    pub(super) fn groups_in_loads(&self) -> impl Iterator<Item = &str> {
        self.driver.member().groups_in_loads()
    }

    /// Leaves the group, and waits until the others can know.
    pub(super) fn leave(&mut self, job: &Job, clock: &Clock, throttle: &mut Throttle, link: &Link<'_>) {
        let until = clock.now() + LEAVE_TIMEOUT;
        self.driver.leave();
        while self.log.is_some() && !self.driver.member().has_left() && clock.now() < until {
            if let Err(error) = self.drive(job, clock, throttle, link) {
                warn!(service = job.service.name, "leaving the group: {error}");
                return;
            }
            thread::sleep(LEAVE_INTERVAL);
        }
        if !self.driver.member().has_left() {
            let service = &job.service.name;
            warn!(service, "the group does not know yet that this instance left: the others will notice its silence");
        }
    }

    /// Returns the reason for which the instance may not admit.
    pub(super) fn trouble(&self, clock: &Clock) -> Option<String> {
        match self.state {
            MemberState::Joining => {
                Some(self.conflict().unwrap_or_else(|| "waiting for a part of the group's capacity".to_owned()))
            }
            MemberState::Waiting if self.is_waiting_long(clock.now()) => {
                Some("the control topic takes no states".to_owned())
            }
            MemberState::Waiting | MemberState::Active | MemberState::Left => None,
        }
    }

    /// The time until the next look.
    pub(super) fn next_look(&self) -> Time {
        if self.log.is_some() { self.driver.member().next_look() } else { self.reopen_at }
    }
}

/// Returns the parameters of a member with this policy in force. Members compare their configurations: the rules that
/// are valid at a time follow from those and from the time.
fn params(job: &Job, configured: &PolicyInForce, policy: &Policy) -> GroupParams {
    let ahead_time = job.service.group_ahead_time.unwrap_or_else(|| GroupParams::default_ahead_time(policy.cycle));
    let params = GroupParams::new(&configured.configured, ahead_time, job.service.group_silence);
    GroupParams { capacity: policy.capacity, rules: configured.run_time.checksum, ..params }
}

/// Returns the number of records that instances admitted in the last cycle before the group began: with `scope =
/// "instance"`, or through another control topic.
fn recent_admissions(service: &str, consumer: &Consumer, capacity: u64) -> u64 {
    let count = consumer.admitted_lately(MEMORY_TIMEOUT).unwrap_or_else(|error| {
        warn!(service, "recent admissions are not known, so nothing is admitted for a cycle: {error}");
        capacity
    });
    if count > 0 {
        info!(service, count, "the group is new: records that were admitted before count for a cycle");
    }
    count
}

/// A number that no life of an instance had before.
fn new_life() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
