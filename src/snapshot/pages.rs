//! The clients of a service in pages, of which each snapshot copies a bounded number.
//!
//! This is for more than [`COPIED`] × [`PAGE`] = 8 192 clients. Copying and sorting 100 000 clients for each snapshot
//! stopped the engine for 24–28 ms (up to 40 ms) after each round; with pages a snapshot takes 0.35 ms (up to 1.4 ms,
//! see `docs/design/performance.md`). With fewer clients every snapshot copies all of them, so all figures are of one
//! moment. With more, the first [`CURRENT`] pages (the oldest clients, configured clients before all others) are copied
//! each time, and the other pages take turns: the figures of one client are of one moment, the figures of two clients
//! may not be.
//!
//! Sorting is left to the reader.

use std::sync::{Arc, OnceLock};

use watermaster_core::scheduler::{Forgotten, PAGE};
use watermaster_core::throttle::Throttle;
use watermaster_core::units::Time;

use super::{ClientSnapshot, Levels, Unread};

/// The number of pages that one snapshot copies, which takes about half a millisecond.
const COPIED: usize = 32;
/// The number of pages at the front that every snapshot copies.
const CURRENT: usize = 4;

/// The clients of one snapshot. Cloning takes constant time.
#[derive(Debug, Clone, Default)]
pub struct Clients(Arc<Shown>);

#[derive(Debug, Default)]
struct Shown {
    pages: Vec<Arc<Page>>,
    known: usize,
    sorted: OnceLock<Sorted>,
}

/// Some clients at one moment, and the counts of clients that were forgotten out of their places.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page {
    clients: Vec<ClientSnapshot>,
    forgotten: Forgotten,
    /// The number of the snapshot that the page was copied for.
    made: u64,
}

impl Page {
    fn of(throttle: &Throttle, now: Time, unread: &Unread, number: usize) -> Page {
        let (known, forgotten) = throttle.clients().page(number);
        let mut clients = Vec::with_capacity(PAGE);
        clients.extend(known.map(|client| ClientSnapshot::of(client, throttle, now, unread)));
        Page::new(clients, forgotten)
    }

    /// Makes a page of clients in any order.
    pub(crate) fn new(clients: Vec<ClientSnapshot>, forgotten: Forgotten) -> Page {
        Page { clients, forgotten, made: 0 }
    }
}

/// The order of the clients, which the first reader computes.
#[derive(Debug, Default)]
struct Sorted {
    /// Page and place of each client.
    places: Vec<(u32, u32)>,
    forgotten: Forgotten,
}

impl Clients {
    /// Returns all clients, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ClientSnapshot> {
        self.sorted().places.iter().map(|&place| self.at(place))
    }

    /// Returns all clients by name, each with the number of the snapshot that its figures were copied for.
    pub(crate) fn iter_made(&self) -> impl Iterator<Item = (u64, &ClientSnapshot)> {
        let made = |(page, _): (u32, u32)| self.0.pages[page as usize].made;
        self.sorted().places.iter().map(move |&place| (made(place), self.at(place)))
    }

    /// Returns the client with this name.
    pub fn find(&self, name: &str) -> Option<&ClientSnapshot> {
        let places = &self.sorted().places;
        let found = places.binary_search_by(|&place| (*self.at(place).name).cmp(name));
        found.ok().map(|at| self.at(places[at]))
    }

    /// Calls `each` for all clients, in no order, which takes no sorting. Returns the counts of all others, and adds no
    /// client up twice: one that was forgotten and came back may be called for twice, with the counts of either life.
    pub(crate) fn for_each<'s>(&'s self, mut each: impl FnMut(&'s ClientSnapshot)) -> Forgotten {
        let mut forgotten = Forgotten::default();
        for page in &self.0.pages {
            page.clients.iter().for_each(&mut each);
            forgotten.merge(&page.forgotten);
        }
        forgotten
    }

    /// Returns the number of clients when the snapshot was made. With more clients than one snapshot copies, the
    /// newest may be missing from [`iter`](Clients::iter), and forgotten clients may still be there.
    pub fn known(&self) -> usize {
        self.0.known
    }

    /// Returns the counts of forgotten clients. Sums over these and all clients never fall from one snapshot to the
    /// next, and never exceed the number of decided records.
    pub fn forgotten(&self) -> Forgotten {
        self.sorted().forgotten
    }

    /// Returns the same clients with their counts, and with the levels of a service that has stopped.
    pub(super) fn at_rest(&self) -> Clients {
        let at_rest = |page: &Arc<Page>| {
            let mut page = Page::clone(page);
            for client in &mut page.clients {
                client.levels = Levels { limit: client.levels.limit, ..Levels::default() };
            }
            Arc::new(page)
        };
        let pages = self.0.pages.iter().map(at_rest).collect();
        Clients(Arc::new(Shown { pages, known: self.0.known, sorted: OnceLock::new() }))
    }

    fn at(&self, (page, place): (u32, u32)) -> &ClientSnapshot {
        &self.0.pages[page as usize].clients[place as usize]
    }

    fn sorted(&self) -> &Sorted {
        self.0.sorted.get_or_init(|| Sorted::new(&self.0.pages))
    }
}

impl Sorted {
    fn new(pages: &[Arc<Page>]) -> Sorted {
        let mut forgotten = Forgotten::default();
        pages.iter().for_each(|page| forgotten.merge(&page.forgotten));
        let mut found: Vec<(&ClientSnapshot, u64, (u32, u32))> = Vec::new();
        for (page, number) in pages.iter().zip(0..) {
            found.extend(page.clients.iter().zip(0..).map(|(client, place)| (client, page.made, (number, place))));
        }
        // A client that was forgotten and came back in another place stands in its old page until that is copied again.
        // The newer page is right; the counts in the older one are those of a forgotten client.
        found.sort_unstable_by(|(a, made_a, _), (b, made_b, _)| a.name.cmp(&b.name).then(made_b.cmp(made_a)));
        found.dedup_by(|(older, ..), (newer, ..)| {
            let twice = older.name == newer.name;
            if twice {
                forgotten.merge(&Forgotten { counts: older.counts, shadow: older.shadow });
            }
            twice
        });
        Sorted { places: found.into_iter().map(|(_, _, place)| place).collect(), forgotten }
    }
}

impl FromIterator<ClientSnapshot> for Clients {
    fn from_iter<I: IntoIterator<Item = ClientSnapshot>>(clients: I) -> Clients {
        let page = Page::new(clients.into_iter().collect(), Forgotten::default());
        Clients(Arc::new(Shown { known: page.clients.len(), pages: vec![Arc::new(page)], sorted: OnceLock::new() }))
    }
}

/// Builds the clients of each snapshot from those of the snapshot before.
#[derive(Debug, Default)]
pub struct SnapshotBuilder {
    pages: Vec<Arc<Page>>,
    /// The next page to copy.
    next: usize,
    made: u64,
}

impl SnapshotBuilder {
    /// Returns the clients of a throttle, some of them perhaps as they were in an earlier snapshot. The first snapshot
    /// shows all clients as they are. `unread` records wait in the topics.
    pub fn build(&mut self, throttle: &Throttle, now: Time, unread: &Unread) -> Clients {
        let page = |number| Page::of(throttle, now, unread, number);
        self.build_some(throttle.clients().len(), throttle.clients().pages(), [CURRENT, COPIED], page)
    }

    /// Returns `known` clients that stand in `pages` pages, which `page` copies, with other numbers for [`CURRENT`] and
    /// [`COPIED`].
    pub(crate) fn build_some(
        &mut self, known: usize, pages: usize, [current, copied]: [usize; 2], page: impl Fn(usize) -> Page,
    ) -> Clients {
        let made = self.made;
        let copy = |number: usize| Arc::new(Page { made, ..page(number) });
        self.pages.resize_with(pages, Arc::default);
        if made == 0 || pages <= copied {
            self.pages.iter_mut().zip(0..).for_each(|(page, number)| *page = copy(number));
        } else {
            (0..current).for_each(|number| self.pages[number] = copy(number));
            for _ in current..copied {
                self.next = if (current..pages).contains(&self.next) { self.next } else { current };
                self.pages[self.next] = copy(self.next);
                self.next += 1;
            }
        }
        self.made += 1;
        Clients(Arc::new(Shown { pages: self.pages.clone(), known, sorted: OnceLock::new() }))
    }
}

#[cfg(test)]
mod tests;
