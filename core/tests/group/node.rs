//! One instance: a member, its window, its clock and the records that it has not read yet.

use std::collections::VecDeque;
use std::{sync::Arc, time::Duration};

use watermaster_core::group::member::Member;
use watermaster_core::group::record::{Key, Load, Loads};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Time;

use crate::log::Entry;
use crate::planted::Mistake;
use crate::support::random::Random;

/// A clock of its own.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    offset: u64,
    /// In millionths of the true rate.
    rate: u64,
}

impl Clock {
    pub fn random(random: &mut Random) -> Clock {
        Clock { offset: random.below(1 << 50), rate: random.between(980_000, 1_020_000) }
    }

    pub fn at(self, now: Time) -> Time {
        let passed = u128::from(now.as_nanos()) * u128::from(self.rate) / 1_000_000;
        Time::from_nanos(self.offset + passed as u64)
    }
}

/// An instance.
pub struct Node {
    pub id: u64,
    pub member: Member,
    clock: Clock,
    /// The steps of a wall clock so far, for the mistake to trust one.
    pub jumps: Time,
    mistake: Option<Mistake>,
    /// Admissions, by the own clock.
    window: VecDeque<(Time, u64)>,
    pub count: u64,
    /// Shape mode: the bucket's level in records, and the time of it.
    level: f64,
    level_at: Time,
    pub demand: Vec<u64>,
    pub alive: bool,
    pub stopped_until: Time,
    pub unread: Vec<Entry>,
    /// The member of this number reads the log: deliveries to former ones are dropped.
    pub reader: u64,
    /// The end of the log when the reader began.
    pub start: u64,
    pub read_to_end: bool,
    /// The largest `want` on its way, for the mistake to use it early.
    pub asked: u64,
    /// The last hold, for the mistake to keep it.
    former_limit: u64,
}

/// The names of the clients of all nodes.
const CLIENTS: [&str; 3] = ["home", "car", "card"];

pub fn member(params: &GroupParams, id: u64, incarnation: u64, start: u64, now: Clocks) -> Member {
    let policy = Policy { mode: params.mode, ..Policy::new(params.capacity, params.cycle) };
    let key = Key { instance: Arc::from(format!("node-{id}")), incarnation };
    Member::new(params.clone(), Shares::new(&policy), key, start, now)
}

impl Node {
    pub fn new(
        params: &GroupParams, id: u64, reader: u64, start: u64, now: Time, mistake: Option<Mistake>,
        random: &mut Random,
    ) -> Node {
        let clock = Clock::random(random);
        let local = clock.at(now);
        let clocks = mistake.map_or(Clocks::same(local), |mistake| mistake.clocks(local, Time::ZERO));
        Node {
            id,
            member: member(params, id, random.word(), start, clocks),
            clock,
            jumps: Time::ZERO,
            mistake,
            window: VecDeque::new(),
            count: 0,
            level: 0.0,
            level_at: local,
            demand: vec![0; CLIENTS.len()],
            alive: true,
            stopped_until: Time::ZERO,
            unread: Vec::new(),
            reader,
            start,
            read_to_end: false,
            asked: 0,
            former_limit: 0,
        }
    }

    /// The clocks as the node reads them.
    pub fn clocks(&self, now: Time) -> Clocks {
        let local = self.clock.at(now);
        self.mistake.map_or(Clocks::same(local), |mistake| mistake.clocks(local, self.jumps))
    }

    pub fn loads(&self) -> Loads {
        let load = |(client, &demand): (&&str, &u64)| {
            (demand > 0).then(|| (Arc::from(*client), Load { demand, wants: demand }))
        };
        CLIENTS.iter().zip(&self.demand).filter_map(load).collect()
    }

    /// Drops the admissions that have left the window.
    pub fn expire(&mut self, now: Clocks, window: Duration) {
        while let Some(&(at, records)) = self.window.front()
            && at + window <= now.slow
        {
            self.count -= records;
            self.window.pop_front();
        }
    }

    /// Forgets the window: it stays charged to the member's former key.
    pub fn begin_window(&mut self) {
        self.window.clear();
        self.count = 0;
    }

    /// Admits all that the node may. Returns the number of records.
    pub fn admit(&mut self, now: Time, params: &GroupParams) -> u64 {
        let clocks = self.clocks(now);
        self.expire(clocks, params.window());
        let mut limit = self.member.limit(clocks);
        if self.mistake == Some(Mistake::EarlyRaise) && limit > 0 {
            limit = limit.max(self.asked);
        }
        if self.mistake == Some(Mistake::FormerLimitKept) {
            self.former_limit = if self.member.hold() > 0 { self.member.hold() } else { self.former_limit };
            limit = limit.max(if self.member.hold() == 0 { self.former_limit } else { 0 });
        }
        let mut records = limit.saturating_sub(self.count);
        if params.mode == Mode::Shape {
            let pace = self.member.pace(clocks, self.count);
            let passed = clocks.slow.since(self.level_at).as_secs_f64() / params.cycle.as_secs_f64();
            (self.level, self.level_at) = ((self.level - passed * pace as f64).max(0.0), clocks.slow);
            let room =
                if pace == 0 { 0.0 } else { params.bucket(pace).most_in(Duration::ZERO) as f64 - self.level + 1e-9 };
            records = records.min(room.max(0.0) as u64);
        }
        if records > 0 {
            self.window.push_back((clocks.slow, records));
            self.count += records;
            self.level += records as f64;
        }
        records
    }

    /// The offset from which on this node's reader sees all records.
    pub fn first_fresh(&self) -> u64 {
        self.start
    }
}
