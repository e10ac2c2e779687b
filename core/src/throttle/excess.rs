//! `queue_bytes` with `overflow = "dead_letter"`: whose oldest record goes when the backlogs are larger.
//!
//! Of all clients the one furthest above its default share of the bound. With very many clients, to look at all of them is to
//! decide nothing for milliseconds, so they are looked at once after each allocation, if at all; from then on a heap knows.

use std::cmp::Ordering;

use super::Throttle;
use crate::registry::Client;

/// Clients by how far they are above their share. Each that has something waiting stands in it, at least as far up as it should:
/// who grew stands in it once more, who shrank is moved when it comes out on top.
#[derive(Debug, Default)]
pub(super) struct Excess {
    heap: Vec<Place>,
    /// Whether it holds.
    known: bool,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    excess: f64,
    client: u32,
    /// How its name begins: where all are alike, to look at the names themselves is to wait for memory for each.
    name: u128,
}

impl Excess {
    /// Shares changed: all of it is void.
    pub(super) fn forget(&mut self) {
        self.known = false;
    }
}

impl Throttle {
    /// A record of this client was put in line.
    pub(super) fn note_growth(&mut self, client: u32) {
        if !self.excess.known {
            return;
        }
        // As many look-ups as there were records make up for one look at everybody.
        if self.excess.heap.len() > 2 * self.registry.len() + 64 {
            return self.excess.forget();
        }
        if let Some(place) = self.place_of(client) {
            let mut heap = std::mem::take(&mut self.excess.heap);
            heap.push(place);
            let last = heap.len() - 1;
            sift_up(&mut heap, last, |one, other| self.is_before(one, other));
            self.excess.heap = heap;
        }
    }

    /// The client whose bytes exceed its default share of `queue_bytes` the most; ties by name.
    pub(super) fn furthest_above_share(&mut self) -> Option<u32> {
        let mut heap = std::mem::take(&mut self.excess.heap);
        if !self.excess.known {
            self.look_at_all(&mut heap);
        }
        let before = |one: &Place, other: &Place| self.is_before(one, other);
        let furthest = loop {
            let Some(&top) = heap.first() else { break None };
            match self.excess_of(top.client) {
                Some(excess) if excess == top.excess => break Some(top.client),
                Some(excess) => heap[0].excess = excess,
                None => {
                    heap.swap_remove(0);
                }
            }
            sift_down(&mut heap, 0, before);
        };
        self.excess = Excess { heap, known: true };
        furthest
    }

    fn look_at_all(&self, heap: &mut Vec<Place>) {
        heap.clear();
        let waiting = self.registry.iter().filter(|(_, client)| client.lane.bytes > 0);
        heap.extend(waiting.filter_map(|(client, _)| self.place_of(client)));
        for place in (0..heap.len() / 2).rev() {
            sift_down(heap, place, |one, other| self.is_before(one, other));
        }
    }

    fn place_of(&self, client: u32) -> Option<Place> {
        let (excess, name) = (self.excess_of(client)?, self.name_of(client)?);
        let mut start = [0; size_of::<u128>()];
        let length = name.len().min(start.len());
        start[..length].copy_from_slice(&name.as_bytes()[..length]);
        Some(Place { excess, client, name: u128::from_be_bytes(start) })
    }

    /// How far a client with something waiting is above its share.
    fn excess_of(&self, client: u32) -> Option<f64> {
        let client = self.registry.lookup(client).filter(|client| client.lane.bytes > 0)?;
        Some(self.above_share(client, client.lane.bytes, self.policy.queue_bytes))
    }

    /// By how much a client's use of a bound exceeds its default share of it; negative below that.
    pub(super) fn above_share(&self, client: &Client, used: u64, bound: u64) -> f64 {
        let share = client.grant.default_share.as_f64() / self.policy.capacity as f64;
        used as f64 - share * bound as f64
    }

    fn is_before(&self, one: &Place, other: &Place) -> bool {
        match other.excess.total_cmp(&one.excess).then(one.name.cmp(&other.name)) {
            Ordering::Equal => self.name_of(one.client) < self.name_of(other.client),
            order => order == Ordering::Less,
        }
    }

    fn name_of(&self, client: u32) -> Option<&str> {
        self.registry.lookup(client).map(|client| &*client.name)
    }
}

fn sift_up(heap: &mut [Place], mut place: usize, before: impl Fn(&Place, &Place) -> bool) {
    while place > 0 {
        let parent = (place - 1) / 2;
        if !before(&heap[place], &heap[parent]) {
            return;
        }
        heap.swap(place, parent);
        place = parent;
    }
}

fn sift_down(heap: &mut [Place], mut place: usize, before: impl Fn(&Place, &Place) -> bool) {
    loop {
        let (left, right) = (2 * place + 1, 2 * place + 2);
        let mut first = place;
        for child in [left, right] {
            if child < heap.len() && before(&heap[child], &heap[first]) {
                first = child;
            }
        }
        if first == place {
            return;
        }
        heap.swap(place, first);
        place = first;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::offset_map::{MapBudget, OffsetMap};
    use crate::policy::{CatchUp, ClientPolicy, Lending, Mode, Overflow, Policy, Window};
    use crate::throttle::{Arrival, Sender};
    use crate::units::{Ratio, Time, Weight};

    #[derive(Debug, Clone)]
    enum Step {
        /// Records of a client, of so many bytes.
        Read(u8, u8, u32),
        Wait(u16),
        /// Another bound.
        Bound(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few sizes, so that there are ties.
        let bytes = prop_oneof![Just(100_u32), Just(200), 1..2_000_u32];
        prop_oneof![
            8 => (0..12_u8, 1..9_u8, bytes).prop_map(|(client, count, bytes)| Step::Read(client, count, bytes)),
            2 => (1..2_500_u16).prop_map(Step::Wait),
            1 => (1_000..20_000_u64).prop_map(Step::Bound),
        ]
    }

    fn policy(enforce: bool) -> Policy {
        let weighty = |name: &str, thousandths| ClientPolicy {
            name: name.into(),
            weight: Weight::from_thousandths(thousandths).unwrap(),
            limit: None,
        };
        Policy {
            capacity: 40,
            cycle: Duration::from_secs(1),
            reservation: Ratio::ZERO,
            lending: Lending::Proportional,
            mode: Mode::Shape,
            enforce,
            window: Window::Sliding,
            catch_up: CatchUp::Delay,
            max_clients: 20,
            unlisted_weight: Weight::ONE,
            client_idle_timeout: Duration::from_secs(2),
            clients: vec![weighty("heavy", 3_000), weighty("light", 500)],
            queue_capacity: 60,
            queue_bytes: 10_000,
            max_delay: Duration::from_secs(60),
            overflow: Overflow::DeadLetter,
            burst: Ratio::ZERO,
            commit_interval: Duration::from_millis(1),
            map_budget: MapBudget::default(),
        }
    }

    /// As it is defined: everybody is looked at.
    fn furthest_of_all(throttle: &Throttle) -> Option<u32> {
        let bound = throttle.policy.queue_bytes as f64;
        let excess = |client: &Client| {
            client.lane.bytes as f64 - client.grant.default_share.as_f64() / throttle.policy.capacity as f64 * bound
        };
        let waiting = throttle.registry.iter().filter(|(_, client)| client.lane.bytes > 0);
        let furthest =
            waiting.max_by(|(_, a), (_, b)| excess(a).total_cmp(&excess(b)).then_with(|| b.name.cmp(&a.name)));
        furthest.map(|(index, _)| index)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn it_is_always_who_is_furthest_of_all(
            enforce: bool,
            look in 1..4_usize,
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let mut now = Time::ZERO + Duration::from_secs(1_000);
            let mut throttle = Throttle::new(policy(enforce), now);
            throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
            let mut offset = 0;
            for (number, step) in steps.iter().enumerate() {
                match *step {
                    Step::Read(client, count, bytes) => for _ in 0..count {
                        let name = match client {
                            0 => "heavy".to_owned(),
                            1 => "light".to_owned(),
                            2..6 => format!("c{client}"),
                            _ => format!("with-a-name-so-long-{client}"),
                        };
                        let sender = Sender::Client(&name);
                        throttle.handle_record(now, &Arrival { partition: 0, offset, bytes, sender });
                        offset += 1;
                    },
                    Step::Wait(milliseconds) => {
                        now = now + Duration::from_millis(milliseconds.into());
                        throttle.handle_timeout(now);
                    }
                    Step::Bound(bytes) => {
                        throttle.handle_policy(now, Policy { queue_bytes: bytes, ..policy(enforce) });
                    }
                }
                while throttle.poll_action(now).is_some() {}
                prop_assert!(throttle.backlog.bytes() <= throttle.policy.queue_bytes);
                // Not each time, so that it is also found by those who shed.
                if number % look == 0 {
                    prop_assert_eq!(throttle.furthest_above_share(), furthest_of_all(&throttle));
                }
            }
        }
    }
}
