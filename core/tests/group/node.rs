//! One life of an instance: a member, its window and its clock.

use std::collections::{BTreeMap, VecDeque};
use std::{sync::Arc, time::Duration};

use watermaster_core::group::control::OpeningNumber;
use watermaster_core::group::member::{Admissions, Member};
use watermaster_core::group::state::SeatRecord;
use watermaster_core::group::state::{Load, Loads};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::Policy;
use watermaster_core::units::Time;

use crate::support::random::Random;

/// The admissions of an adversary: it admits all that it may.
#[derive(Debug)]
pub struct Greedy {
    window: Duration,
    admissions: VecDeque<(Time, u64)>,
    count: u64,
    total: u64,
}

impl Greedy {
    pub fn new(window: Duration) -> Greedy {
        Greedy { window, admissions: VecDeque::new(), count: 0, total: 0 }
    }

    pub fn admit(&mut self, now: Time, records: u64) {
        self.admissions.push_back((now, records));
        self.count += records;
        self.total += records;
    }
}

impl Admissions for Greedy {
    fn count(&mut self, now: Time) -> u64 {
        while let Some(&(at, records)) = self.admissions.front()
            && at + self.window <= now
        {
            self.count -= records;
            self.admissions.pop_front();
        }
        self.count
    }

    fn departures(&mut self, now: Time) -> Vec<(Time, u64)> {
        self.slices(now).into_iter().map(|(at, records)| (at + self.window, records)).collect()
    }

    fn slices(&mut self, now: Time) -> Vec<(Time, u64)> {
        self.count(now);
        self.admissions.iter().copied().collect()
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn forget(&mut self) {
        self.admissions.clear();
        self.count = 0;
    }

    fn charge(&mut self, _: Time, at: Time, count: u64) {
        let place = self.admissions.partition_point(|&(other, _)| other <= at);
        self.admissions.insert(place, (at, count));
        self.count += count;
    }
}

/// A call that waits for its answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    Init,
    /// The end of the log is asked for.
    End,
    Idle,
    Produce(Vec<SeatRecord>),
    Commit,
}

/// An opening of a seat.
#[derive(Debug)]
pub struct Producer {
    pub seat: Arc<str>,
    pub epoch: u64,
    pub call: Call,
    /// The number of the call: answers of earlier ones count nothing.
    pub number: u64,
}

/// One life of an instance.
pub struct Node {
    pub seat: Arc<str>,
    pub life: u64,
    pub member: Member,
    pub params: GroupParams,
    pub greedy: Greedy,
    offset: u64,
    rate: u64,
    pub paused_until: Time,
    pub slow_until: Time,
    /// The member wrote a last state.
    pub wrote_last: bool,
    pub position: u64,
    pub producers: BTreeMap<OpeningNumber, Producer>,
    pub load: u64,
    /// For planted mistakes.
    pub former_limit: u64,
    pub limit_before_write: Option<u64>,
}

impl Node {
    pub fn new(params: &GroupParams, seat: Arc<str>, life: u64, now: Time, random: &mut Random) -> Node {
        let (offset, rate) = (random.below(1 << 50), random.between(999_600, 1_000_400));
        let clocks = Clocks::same(local(offset, rate, now));
        let policy = Policy { mode: params.mode, ..Policy::new(params.capacity, params.cycle) };
        let member = Member::new(params.clone(), Shares::new(&policy), Arc::clone(&seat), life, clocks);
        let window = params.window();
        Node {
            seat,
            life,
            member,
            params: params.clone(),
            greedy: Greedy::new(window),
            offset,
            rate,
            paused_until: Time::ZERO,
            slow_until: Time::ZERO,
            wrote_last: false,
            position: 0,
            producers: BTreeMap::new(),
            load: params.capacity,
            former_limit: 0,
            limit_before_write: None,
        }
    }

    pub fn clocks(&self, now: Time) -> Clocks {
        Clocks::same(local(self.offset, self.rate, now))
    }

    pub fn loads(&self) -> Loads {
        vec![(Arc::from("client"), Load { demand: self.load, wants: self.load })]
    }
}

fn local(offset: u64, rate: u64, now: Time) -> Time {
    Time::from_nanos(offset + (u128::from(now.as_nanos()) * u128::from(rate) / 1_000_000) as u64)
}
