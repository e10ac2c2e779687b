//! All clients of a service, in pages that are renewed a few at a time.
//!
//! To copy and sort 100 000 clients takes long, and the engine decides nothing meanwhile. So it copies no more than
//! [`AT_ONCE`] pages for one snapshot and takes the others over from the one before. Up to as many clients as these hold, a
//! snapshot is of one moment. Beyond that, the first [`ALWAYS`] pages (those who came first, the configured ones before all)
//! still are, and the others take turns: the figures of one client are of one moment, those of two perhaps not. Sorting is
//! left to who reads.

use std::sync::{Arc, OnceLock};

use watermaster_core::policy::Policy;
use watermaster_core::registry::{Client, Forgotten, PAGE};
use watermaster_core::throttle::Throttle;

use super::ClientSnapshot;

/// How many pages of [`PAGE`] clients one snapshot renews, which takes about half a millisecond.
pub const AT_ONCE: usize = 32;
/// How many of these are the first ones, every time.
pub const ALWAYS: usize = 4;

/// The clients of one snapshot. Cheap to clone, however many they are.
#[derive(Debug, Clone, Default)]
pub struct Clients(Arc<Shown>);

#[derive(Debug, Default)]
struct Shown {
    pages: Vec<Arc<Page>>,
    known: usize,
    sorted: OnceLock<Sorted>,
}

/// Some clients at one moment, and what was decided for those who were forgotten out of their places.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page {
    clients: Vec<ClientSnapshot>,
    forgotten: Forgotten,
    /// The number of the snapshot that it was made for.
    made: u64,
}

impl Page {
    fn of(throttle: &Throttle, number: usize) -> Page {
        let (known, forgotten) = throttle.page(number);
        let mut clients = Vec::with_capacity(PAGE);
        clients.extend(known.map(|client| ClientSnapshot::of(client, throttle.policy())));
        Page::new(clients, forgotten)
    }

    /// Of clients in any order.
    pub(crate) fn new(clients: Vec<ClientSnapshot>, forgotten: Forgotten) -> Page {
        Page { clients, forgotten, made: 0 }
    }
}

/// What the first reader makes of the pages.
#[derive(Debug, Default)]
struct Sorted {
    /// Page and place of each.
    places: Vec<(u32, u32)>,
    forgotten: Forgotten,
}

impl Clients {
    /// All clients, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ClientSnapshot> {
        self.sorted().places.iter().map(|&place| self.at(place))
    }

    /// The same, each with the number of the snapshot that its figures were made for.
    pub(crate) fn iter_made(&self) -> impl Iterator<Item = (u64, &ClientSnapshot)> {
        let made = |(page, _): (u32, u32)| self.0.pages[page as usize].made;
        self.sorted().places.iter().map(move |&place| (made(place), self.at(place)))
    }

    /// A client by name.
    pub fn get(&self, name: &str) -> Option<&ClientSnapshot> {
        let places = &self.sorted().places;
        places.binary_search_by(|&place| (*self.at(place).name).cmp(name)).ok().map(|found| self.at(places[found]))
    }

    /// How many there were when the snapshot was made: of very many, some newcomers may not be among [`iter`](Clients::iter)
    /// yet, nor all who were forgotten gone from it.
    pub fn known(&self) -> usize {
        self.0.known
    }

    /// What was decided for those who were forgotten. With this, sums over all clients never fall from one snapshot to the
    /// next, and never exceed what was decided.
    pub fn forgotten(&self) -> Forgotten {
        self.sorted().forgotten
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
        // Who was forgotten and came back elsewhere still stands in its old page until that is renewed: the older one is over.
        found.sort_unstable_by(|(a, made_a, _), (b, made_b, _)| a.name.cmp(&b.name).then(made_b.cmp(made_a)));
        found.dedup_by(|(over, ..), (kept, ..)| {
            let twice = over.name == kept.name;
            if twice {
                forgotten.merge(&Forgotten { counts: over.counts, shadow: over.shadow });
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

impl From<Vec<ClientSnapshot>> for Clients {
    fn from(clients: Vec<ClientSnapshot>) -> Clients {
        clients.into_iter().collect()
    }
}

/// Makes the clients of each snapshot out of those of the one before.
#[derive(Debug, Default)]
pub struct Renewal {
    pages: Vec<Arc<Page>>,
    /// The next one whose turn it is.
    next: usize,
    made: u64,
}

impl Renewal {
    /// The clients of a throttle, some of them perhaps as they were in an earlier snapshot. The first one shows all as they are.
    pub fn renew(&mut self, throttle: &Throttle) -> Clients {
        let page = |number| Page::of(throttle, number);
        self.renew_some(throttle.known(), throttle.pages(), [ALWAYS, AT_ONCE], page)
    }

    /// So many `known` clients in so many pages, of which `page` makes one; other numbers for [`ALWAYS`] and [`AT_ONCE`].
    pub(crate) fn renew_some(
        &mut self,
        known: usize,
        pages: usize,
        [always, at_once]: [usize; 2],
        page: impl Fn(usize) -> Page,
    ) -> Clients {
        let made = self.made;
        let fresh = |number: usize| Arc::new(Page { made, ..page(number) });
        self.pages.resize_with(pages, Arc::default);
        if made == 0 || pages <= at_once {
            self.pages.iter_mut().zip(0..).for_each(|(page, number)| *page = fresh(number));
        } else {
            (0..always).for_each(|number| self.pages[number] = fresh(number));
            for _ in always..at_once {
                self.next = if (always..pages).contains(&self.next) { self.next } else { always };
                self.pages[self.next] = fresh(self.next);
                self.next += 1;
            }
        }
        self.made += 1;
        Clients(Arc::new(Shown { pages: self.pages.clone(), known, sorted: OnceLock::new() }))
    }
}

impl ClientSnapshot {
    fn of(client: &Client, policy: &Policy) -> ClientSnapshot {
        let waiting = client.lane.records.len();
        let (backlog, shadow_backlog) = if policy.enforce { (waiting, 0) } else { (0, waiting) };
        ClientSnapshot {
            name: client.name.clone(),
            configured: client.configured,
            wants: client.wants().max(client.last_wants),
            default_share: client.grant.default_share.as_f64(),
            granted: client.grant.records,
            limit: client.limit.as_ref().map(|limit| limit.most_in(policy.cycle)),
            backlog,
            shadow_backlog,
            counts: client.counts,
            shadow: client.shadow,
            delay_p99_seconds: client.delays.as_ref().map_or(0.0, |delays| delays.quantile(0.99)),
        }
    }
}

#[cfg(test)]
mod tests;
