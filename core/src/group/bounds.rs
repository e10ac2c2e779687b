//! Bounds on members that stopped: their holds go back as their windows empty.

use std::{collections::HashMap, time::Duration};

use super::record::{Bound, Key};
use super::seats::{Seat, SeatState, Seats};
use super::{Clocks, GroupParams};
use crate::policy::Mode;
use crate::units::{MAX_CAPACITY, Ratio, Time};

/// Members wait for one another, by the rank of their keys, so that usually one of them writes a bound.
const RANK_DELAY: Duration = Duration::from_millis(300);

/// A pace of this many capacities says that a member's window may hold all that it may until the end.
pub(super) const UNPACED: u64 = 1_000;

/// The knowledge of a member, beyond the log, about the stop of others.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// The time from which on this member counts the silence of others.
    pub(super) active_since: Time,
    /// The time at which the broker fenced all former processes with this instance id, if it did.
    pub(super) fenced_at: Option<Time>,
    /// The former keys of this process, with the time at which each had stopped.
    pub(super) former: HashMap<Key, Time>,
    /// The bounds that this member wrote last.
    written: HashMap<Key, Written>,
}

#[derive(Debug, Clone, Copy)]
struct Written {
    at: Time,
    stopped_for: Duration,
}

impl Stops {
    /// The time since when a member has been stopped for sure, perhaps in the future.
    fn stopped_at(&self, params: &GroupParams, own: &Key, key: &Key, seat: &Seat) -> Time {
        let silent = seat.received.max(self.active_since) + params.lengthened(seat.lease);
        let told = if seat.state == SeatState::Left { seat.received } else { silent };
        let known = match (self.former.get(key), self.fenced_at) {
            (Some(&stopped), _) => Some(stopped),
            // Only posts from before the fencing: a later one is not of a former process.
            (None, Some(fenced)) if key.instance == own.instance && seat.received <= fenced => Some(fenced),
            _ => None,
        };
        let own_view = known.map_or(told, |known| known.min(told));
        seat.stopped_at.map_or(own_view, |by_bound| by_bound.min(own_view))
    }

    /// The bounds to write now. `needed` tells whether a member wants more than it holds.
    pub(super) fn due(
        &mut self, now: Clocks, params: &GroupParams, look: Duration, own: &Key, seats: &Seats, needed: bool,
    ) -> Vec<Bound> {
        let now = now.slow;
        let knows_more = self.fenced_at.is_some() || !self.former.is_empty();
        let may_be_due = |seat: &Seat| !seat.is_live() || knows_more || now >= seat.received + seat.lease;
        if !seats.iter().any(|(_, seat)| may_be_due(seat)) {
            return Vec::new();
        }
        let rank = seats.live().take_while(|(key, _)| *key != own).count() as u32;
        self.written.retain(|key, _| seats.get(key).is_some());
        let mut bounds = Vec::new();
        for (key, seat) in seats.iter().filter(|&(key, seat)| may_be_due(seat) && key != own) {
            let stopped_at = self.stopped_at(params, own, key, seat);
            let is_own_former = key.instance == own.instance;
            let wait = if is_own_former { Duration::ZERO } else { RANK_DELAY * rank };
            if now < stopped_at + wait {
                continue;
            }
            let stopped_for = now.since(stopped_at);
            let x = params.left_in_window(seat, stopped_for);
            let written = self.written.get(key);
            if written.is_some_and(|written| now.since(written.at) < look * 3) {
                continue;
            }
            let grown = stopped_for.saturating_sub(written.map_or(Duration::ZERO, |written| written.stopped_for));
            let frees = seat.hi - x >= (params.capacity / 50).max(1) && needed;
            if frees || x == 0 || grown >= params.cycle / 16 {
                self.written.insert(key.clone(), Written { at: now, stopped_for });
                let stopped_for = params.shortened(stopped_for);
                bounds.push(Bound { target: key.clone(), seqs: seat.last_posts(), x, stopped_for });
            }
        }
        bounds
    }
}

impl GroupParams {
    /// A time that is no longer than `duration` on any clock of the group.
    pub fn shortened(&self, duration: Duration) -> Duration {
        let whole = u128::from(Ratio::ONE.millionths());
        let shorter = duration.as_nanos() * whole / (whole + u128::from(self.margin.millionths()));
        Duration::from_nanos(u64::try_from(shorter).unwrap_or(u64::MAX))
    }

    /// The most records that the window of a member holds which stopped so long ago.
    ///
    /// In shape mode a member admits no faster than the pace that it declared, so that the window empties as it was
    /// filled: it holds what its bucket let through in the rest of the window, `pace · (T · m − s) / T + depth`, one
    /// more for rounding. In reject mode the member may have used its whole hold just before it stopped.
    pub fn left_in_window(&self, seat: &Seat, stopped_for: Duration) -> u64 {
        let left = self.window().saturating_sub(stopped_for);
        if left.is_zero() || seat.terms.mode == Mode::Reject {
            return if left.is_zero() { 0 } else { seat.hi };
        }
        let declared = seat.pace.max(GroupParams::fast_pace(seat.want)).min(MAX_CAPACITY * UNPACED);
        seat.hi.min(self.bucket(declared).most_in(left).saturating_add(1))
    }
}
