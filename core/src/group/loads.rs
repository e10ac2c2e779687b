//! The loads of the members' clients, by number: names are long, and there are as many loads as clients × members.

use std::{borrow::Cow, sync::Arc};

use hashbrown::HashMap;

use super::state::Load;
use crate::policy::Policy;
use crate::units::MAX_CAPACITY;

/// The clients of a load, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadOf<'n> {
    /// The client with this id.
    Client(&'n str),
    /// The clients that are too small for a name of their own: of the group with this index in the policy, or of none.
    Unnamed(Option<usize>),
}

/// The name of a client's load: the client's. But the load of a group's unnamed clients has the group's name with `/`
/// behind it. An id of that form, which any stranger may choose, gets one more.
pub(crate) fn name_of<'c>(policy: &Policy, client: &'c str) -> Cow<'c, str> {
    match group_before_slashes(policy, client) {
        Some(_) => Cow::Owned(format!("{client}/")),
        None => Cow::Borrowed(client),
    }
}

/// The clients whose load has this name.
pub(crate) fn clients_of<'n>(policy: &Policy, name: &'n str) -> LoadOf<'n> {
    match group_before_slashes(policy, name) {
        None if name.is_empty() => LoadOf::Unnamed(None),
        None => LoadOf::Client(name),
        Some(group) => match name.strip_suffix('/').filter(|client| client.ends_with('/')) {
            Some(client) => LoadOf::Client(client),
            None => LoadOf::Unnamed(Some(group)),
        },
    }
}

/// The group whose name this one is, with `/` behind it once or more often.
fn group_before_slashes(policy: &Policy, name: &str) -> Option<usize> {
    if name.ends_with('/') { policy.group_named(name.trim_end_matches('/')) } else { None }
}

/// The clients that any member names. Each has a number as long as it is named.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientTable {
    numbers: HashMap<Arc<str>, u32>,
    rows: Vec<ClientRow>,
    free: Vec<u32>,
    /// Counts changes of loads, those of this member included.
    pub(crate) changes: u64,
}

#[derive(Debug, Clone)]
struct ClientRow {
    name: Arc<str>,
    /// The number of members' loads that name the client.
    uses: u32,
}

/// The loads of one member's clients, in the order of the clients' numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MemberLoads(Vec<(u32, Load)>);

impl MemberLoads {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Load)> {
        self.0.iter().map(|&(number, load)| (number as usize, load))
    }

    pub(crate) fn get(&self, number: usize) -> Load {
        let found = self.0.binary_search_by_key(&number, |&(number, _)| number as usize);
        found.map_or(Load::default(), |index| self.0[index].1)
    }
}

impl ClientTable {
    /// One more than the largest number in use.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn name(&self, number: usize) -> &Arc<str> {
        &self.rows[number].name
    }

    /// The names of all clients, in no order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.numbers.keys().map(|name| &**name)
    }

    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).map(|&number| number as usize)
    }

    pub(crate) fn update(&mut self, known: &mut MemberLoads, loads: &[(Arc<str>, Load)]) {
        let mut new = Vec::with_capacity(loads.len());
        let named = loads.iter().filter(|(_, load)| *load != Load::default());
        new.extend(named.map(|(name, load)| (self.acquire(name), load.clamped())));
        new.sort_unstable_by_key(|&(number, _)| number);
        known.0.iter().for_each(|&(number, _)| self.release(number));
        self.changes += u64::from(known.0 != new);
        known.0 = new;
    }

    fn acquire(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            self.rows[number as usize].uses += 1;
            return number;
        }
        let row = ClientRow { name: Arc::clone(name), uses: 1 };
        let number = self.free.pop().unwrap_or(self.rows.len() as u32);
        match self.rows.get_mut(number as usize) {
            Some(free) => *free = row,
            None => self.rows.push(row),
        }
        self.numbers.insert(Arc::clone(name), number);
        number
    }

    fn release(&mut self, number: u32) {
        let row = &mut self.rows[number as usize];
        row.uses -= 1;
        if row.uses == 0 {
            self.numbers.remove(&row.name);
            self.free.push(number);
        }
    }
}

impl Load {
    /// Bounds the numbers, so that sums over the members fit.
    fn clamped(self) -> Load {
        Load { demand: self.demand.min(MAX_CAPACITY), wants: self.wants.min(MAX_CAPACITY) }
    }
}
