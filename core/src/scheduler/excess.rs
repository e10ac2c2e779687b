//! The client furthest above its default share of `queue_bytes`: its oldest record is evicted if the backlogs are
//! larger.
//!
//! A scan of all clients for each eviction would do for some 1 000 clients. With 100 000 it takes milliseconds (a
//! flood of evictions did not end in 90 s), so it happens at most once per allocation, on the first overflow;
//! afterwards a heap is maintained, and an eviction takes about 1 µs.

use std::cmp::Ordering;

use super::bounds::Backlogs;

/// Clients by their excess over their share. Each client with a backlog has an entry at least as far up as it belongs:
/// a client that got a record gets another entry, one that lost a record is moved down when it reaches the top.
#[derive(Debug, Default)]
pub(super) struct Excess {
    heap: Vec<HeapEntry>,
    /// The heap was filled after the last allocation.
    known: bool,
}

#[derive(Debug, Clone, Copy)]
struct HeapEntry {
    excess: f64,
    client: u32,
    /// The first bytes of the name: if all clients tie, looking at each name itself waits for memory each time.
    name: u128,
}

impl Excess {
    /// Discards the heap after an allocation, which changed all shares.
    pub(super) fn discard(&mut self) {
        self.known = false;
    }

    /// Notes that a client's queue got a record.
    pub(super) fn note_growth(&mut self, client: u32, backlogs: Backlogs<'_>) {
        if !self.known {
            return;
        }
        // By now as many entries were added as a scan looks at.
        if self.heap.len() > 2 * backlogs.clients.len() + 64 {
            return self.discard();
        }
        if let Some(entry) = entry_of(client, backlogs) {
            self.heap.push(entry);
            let last = self.heap.len() - 1;
            sift_up(&mut self.heap, last, |one, other| is_before(one, other, backlogs));
        }
    }

    /// The client with the most bytes above its default share of `queue_bytes`; ties are decided by name.
    pub(super) fn furthest_above_share(&mut self, backlogs: Backlogs<'_>) -> Option<u32> {
        let before = |one: &HeapEntry, other: &HeapEntry| is_before(one, other, backlogs);
        if !self.known {
            self.heap.clear();
            self.heap.extend(backlogs.clients.iter().filter_map(|(client, _)| entry_of(client, backlogs)));
            for at in (0..self.heap.len() / 2).rev() {
                sift_down(&mut self.heap, at, before);
            }
            self.known = true;
        }
        loop {
            let &top = self.heap.first()?;
            match excess_of(top.client, backlogs) {
                Some(excess) if excess == top.excess => return Some(top.client),
                Some(excess) => self.heap[0].excess = excess,
                None => {
                    self.heap.swap_remove(0);
                }
            }
            sift_down(&mut self.heap, 0, before);
        }
    }
}

fn entry_of(client: u32, backlogs: Backlogs<'_>) -> Option<HeapEntry> {
    let (excess, name) = (excess_of(client, backlogs)?, name_of(client, backlogs)?);
    let mut start = [0; size_of::<u128>()];
    let length = name.len().min(start.len());
    start[..length].copy_from_slice(&name.as_bytes()[..length]);
    Some(HeapEntry { excess, client, name: u128::from_be_bytes(start) })
}

/// The bytes by which a client's backlog exceeds its default share of the bound; negative below that, `None` without a
/// backlog.
fn excess_of(client: u32, backlogs: Backlogs<'_>) -> Option<f64> {
    let client = backlogs.clients.lookup(client).filter(|client| client.queue.bytes > 0)?;
    let share = client.grant.default_share.as_f64() / backlogs.policy.capacity as f64;
    Some(client.queue.bytes as f64 - share * backlogs.policy.queue_bytes as f64)
}

fn is_before(one: &HeapEntry, other: &HeapEntry, backlogs: Backlogs<'_>) -> bool {
    match other.excess.total_cmp(&one.excess).then(one.name.cmp(&other.name)) {
        Ordering::Equal => name_of(one.client, backlogs) < name_of(other.client, backlogs),
        order => order == Ordering::Less,
    }
}

fn name_of(client: u32, backlogs: Backlogs<'_>) -> Option<&str> {
    backlogs.clients.lookup(client).map(|client| &*client.name)
}

fn sift_up(heap: &mut [HeapEntry], mut at: usize, before: impl Fn(&HeapEntry, &HeapEntry) -> bool) {
    while at > 0 {
        let parent = (at - 1) / 2;
        if !before(&heap[at], &heap[parent]) {
            return;
        }
        heap.swap(at, parent);
        at = parent;
    }
}

fn sift_down(heap: &mut [HeapEntry], mut at: usize, before: impl Fn(&HeapEntry, &HeapEntry) -> bool) {
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let mut first = at;
        for child in [left, right] {
            if child < heap.len() && before(&heap[child], &heap[first]) {
                first = child;
            }
        }
        if first == at {
            return;
        }
        heap.swap(at, first);
        at = first;
    }
}
