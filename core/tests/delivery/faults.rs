//! Faults of instances and brokers.

use std::time::Duration;

use super::world::{Seat, World};
use super::{client::Cluster, trace::note};

/// Maximum number of instances that run at once, replaced ones not counted.
const MAX_INSTANCES: usize = 4;

impl World {
    pub(super) fn schedule_fault(&mut self) {
        let wait = self.cluster.random.below(2 * self.fault_interval) + 1;
        self.next_fault = self.cluster.now + Duration::from_millis(wait);
    }

    pub(super) fn inject_fault(&mut self) {
        if self.cluster.now >= self.quiet_from {
            return self.quiet();
        }
        self.schedule_fault();
        let living: Vec<usize> = (0..self.seats.len()).filter(|&seat| self.seats[seat].process.is_some()).collect();
        if living.is_empty() {
            return;
        }
        let seat = self.cluster.random.one_of(&living);
        match self.cluster.random.below(16) {
            0..=2 => self.kill(seat),
            3 | 4 => self.pause(seat, false),
            5 | 6 => self.pause(seat, true),
            7 => self.replace_while_hung(seat),
            8 => self.join(),
            9 => self.drain(seat),
            10 => self.expel(seat),
            11 => self.hijack(seat),
            12 => self.cut(seat),
            13 => self.transactions_down(),
            14 => self.group_down(),
            _ => self.pause(seat, false),
        }
    }

    fn kill(&mut self, seat: usize) {
        self.coverage().crashes_between += 1;
        self.dies(seat);
    }

    fn pause(&mut self, seat: usize, long: bool) {
        let timeout = self.job.transaction_timeout;
        let (shortest, longest) = (self.session.min(timeout), self.session.max(timeout));
        let millis = |duration: Duration| duration.as_millis() as u64;
        let time = if long {
            self.coverage().pauses_long += 1;
            self.cluster.random.millis(millis(shortest), millis(longest) + 4_000)
        } else {
            self.coverage().pauses_short += 1;
            self.cluster.random.millis(50, millis(shortest))
        };
        let until = self.cluster.now + time;
        if let Some(process) = &mut self.seats[seat].process {
            note(&process.instance.client.name, || format!("hangs for {time:?}"));
            process.paused = process.paused.max(until);
        }
    }

    /// Pauses a process and starts another with the same id; later the paused process goes on.
    fn replace_while_hung(&mut self, seat: usize) {
        if self.seats.len() >= 2 * MAX_INSTANCES {
            return;
        }
        self.pause(seat, true);
        self.coverage().ghosts += 1;
        let (now, id) = (self.cluster.now, self.seats[seat].id);
        let restart = now + self.cluster.random.millis(100, 2_000);
        self.seats[seat].ghost = true;
        self.seats.push(Seat { process: None, restart, id, ghost: false });
    }

    fn join(&mut self) {
        if self.seats.iter().filter(|seat| !seat.ghost).count() < MAX_INSTANCES {
            self.coverage().joins += 1;
            self.add_seat();
        }
    }

    fn drain(&mut self, seat: usize) {
        let now = self.cluster.now;
        self.coverage().drains += 1;
        if let Some(process) = &mut self.seats[seat].process {
            note(&process.instance.client.name, || "starts to drain".to_owned());
            process.instance.drain(now);
        }
    }

    fn expel(&mut self, seat: usize) {
        let member = self.seats[seat].process.as_ref().map_or(0, |process| process.instance.client.member);
        if self.cluster.broker.group.ids().any(|id| id == member) {
            note("group", || format!("member {member} is expelled"));
            self.count_expulsion(member);
            self.cluster.broker.group.remove(member);
        }
    }

    /// Lets a foreign producer take the transactional id.
    fn hijack(&mut self, seat: usize) {
        let id = self.seats[seat].id;
        let Cluster { now, random, broker, .. } = &mut self.cluster;
        let epoch = broker.init(id, *now, random);
        note("stranger", || format!("takes id {id}: {epoch:?}"));
        self.coverage().hijacks += 1;
    }

    fn cut(&mut self, seat: usize) {
        let until = self.cluster.now + self.cluster.random.millis(500, 15_000);
        self.coverage().cuts += 1;
        if let Some(process) = &mut self.seats[seat].process {
            let client = &mut process.instance.client;
            note(&client.name, || "is cut off".to_owned());
            client.cut_until = client.cut_until.max(until);
            client.producer.tainted = true;
        }
    }

    fn transactions_down(&mut self) {
        let time = self.cluster.random.millis(300, 18_000);
        note("coordinator", || format!("of transactions is unavailable for {time:?}"));
        self.coverage().coordinator_down += 1;
        self.cluster.broker.transactions_down = self.cluster.now + time;
    }

    fn group_down(&mut self) {
        let until = self.cluster.now + self.cluster.random.millis(300, 18_000);
        note("coordinator", || "of the group is unavailable".to_owned());
        self.coverage().coordinator_down += 1;
        self.cluster.broker.group_down = until;
        self.cluster.broker.group.restart_sessions(until);
    }
}
