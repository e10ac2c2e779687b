//! The member of a running service: it joins a [`SeatMember`] with a throttle, and both with the control log.

use super::control::ControlLog;
use super::member::{Admissions, Command, SeatMember};
use crate::group::demand::DemandMeter;
use crate::group::record::Progress;
use crate::group::targets::Shares;
use crate::group::{Clocks, GroupParams};
use crate::scheduler::GroupPart;
use crate::throttle::Throttle;
use crate::units::Time;

impl Admissions for Throttle {
    fn count(&mut self, now: Time) -> u64 {
        self.window_count(now)
    }

    fn departures(&mut self, now: Time) -> Vec<(Time, u64)> {
        self.window_departures(now).collect()
    }

    fn slices(&mut self, now: Time) -> Vec<(Time, u64)> {
        self.window_slices(now).collect()
    }

    fn total(&self) -> u64 {
        self.admitted()
    }

    fn forget(&mut self) {
        self.begin_window();
    }
}

/// A member, and what it tells its throttle.
#[derive(Debug)]
pub struct Driver {
    member: SeatMember,
    meter: DemandMeter,
    /// The splits of the capacity of which the throttle knows its parts.
    splits: u64,
    told: GroupPart,
    /// Loads tell the admissions, for the instance that searches for the capacity.
    tells_progress: bool,
}

impl Driver {
    /// Drives a member.
    pub fn new(member: SeatMember, tells_progress: bool) -> Driver {
        Driver { member, meter: DemandMeter::default(), splits: 0, told: GroupPart::NONE, tells_progress }
    }

    /// Reads the log, makes the calls that are due, and tells the throttle its part. `clocks` are read after each
    /// event: if the process stood still in between, a time from before would make the others look silent for as long.
    /// `memory` finds the number of records that were admitted in the last cycle, before the group began. It may take
    /// its time.
    ///
    /// # Errors
    /// The log can't be read any more.
    pub fn serve<L: ControlLog>(
        &mut self, clocks: impl Fn() -> Clocks, throttle: &mut Throttle, log: &mut L, memory: impl FnOnce() -> u64,
    ) -> Result<(), L::Error> {
        while let Some(event) = log.poll()? {
            let commands = self.member.handle_event(clocks(), &event, throttle);
            obey(commands, log);
        }
        if self.member.needs_memory() {
            self.member.charge_memory(memory());
        }
        let now = clocks();
        if now.slow >= self.member.next_look() {
            self.look(now, throttle, log);
        }
        let part = self.member.part_now(now);
        if std::mem::replace(&mut self.told, part) != part {
            throttle.handle_part(now.slow, part);
        }
        Ok(())
    }

    fn look<L: ControlLog>(&mut self, now: Clocks, throttle: &mut Throttle, log: &mut L) {
        let params = self.member.params();
        let loads = self.meter.measure(now.slow, params, throttle, |client| self.member.part(client));
        if self.tells_progress {
            let admitted = throttle.delays().counts.iter().sum();
            self.member.note_progress(Progress { admitted, waits: throttle.backlog().0 > 0 });
        }
        let commands = self.member.look(now, loads, throttle);
        obey(commands, log);
        let splits = self.member.splits();
        if std::mem::replace(&mut self.splits, splits) != splits {
            throttle.handle_parts(now.slow, |client| self.member.part(client));
        }
    }

    /// Changes the configuration.
    pub fn change(&mut self, params: GroupParams, shares: Shares) {
        self.member.change(params, shares);
    }

    /// Begins to leave the group. [`serve`](Driver::serve) goes on until [`SeatMember::has_left`].
    pub fn leave(&mut self) {
        self.member.leave();
    }

    /// The member.
    pub fn member(&self) -> &SeatMember {
        &self.member
    }
}

fn obey<L: ControlLog>(commands: Vec<Command>, log: &mut L) {
    for command in commands {
        match command {
            Command::Open { seat, attempt } => log.open(&seat, attempt),
            Command::Write { attempt, state, loads } => log.write(attempt, &state, loads.as_ref()),
            Command::Close { attempt } => log.close(attempt),
        }
    }
}
