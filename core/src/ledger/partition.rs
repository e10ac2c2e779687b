//! One partition, its records, and the room that its offset map has in a commit.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{PauseReason, PendingRejection, pauses::Behind};
use crate::offset_map::{self, MapBudget, OffsetMap, TopicTag};
use crate::window::{SlidingCount, slice_width};
use crate::{linked_list::LinkedList, linked_list::Links, policy::Policy, tracker::Tracker};

/// The partition and the offset of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    pub partition: u32,
    pub offset: i64,
}

/// A first-time look at a record.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// The record counts as an arrival: it was not read before in this process, nor completed by a former owner.
    pub first_time: bool,
    /// The record was written before the partition's backlog was read up (reject mode).
    pub catching_up: bool,
}

/// Stands for "no partition" in a slot that the ledger does not hold.
pub(super) const NOT_HELD: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct HeldRecord {
    pub(super) location: Location,
    pub(super) links: Links,
}

impl Default for HeldRecord {
    fn default() -> HeldRecord {
        HeldRecord { location: Location { partition: NOT_HELD, offset: 0 }, links: Links::default() }
    }
}

/// A partition, assigned or not.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) assigned: bool,
    pub(super) tracker: Tracker,
    /// The topic, for its offset maps.
    pub(super) tag: Option<TopicTag>,
    /// Delayed records and pending rejections, oldest first: the first one is the committable offset.
    pub(super) held: LinkedList,
    /// Rejected records that wait for room in the offset map, oldest first; they are in `held`, too.
    pub(super) pending_rejections: VecDeque<PendingRejection>,
    /// Admissions in the last cycle, by this owner and by former ones.
    pub(super) recent_admissions: SlidingCount,
    /// Records at offsets below this one are not first-time arrivals: they were read before in this process, or
    /// completed by a former owner. (Records that a former owner left delayed count as new wants here.)
    pub(super) seen_until: i64,
    /// Records at offsets below this one are catching up (reject mode).
    pub(super) catch_up_until: i64,
    /// The client to which all records belong by configuration, until a record of another one is read.
    pub(super) sole_client: Option<SoleClient>,
    pub(super) paused: Option<PauseReason>,
    pub(super) behind: Behind,
    /// A record completed since the last commit.
    pub(super) touched: bool,
    /// The length of the last offset map.
    pub(super) map_characters: u32,
}

/// A client that has a partition to itself.
#[derive(Debug)]
pub(super) struct SoleClient {
    pub(super) name: Arc<str>,
    /// The index of the client at its last record.
    pub(super) index: u32,
}

/// A view of an assigned partition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartitionView {
    /// The committable offset.
    pub base: i64,
    /// The next offset to read.
    pub next: i64,
    /// Delayed records.
    pub held: u64,
    /// Unread records wait in the topic: the partition is paused, or was until a moment ago, or was just taken over.
    pub is_behind: bool,
    /// The number of offsets that the offset map covers.
    pub span: u64,
    /// The part of its budget that the offset map uses (0–1).
    pub map_used: f64,
    /// The length of the last offset map that was made.
    pub map_characters: u32,
}

impl Partition {
    pub(super) fn unassigned(cycle: Duration) -> Partition {
        Partition {
            assigned: false,
            tracker: Tracker::new(0),
            tag: None,
            held: LinkedList::default(),
            pending_rejections: VecDeque::new(),
            recent_admissions: SlidingCount::exact_up_to(0, cycle),
            seen_until: 0,
            catch_up_until: 0,
            sole_client: None,
            paused: None,
            behind: Behind::No,
            touched: false,
            map_characters: 0,
        }
    }

    pub(super) fn assign(&mut self, base: i64, map: &OffsetMap, high: i64) {
        debug_assert!(self.held.is_empty(), "a partition is revoked before it is assigned again");
        self.assigned = true;
        // Nothing was read of a topic that was made anew. Its log ends before what was read of the former one, or its
        // tag tells.
        let is_anew = match (self.tag, map.tag) {
            (Some(former), Some(tag)) => former != tag,
            _ => high < self.seen_until,
        };
        if is_anew {
            self.seen_until = 0;
        }
        self.tracker = Tracker::restore(base, &map.completed);
        self.tag = map.tag;
        self.seen_until = self.seen_until.max(self.tracker.next());
        self.catch_up_until = high;
        (self.sole_client, self.paused, self.behind) = (None, None, Behind::No);
        (self.touched, self.map_characters) = (false, 0);
    }

    /// Returns whether the map is nearly full. A former owner has read the records below its end, so reading them again
    /// adds no gap.
    pub(super) fn map_is_nearly_full(&self, set_bits: u64) -> bool {
        if self.tracker.next() < self.tracker.end() {
            return false;
        }
        let (span, limit) = (self.tracker.span(), offset_map::MAX_SPAN / 4 * 3);
        span > limit || span > 0 && self.tracker.bits_bound() > set_bits / 4 * 3
    }
}

/// The split of an offset map's budget.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MapRoom {
    pub(super) budget: MapBudget,
    /// The bits that a partition's completed set may take.
    pub(super) set_bits: u64,
    /// The width of the slices in which recent admissions travel.
    pub(super) slice_ms: u32,
    /// The cycle over which they count.
    pub(super) cycle: Duration,
}

impl MapRoom {
    /// Recent admissions travel in the slices of the window, or in as many wider ones as half of a small budget holds:
    /// a wide slice is charged longer, never shorter. They may be more than twice the capacity if a former owner had a
    /// larger one or ran in shadow mode, so that room for a large number is left in any case.
    pub(super) fn new(policy: &Policy) -> MapRoom {
        let (bits, admitted) = (policy.map_budget.payload_bits(), (policy.capacity * 2).max(1 << 24));
        let mut slices = offset_map::MAX_SLICES;
        while slices > 1 && offset_map::overhead_bits(slices, admitted) > bits / 2 {
            slices /= 2;
        }
        let (width, window) = (slice_width(policy.cycle), policy.cycle + 2 * slice_width(policy.cycle));
        let fine = window.as_nanos().div_ceil(width.as_nanos());
        let slice_ms = width.as_millis() * fine.div_ceil(slices as u128);
        MapRoom {
            budget: policy.map_budget,
            set_bits: bits.saturating_sub(offset_map::overhead_bits(slices, admitted)),
            slice_ms: u32::try_from(slice_ms).unwrap_or(u32::MAX),
            cycle: policy.cycle,
        }
    }
}
