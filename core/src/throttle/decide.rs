//! The decision on a record that was just read.

use std::time::Duration;

use super::{Arrival, Cause, Rejection, Sender, Throttle, VIRTUAL, Verdict, arrival_held};
use crate::backlog::{Slot, eligible_tag};
use crate::limit::OwnLimit;
use crate::policy::{CatchUp, Mode};
use crate::reason::Reason;
use crate::tracker::Seen;
use crate::units::Time;

impl Throttle {
    /// A record was read: what becomes of it.
    pub fn handle_record(&mut self, now: Time, arrival: &Arrival<'_>) -> Verdict {
        let now = self.not_before(now);
        self.roll(now);
        let place = &mut self.partitions[arrival.partition as usize];
        if !place.assigned {
            return Verdict::Skip;
        }
        let before = place.tracker.base();
        let seen = place.tracker.observe(arrival.offset);
        // Holes before it may have been all that held the committable offset back.
        place.touched |= place.tracker.base() != before;
        // Observed and not completed means that it stands in the backlog: reading it again changes nothing.
        if seen != Seen::New {
            return Verdict::Skip;
        }
        let first_time = arrival.offset >= place.seen_until;
        place.seen_until = place.seen_until.max(arrival.offset + 1);
        let verdict = match self.known_client(now, arrival.sender) {
            Ok(client) => {
                self.count_arrival(now, client, first_time);
                self.decide(now, client, arrival)
            }
            Err(reason) => self.reject_unregistered(arrival.sender, reason),
        };
        if self.policy.enforce { self.enact(now, arrival, verdict) } else { self.pass(now, arrival, verdict) }
    }

    /// Rejects a record of no registered client. An oversized one is really rejected in shadow mode, too.
    #[cold]
    fn reject_unregistered(&mut self, sender: Sender<'_>, reason: Reason) -> Verdict {
        let counts = if sender == Sender::Oversized { &mut self.unregistered } else { self.unregistered_counts() };
        counts.rejected.add(reason);
        Verdict::Reject(Rejection { reason, retry_after: Duration::ZERO, client: None })
    }

    /// Applies an enforced verdict. Unless delayed, the record completes now and must fit in the map: a rejection for
    /// which there is no room is kept until there is; admissions were checked by `fits_in_map`.
    fn enact(&mut self, now: Time, arrival: &Arrival<'_>, verdict: Verdict) -> Verdict {
        if matches!(verdict, Verdict::Delay(_)) {
            return verdict;
        }
        // Next to nothing waits: whatever completes now leaves no map at all.
        if self.map_stays_empty(arrival.partition, arrival.offset) {
            self.complete(arrival.partition, arrival.offset);
            return verdict;
        }
        self.complete_out_of_order(now, arrival, verdict)
    }

    #[inline(never)]
    fn complete_out_of_order(&mut self, now: Time, arrival: &Arrival<'_>, verdict: Verdict) -> Verdict {
        self.pause_if_map_is_nearly_full(arrival.partition);
        match verdict {
            Verdict::Reject(rejection) if !self.map_has_room(arrival.partition, arrival.offset) => {
                Verdict::Delay(self.keep_rejection(now, arrival, rejection))
            }
            _ => {
                self.complete(arrival.partition, arrival.offset);
                verdict
            }
        }
    }

    /// Shadow mode: admits the record, unless it can't be forwarded as it is.
    #[inline(never)]
    fn pass(&mut self, now: Time, arrival: &Arrival<'_>, verdict: Verdict) -> Verdict {
        if arrival.sender == Sender::Oversized {
            self.complete(arrival.partition, arrival.offset);
            return verdict;
        }
        let client = match (verdict, arrival.sender) {
            (Verdict::Reject(rejection), _) => rejection.client,
            (_, Sender::Client(name)) => self.registry.find(name),
            _ => None,
        };
        self.passed(now, client, arrival.partition, Duration::ZERO);
        self.complete(arrival.partition, arrival.offset);
        Verdict::Admit(client)
    }

    /// Counts what passthrough lets pass.
    pub(super) fn passed(&mut self, now: Time, client: Option<u32>, partition: u32, waited: Duration) {
        match client {
            Some(client) => self.registry.get_mut(client).count_admitted(waited),
            None => self.unregistered.admitted += 1,
        }
        self.delays.record(waited);
        self.window_max = self.window_max.max(self.actual.add(now, 1));
        self.partitions[partition as usize].memory.add_to_slice(now, 1);
    }

    fn known_client(&mut self, now: Time, sender: Sender<'_>) -> Result<u32, Reason> {
        let name = match sender {
            Sender::Client(name) => name,
            Sender::NotAllowed(_) => return Err(Reason::UnknownClient),
            Sender::Anonymous => return Err(Reason::Anonymous),
            Sender::Oversized => return Err(Reason::Undeliverable),
        };
        match self.registry.find(name) {
            Some(client) => Ok(client),
            None => self.newcomer(now, name),
        }
    }

    #[cold]
    fn newcomer(&mut self, now: Time, name: &str) -> Result<u32, Reason> {
        let client = self
            .registry
            .register(name, self.share.cycle, &self.policy, &mut self.backlog, now)
            .map_err(|_full| Reason::TooManyClients)?;
        self.allocate_early(now, Cause::NewClient);
        Ok(client)
    }

    fn count_arrival(&mut self, now: Time, client: u32, first_time: bool) {
        let client = self.registry.get_mut(client);
        client.last_seen = now;
        if first_time {
            client.arrivals += 1;
            if client.recalls() {
                self.allocate_early(now, Cause::Recall);
            }
        }
    }

    fn decide(&mut self, now: Time, client: u32, arrival: &Arrival<'_>) -> Verdict {
        let catching_up = self.policy.mode == Mode::Reject
            && self.policy.catch_up == CatchUp::Delay
            && arrival.offset < self.partitions[arrival.partition as usize].catch_up_until;
        match self.policy.mode {
            Mode::Shape => self.shape(now, client, arrival),
            Mode::Reject if catching_up => Verdict::Delay(self.delay(now, client, arrival)),
            Mode::Reject => self.admit_or_reject(now, client, arrival),
        }
    }

    /// Shape: at once if nobody waits and all gates are open, else in line.
    fn shape(&mut self, now: Time, client: u32, arrival: &Arrival<'_>) -> Verdict {
        let alone = self.registry.get(client).lane.records.is_empty() && self.nobody_is_ready();
        if !alone || !self.gates_open(now) || !self.fits_in_map(arrival) {
            return Verdict::Delay(self.delay(now, client, arrival));
        }
        if let Err(until) = self.take_own_limit(now, client) {
            let slot = self.delay(now, client, arrival);
            if self.registry.get(client).lane.records.head() == Some(slot) {
                self.backlog.park(client, &mut self.registry.get_mut(client).lane, until);
            }
            return Verdict::Delay(slot);
        }
        self.backlog.serve_at_once(&mut self.registry.get_mut(client).lane);
        self.bucket.charge(now);
        self.admitted(now, client, self.home(arrival), Duration::ZERO);
        Verdict::Admit(Some(client))
    }

    /// Reject: within its grant and the service's window, or not at all.
    fn admit_or_reject(&mut self, now: Time, index: u32, arrival: &Arrival<'_>) -> Verdict {
        let cycle = self.share.cycle;
        let client = self.registry.get_mut(index);
        if client.has_used_its_allowance(now, cycle) {
            return self.rejected(now, index, Reason::OverAllocation);
        }
        if !client.lane.records.is_empty() || !self.fits_in_map(arrival) {
            return Verdict::Delay(self.delay(now, index, arrival));
        }
        if self.window.count(now) >= self.policy.capacity {
            return self.rejected(now, index, Reason::CapacityInUse);
        }
        if self.take_own_limit(now, index).is_err() {
            return self.rejected(now, index, Reason::ClientLimit);
        }
        self.admitted(now, index, self.home(arrival), Duration::ZERO);
        Verdict::Admit(Some(index))
    }

    #[inline(never)]
    fn rejected(&mut self, now: Time, index: u32, reason: Reason) -> Verdict {
        self.counts_of(index).rejected.add(reason);
        let retry_after = self.open_for(now, index).since(now);
        Verdict::Reject(Rejection { reason, retry_after, client: Some(index) })
    }

    /// When the client's grant, the service's window and the client's own limit all have room for its next record, if
    /// nobody sends anything and no grant changes until then.
    fn open_for(&mut self, now: Time, index: u32) -> Time {
        let (cycle, edge) = (self.share.cycle, self.next_edge());
        let client = self.registry.get_mut(index);
        let allowance = client.allowance();
        let within = !client.has_used_its_allowance(now, cycle);
        let granted = if within { now } else { client.used.below_at(now, allowance, edge) };
        let limit = client.limit.as_deref().map_or(now, OwnLimit::open_at);
        granted.max(limit).max(self.window.below_at(now, self.policy.capacity))
    }

    /// Puts a record in line.
    #[inline(never)]
    fn delay(&mut self, now: Time, client: u32, arrival: &Arrival<'_>) -> Slot {
        let partition = self.home(arrival);
        let held = arrival_held(arrival, client, partition, now);
        self.counts_of(client).delayed += 1;
        let slot = self.put_in(held);
        self.bound_backlog(client, partition);
        slot
    }

    /// The partition that a record's completion belongs to; none in passthrough.
    fn home(&self, arrival: &Arrival<'_>) -> u32 {
        if self.policy.enforce { arrival.partition } else { VIRTUAL }
    }

    #[inline]
    fn nobody_is_ready(&mut self) -> bool {
        self.backlog.nobody_stands() || self.next_ready().is_none()
    }

    /// Both gates on the service, checked before either is charged.
    #[inline]
    pub(super) fn gates_open(&mut self, now: Time) -> bool {
        self.window.count(now) < self.policy.capacity && self.bucket.has_room(now)
    }

    #[inline]
    pub(super) fn take_own_limit(&mut self, now: Time, client: u32) -> Result<(), Time> {
        match &self.registry.get(client).limit {
            None => Ok(()),
            Some(limit) => limit.take(now),
        }
    }

    /// The client whose turn it is.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        let registry = &self.registry;
        self.backlog.next_client(|client| registry.lookup(client).and_then(|client| eligible_tag(&client.lane)))
    }

    /// Charges an admission everywhere.
    #[inline]
    pub(super) fn admitted(&mut self, now: Time, index: u32, partition: u32, waited: Duration) {
        // The gates have counted it at this moment.
        let in_window = self.window.add_counted(now, 1);
        let cycle = self.share.cycle;
        let client = self.registry.get_mut(index);
        // Shape counts none: not even looking spares a decision a cache line.
        if self.policy.mode == Mode::Reject {
            client.used.charge(now, cycle);
        }
        if partition == VIRTUAL {
            client.shadow.admitted += 1;
            return;
        }
        client.count_admitted(waited);
        self.delays.record(waited);
        self.partitions[partition as usize].memory.add_to_slice(now, 1);
        self.window_max = self.window_max.max(in_window);
    }

    pub(super) fn counts_of(&mut self, index: u32) -> &mut crate::registry::Counts {
        let enforce = self.policy.enforce;
        let client = self.registry.get_mut(index);
        if enforce { &mut client.counts } else { &mut client.shadow }
    }

    fn unregistered_counts(&mut self) -> &mut crate::registry::Counts {
        if self.policy.enforce { &mut self.unregistered } else { &mut self.unregistered_shadow }
    }

    #[inline]
    pub(super) fn complete(&mut self, partition: u32, offset: i64) {
        let place = &mut self.partitions[partition as usize];
        place.tracker.complete(offset);
        place.touched = true;
    }

    fn fits_in_map(&self, arrival: &Arrival<'_>) -> bool {
        !self.policy.enforce
            || self.map_stays_empty(arrival.partition, arrival.offset)
            || self.map_has_room(arrival.partition, arrival.offset)
    }
}
