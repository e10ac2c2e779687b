//! The knowledge of a reader about one member.

use std::time::Duration;

use strum::IntoStaticStr;

use crate::group::loads::MemberLoads;
use crate::group::record::{Bound, Post, Progress, Terms};
use crate::units::Time;

/// The knowledge of a reader about one member.
#[derive(Debug, Clone)]
pub struct Seat {
    /// The hold is at least this.
    pub lo: u64,
    /// The hold is at most this.
    pub hi: u64,
    /// The number of the member's last post.
    pub seq: u64,
    /// The member's state, by the log alone.
    pub state: SeatState,
    /// The last post is recent enough to tell the hold.
    pub(super) known: bool,
    pub(super) doubt: Option<Doubt>,
    /// The member's configuration.
    pub terms: Terms,
    /// The `want` of the last post.
    pub want: u64,
    /// The `pace` of the last post.
    pub pace: u64,
    /// The `lease` of the last post.
    pub lease: Duration,
    /// The `progress` of the last post.
    pub progress: Option<Progress>,
    /// The hold that the member ought to have, by this reader's last split.
    pub target: u64,
    /// The time at which the last post was received.
    pub received: Time,
    /// The time from which on the member was stopped for sure, if valid bounds told it.
    pub stopped_at: Option<Time>,
    /// The loads of the member's clients, as far as posts named them; none of a member that stopped.
    pub(in crate::group) loads: MemberLoads,
}

/// A compacted log left it open whether the member was put out before its last post, which then counts nothing.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    /// The number of the member's last post, if it was put out, is one of these.
    pub(super) seqs: Vec<u64>,
    /// The most that the member holds, if it was put out.
    pub(super) hi: u64,
    /// The most that it holds, if it was not.
    pub(super) hi_if_live: u64,
}

/// The state of a member by the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SeatState {
    /// The member posted, and is neither out nor has it left. Its silence does not matter.
    Live,
    /// The member said that it left.
    Left,
    /// A bound put the member out.
    Out,
}

impl Seat {
    /// Returns whether the member is live.
    pub fn is_live(&self) -> bool {
        self.state == SeatState::Live
    }

    pub(super) fn is_exact(&self) -> bool {
        self.lo == self.hi && self.doubt.is_none() && (self.known || !self.is_live())
    }

    /// The numbers of which one is that of the member's last post that counts.
    pub(in crate::group) fn last_posts(&self) -> Vec<u64> {
        let doubtful = self.doubt.iter().flat_map(|doubt| doubt.seqs.iter().copied());
        doubtful.chain([self.seq]).collect()
    }

    /// Lowers the hold to what a post says. A reader of a compacted log may learn that former posts counted.
    pub(super) fn lower(&mut self, post: &Post, known: bool) {
        if known {
            // A member that knew of a bound would not have posted.
            if let Some(doubt) = self.doubt.take() {
                self.hi = doubt.hi_if_live;
            }
        }
        if self.seq > 0 {
            if let Some(doubt) = &mut self.doubt {
                doubt.seqs.push(self.seq);
                (self.hi, doubt.hi) = (doubt.hi_if_live, doubt.hi.max(self.hi));
            }
            self.hi = self.hi.min(post.have);
        }
        // A member that was alive where the reader began holds what it says, unless it was put out since.
        self.lo = if known && post.seq > 1 { post.have } else { 0 };
    }

    /// Notes that a valid bound put the member out.
    pub(super) fn note_stop(&mut self, now: Time, bound: &Bound) {
        self.state = SeatState::Out;
        let stopped_at = now - bound.stopped_for;
        self.stopped_at = Some(self.stopped_at.map_or(stopped_at, |earlier| earlier.min(stopped_at)));
    }

    /// A seat with a hold of 0 for the member of a post.
    pub(super) fn vacant(post: &Post, now: Time) -> Seat {
        Seat {
            lo: 0,
            hi: 0,
            seq: post.seq,
            state: SeatState::Live,
            known: false,
            doubt: None,
            terms: post.terms,
            want: post.want,
            pace: post.pace,
            lease: post.lease,
            progress: post.progress,
            target: 0,
            received: now,
            stopped_at: None,
            loads: MemberLoads::default(),
        }
    }
}
