//! The counts of forgotten clients, by page.
//!
//! Pages exist for more than some 1 000 clients: a snapshot copies a bounded number of pages and takes the others over
//! from the one before, so that with 100 000 clients it takes 0.35 ms instead of 24–28 ms. The counts of a forgotten
//! client stay with its page, so that no page that was copied earlier ever shows more than the next copy of it.

use super::client::{Client, Counts};

/// The number of neighbouring indices that form a page.
pub const PAGE: usize = 256;

/// Decisions on clients that are not known any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forgotten {
    pub counts: Counts,
    pub shadow: Counts,
}

impl Forgotten {
    /// Adds another set of counts.
    pub fn merge(&mut self, other: &Forgotten) {
        self.counts.merge(&other.counts);
        self.shadow.merge(&other.shadow);
    }
}

/// Forgotten clients' counts for each page that had any.
#[derive(Debug, Default)]
pub(super) struct Pages(Vec<Forgotten>);

impl Pages {
    pub(super) fn add(&mut self, index: usize, client: &Client) {
        let page = index / PAGE;
        if self.0.len() <= page {
            self.0.resize(page + 1, Forgotten::default());
        }
        self.0[page].merge(&Forgotten { counts: client.counts, shadow: client.shadow });
    }

    pub(super) fn get(&self, page: usize) -> Forgotten {
        self.0.get(page).copied().unwrap_or_default()
    }
}
