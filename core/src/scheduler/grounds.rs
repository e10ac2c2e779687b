//! The grounds of a rejection: the quota that was used up, and the rule behind it. Only a dead letter states them, so
//! they are found after the decision, and no other record pays for them.

use super::{QueuedRecord, Scheduler};
use crate::reason::{Grounds, Quota, Reason};
use crate::rules::{Field, Rule};
use crate::units::Time;

impl Scheduler {
    /// Finds the grounds of a rejection of a client's record, right after the decision.
    #[cold]
    pub fn grounds(&mut self, now: Time, client: u32, reason: Reason) -> Grounds {
        match reason {
            Reason::OverAllocation => Grounds { quota: Some(self.granted(now, client)), rule: None },
            // The default share was used up, perhaps with borrowed records beyond it.
            Reason::CapacityInUse => {
                let share = self.clients.get(client).share;
                Grounds { quota: Some(self.quota(now, client, share)), rule: None }
            }
            Reason::ClientLimit => self.exhausted_limit(now, client),
            Reason::Held => Grounds { quota: None, rule: self.hold(client).map(|rule| rule.name.clone()) },
            _ => Grounds::default(),
        }
    }

    /// Finds the grounds of the rejection of a record that waited for as long as it may. They name a rule if the record
    /// waited for the time that the rule sets.
    #[cold]
    pub fn grounds_of_expiry(&self, record: &QueuedRecord) -> Grounds {
        let client = self.clients.get(record.client);
        let delay = self.backlog.own_delay(record).filter(|_| record.since >= client.expires_before);
        let rule = delay.and_then(|delay| {
            let rule = self.policy.rule_of_client(&client.name, Field::MaxDelay)?;
            (rule.effects.max_delay == Some(delay)).then(|| rule.name.clone())
        });
        Grounds { quota: None, rule }
    }

    /// The grant of a client. A part of it that still falls counts until it has fallen.
    fn granted(&mut self, now: Time, index: u32) -> Quota {
        let client = self.clients.get(index);
        let falling = client.falling_part.records(now, self.policy.cycle);
        self.quota(now, index, client.allowance().max(falling))
    }

    fn quota(&mut self, now: Time, index: u32, limit: u64) -> Quota {
        let client = self.clients.get_mut(index);
        let used = client.used.count(now, self.cycles.number) + client.queue.others();
        Quota { limit, used, time: self.policy.cycle }
    }

    /// The limit of a client, or of its group, without room, and the rule that sets it.
    fn exhausted_limit(&mut self, now: Time, index: u32) -> Grounds {
        let Some((quota, is_of_group)) = self.clients.exhausted_limit(now, index) else { return Grounds::default() };
        let name = &self.clients.get(index).name;
        let rule = if is_of_group {
            self.policy.rule_of_group_of(name, Field::Limits)
        } else {
            self.policy.rule_of_client(name, Field::Limits)
        };
        Grounds { quota: Some(quota), rule: rule.map(|rule| rule.name.clone()) }
    }

    /// The rule that holds a client, or its group.
    fn hold(&self, index: u32) -> Option<&Rule> {
        let name = &self.clients.get(index).name;
        let holds = |rule: &&Rule| rule.effects.hold == Some(true);
        let own = self.policy.rule_of_client(name, Field::Hold).filter(holds);
        own.or_else(|| self.policy.rule_of_group_of(name, Field::Hold).filter(holds))
    }
}
