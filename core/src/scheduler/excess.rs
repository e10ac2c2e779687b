//! The client furthest above its default share of `queue_bytes`: its oldest record is evicted if the backlogs are
//! larger.
//!
//! A scan of all clients for each eviction would do for some 1 000 clients. With 100 000 it takes milliseconds (a
//! flood of evictions did not end in 90 s), so it happens at most once per allocation, on the first overflow;
//! afterwards a heap is maintained, and an eviction takes about 1 µs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, binary_heap::PeekMut};

use super::{bounds::Backlogs, client::Client};
use crate::policy::Policy;

/// Clients by their excess over their share. Each client with a backlog has an entry at least as far up as it belongs:
/// a client that got a record gets another entry, one that lost a record is moved down when it reaches the top.
#[derive(Debug, Default)]
pub(super) struct Excess {
    /// The excess in whole bytes, and the client; of clients that tie, the one with the smallest index is first.
    heap: BinaryHeap<(i64, Reverse<u32>)>,
    /// The heap was filled after the last allocation.
    pub(super) known: bool,
}

impl Excess {
    /// Discards the heap after an allocation, which changed all shares.
    pub(super) fn discard(&mut self) {
        self.known = false;
    }

    /// Notes that a client's queue got a record.
    #[inline]
    pub(super) fn note_growth(&mut self, client: u32, backlogs: Backlogs<'_>) {
        if self.known {
            self.add(client, backlogs);
        }
    }

    #[inline(never)]
    fn add(&mut self, client: u32, backlogs: Backlogs<'_>) {
        // By now as many entries were added as a scan looks at.
        if self.heap.len() > 2 * backlogs.clients.len() + 64 {
            return self.discard();
        }
        self.heap.extend(entry_of(client, backlogs));
    }

    /// The client with the most bytes above its default share of `queue_bytes`.
    pub(super) fn furthest_above_share(&mut self, backlogs: Backlogs<'_>) -> Option<u32> {
        if !self.known {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.clear();
            entries.extend(backlogs.clients.iter().filter_map(|(client, _)| entry_of(client, backlogs)));
            self.heap = BinaryHeap::from(entries);
            self.known = true;
        }
        loop {
            let mut top = self.heap.peek_mut()?;
            let (_, Reverse(client)) = *top;
            match entry_of(client, backlogs) {
                Some(entry) if entry == *top => return Some(client),
                Some(entry) => *top = entry,
                None => {
                    PeekMut::pop(top);
                }
            }
        }
    }
}

/// The bytes by which a client's backlog exceeds its default share of the bound, negative below that; `None` without a
/// backlog of records that may be evicted.
fn entry_of(index: u32, backlogs: Backlogs<'_>) -> Option<(i64, Reverse<u32>)> {
    let client = backlogs.clients.lookup(index).filter(|client| client.queue.bytes > 0)?;
    let may_go = !backlogs.keep(index);
    may_go.then(|| (above_share(client, backlogs.policy.queue_bytes, backlogs.policy), Reverse(index)))
}

/// The whole bytes by which a client's backlog exceeds its default share of a bound, negative below that.
pub(super) fn above_share(client: &Client, bound: u64, policy: &Policy) -> i64 {
    let share = client.grant.default_share.as_f64() / policy.capacity as f64;
    (client.queue.bytes as f64 - share * bound as f64) as i64
}
