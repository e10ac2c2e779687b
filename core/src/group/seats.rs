//! The replay of the control log.
//!
//! The hold of a member follows from the whole log by this rule, and so it is the same for all readers:
//!
//! - the first post of a key takes a seat with a hold of 0;
//! - each later post lowers the hold to `have` at most, then raises it towards `want` as far as the other holds leave
//!   room in the capacity in force; a post that says `left` only lowers it;
//! - a bound that names the key's last post puts the key out, and lowers its hold to `x` at most;
//! - a key that is out or has left holds its seat until its hold is 0; then it is gone.
//!
//! A newcomer reads a compacted log, which keeps the last records of each key. So it does not know every hold, and
//! keeps two numbers for each seat, `lo <= hold <= hi`. It uses `lo` of its own seat and `hi` of all others: both err
//! to the safe side. As soon as every live member has posted once more, both are equal for all seats.

mod seat;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::loads::ClientTable;
use super::record::{Bound, Key, Post, Record, Tombstone};
use crate::units::Time;
use seat::Doubt;
pub use seat::{Seat, SeatState};

/// The reader can't trust its replay any more. It must admit nothing, and read the log from its beginning again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LostHistory {
    /// Records were compacted away before they were read.
    #[error("records of the control log were removed before they were read")]
    Gap,
    /// A member holds more than the log gave it: the log lost records, or was made anew.
    #[error("the control log lost records, or was made anew: a member holds more than the log gave it")]
    Rewritten,
}

/// The seats of all members.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    seats: BTreeMap<Key, Seat>,
    sums: HoldSums,
    /// Keys whose seat was removed, with the time of it until tombstones are in the log: late posts of them count
    /// nothing.
    gone: BTreeMap<Key, Option<Time>>,
    /// The end of the log when the reader began. All records from here on are seen.
    start: u64,
    /// The offset after the last record that was replayed.
    next: u64,
    /// Records below `start`, until all of them are read: the last post and the last bound of each key.
    prefix: Option<HashMap<Key, Prefix>>,
    pub(super) clients: ClientTable,
    /// Counts changes of the live members and of their loads.
    changes: u64,
}

/// Sums over all seats, kept as seats change.
#[derive(Debug, Clone, Default)]
struct HoldSums {
    lo: u64,
    hi: u64,
    inexact: usize,
    /// The capacities of the live members, with the number of members that have each.
    capacities: BTreeMap<u64, usize>,
    live: usize,
}

impl HoldSums {
    fn add(&mut self, seat: &Seat) {
        (self.lo, self.hi) = (self.lo + seat.lo, self.hi.saturating_add(seat.hi));
        self.inexact += usize::from(!seat.is_exact());
        if seat.is_live() {
            *self.capacities.entry(seat.terms.capacity).or_default() += 1;
            self.live += 1;
        }
    }

    fn remove(&mut self, seat: &Seat) {
        (self.lo, self.hi) = (self.lo - seat.lo, self.hi - seat.hi);
        self.inexact -= usize::from(!seat.is_exact());
        if seat.is_live()
            && let Some(count) = self.capacities.get_mut(&seat.terms.capacity)
        {
            self.live -= 1;
            *count -= 1;
            if *count == 0 {
                self.capacities.remove(&seat.terms.capacity);
            }
        }
    }

    /// The smallest and the largest capacity that can be in force at a post of a live member with this capacity, whose
    /// seat is taken out. They differ for a reader that does not know all seats exactly.
    fn capacity_with(&self, posted: u64) -> (u64, u64) {
        let least = self.capacities.first_key_value().map_or(posted, |(&least, _)| least.min(posted));
        (least, if self.inexact == 0 { least } else { posted })
    }
}

#[derive(Debug, Clone, Default)]
struct Prefix {
    post: Option<Post>,
    bound: Option<Bound>,
}

impl Seats {
    /// No seats, for a reader that begins when the log's end is `start`.
    pub fn new(start: u64) -> Seats {
        let prefix = (start > 0).then(HashMap::new);
        Seats { start, prefix, ..Seats::default() }
    }

    /// Replays a record.
    ///
    /// # Errors
    /// The replay can't be trusted any more. The state after an error means nothing.
    pub fn apply(&mut self, now: Time, offset: u64, record: &Record) -> Result<(), LostHistory> {
        if offset < self.start {
            self.keep(record);
            self.next = offset + 1;
            return Ok(());
        }
        self.finish_prefix(now);
        self.advance(offset)?;
        match record {
            Record::Post(post) => self.apply_post(now, post),
            Record::Bound(bound) => {
                self.apply_bound(now, bound);
                Ok(())
            }
            Record::Tombstone(Tombstone { subject, .. }) => {
                if let Some(since) = self.gone.get_mut(subject) {
                    *since = None;
                }
                Ok(())
            }
        }
    }

    /// Moves on to the record at `offset`. Offsets have gaps below `start`, by compaction; from there on a gap is lost
    /// history.
    fn advance(&mut self, offset: u64) -> Result<(), LostHistory> {
        let expected = self.next.max(self.start);
        self.next = offset + 1;
        if offset == expected { Ok(()) } else { Err(LostHistory::Gap) }
    }

    /// Notes that all records below `start` that are still in the log were read.
    pub fn finish_prefix(&mut self, now: Time) {
        let Some(mut prefix) = self.prefix.take() else { return };
        // In the order of the log: the order decides nothing but the times of receipt, and a run must be repeatable.
        let mut entries: Vec<(Key, Prefix)> = prefix.drain().collect();
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        for (key, Prefix { post, bound }) in entries {
            let Some(post) = post else { continue };
            let state = if post.left { SeatState::Left } else { SeatState::Live };
            let mut seat = Seat::vacant(&post, now);
            (seat.state, seat.hi) = (state, post.have.max(post.want));
            self.clients.update(&mut seat.loads, true, &post.loads);
            match bound {
                Some(bound) if bound.seqs.contains(&post.seq) => {
                    seat.hi = bound.x;
                    seat.note_stop(now, &bound);
                }
                // Posts of a member that was put out count nothing, but compaction keeps the last one.
                Some(bound) => {
                    let hi_if_live = seat.hi;
                    seat.hi = seat.hi.max(bound.x);
                    seat.doubt = Some(Doubt { seqs: bound.seqs, hi: bound.x, hi_if_live });
                }
                None => {}
            }
            let is_over = !seat.is_live() && seat.doubt.is_none();
            self.sums.add(&seat);
            self.seats.insert(key.clone(), seat);
            if is_over {
                self.end(now, &key);
            }
        }
        self.changes += 1;
        self.next = self.next.max(self.start);
    }

    /// Keeps a record below `start`. How far compaction got must not matter, so only those count that it never removes.
    fn keep(&mut self, record: &Record) {
        let Some(prefix) = &mut self.prefix else { return };
        let entry = prefix.entry(record.subject().clone()).or_default();
        match record {
            Record::Post(post) => entry.post = Some(post.clone()),
            Record::Bound(bound) => entry.bound = Some(bound.clone()),
            Record::Tombstone(Tombstone { of_post: true, .. }) => entry.post = None,
            Record::Tombstone(_) => entry.bound = None,
        }
    }

    fn apply_post(&mut self, now: Time, post: &Post) -> Result<(), LostHistory> {
        let known = self.start == 0 || post.seen > self.start || post.seq == 1;
        let seat = match self.seats.get_mut(&post.key) {
            Some(seat) => seat,
            None if self.gone.contains_key(&post.key) => return Ok(()),
            None => {
                let mut seat = Seat::vacant(post, now);
                (seat.seq, seat.hi) = (0, if post.seq == 1 { 0 } else { post.have.max(post.want) });
                self.sums.add(&seat);
                self.changes += 1;
                self.seats.entry(post.key.clone()).or_insert(seat)
            }
        };
        if !seat.is_live() || post.seq <= seat.seq {
            return Ok(());
        }
        if seat.is_exact() && seat.seq > 0 && post.have > seat.hi {
            return Err(LostHistory::Rewritten);
        }
        self.sums.remove(seat);
        seat.lower(post, known);
        (seat.seq, seat.known, seat.terms, seat.received) = (post.seq, known, post.terms, now);
        (seat.want, seat.pace, seat.lease, seat.progress) = (post.want, post.pace, post.lease, post.progress);
        if self.clients.update(&mut seat.loads, post.complete, &post.loads) {
            self.changes += 1;
        }
        if post.left {
            seat.state = SeatState::Left;
            self.changes += 1;
        } else {
            let (least, most) = self.sums.capacity_with(post.terms.capacity);
            seat.hi = seat.hi.max(post.want.min(most.saturating_sub(self.sums.lo)));
            if known {
                seat.lo = seat.lo.max(post.want.min(least.saturating_sub(self.sums.hi)));
            }
        }
        if let Some(doubt) = &mut seat.doubt {
            doubt.hi_if_live = seat.hi;
            seat.hi = seat.hi.max(doubt.hi);
        }
        self.sums.add(seat);
        if post.left {
            self.end(now, &post.key);
        }
        Ok(())
    }

    fn apply_bound(&mut self, now: Time, bound: &Bound) {
        let Some(seat) = self.seats.get_mut(&bound.target) else { return };
        // The author knew which posts counted: if it names the last one, then that one does.
        let names_last = bound.seqs.contains(&seat.seq);
        let names_doubtful =
            seat.doubt.as_ref().is_some_and(|doubt| doubt.seqs.iter().any(|seq| bound.seqs.contains(seq)));
        if !names_last && !names_doubtful {
            return;
        }
        self.sums.remove(seat);
        if names_last {
            self.changes += u64::from(seat.is_live());
            (seat.lo, seat.hi, seat.doubt) = (seat.lo.min(bound.x), seat.hi.min(bound.x), None);
            seat.note_stop(now, bound);
        } else if let Some(doubt) = &mut seat.doubt {
            doubt.hi = doubt.hi.min(bound.x);
            seat.hi = doubt.hi.max(doubt.hi_if_live);
        }
        self.sums.add(seat);
        if names_last {
            self.end(now, &bound.target);
        }
    }

    /// Ends a member that stopped: its loads count no more, and without a hold its seat goes.
    fn end(&mut self, now: Time, key: &Key) {
        let Some(seat) = self.seats.get_mut(key) else { return };
        seat.target = 0;
        self.clients.update(&mut seat.loads, true, &[]);
        if seat.hi == 0 {
            self.sums.remove(seat);
            self.seats.remove(key);
            self.gone.insert(key.clone(), Some(now));
        }
    }

    /// Sets the targets of the live members but `own`, in the order of their keys.
    pub(super) fn set_targets(&mut self, own: &Key, targets: impl Iterator<Item = u64>) {
        let live = self.seats.iter_mut().filter(|(key, seat)| seat.is_live() && *key != own);
        live.zip(targets).for_each(|((_, seat), target)| seat.target = target);
    }

    /// The keys that have been gone for `age`, each once in `again`.
    pub(super) fn long_gone(&mut self, now: Time, age: Duration, again: Duration) -> Vec<Key> {
        let mut due = Vec::new();
        for (key, since) in &mut self.gone {
            if since.is_some_and(|since| since + age <= now) {
                *since = Some(now - age + again);
                due.push(key.clone());
            }
        }
        due
    }

    /// The seat of a member.
    pub fn get(&self, key: &Key) -> Option<&Seat> {
        self.seats.get(key)
    }

    /// All seats, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Seat)> {
        self.seats.iter()
    }

    /// The seats of live members, in the order of their keys.
    pub fn live(&self) -> impl Iterator<Item = (&Key, &Seat)> {
        self.iter().filter(|(_, seat)| seat.is_live())
    }

    /// The number of live members.
    pub fn live_count(&self) -> usize {
        self.sums.live
    }

    /// Counts changes of the live members and of their loads.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether no member ever held anything, as far as the log tells.
    pub(super) fn are_fresh(&self) -> bool {
        self.gone.is_empty() && self.seats.values().all(|seat| seat.hi == 0)
    }

    /// At most this much is held in all.
    pub fn held(&self) -> u64 {
        self.sums.hi
    }

    /// Returns whether every hold is known exactly.
    pub fn are_exact(&self) -> bool {
        self.sums.inexact == 0
    }

    /// The smallest capacity among the live members; `None` without one.
    pub fn capacity(&self) -> Option<u64> {
        self.sums.capacities.first_key_value().map(|(&capacity, _)| capacity)
    }

    /// The offset after the last record that was replayed.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Returns whether all records below `start` are read.
    pub fn is_complete(&self) -> bool {
        self.prefix.is_none()
    }
}
