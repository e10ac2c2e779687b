//! One service's state machine: records in, decisions out.
//!
//! Call order: any `handle_*` (each brings the cycle up to date first), then [`Throttle::poll_action`] until it is
//! `None`, then sleep until [`Throttle::poll_timeout`] or the next event. Nothing here blocks or reads a clock.
//!
//! - `throttle.rs`: what it holds, what happens to partitions, what it shows
//! - `throttle/decide.rs`: the decision on a record that was just read
//! - `throttle/queue.rs`: delayed records that go, overflow, expire; paused partitions
//! - `throttle/excess.rs`: which of the delayed records go when they are too many bytes
//! - `throttle/change.rs`: another policy
//! - `throttle/surplus.rs`: delayed records that exceed a bound since a reload lowered it
//! - `throttle/share.rs`: cycles, wants and when the allocator runs

mod change;
mod decide;
mod excess;
mod queue;
mod share;
mod surplus;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::backlog::{Backlog, Held, Lane, List, Slot};
use crate::bucket::LeakyBucket;
use crate::delays::Histogram;
use crate::offset_map::{self, AdmissionSlice, OffsetMap};
use crate::policy::Policy;
use crate::reason::Reason;
use crate::registry::{Client, Counts, Forgotten, Registry};
use crate::tracker::Tracker;
use crate::units::Time;
use crate::window::{SlidingCount, slice_width};

pub use share::Cause;

/// Who sent a record, as far as the shell could tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender<'a> {
    /// A readable client id.
    Client(&'a str),
    /// A readable client id that the source does not allow.
    NotAllowed(&'a str),
    /// None, or one that can't be read.
    Anonymous,
    /// The record has more headers than are read, so it can't be forwarded as it is.
    Oversized,
}

/// A record that was just read.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The partition's number, as given to [`Throttle::handle_assigned`].
    pub partition: u32,
    pub offset: i64,
    /// The memory that the record costs while it is delayed.
    pub bytes: u32,
    pub sender: Sender<'a>,
}

/// What to do with a record that was just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it is completed already, or it is being dealt with.
    Skip,
    /// Send it to the target now; the client's index, if it has one.
    Admit(Option<u32>),
    /// Keep it under this slot until an [`Action`] names it.
    Delay(Slot),
    /// Send it to the dead-letter topic now.
    Reject(Rejection),
}

/// Why a record is rejected, and when it might be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    /// Zero where it has no meaning.
    pub retry_after: Duration,
    /// The client's index, if it is a known one.
    pub client: Option<u32>,
}

/// What to do beyond the record that was just read. A slot named here is free afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the record kept under this slot to the target; its bytes are those of its arrival.
    Admit { slot: Slot, partition: u32, offset: i64, bytes: u32, client: u32, waited: Duration },
    /// Send the record kept under this slot to the dead-letter topic. The name is the one that its client had when the
    /// record was rejected: by now its index may be another client's.
    Reject { slot: Slot, partition: u32, offset: i64, bytes: u32, rejection: Rejection, name: Option<Arc<str>> },
    /// Read nothing from this partition.
    Pause { partition: u32 },
    /// Read from this partition again.
    Resume { partition: u32 },
}

impl Action {
    fn is_about_reading(&self, from: u32) -> bool {
        matches!(*self, Action::Pause { partition } | Action::Resume { partition } if partition == from)
    }
}

/// Why a partition is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseReason {
    /// A client's backlog reached `queue_capacity`.
    Queue { client: u32 },
    /// The backlogs reached `queue_bytes`.
    Bytes,
    /// The partition's map is nearly as large as it may be.
    Map,
}

impl PauseReason {
    /// The names of all reasons, for metrics.
    pub const NAMES: [&'static str; 3] = ["queue_capacity", "queue_bytes", "map"];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            PauseReason::Queue { .. } => Self::NAMES[0],
            PauseReason::Bytes => Self::NAMES[1],
            PauseReason::Map => Self::NAMES[2],
        }
    }
}

/// One partition, assigned or not.
#[derive(Debug)]
struct Partition {
    assigned: bool,
    tracker: Tracker,
    /// Its delayed records, oldest first: the first one is the committable offset, if anything is delayed.
    held: List,
    /// Rejected records whose completion does not fit in the map yet, oldest first; they are in `held`, too.
    pending_rejections: VecDeque<PendingRejection>,
    /// What was admitted from it lately, by whichever owner.
    memory: SlidingCount,
    /// Offsets below this were read before in this process, or completed by a former owner: they are not first-time
    /// arrivals. What a former owner left waiting is: this one knows of no other wants.
    seen_until: i64,
    /// Reject mode: offsets below this are catching up.
    catch_up_until: i64,
    paused: Option<PauseReason>,
    /// Something completed since the last commit.
    touched: bool,
    /// The length of the last map.
    map_characters: u32,
}

/// A rejected record whose completion does not fit in the map yet.
#[derive(Debug)]
struct PendingRejection {
    slot: Slot,
    rejection: Rejection,
    name: Option<Arc<str>>,
}

/// What there is to see of an assigned partition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartitionView {
    /// The committable offset.
    pub base: i64,
    /// The next offset to read.
    pub next: i64,
    /// Delayed records.
    pub held: u64,
    /// How many offsets the map covers.
    pub span: u64,
    /// The map's share of its budget (0–1).
    pub map_used: f64,
    /// The length of the last map that was made.
    pub map_characters: u32,
}

/// One service's state machine.
#[derive(Debug)]
pub struct Throttle {
    policy: Policy,
    /// The latest moment that any call named: an earlier one counts as this.
    latest: Time,
    /// The wall clock less the time of the calls, in milliseconds.
    wall_ahead_ms: i64,
    registry: Registry,
    backlog: Backlog,
    partitions: Vec<Partition>,
    /// The delayed records of passthrough, which stand in no partition.
    virtual_held: List,
    window: SlidingCount,
    /// Passthrough only: what was really admitted.
    actual: SlidingCount,
    window_max: u64,
    bucket: LeakyBucket,
    share: share::Share,
    /// Partitions to pause and to resume.
    actions: VecDeque<Action>,
    /// Records of no known client.
    unregistered: Counts,
    unregistered_shadow: Counts,
    delays: Histogram,
    /// Partitions with rejections whose completion does not fit in the map yet.
    rejecting: Vec<u32>,
    /// The lane of records that are rejected but not completed.
    nobody: Lane,
    /// Clients whose backlogs were given a record beyond `queue_capacity`, once for each.
    above_capacity: Vec<u32>,
    surplus: surplus::Surplus,
    excess: excess::Excess,
    /// How many partitions are paused.
    paused: usize,
    map_room: MapRoom,
}

/// Nanoseconds of a millisecond.
const MILLI: u64 = 1_000_000;
/// Wall clocks that differ by no more are the same.
const CLOCK_JITTER_MS: u64 = 2;

/// Stands for "no partition" in the delayed records of passthrough.
const VIRTUAL: u32 = u32::MAX;
/// Stands for "no client" in those that are rejected already.
const NOBODY: u32 = u32::MAX;

impl Throttle {
    /// A service that starts now. Until [`handle_wall_clock`](Throttle::handle_wall_clock) says otherwise, `now` is
    /// taken for the wall clock's nanoseconds since the Unix epoch.
    pub fn new(policy: Policy, now: Time) -> Throttle {
        let mut throttle = Throttle {
            registry: Registry::new(&policy, now),
            backlog: Backlog::default(),
            partitions: Vec::new(),
            virtual_held: List::default(),
            window: SlidingCount::new(policy.cycle),
            actual: SlidingCount::new(policy.cycle),
            window_max: 0,
            bucket: LeakyBucket::new(policy.capacity, policy.cycle, policy.burst, policy.commit_interval),
            share: share::Share::new(now, policy.cycle),
            actions: VecDeque::new(),
            unregistered: Counts::default(),
            unregistered_shadow: Counts::default(),
            delays: Histogram::default(),
            rejecting: Vec::new(),
            nobody: Lane::default(),
            above_capacity: Vec::new(),
            surplus: surplus::Surplus::default(),
            excess: excess::Excess::default(),
            paused: 0,
            map_room: MapRoom::new(&policy),
            latest: now,
            wall_ahead_ms: 0,
            policy,
        };
        throttle.allocate(Cause::Cycle);
        throttle
    }

    /// The time of a call, which never goes back: a window that is counted at one moment and charged at an earlier one
    /// would admit records twice.
    #[inline]
    fn not_before(&mut self, now: Time) -> Time {
        if now < self.latest {
            return self.latest;
        }
        self.latest = now;
        now
    }

    /// The wall clock shows `wall_ms`, milliseconds since the Unix epoch. To be called before a partition comes and
    /// before a commit: recent admissions travel between owners by the wall clock, written as the wall clock at the
    /// commit less their age by the owner's own clock. So a wall clock that was wrong when the process started, or a
    /// process that was suspended, does not make them look older than they are. What remains is a step of the wall
    /// clock between a commit and the takeover.
    pub fn handle_wall_clock(&mut self, now: Time, wall_ms: i64) {
        let ahead = wall_ms.saturating_sub((now.as_nanos() / MILLI) as i64);
        // Two clocks that are read one after the other differ by a rounding. Slices that move for that would be charged
        // twice when a partition comes back.
        if ahead.abs_diff(self.wall_ahead_ms) > CLOCK_JITTER_MS {
            self.wall_ahead_ms = ahead;
        }
    }

    // ## Partitions

    /// A partition came, with what its last commit said. `high` is its high watermark now.
    pub fn handle_assigned(&mut self, now: Time, partition: u32, base: i64, map: &OffsetMap, high: i64) {
        let now = self.not_before(now);
        self.roll(now);
        while self.partitions.len() <= partition as usize {
            self.partitions.push(Partition::vacant(self.policy.cycle));
        }
        let place = &mut self.partitions[partition as usize];
        debug_assert!(place.held.is_empty(), "a partition comes after it went");
        place.assigned = true;
        place.tracker = Tracker::restore(base, &map.completed);
        place.seen_until = place.seen_until.max(place.tracker.next());
        place.catch_up_until = high;
        place.paused = None;
        (place.touched, place.map_characters) = (false, 0);
        for slice in &map.admitted {
            let end_ms = slice.end_ms.saturating_sub(self.wall_ahead_ms);
            let end = Time::from_nanos(u64::try_from(end_ms).unwrap_or(0).saturating_mul(MILLI));
            if let Some((when, missing)) = place.memory.inherit(now, end, slice.admitted) {
                self.window.add_at(now, when, missing);
                self.actual.add_at(now, when, missing);
            }
        }
    }

    /// A partition went: what was delayed of it is forgotten, because its next owner reads it again. Returns the
    /// slots that are free now. What was charged stays charged.
    pub fn handle_revoked(&mut self, partition: u32) -> Vec<Slot> {
        let Some(place) = self.partitions.get_mut(partition as usize) else {
            return Vec::new();
        };
        place.assigned = false;
        place.touched = false;
        self.paused -= usize::from(place.paused.take().is_some());
        if !std::mem::take(&mut place.pending_rejections).is_empty() {
            self.rejecting.retain(|other| *other != partition);
        }
        let slots: Vec<Slot> = self.backlog.of_partition(&place.held).collect();
        for &slot in &slots {
            self.take_out(slot, false);
            self.backlog.release(slot);
        }
        self.actions.retain(|action| !action.is_about_reading(partition));
        slots
    }

    /// The partition was not read for longer than a cycle: what waits in it up to `high` is catching up.
    pub fn handle_fetch_gap(&mut self, partition: u32, high: i64) {
        if let Some(place) = self.partitions.get_mut(partition as usize) {
            place.catch_up_until = place.catch_up_until.max(high);
        }
    }

    /// The log of a partition was read up to (excluding) this offset: what lies between is holes.
    pub fn handle_end(&mut self, partition: u32, offset: i64) {
        let place = &mut self.partitions[partition as usize];
        let before = place.tracker.base();
        place.tracker.observe_end(offset);
        place.touched |= place.tracker.base() != before;
    }

    /// A record that was admitted turned out to be undeliverable, before its round was committed.
    pub fn handle_undeliverable(&mut self, client: Option<&str>) {
        let counts = self.real_counts(client);
        counts.admitted = counts.admitted.saturating_sub(1);
        counts.rejected.add(Reason::Undeliverable);
    }

    /// A decision was not carried out, because its partition went before its round: it is not counted, for whoever
    /// reads the record again decides and counts again. What it charged stays charged.
    pub fn handle_undone(&mut self, client: Option<&str>, rejected: Option<Reason>) {
        let counts = self.real_counts(client);
        match rejected {
            Some(reason) => counts.rejected.remove(reason),
            None => counts.admitted = counts.admitted.saturating_sub(1),
        }
    }

    /// The counts of what was really done for a client, if it is still known.
    fn real_counts(&mut self, client: Option<&str>) -> &mut Counts {
        match client.and_then(|name| self.registry.find(name)) {
            Some(client) => &mut self.registry.get_mut(client).counts,
            None => &mut self.unregistered,
        }
    }

    // ## Commits

    /// Partitions in which something completed since they were committed.
    pub fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.partitions).filter(|(_, place)| place.assigned && place.touched).map(|(index, _)| index)
    }

    /// The partition is to be committed even if nothing completed in it.
    pub fn touch(&mut self, partition: u32) {
        self.partitions[partition as usize].touched = true;
    }

    /// The committable offset and the map beside it. All that was decided counts as completed, so the round that
    /// commits this must hold all outputs of decisions that were not committed before.
    ///
    /// # Errors
    /// The map does not fit in its budget: a defect, for no record completes that does not fit.
    pub fn commit_of(&mut self, now: Time, partition: u32) -> Result<(i64, String), offset_map::TooLarge> {
        self.commit_without(now, partition, &[])
    }

    /// The same as if these offsets were not completed yet: those of the last decisions, which a later round commits.
    ///
    /// # Errors
    /// The map does not fit in its budget. It did when these decisions were taken, unless holes were read behind them.
    pub fn commit_without(
        &mut self,
        now: Time,
        partition: u32,
        offsets: &[i64],
    ) -> Result<(i64, String), offset_map::TooLarge> {
        let now = self.not_before(now);
        let place = &mut self.partitions[partition as usize];
        let ahead = self.wall_ahead_ms;
        let admitted: Vec<AdmissionSlice> = place.memory.slices(now).map(|slice| memory_slice(slice, ahead)).collect();
        let earlier = (!offsets.is_empty()).then(|| place.tracker.without(offsets));
        let tracker = earlier.as_ref().unwrap_or(&place.tracker);
        let text = offset_map::encode(self.policy.map_budget, tracker, self.map_room.slice_ms, &admitted)?;
        let base = tracker.base();
        place.map_characters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok((base, text))
    }

    /// The commit of a partition was acknowledged.
    pub fn handle_committed(&mut self, partition: u32) {
        self.partitions[partition as usize].touched = false;
    }

    // ## What it shows

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// A client's name.
    pub fn client_name(&self, client: u32) -> Option<Arc<str>> {
        self.registry.lookup(client).map(|client| Arc::clone(&client.name))
    }

    /// All clients, in no particular order.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.registry.iter().map(|(_, client)| client)
    }

    /// How many clients are known.
    pub fn known(&self) -> usize {
        self.registry.len()
    }

    /// How many pages the clients stand in: looking at all of them at once takes long where there are very many.
    pub fn pages(&self) -> usize {
        self.registry.pages()
    }

    /// The clients of a page below [`pages`](Throttle::pages), and the counts of those that were forgotten out of it.
    pub fn page(&self, page: usize) -> (impl Iterator<Item = &Client>, Forgotten) {
        self.registry.page(page)
    }

    /// A client by name.
    pub fn client(&self, name: &str) -> Option<&Client> {
        self.registry.find(name).map(|index| self.registry.get(index))
    }

    /// Counts of records that belong to no known client, forgotten clients' included: real, and passthrough's.
    pub fn unregistered(&self) -> (Counts, Counts) {
        let (mut real, mut shadow) = self.of_nobody();
        let forgotten = self.registry.forgotten();
        real.merge(&forgotten.counts);
        shadow.merge(&forgotten.shadow);
        (real, shadow)
    }

    /// Counts of records that belonged to no known client when they came: real, and passthrough's.
    pub fn of_nobody(&self) -> (Counts, Counts) {
        (self.unregistered, self.unregistered_shadow)
    }

    /// The number of the running cycle, from 0.
    pub fn cycle(&self) -> u64 {
        self.share.cycle
    }

    /// Allocations so far, by [`Cause`].
    pub fn allocations(&self) -> [u64; Cause::NAMES.len()] {
        self.share.allocations
    }

    /// Admitted in the window that ends now, and the most in any window since the start; both may count up to half
    /// a percent of a cycle too much, never too little.
    pub fn window_admitted(&mut self, now: Time) -> (u64, u64) {
        let now = self.not_before(now);
        let window = if self.policy.enforce { &mut self.window } else { &mut self.actual };
        (window.count(now), self.window_max)
    }

    /// Delayed records and their bytes; none in passthrough, where nothing is really delayed.
    pub fn backlog(&self) -> (u64, u64) {
        if self.policy.enforce { (self.backlog.len(), self.backlog.bytes()) } else { (0, 0) }
    }

    /// How long the oldest delayed record has waited.
    pub fn oldest_held(&self, now: Time) -> Duration {
        let oldest = self.backlog.oldest().filter(|_| self.policy.enforce);
        oldest.map_or(Duration::ZERO, |slot| now.since(self.backlog.get(slot).since))
    }

    /// Delays of admitted records.
    pub fn delays(&self) -> &Histogram {
        &self.delays
    }

    /// An assigned partition.
    pub fn partition(&self, partition: u32) -> Option<PartitionView> {
        let place = self.partitions.get(partition as usize).filter(|place| place.assigned)?;
        Some(PartitionView {
            base: place.tracker.base(),
            next: place.tracker.next(),
            held: place.held.len(),
            span: place.tracker.span(),
            map_used: place.tracker.bits_bound() as f64 / self.map_room.set_bits.max(1) as f64,
            map_characters: place.map_characters,
        })
    }

    /// Which offsets of an assigned partition are completed.
    pub fn tracker(&self, partition: u32) -> Option<&Tracker> {
        self.partitions.get(partition as usize).filter(|place| place.assigned).map(|place| &place.tracker)
    }

    /// Why a partition is paused, if it is.
    pub fn paused(&self, partition: u32) -> Option<PauseReason> {
        self.partitions.get(partition as usize)?.paused
    }
}

impl Partition {
    fn vacant(cycle: Duration) -> Partition {
        Partition {
            assigned: false,
            tracker: Tracker::new(0),
            held: List::default(),
            pending_rejections: VecDeque::new(),
            memory: SlidingCount::exact_up_to(0, cycle),
            seen_until: 0,
            catch_up_until: 0,
            paused: None,
            touched: false,
            map_characters: 0,
        }
    }
}

/// How a map's budget is split.
#[derive(Debug, Clone, Copy)]
struct MapRoom {
    /// The bits that a partition's completed set may take.
    set_bits: u64,
    /// The width of the slices in which the window's memory travels.
    slice_ms: u32,
}

impl MapRoom {
    /// The window's memory travels in its own slices, or in as many wider ones as half of a small budget holds: a wide
    /// slice is charged longer, never shorter. It may hold more than twice the capacity if a former owner had more or let
    /// everything pass, so room is left for a large number in any case.
    fn new(policy: &Policy) -> MapRoom {
        let (bits, admitted) = (policy.map_budget.payload_bits(), (policy.capacity * 2).max(1 << 24));
        let mut slices = offset_map::MAX_SLICES;
        while slices > 1 && offset_map::overhead_bits(slices, admitted) > bits / 2 {
            slices /= 2;
        }
        let (width, window) = (slice_width(policy.cycle), policy.cycle + 2 * slice_width(policy.cycle));
        let fine = window.as_nanos().div_ceil(width.as_nanos());
        let slice_ms = width.as_millis() * fine.div_ceil(slices as u128);
        MapRoom {
            set_bits: bits.saturating_sub(offset_map::overhead_bits(slices, admitted)),
            slice_ms: u32::try_from(slice_ms).unwrap_or(u32::MAX),
        }
    }
}

fn memory_slice((end, admitted): (Time, u64), wall_ahead_ms: i64) -> AdmissionSlice {
    AdmissionSlice { end_ms: ((end.as_nanos() / MILLI) as i64).saturating_add(wall_ahead_ms).max(0), admitted }
}

fn arrival_held(arrival: &Arrival<'_>, client: u32, partition: u32, since: Time) -> Held {
    Held { client, partition, offset: arrival.offset, bytes: arrival.bytes, since }
}
