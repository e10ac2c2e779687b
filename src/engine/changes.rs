//! The parts of the configuration that an engine takes over while it runs: its policy and its sources.

use std::sync::Arc;

use tracing::info;
use watermaster_core::units::Time;

use super::{Engine, StopCause};
use crate::clock;

impl Engine<'_> {
    /// Takes over the change that a reload left, if there is one.
    pub(super) fn take_change(&mut self, now: Time) -> Result<(), StopCause> {
        // A change may replace the producer, which may have the first outputs of a round that is due in a moment.
        if self.link.producer.transactions().in_transaction() {
            return Ok(());
        }
        let Some(change) = self.job.handle.inbox.take() else { return Ok(()) };
        self.reporter.changes = change.number;
        let is_news =
            change.policy.is_some() || change.rules.is_some() || change.capacity.is_some() || change.sources.is_some();
        let rules_changed = change.rules.is_some();
        if let Some(rules) = change.rules {
            self.policy.take_run_time(rules);
        }
        if let Some(policy) = change.policy {
            self.policy.change(policy, change.capacity);
            self.take_policy(now);
        } else if rules_changed {
            self.change_rules(now);
        }
        if let Some(room) = change.open_room {
            self.throttle.handle_open_room(room);
        }
        if let Some(capacity) = change.capacity
            && self.policy.find(capacity)
        {
            let capacity = self.policy.look(clock::wall_ms()).capacity;
            self.throttle.handle_capacity(now, capacity);
            if let Some(group) = self.group {
                group.change_capacity(self.job, self.policy, self.throttle.policy());
            }
        }
        if let Some(sources) = change.sources {
            let change = self.link.partitions.sources.change(sources, change.facts);
            if change.outputs {
                // The former one has no place for records of new sources. Nothing is in flight between two rounds.
                *self.link.producer = self.link.partitions.sources.producer(self.job)?;
            }
            let assigned: Vec<u32> = self.link.partitions.assigned().map(|(number, _)| number).collect();
            assigned.into_iter().for_each(|number| self.tell_sole_client(number));
            if change.topics {
                let topics = self.link.partitions.sources.topics.names().join(", ");
                info!(service = self.job.service.name, topics, "other sources: the group assigns partitions anew");
                self.link.consumer.subscribe()?;
            }
        }
        self.contact.reads_anew |= change.read_anew;
        // The room changes five times a second, and is in no snapshot.
        if is_news {
            self.publish(now);
        }
        Ok(())
    }

    /// Takes over the rules that are valid now, if others were before.
    pub(super) fn take_rules(&mut self, now: Time) {
        if self.policy.is_due(now, clock::wall_ms) {
            self.change_rules(now);
        }
    }

    fn change_rules(&mut self, now: Time) {
        let groups = self.throttle.clients().groups().iter().filter(|group| group.clients > 0);
        let groups = groups.filter_map(|group| group.name.strip_suffix('/'));
        let of_others = self.group.iter().flat_map(|group| group.groups_in_loads());
        self.policy.take_groups(groups.chain(of_others).map(Arc::from));
        let policy = self.policy.look(clock::wall_ms());
        let (service, capacity, enforce) = (&self.job.service.name, policy.capacity, policy.enforce);
        info!(service, capacity, enforce, "other rules are valid now");
        if let Some(group) = self.group {
            group.change(self.job, self.policy, &policy);
        }
        self.throttle.handle_rules(now, policy);
        self.publish(now);
    }

    /// Notes the groups that records of other instances made: all of them share the capacity out by the same groups.
    pub(super) fn meet_groups_of_others(&mut self) {
        let policy = self.throttle.policy();
        if policy.names_groups && policy.rules.has_patterns_of_groups() {
            let groups = self.group.iter().flat_map(|group| group.groups_in_loads());
            groups.filter(|name| policy.would_make_group(name)).for_each(|name| self.policy.meet_group(name));
        }
    }

    /// Takes over the policy of the configuration that was changed.
    fn take_policy(&mut self, now: Time) {
        let policy = self.policy.look(clock::wall_ms());
        let service = &self.job.service.name;
        let (capacity, cycle, mode) = (policy.capacity, policy.cycle, policy.mode.into_str());
        let (cycle_seconds, enforce) = (cycle.as_secs_f64(), policy.enforce);
        info!(service, capacity, cycle_seconds, mode, enforce, "another policy");
        if let Some(group) = self.group {
            group.change(self.job, self.policy, &policy);
        }
        self.throttle.handle_policy(now, policy);
    }
}
