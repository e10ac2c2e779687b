//! The partitions of a service: which offsets are completed, which records are delayed or wait for room in a commit,
//! what was admitted recently, and which partitions are paused.
//!
//! The ledger knows no clients but in the rejections that it keeps. Before a record completes, its owner asks
//! [`Ledger::has_room`] whether the offset map still fits in the commit metadata afterwards.

mod commits;
mod partition;
mod pauses;
mod records;

use std::collections::VecDeque;

use crate::offset_map::{self, OffsetMap};
use crate::policy::{Overflow, Policy};
use crate::tracker::{Seen, Tracker};
use crate::units::{NANOS_PER_MILLI, Time};
use crate::{chunks::Chunks, slot::Slot};
pub use partition::PartitionView;
use partition::{MapRoom, Partition};
use pauses::Pauses;
pub use pauses::{PauseReason, Reading};
use records::{HeldRecord, NOT_HELD, PendingRejections};
pub use records::{Location, Observed, PendingRejection};

/// The partitions of a service, and their records that are not completed.
#[derive(Debug)]
pub struct Ledger {
    partitions: Vec<Partition>,
    /// Delayed records and pending rejections, by slot.
    held: Chunks<HeldRecord>,
    pending: PendingRejections,
    pauses: Pauses,
    map_room: MapRoom,
    /// The wall clock less the time of the calls, in milliseconds.
    wall_ahead_ms: i64,
}

impl Ledger {
    /// A ledger without partitions. The wall clock is taken for the time of the calls until
    /// [`set_wall_clock`](Ledger::set_wall_clock).
    pub fn new(policy: &Policy) -> Ledger {
        Ledger {
            partitions: Vec::new(),
            held: Chunks::default(),
            pending: PendingRejections::default(),
            pauses: Pauses::new(policy),
            map_room: MapRoom::new(policy),
            wall_ahead_ms: 0,
        }
    }

    /// Changes to another policy. Recent admissions count over its cycle from now on.
    pub fn change(&mut self, now: Time, policy: &Policy) {
        if policy.cycle != self.map_room.cycle {
            for admissions in self.partitions.iter_mut().map(|partition| &mut partition.recent_admissions) {
                *admissions = admissions.over(now, policy.cycle);
            }
        }
        self.pauses.change(policy);
        self.map_room = MapRoom::new(policy);
    }

    // ## Partitions

    /// Assigns a partition with the contents of its last commit. `high` is its high watermark. Each slice of recent
    /// admissions that the partition did not know goes to `inherited`.
    pub fn assign(
        &mut self, now: Time, number: u32, base: i64, map: &OffsetMap, high: i64, mut inherited: impl FnMut(Time, u64),
    ) {
        while self.partitions.len() <= number as usize {
            self.partitions.push(Partition::unassigned(self.map_room.cycle));
        }
        let partition = &mut self.partitions[number as usize];
        partition.assign(base, map, high);
        for slice in &map.admitted {
            let end_ms = slice.end_ms.saturating_sub(self.wall_ahead_ms);
            let end = Time::from_nanos(u64::try_from(end_ms).unwrap_or(0).saturating_mul(NANOS_PER_MILLI));
            if let Some((when, missing)) = partition.recent_admissions.inherit(now, end, slice.admitted) {
                inherited(when, missing);
            }
        }
    }

    /// Revokes a partition. Returns the slots of its records, oldest first, and those of them that were pending
    /// rejections; none is held any more.
    pub fn revoke(&mut self, number: u32) -> (Vec<Slot>, VecDeque<PendingRejection>) {
        let Some(partition) = self.partitions.get_mut(number as usize) else { return Default::default() };
        partition.assigned = false;
        partition.touched = false;
        self.pauses.forget(number, partition.paused.take());
        let rejections = std::mem::take(&mut partition.pending_rejections);
        if !rejections.is_empty() {
            self.pending.partitions.retain(|other| *other != number);
            rejections.iter().for_each(|rejection| self.pending.subtract(rejection));
        }
        let slots: Vec<Slot> = partition.held.iter(&self.held, |record| &record.links).collect();
        for &slot in &slots {
            self.release(slot);
        }
        (slots, rejections)
    }

    /// Notes that a partition was not fetched for longer than a cycle: records below `high` are catching up.
    pub fn note_fetch_gap(&mut self, number: u32, high: i64) {
        if let Some(partition) = self.partitions.get_mut(number as usize) {
            partition.catch_up_until = partition.catch_up_until.max(high);
        }
    }

    /// Notes that the log of a partition was read up to (excluding) `offset`: skipped offsets are holes.
    pub fn observe_end(&mut self, number: u32, offset: i64) {
        let partition = &mut self.partitions[number as usize];
        let before = partition.tracker.base();
        partition.tracker.observe_end(offset);
        partition.touched |= partition.tracker.base() != before;
    }

    // ## Records

    /// Notes that a record was read. Returns `None` for a record that needs no decision: its partition is not assigned,
    /// it is completed, or it is held already.
    #[inline]
    pub fn observe(&mut self, number: u32, offset: i64) -> Option<Observed> {
        let partition = &mut self.partitions[number as usize];
        if !partition.assigned {
            return None;
        }
        let before = partition.tracker.base();
        let seen = partition.tracker.observe(offset);
        // The base moves if only holes before the record held it back.
        partition.touched |= partition.tracker.base() != before;
        if seen != Seen::New {
            return None;
        }
        let first_time = offset >= partition.seen_until;
        partition.seen_until = partition.seen_until.max(offset + 1);
        Some(Observed { first_time, catching_up: offset < partition.catch_up_until })
    }

    /// Completes a record.
    #[inline]
    pub fn complete(&mut self, number: u32, offset: i64) {
        let partition = &mut self.partitions[number as usize];
        partition.tracker.complete(offset);
        partition.touched = true;
    }

    /// Completes a record as soon as it is read, and pauses its partition if the offset map is nearly full.
    #[inline]
    pub fn complete_at_once(&mut self, number: u32, offset: i64) {
        if !self.map_stays_empty(number, offset) {
            self.pause_if_map_is_nearly_full(number);
        }
        self.complete(number, offset);
    }

    /// Counts an admission among the partition's recent ones.
    #[inline]
    pub fn count_admission(&mut self, now: Time, number: u32) {
        self.partitions[number as usize].recent_admissions.add(now, 1);
    }

    /// Holds a record that was observed and is not completed.
    #[inline]
    pub fn hold(&mut self, slot: Slot, number: u32, offset: i64) {
        let list = &mut self.partitions[number as usize].held;
        let links = list.push(&mut self.held, |record| &mut record.links, slot);
        self.held.set(slot.index(), HeldRecord { location: Location { partition: number, offset }, links });
    }

    /// The location of a held record; `None` for a record that only the scheduler knows (shadow mode).
    #[inline]
    pub fn location(&self, slot: Slot) -> Option<Location> {
        let location = self.held.get(slot.index())?.location;
        (location.partition != NOT_HELD).then_some(location)
    }

    /// Holds a record no longer. Returns its location, if it was held.
    #[inline]
    pub fn release(&mut self, slot: Slot) -> Option<Location> {
        let location = self.location(slot)?;
        let list = &mut self.partitions[location.partition as usize].held;
        let links = self.held[slot.index()].links;
        list.remove(&mut self.held, |record| &mut record.links, links);
        self.held[slot.index()].location.partition = NOT_HELD;
        Some(location)
    }

    /// The oldest held record of a partition: its offset is the committable one.
    pub fn oldest(&self, number: u32) -> Option<Slot> {
        let oldest = self.partitions[number as usize].held.head()?;
        debug_assert_eq!(self.held[oldest.index()].location.offset, self.partitions[number as usize].tracker.base());
        Some(oldest)
    }

    // ## Rejections that wait for room

    /// Keeps a rejected record until its completion fits in the offset map.
    #[cold]
    pub fn keep_rejection(&mut self, number: u32, offset: i64, rejection: PendingRejection) {
        self.hold(rejection.slot, number, offset);
        self.pending.records += 1;
        self.pending.bytes += u64::from(rejection.bytes);
        let rejections = &mut self.partitions[number as usize].pending_rejections;
        rejections.push_back(rejection);
        if rejections.len() == 1 {
            self.pending.partitions.push(number);
        }
        if self.pauses.overflow == Overflow::Pause {
            self.pause(number, PauseReason::Map);
        }
    }

    /// Returns whether any rejection waits for room.
    #[inline]
    pub fn has_pending_rejections(&self) -> bool {
        !self.pending.partitions.is_empty()
    }

    /// The number of pending rejections and their bytes.
    pub fn pending_rejections(&self) -> (u64, u64) {
        (self.pending.records, self.pending.bytes)
    }

    /// Returns whether a held record is a pending rejection, given that it is the oldest of its partition.
    pub fn is_pending_rejection(&self, oldest: Slot) -> bool {
        let Some(location) = self.location(oldest) else { return false };
        let rejections = &self.partitions[location.partition as usize].pending_rejections;
        rejections.front().is_some_and(|rejection| rejection.slot == oldest)
    }

    /// Takes the first pending rejection that fits in the offset map of its partition; the record is not held any more,
    /// and not completed.
    pub fn take_rejection(&mut self) -> Option<(Location, PendingRejection)> {
        for at in 0..self.pending.partitions.len() {
            let number = self.pending.partitions[at];
            let slot = self.partitions[number as usize].pending_rejections.front()?.slot;
            let location = self.location(slot)?;
            if self.has_room(number, location.offset) {
                let rejections = &mut self.partitions[number as usize].pending_rejections;
                let rejection = rejections.pop_front()?;
                if rejections.is_empty() {
                    self.pending.partitions.swap_remove(at);
                }
                self.pending.subtract(&rejection);
                self.release(slot);
                return Some((location, rejection));
            }
        }
        None
    }

    /// A partition with a pending rejection.
    pub fn next_rejecting(&self) -> Option<u32> {
        self.pending.partitions.first().copied()
    }

    // ## Room in the offset map

    /// Returns whether `offset` may complete without its partition's offset map outgrowing the commit metadata. The
    /// committable offset always may, even if a former owner had more room: its completion makes no map larger.
    #[inline]
    pub fn has_room(&self, number: u32, offset: i64) -> bool {
        let tracker = &self.partitions[number as usize].tracker;
        offset == tracker.base() || self.has_room_beyond(tracker, offset)
    }

    #[inline(never)]
    fn has_room_beyond(&self, tracker: &Tracker, offset: i64) -> bool {
        offset - tracker.base() < offset_map::MAX_SPAN as i64
            && tracker.bits_bound_after(offset) <= self.map_room.set_bits
    }

    /// Returns whether `offset` is the committable one and nothing beyond it is completed, as for most records.
    #[inline]
    pub fn map_stays_empty(&self, number: u32, offset: i64) -> bool {
        let tracker = &self.partitions[number as usize].tracker;
        offset == tracker.base() && tracker.span() == 0
    }

    // ## Pauses

    /// Pauses an assigned partition, unless it is paused.
    pub fn pause(&mut self, number: u32, reason: PauseReason) {
        let partition = &mut self.partitions[number as usize];
        if partition.assigned && partition.paused.is_none() {
            partition.paused = Some(reason);
            self.pauses.add(number);
        }
    }

    /// Pauses all assigned partitions.
    pub fn pause_all(&mut self, reason: PauseReason) {
        (0..self.partitions.len() as u32).for_each(|number| self.pause(number, reason));
    }

    /// Under `pause`, pauses a partition at three quarters of its offset map's room: records in the backlog can then
    /// still complete around each other.
    #[inline(never)]
    pub fn pause_if_map_is_nearly_full(&mut self, number: u32) {
        if self.pauses.overflow == Overflow::Pause
            && self.partitions[number as usize].map_is_nearly_full(self.map_room.set_bits)
        {
            self.pause(number, PauseReason::Map);
        }
    }

    /// Resumes partitions at half of the bound that paused them: a pause discards what librdkafka has prefetched, so
    /// it must not toggle. `is_free` tells whether a backlog's bound allows it.
    pub fn resume(&mut self, is_free: impl Fn(PauseReason) -> bool) {
        if !self.pauses.any() {
            return;
        }
        for number in 0..self.partitions.len() as u32 {
            let free = match self.partitions[number as usize].paused {
                None => false,
                Some(PauseReason::Map) => self.may_resume(number),
                Some(reason) => is_free(reason),
            };
            if free {
                self.partitions[number as usize].paused = None;
                self.pauses.remove(number);
            }
        }
    }

    /// Returns whether the next records fit, too. They always do if no record of the partition is held: then only
    /// unread records hold its committable offset back, as after a restart with a full map.
    fn may_resume(&self, number: u32) -> bool {
        let partition = &self.partitions[number as usize];
        partition.held.is_empty()
            || partition.map_is_half_empty(self.map_room.set_bits) && self.has_room(number, partition.tracker.next())
    }

    /// The next partition to pause or to resume.
    #[inline]
    pub fn next_reading(&mut self) -> Option<Reading> {
        self.pauses.next()
    }

    /// Returns whether [`next_reading`](Ledger::next_reading) has an answer.
    pub fn has_next_reading(&self) -> bool {
        self.pauses.has_next()
    }

    // ## Views

    /// An assigned partition.
    pub fn partition(&self, number: u32) -> Option<PartitionView> {
        self.assigned(number).map(|partition| partition.view(self.map_room.set_bits))
    }

    /// The completed offsets of an assigned partition.
    pub fn tracker(&self, number: u32) -> Option<&Tracker> {
        self.assigned(number).map(|partition| &partition.tracker)
    }

    /// The reason for which a partition is paused.
    pub fn paused(&self, number: u32) -> Option<PauseReason> {
        self.partitions.get(number as usize)?.paused
    }

    fn assigned(&self, number: u32) -> Option<&Partition> {
        self.partitions.get(number as usize).filter(|partition| partition.assigned)
    }
}
