//! Another policy while records flow: nothing that waits is lost, nothing that was admitted is forgotten.

use std::mem;

use super::{Cause, MapRoom, Throttle};
use crate::backlog::Slot;
use crate::policy::Policy;
use crate::units::Time;

impl Throttle {
    /// This policy from now on. It is allocated by at once, early ([`Cause::Reload`]); another cycle length begins a cycle.
    ///
    /// What was admitted counts on: after a change no window, as long as the shortest cycle in force in it, holds more
    /// than the largest capacity in force in it (a longer cycle remembers no more than the shorter one did). What waits
    /// keeps its place: out of shape into reject it goes as what is catching up does, out of enforcement it goes at
    /// once, in order, with the next [`poll_action`](Throttle::poll_action). Records that exceed a lowered bound of the
    /// backlogs are evicted by [`poll_action`](Throttle::poll_action), too.
    ///
    /// `commit_interval` and `map_budget` must be the same: what was written has to fit on.
    pub fn handle_policy(&mut self, now: Time, policy: Policy) {
        let now = self.not_before(now);
        self.roll(now);
        let old = mem::replace(&mut self.policy, policy);
        self.registry.change(&old, &self.policy, now, self.share.cycle);
        if old.cycle != self.policy.cycle {
            self.change_cycle(now, &old);
        }
        let policy = &self.policy;
        self.bucket.change(now, policy.capacity, policy.cycle, policy.burst, policy.commit_interval);
        self.map_room = MapRoom::new(policy);
        self.allocate(Cause::Reload);
        self.requeue_all();
        if old.enforce != self.policy.enforce {
            self.change_enforcement();
        }
        self.find_surplus(now);
    }

    fn change_cycle(&mut self, now: Time, old: &Policy) {
        let cycle = self.policy.cycle;
        let memories = self.partitions.iter_mut().map(|place| &mut place.memory);
        for count in memories.chain([&mut self.window, &mut self.actual]) {
            *count = count.over(now, cycle);
        }
        self.begin_cycle(now, old.cycle);
    }

    fn change_enforcement(&mut self) {
        if self.policy.enforce {
            // What was only imagined to wait has gone long ago.
            let imagined: Vec<Slot> = self.backlog.of_partition(&self.virtual_held).collect();
            for slot in imagined {
                self.take_out(slot, false);
                self.backlog.release(slot);
            }
            self.window = self.actual.clone();
        } else {
            self.actual = self.window.clone();
        }
    }

    /// Puts every client in the queue that it belongs to now, with tags on the scale of its new weight: tags of a time
    /// when all weights were smaller would starve the clients that were served then. A client that waits for its own
    /// limit waits anew, if it still has one.
    fn requeue_all(&mut self) {
        self.backlog.clear_queues();
        let clients: Vec<u32> = self.registry.iter().map(|(index, _)| index).collect();
        for index in clients {
            let group = self.registry.group(self.registry.get(index).configured);
            self.backlog.requeue(index, &mut self.registry.get_mut(index).lane, group);
        }
    }
}
