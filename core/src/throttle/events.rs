//! Events other than records: time, policies, partitions and commits.

use super::{GroupPart, OpenRoom, Slot, Throttle};
use crate::allocator::{ClientGroupPart, Part};
use crate::offset_map::{OffsetMap, TooLarge};
use crate::policy::{Policy, Scope};
use crate::reason::Reason;
use crate::units::Time;

impl Throttle {
    /// Notes that time passed: a cycle may have ended, an early allocation may be due.
    pub fn handle_timeout(&mut self, now: Time) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        self.scheduler.allocate_if_due(now);
    }

    /// Notes that the wall clock shows `wall_ms`, milliseconds since the Unix epoch. To be called before a partition is
    /// assigned and before a commit.
    ///
    /// Recent admissions travel between owners by the wall clock: its time at the commit less their age by the owner's
    /// own clock. So a wall clock that was wrong when the process started, or a process that was suspended, does not
    /// make them look older than they are. Only a step of the wall clock between a commit and the takeover does.
    pub fn handle_wall_clock(&mut self, now: Time, wall_ms: i64) {
        self.ledger.set_wall_clock(now, wall_ms);
    }

    /// Changes to another policy, which is allocated by at once ([`Cause::Reload`]); another cycle length begins a
    /// cycle.
    ///
    /// Records that were admitted still count: after a change no window, as long as the shortest cycle in force in it,
    /// holds more than the largest capacity in force in it (a longer cycle remembers no more than the shorter one did).
    /// Delayed records keep their place: from shape into reject mode they go as records that are catching up do, from
    /// reject into shape mode all of them wait in their client's turn, into shadow mode they go at once, in order, with
    /// the next [`poll_action`](Throttle::poll_action). Records that exceed a lowered bound of the backlogs are evicted
    /// by [`poll_action`](Throttle::poll_action), too.
    ///
    /// `commit_interval` and `map_budget` must be the same, as offset maps that were written must still fit.
    pub fn handle_policy(&mut self, now: Time, policy: Policy) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        let (enforce, cycle, length) = (policy.enforce, policy.cycle, policy.window_length());
        self.ledger.change(now, &policy);
        if cycle != self.scheduler.policy.cycle
            && let Some(window) = &mut self.shadow
        {
            *window = window.over(now, length);
        }
        self.scheduler.change(now, policy);
        if !enforce && self.shadow.is_none() {
            self.shadow = Some(self.scheduler.gates.window.clone());
        } else if enforce && let Some(window) = self.shadow.take() {
            self.drop_shadow_records();
            self.scheduler.gates.set_window(&self.scheduler.policy, window);
        }
        self.apply_open_room();
        self.scheduler.find_surplus(now);
    }

    /// Changes to other rules: to a policy that differs from the present one in the capacity and in what holds for
    /// clients and groups, and allocates by it ([`Cause::Rules`](super::Cause::Rules)). The capacity changes as with
    /// [`handle_capacity`](Throttle::handle_capacity). Delayed records stay where they are, unless a rule expires them.
    pub fn handle_rules(&mut self, now: Time, policy: Policy) {
        let now = self.not_before(now);
        if policy.enforce != self.scheduler.policy.enforce {
            return self.handle_policy(now, policy);
        }
        self.scheduler.advance_cycle(now);
        self.scheduler.change_rules(now, policy);
    }

    /// Changes the capacity, and requests an allocation by it ([`Cause::Capacity`](super::Cause::Capacity)). Unlike
    /// [`handle_policy`](Throttle::handle_policy) it may be called often: whenever a record is admitted, the window
    /// that then ends holds at most the mean of the capacities that were in force over it.
    pub fn handle_capacity(&mut self, now: Time, capacity: u64) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        self.scheduler.change_capacity(now, capacity);
    }

    /// Sets the part of the group's capacity that this instance may use. Without one it admits nothing, and rejects
    /// nothing for lack of capacity.
    pub fn handle_part(&mut self, now: Time, part: GroupPart) {
        let now = self.not_before(now);
        self.scheduler.gates.set_part(now, &self.scheduler.policy, part);
    }

    /// Sets the room of the service for more open records; `None` for no bound. While no room is left, records wait in
    /// both modes: nothing is rejected for lack of capacity. Shadow mode has no bound, since it holds nothing back.
    pub fn handle_open_room(&mut self, room: Option<OpenRoom>) {
        self.open_room = room;
        self.apply_open_room();
    }

    fn apply_open_room(&mut self) {
        let room = self.open_room.filter(|_| self.shadow.is_none());
        self.scheduler.gates.set_open_room(self.latest, &self.scheduler.policy, room);
    }

    /// Hands out the clients' parts of the group's capacity at this instance, and those of the groups of clients.
    pub fn handle_parts(
        &mut self, now: Time, part_of: impl Fn(&str) -> Option<Part>,
        part_of_group: impl Fn(&str) -> Option<ClientGroupPart>,
    ) {
        let now = self.not_before(now);
        self.scheduler.take_parts(now, part_of, part_of_group);
    }

    /// Adds admissions that others made, at `at`, to the windows of this throttle: they count against its hold.
    pub fn charge_earlier(&mut self, now: Time, at: Time, count: u64) {
        let now = self.not_before(now);
        self.scheduler.gates.charge_earlier(now, at, count);
        if let Some(window) = &mut self.shadow {
            // This window replaces the scheduler's window when shadow mode ends.
            window.add_at(now, at, count);
        }
    }

    /// Removes the delayed records of shadow mode, which were all admitted long ago.
    fn drop_shadow_records(&mut self) {
        let shadow: Vec<Slot> =
            self.scheduler.backlog.iter().filter(|&slot| self.ledger.location(slot).is_none()).collect();
        for slot in shadow {
            self.scheduler.remove(self.latest, slot);
            self.slots.release(slot);
        }
    }

    /// Notes that a partition was assigned, with the offset map of its last commit. `high` is its high watermark now.
    pub fn handle_assigned(&mut self, now: Time, partition: u32, base: i64, map: &OffsetMap, high: i64) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        let (scheduler, shadow) = (&mut self.scheduler, &mut self.shadow);
        self.ledger.assign(now, partition, base, map, high, |when, admitted| {
            // In a group the admissions of a former owner are charged to the hold of that owner.
            if scheduler.policy.scope == Scope::Instance {
                scheduler.gates.window.add_at(now, when, admitted);
            }
            if let Some(window) = shadow {
                window.add_at(now, when, admitted);
            }
        });
    }

    /// Notes that an assigned partition goes on where a former owner stopped: the waits of its unread records began at
    /// their timestamps. Without this they begin when the records are read.
    ///
    /// A client used less than its share while its records had no owner. So those go before all others, as many as its
    /// default share would have let through in that time, and in a cycle at most: a flood beside them must not make
    /// the client wait for much longer than the partition did.
    pub fn handle_takeover(&mut self, now: Time, partition: u32) {
        let now = self.not_before(now);
        self.ledger.note_takeover(now, partition);
        self.scheduler.takeover = now;
    }

    /// Notes that all records of an assigned partition belong to one client by configuration, or that they do not. It
    /// holds until a record of another client is read. Redriven records, anonymous ones and those of clients that are
    /// not allowed do not count as such.
    pub fn handle_sole_client(&mut self, partition: u32, client: Option<&str>) {
        self.ledger.set_sole_client(partition, client);
    }

    /// Notes that a partition was revoked: its delayed records are dropped, as its next owner reads them again. Returns
    /// their slots, which are free now. Admissions still count.
    pub fn handle_revoked(&mut self, partition: u32) -> Vec<Slot> {
        let (slots, rejections) = self.ledger.revoke(partition);
        for pending in &rejections {
            self.handle_undone(pending.name.as_deref(), Some(pending.rejection.reason));
        }
        for &slot in &slots {
            if !rejections.iter().any(|rejection| rejection.slot == slot) {
                self.scheduler.remove(self.latest, slot);
            }
            self.slots.release(slot);
        }
        slots
    }

    /// Notes that a partition was not fetched for longer than a cycle: its records up to `high` are catching up.
    pub fn handle_fetch_gap(&mut self, partition: u32, high: i64) {
        self.ledger.note_fetch_gap(partition, high);
    }

    /// Notes that the log of a partition was read up to (excluding) this offset: skipped offsets are holes.
    pub fn handle_end(&mut self, partition: u32, offset: i64) {
        self.ledger.observe_end(partition, offset);
    }

    /// Notes that an admitted record turned out to be undeliverable, before its round was committed.
    pub fn handle_undeliverable(&mut self, client: Option<&str>) {
        let counts = self.counts(client.and_then(|name| self.scheduler.clients.find(name)));
        counts.admitted = counts.admitted.saturating_sub(1);
        counts.rejected.add(Reason::Undeliverable);
    }

    /// Notes that a decision was not carried out, because its partition was revoked before its round was committed: the
    /// next owner decides and counts again. Its charges stay.
    pub fn handle_undone(&mut self, client: Option<&str>, rejected: Option<Reason>) {
        let counts = self.counts(client.and_then(|name| self.scheduler.clients.find(name)));
        match rejected {
            Some(reason) => counts.rejected.remove(reason),
            None => counts.admitted = counts.admitted.saturating_sub(1),
        }
    }

    // ## Commits

    /// Partitions in which a record completed since their last commit.
    pub fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        self.ledger.touched()
    }

    /// Makes a partition one to commit, even if no record completed in it.
    pub fn touch(&mut self, partition: u32) {
        self.ledger.set_touched(partition, true);
    }

    /// The committable offset and its offset map, as if these offsets were not completed yet: those of the last
    /// decisions, which a later round commits. All other records that were decided on count as completed, so the round
    /// that commits this must hold all other outputs of decisions that were not committed before.
    ///
    /// # Errors
    /// The map does not fit in its budget. It did when these decisions were made, unless holes were read behind them.
    pub fn commit_without(&mut self, now: Time, partition: u32, offsets: &[i64]) -> Result<(i64, String), TooLarge> {
        let now = self.not_before(now);
        self.ledger.commit(now, partition, offsets)
    }

    /// Notes that the commit of a partition was acknowledged.
    pub fn handle_committed(&mut self, partition: u32) {
        self.ledger.set_touched(partition, false);
    }
}
