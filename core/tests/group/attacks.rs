//! Attacks on the protocol, each on a log that is made by hand. `scenarios.rs` has those that take several members.

use std::time::Duration;

use watermaster_core::group::member::{Member, Restart};
use watermaster_core::group::record::{Bound, Key, Loads, Post, Record, Terms};
use watermaster_core::group::seats::{LostHistory, Seats};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Time;

const CYCLE: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(10);
const CAPACITY: u64 = 100;

fn key(instance: &str, incarnation: u64) -> Key {
    Key { instance: instance.into(), incarnation }
}

fn post(key: &Key, seq: u64, have: u64, want: u64) -> Post {
    let terms = Terms { capacity: CAPACITY, cycle_ms: 10_000, mode: Mode::Reject, digest: 0 };
    let (key, loads) = (key.clone(), Loads::new());
    let (lease, progress) = (LEASE, None);
    Post { key, terms, seq, seen: 0, have, want, pace: want, lease, left: false, complete: true, loads, progress }
}

fn bound(target: &Key, seq: u64, x: u64) -> Record {
    Record::Bound(Bound { target: target.clone(), seqs: vec![seq], x, stopped_for: Duration::ZERO })
}

/// The member under attack, on a log that it shares with records made by hand.
struct Target {
    member: Member,
    clocks: Clocks,
    offset: u64,
    bounds: Vec<Bound>,
}

impl Target {
    fn new() -> Target {
        let policy = Policy { mode: Mode::Reject, ..Policy::new(CAPACITY, CYCLE) };
        let clocks = Clocks::same(Time::ZERO + CYCLE);
        let params = GroupParams::new(&policy, LEASE);
        let member = Member::new(params, Shares::new(&policy), key("own", 2), 0, clocks);
        Target { member, clocks, offset: 0, bounds: Vec::new() }
    }

    fn read(&mut self, record: &Record) {
        self.member.handle_record(self.clocks, self.offset, record);
        self.offset += 1;
    }

    fn read_post(&mut self, post: Post) {
        self.read(&Record::Post(post));
    }

    /// Looks each 50 ms, reads back what it posts, and keeps its bounds.
    fn live(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 50 {
            let step = Duration::from_millis(50);
            self.clocks = Clocks { slow: self.clocks.slow + step, fast: self.clocks.fast + step };
            for record in self.member.look(self.clocks, 0, &Loads::new()) {
                self.read(&record);
                if let Record::Bound(bound) = record {
                    self.bounds.push(bound);
                }
            }
        }
    }

    fn limit(&self) -> u64 {
        self.member.limit(self.clocks)
    }

    fn restart(&self) -> Option<Restart> {
        self.member.restart(self.clocks)
    }
}

/// A member stood still while unread records were compacted: it must not trust the rest.
#[test]
fn a_gap_in_the_log_ends_the_replay() {
    let mut target = Target::new();
    target.live(CYCLE);
    assert_eq!(target.limit(), CAPACITY);
    target.offset += 1;
    target.read_post(post(&key("other", 1), 1, 0, 0));
    assert_eq!(target.restart(), Some(Restart::LostHistory(LostHistory::Gap)));
    assert_eq!(target.limit(), 0);
}

/// Compaction removed a post while a newcomer read the log below its start, so that a void bound seems valid.
#[test]
fn a_bound_that_compaction_makes_valid_is_not_believed() {
    let other = key("other", 1);
    let mut seats = Seats::new(4);
    let records = [(0, Record::Post(post(&other, 10, 50, 50))), (2, bound(&other, 10, 0))];
    for (offset, record) in &records {
        seats.apply(Time::ZERO, *offset, record).unwrap();
    }
    // At offset 1 was the post 20, which made the bound void.
    seats.apply(Time::ZERO, 3, &Record::Post(post(&other, 51, 80, 80))).unwrap();
    seats.finish_prefix(Time::ZERO);
    assert_eq!(seats.get(&other).map(|seat| seat.hi), Some(80));
}

/// Silence does not end a member's say: the smallest capacity of all members that the log calls live is in force.
#[test]
fn the_capacity_of_a_silent_member_stays_in_force() {
    let (old, new) = (key("old", 1), key("new", 1));
    let mut seats = Seats::new(0);
    let raised = |mut post: Post| {
        post.terms.capacity = 2 * CAPACITY;
        Record::Post(post)
    };
    let records = [
        Record::Post(post(&old, 1, 0, 0)),
        Record::Post(post(&old, 2, 0, 60)),
        raised(post(&new, 1, 0, 0)),
        raised(post(&new, 2, 0, 150)),
    ];
    for (offset, record) in (0..).zip(&records) {
        seats.apply(Time::ZERO + LEASE * 10 * offset as u32, offset, record).unwrap();
    }
    assert_eq!((seats.capacity(), seats.get(&new).unwrap().hi), (Some(CAPACITY), 40));
    seats.apply(Time::ZERO + LEASE * 50, 4, &bound(&old, 2, 0)).unwrap();
    assert_eq!(seats.capacity(), Some(2 * CAPACITY));
}

/// The brokers fence former processes with this instance id. A post that arrives later is of another process.
#[test]
fn the_fence_stops_only_processes_that_posted_before_it() {
    let (former, later) = (key("own", 1), key("own", 3));
    let mut target = Target::new();
    target.read_post(post(&former, 1, 0, 0));
    target.read_post(post(&former, 2, 0, 40));
    target.member.handle_fenced(target.clocks);
    target.live(Duration::from_secs(1));
    target.read_post(post(&later, 1, 0, 0));
    target.read_post(post(&later, 2, 0, 20));
    target.live(Duration::from_millis(9_500));
    assert!(target.bounds.iter().any(|bound| bound.target == former), "the former process is bounded at once");
    assert!(target.bounds.iter().all(|bound| bound.target != later), "the later one keeps its lease");
}

/// A slewed clock runs up to 8 % fast: silence is measured by the clock that shows less time, the lease by the other.
#[test]
fn a_slewed_clock_ends_the_own_lease_early_and_no_other() {
    let other = key("other", 1);
    let mut target = Target::new();
    target.read_post(post(&other, 1, 0, 0));
    target.read_post(post(&other, 2, 0, 40));
    target.live(Duration::from_secs(2));
    assert!(target.limit() > 0);
    target.clocks.fast = target.clocks.fast + LEASE * 2;
    assert_eq!(target.limit(), 0);
    target.live(Duration::from_secs(7));
    assert!(target.limit() > 0, "the member goes on after its next post");
    assert_eq!(target.bounds, []);
    target.live(LEASE);
    assert!(!target.bounds.is_empty(), "the other one was silent for its lease");
}

/// A member is stopped when the lease that it told is over, however long the reader's own lease is.
#[test]
fn a_member_keeps_the_lease_that_it_told() {
    let (short, long) = (key("short", 1), key("long", 1));
    let mut target = Target::new();
    for (key, lease) in [(&short, LEASE / 2), (&long, LEASE * 4)] {
        target.read_post(Post { lease, ..post(key, 1, 0, 0) });
        target.read_post(Post { lease, ..post(key, 2, 0, 20) });
    }
    target.live(LEASE * 4 / 5);
    assert!(target.bounds.iter().any(|bound| bound.target == short));
    target.live(LEASE * 2);
    assert!(target.bounds.iter().all(|bound| bound.target != long));
    target.live(LEASE * 3);
    assert!(target.bounds.iter().any(|bound| bound.target == long));
}

/// A log that lost its end and was filled again has no gap. A member that holds more than the log gave it tells.
#[test]
fn a_hold_that_the_log_did_not_give_ends_the_replay() {
    let other = key("other", 1);
    let mut target = Target::new();
    target.read_post(post(&other, 1, 0, 0));
    target.read_post(post(&other, 3, 50, 50));
    assert_eq!(target.restart(), Some(Restart::LostHistory(LostHistory::Rewritten)));
}

/// A copy of the process, such as a cloned machine, posts under the same key.
#[test]
fn a_member_that_reads_posts_of_a_copy_is_out() {
    let mut target = Target::new();
    target.live(CYCLE);
    assert_eq!(target.limit(), CAPACITY);
    target.read_post(post(&key("own", 2), 100, 0, 0));
    assert_eq!(target.restart(), Some(Restart::Copied));
    assert_eq!(target.limit(), 0);
}
