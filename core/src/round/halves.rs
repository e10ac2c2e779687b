//! Who is refused. A broker refuses whole batches, so the culprit is found by sending halves.

/// What did not arrive of what was sent, by tag.
#[derive(Debug, Default)]
pub struct Sent {
    pub refused: Vec<(usize, String)>,
    /// Not refused, and not known to have arrived.
    pub again: Vec<usize>,
}

impl Sent {
    /// Whether everything is known to have arrived, or may still.
    pub fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.again.is_empty()
    }

    /// In the order of the tags, each once.
    pub fn sort(&mut self) {
        self.refused.sort_unstable();
        self.again.sort_unstable();
        self.again.dedup();
    }
}

/// Tags that are still to be sent, in groups: what is next comes last.
#[derive(Debug)]
pub struct Halves {
    groups: Vec<Vec<usize>>,
}

impl Halves {
    /// All of them in one group.
    pub fn of(tags: Vec<usize>) -> Halves {
        Halves { groups: vec![tags] }
    }

    /// The next group to send; `None` when all have arrived.
    pub fn next_group(&mut self) -> Option<Vec<usize>> {
        self.groups.pop()
    }

    /// Sends one more by itself, before all others.
    pub fn push(&mut self, tag: usize) {
        self.groups.push(vec![tag]);
    }

    /// Sends the second half of these tags in a group of its own, later than the first.
    pub fn divide(&mut self, tags: &mut Vec<usize>) {
        let second = tags.split_off(tags.len().div_ceil(2));
        if !second.is_empty() {
            self.groups.push(second);
        }
    }

    /// What became of a group of `sent` tags. Returns the culprit once it stands alone.
    pub fn sort_out(&mut self, sent: usize, outcome: Sent) -> Option<(usize, String)> {
        let Sent { mut refused, again } = outcome;
        if !again.is_empty() {
            self.groups.push(again);
        }
        if refused.len() <= 1 {
            return refused.pop();
        }
        let mut tags: Vec<usize> = refused.into_iter().map(|(tag, _)| tag).collect();
        // Fewer than were sent: those again by themselves. All of them: halve; the first half goes first, to keep the order.
        if tags.len() == sent {
            let second = tags.split_off(sent / 2);
            self.groups.push(second);
        }
        self.groups.push(tags);
        None
    }
}
