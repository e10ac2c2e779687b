//! Finds the records that a broker refuses. A broker refuses whole batches, so the culprit is found by sending halves.

use super::outcome::DeliveryError;

/// The tags of a group that did not arrive.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub refused: Vec<(usize, DeliveryError)>,
    /// Neither refused nor known to have arrived.
    pub again: Vec<usize>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.again.is_empty()
    }

    /// Puts both lists in the order of the tags, `again` without repetitions.
    pub fn sort(&mut self) {
        self.refused.sort_by_key(|(tag, _)| *tag);
        self.again.sort_unstable();
        self.again.dedup();
    }
}

/// A stack of groups of tags that still have to be sent.
#[derive(Debug)]
pub(super) struct Bisection {
    groups: Vec<Vec<usize>>,
}

impl Bisection {
    /// Starts with all tags in one group.
    pub fn of(tags: Vec<usize>) -> Bisection {
        Bisection { groups: vec![tags] }
    }

    /// Takes the next group to send; `None` when every group has arrived.
    pub fn next_group(&mut self) -> Option<Vec<usize>> {
        self.groups.pop()
    }

    /// Sends one more tag, alone and before all groups.
    pub fn push(&mut self, tag: usize) {
        self.groups.push(vec![tag]);
    }

    /// Moves the second half of these tags into a group of its own, which is sent later.
    pub fn divide(&mut self, tags: &mut Vec<usize>) {
        let second = tags.split_off(tags.len().div_ceil(2));
        if !second.is_empty() {
            self.groups.push(second);
        }
    }

    /// Schedules the missing tags of a group of `sent` tags. Returns a refused tag once it was sent alone or was the
    /// only one of its group that was refused.
    pub fn classify(&mut self, sent: usize, missing: Missing) -> Option<(usize, DeliveryError)> {
        let Missing { mut refused, again } = missing;
        if !again.is_empty() {
            self.groups.push(again);
        }
        if refused.len() <= 1 {
            return refused.pop();
        }
        let mut tags: Vec<usize> = refused.into_iter().map(|(tag, _)| tag).collect();
        // A part of the group was refused: send that part again by itself. All of it was: halve it. The first half goes
        // first, to keep the order.
        if tags.len() == sent {
            let second = tags.split_off(sent / 2);
            self.groups.push(second);
        }
        self.groups.push(tags);
        None
    }
}
