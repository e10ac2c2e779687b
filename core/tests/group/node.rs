//! One instance: a member, its window, its clock and the records that it has not read yet.

use std::collections::VecDeque;
use std::{sync::Arc, time::Duration};

use watermaster_core::group::member::Member;
use watermaster_core::group::record::{Key, Load, Loads};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Time;

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
    /// Returns a clock with a random rate. The rates of any two clocks differ by less than the margin.
    pub fn random(params: &GroupParams, random: &mut Random) -> Clock {
        let off = u64::from(params.margin.millionths()) * 2 / 5;
        Clock { offset: random.below(1 << 50), rate: random.between(1_000_000 - off, 1_000_000 + off) }
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
    pub params: GroupParams,
    clock: Clock,
    /// The time by which the faster of the two clocks is ahead, since it was slewed.
    pub ahead: Duration,
    mistake: Option<Mistake>,
    /// Admissions, by the own clock.
    window: VecDeque<(Time, u64)>,
    pub count: u64,
    /// Shape mode: the bucket's level in records, and the time of it.
    level: f64,
    level_at: Time,
    /// The loads of the clients here.
    pub loads: Loads,
    pub alive: bool,
    pub stopped_until: Time,
    /// The node reads nothing until then.
    pub stalled_until: Time,
    /// The offsets below `next` that are still to be read, last one first.
    pub prefix: Vec<u64>,
    /// The offset to read next, after the prefix.
    pub next: u64,
    /// Of the records below this offset, those were removed that later ones supersede.
    pub compacted_to: u64,
    /// The member of this number reads the log: beats of former ones are dropped.
    pub reader: u64,
    /// The end of the log when the reader began.
    pub start: u64,
    pub read_to_end: bool,
    /// The largest `want` on its way, for the mistake to use it early.
    pub asked: u64,
    /// The last hold, for the mistake to keep it.
    former_limit: u64,
}

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
        let clock = Clock::random(params, random);
        let local = clock.at(now);
        let clocks = mistake.map_or(Clocks::same(local), |mistake| mistake.clocks(Clocks::same(local)));
        Node {
            id,
            member: member(params, id, random.word(), start, clocks),
            params: params.clone(),
            clock,
            ahead: Duration::ZERO,
            mistake,
            window: VecDeque::new(),
            count: 0,
            level: 0.0,
            level_at: local,
            loads: Loads::new(),
            alive: true,
            stopped_until: Time::ZERO,
            stalled_until: Time::ZERO,
            prefix: Vec::new(),
            next: start,
            compacted_to: 0,
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
        let clocks = Clocks { slow: local, fast: local + self.ahead };
        self.mistake.map_or(clocks, |mistake| mistake.clocks(clocks))
    }

    /// Sets the demand of some clients; all others have none.
    pub fn set_demand(&mut self, demands: impl IntoIterator<Item = (Arc<str>, u64)>) {
        let loads = demands.into_iter().filter(|(_, demand)| *demand > 0);
        self.loads = loads.map(|(client, demand)| (client, Load { demand, wants: demand })).collect();
    }

    /// Drops the admissions that have left the window.
    pub fn expire(&mut self, now: Clocks) {
        let window = self.params.window();
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
    pub fn admit(&mut self, now: Time) -> u64 {
        let clocks = self.clocks(now);
        self.expire(clocks);
        let mut limit = self.member.limit(clocks);
        if self.mistake == Some(Mistake::EarlyRaise) && limit > 0 {
            limit = limit.max(self.asked);
        }
        if self.mistake == Some(Mistake::FormerLimitKept) {
            self.former_limit = if self.member.hold() > 0 { self.member.hold() } else { self.former_limit };
            limit = limit.max(if self.member.hold() == 0 { self.former_limit } else { 0 });
        }
        let mut records = limit.saturating_sub(self.count);
        if self.params.mode == Mode::Shape {
            let pace = self.member.pace(clocks);
            let passed = clocks.slow.since(self.level_at).as_secs_f64() / self.params.cycle.as_secs_f64();
            (self.level, self.level_at) = ((self.level - passed * pace as f64).max(0.0), clocks.slow);
            let depth = self.params.bucket(pace).most_in(Duration::ZERO);
            let room = if pace == 0 { 0.0 } else { depth as f64 - self.level + 1e-9 };
            records = records.min(room.max(0.0) as u64);
        }
        if records > 0 {
            self.window.push_back((clocks.slow, records));
            self.count += records;
            self.level += records as f64;
        }
        records
    }
}
