//! Faults of nodes and of the control topic.

use std::time::Duration;

use watermaster_core::units::Time;

use super::{Event, World};

/// The faults that took effect.
#[derive(Debug, Default, Clone)]
pub struct Faults {
    pub crashes: u64,
    pub stops: u64,
    pub drains: u64,
    pub outages: u64,
    pub joins: u64,
    pub reloads: u64,
    pub lost_posts: u64,
    pub put_out: u64,
    pub lost_histories: u64,
    pub unanswered: u64,
}

impl Faults {
    pub fn add(&mut self, other: &Faults) {
        self.crashes += other.crashes;
        self.stops += other.stops;
        self.drains += other.drains;
        self.outages += other.outages;
        self.joins += other.joins;
        self.reloads += other.reloads;
        self.lost_posts += other.lost_posts;
        self.put_out += other.put_out;
        self.lost_histories += other.lost_histories;
        self.unanswered += other.unanswered;
    }
}

impl World {
    pub(super) fn trouble(&mut self, now: Time) {
        let living: Vec<u64> = self.nodes.values().filter(|node| node.alive).map(|node| node.id).collect();
        let id = if living.is_empty() { None } else { Some(living[self.random.index(living.len())]) };
        let (lease, cycle) = (self.params.lease, self.params.cycle);
        match (self.random.below(8), id) {
            (0, Some(id)) => {
                self.faults.crashes += 1;
                self.nodes.get_mut(&id).expect("a node").alive = false;
                let pause = [Duration::from_millis(10), Duration::from_millis(500), lease * 3][self.random.index(3)];
                self.at(now + pause, Event::Respawn { node: id });
            }
            (1 | 2, Some(id)) if self.nodes[&id].stopped_until <= now => {
                self.faults.stops += 1;
                let pauses = [Duration::from_millis(100), lease, lease + cycle, (lease + cycle) * 3];
                let pause = pauses[self.random.index(4)].mul_f64(0.5 + 0.7 * self.random.unit());
                self.nodes.get_mut(&id).expect("a node").stopped_until = now + pause;
            }
            (3, Some(id)) if self.nodes[&id].stopped_until <= now => self.drain(now, id),
            (4, _) if now > self.outages.last().map_or(Time::ZERO, |&(_, to)| to + self.setting.calm) => {
                self.faults.outages += 1;
                let pause = [Duration::from_millis(200), lease, lease * 2 + cycle][self.random.index(3)];
                self.outages.push((now, now + pause));
            }
            (5, _) if (self.nodes.len() as u64) < self.setting.max_nodes => {
                self.faults.joins += 1;
                let id = self.nodes.len() as u64;
                self.spawn(now, id);
            }
            (6, Some(id)) if self.setting.reloads => self.reload(id),
            _ => {}
        }
        let pause = self.setting.trouble.mul_f64(-(1.0 - self.random.unit()).ln());
        self.at(now + pause, Event::Trouble);
    }

    fn drain(&mut self, now: Time, id: u64) {
        self.faults.drains += 1;
        let node = self.nodes.get_mut(&id).expect("a node");
        let clocks = node.clocks(now);
        node.expire(clocks);
        let (records, reader) = (node.member.leave(clocks, node.count), node.reader);
        node.alive = false;
        for record in records {
            self.append(now, id, reader, record);
        }
        let pause = self.random.millis(10, 5_000);
        self.at(now + pause, Event::Respawn { node: id });
    }

    /// Changes the capacity of a node. It only falls or comes back: `params.capacity` bounds every window.
    fn reload(&mut self, id: u64) {
        self.faults.reloads += 1;
        let whole = self.params.capacity;
        let capacity = [whole, whole / 2, whole - whole / 4][self.random.index(3)].max(1);
        self.capacities.insert(id, capacity);
        let node = self.nodes.get_mut(&id).expect("a node");
        let (params, shares) = self.setting.reloaded(id, capacity);
        node.member.change(params, shares);
    }
}
