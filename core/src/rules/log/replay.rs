//! The effect of the log's records: the change that is in force under each name, and the changes that are to be
//! cleaned.

use std::collections::{BTreeMap, BTreeSet};
use std::{sync::Arc, time::Duration};

use super::record::{ChangeId, RuleChange, RuleVersion};
use crate::units::Time;

/// The time after which another instance cleans what the author left, and after which a tombstone that did not arrive
/// is written again.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// A change, and the state of its cleaning.
#[derive(Debug, Clone)]
struct Cleaning {
    /// The offset of the change.
    offset: u64,
    /// This instance is the one that ought to write the tombstone.
    own: bool,
    /// The time at which the change became one to clean; of a grave, the time at which it was read.
    since: Time,
    /// The time at which this instance last wrote the tombstone.
    sent: Option<Time>,
}

impl Cleaning {
    fn is_due(&self, now: Time, is_first: bool) -> bool {
        let rests = |since: Time| now.since(since) < LEFT_AFTER;
        !self.sent.is_some_and(rests) && (self.own || is_first && !rests(self.since))
    }
}

/// The change that is in force under a name, or a grave that ended.
#[derive(Debug, Clone)]
pub struct InForce {
    pub version: RuleVersion,
    pub change: RuleChange,
    cleaning: Cleaning,
}

impl InForce {
    pub fn offset(&self) -> u64 {
        self.cleaning.offset
    }

    /// The bytes of the rule in JSON.
    pub(super) fn bytes(&self) -> usize {
        self.change.rule.as_deref().map_or(0, str::len)
    }

    /// A number that tells this version of a rule from all others: FNV-1a, mixed.
    fn digest(&self, name: &str) -> u64 {
        let numbers = [self.version.n, self.version.id.0].map(u64::to_be_bytes);
        let bytes = name.bytes().chain(numbers.into_iter().flatten());
        let hash = bytes.fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        mixed(hash)
    }
}

/// A change that is void or superseded and has no tombstone yet.
#[derive(Debug, Clone)]
struct Refuse {
    cleaning: Cleaning,
    /// The change is a grave that had ended before the rule was made anew.
    ended: bool,
}

#[derive(Debug, Clone, Default)]
struct Named {
    last: Option<InForce>,
    refuse: BTreeMap<ChangeId, Refuse>,
}

impl Named {
    /// Returns the change that decides at an offset. A grave decides for a *window* of offsets.
    fn at(&self, offset: u64, window: u64) -> Option<&InForce> {
        self.last.as_ref().filter(|last| !last.change.deleted || offset <= last.offset().saturating_add(window))
    }

    /// Returns whether a grave's contemporaries all have tombstones. It has to be the last one: without it, one of them
    /// would seem newer than the changes that follow.
    fn is_last(&self, grave: ChangeId, offset: u64, window: u64) -> bool {
        let end = offset.saturating_add(window);
        self.refuse.iter().all(|(id, refuse)| *id == grave || refuse.cleaning.offset > end)
    }

    /// Returns the changes of which the tombstones may be written.
    fn removable(&self, position: u64, window: u64) -> Vec<ChangeId> {
        let is_free = |id, refuse: &Refuse| !refuse.ended || self.is_last(id, refuse.cleaning.offset, window);
        let refuse = self.refuse.iter().filter(|(id, refuse)| is_free(**id, refuse)).map(|(id, _)| *id);
        let over = self.last.as_ref().filter(|_| self.at(position, window).is_none());
        let over = over.filter(|grave| self.is_last(grave.version.id, grave.offset(), window));
        refuse.chain(over.map(|grave| grave.version.id)).collect()
    }

    fn cleaning(&mut self, id: ChangeId) -> Option<&mut Cleaning> {
        let last = self.last.as_mut().filter(|last| last.version.id == id).map(|last| &mut last.cleaning);
        last.or_else(|| self.refuse.get_mut(&id).map(|refuse| &mut refuse.cleaning))
    }
}

/// The living rules together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleTotals {
    /// The number of rules.
    pub rules: usize,
    /// The bytes of all rules in JSON.
    pub bytes: usize,
    /// A sum over name, n and id of each. Instances that have read equally far have equal sums.
    pub sum: u64,
}

/// The effect of the records up to an offset.
#[derive(Debug, Clone)]
pub(super) struct RuleReplay {
    /// The offsets for which a grave stays in force.
    window: u64,
    names: BTreeMap<Arc<str>, Named>,
    /// The names with something to clean, now or later.
    untidy: BTreeSet<Arc<str>>,
    totals: RuleTotals,
}

impl RuleReplay {
    pub fn new(window: u64) -> RuleReplay {
        RuleReplay { window, names: BTreeMap::new(), untidy: BTreeSet::new(), totals: RuleTotals::default() }
    }

    pub fn totals(&self) -> RuleTotals {
        self.totals
    }

    /// Returns the change that decides under a name at an offset, perhaps a grave.
    pub fn at(&self, name: &str, offset: u64) -> Option<&InForce> {
        self.names.get(name)?.at(offset, self.window)
    }

    /// Returns the rules, in the order of their names.
    pub fn living(&self) -> impl Iterator<Item = (&Arc<str>, &InForce)> {
        let names = self.names.iter();
        names.filter_map(|(name, named)| Some((name, named.last.as_ref().filter(|last| !last.change.deleted)?)))
    }

    /// Takes over a change at an offset, which this instance made if it is its `own`. Returns whether it is in force
    /// now. Otherwise it is void.
    pub fn apply(
        &mut self, now: Time, offset: u64, name: &Arc<str>, id: ChangeId, change: RuleChange, own: bool,
    ) -> bool {
        let named = self.names.entry(Arc::clone(name)).or_default();
        let decides = named.at(offset, self.window).map(|decides| decides.version);
        if decides.is_some_and(|decides| decides.id == id) {
            return false;
        }
        let cleaning = Cleaning { offset, own, since: now, sent: None };
        let wins = offset <= change.until && change.n > decides.map_or(0, |decides| decides.n);
        if wins {
            let version = RuleVersion { n: change.n, id };
            let superseded = self.put(name, Some(InForce { version, change, cleaning }));
            if let Some(InForce { version, cleaning, .. }) = superseded {
                let cleaning = Cleaning { own, since: now, ..cleaning };
                let refuse = Refuse { cleaning, ended: decides.is_none() };
                self.names.entry(Arc::clone(name)).or_default().refuse.insert(version.id, refuse);
            }
        } else {
            named.refuse.insert(id, Refuse { cleaning, ended: false });
        }
        self.tidy(name);
        wins
    }

    /// Takes over a tombstone. Returns whether a program may have written it: not so if its change is in force.
    pub fn bury(&mut self, offset: u64, name: &Arc<str>, id: ChangeId) -> bool {
        let Some(named) = self.names.get_mut(name) else { return true };
        if named.at(offset, self.window).is_some_and(|decides| decides.version.id == id) {
            return false;
        }
        named.refuse.remove(&id);
        if named.last.as_ref().is_some_and(|grave| grave.version.id == id) {
            self.put(name, None);
        }
        self.tidy(name);
        true
    }

    /// Returns the keys of up to `most` tombstones that this instance ought to write now. The *first* instance cleans
    /// what others left.
    pub fn due(&mut self, now: Time, position: u64, is_first: bool, most: usize) -> Vec<(Arc<str>, ChangeId)> {
        let mut due = Vec::new();
        for name in &self.untidy {
            let Some(named) = self.names.get_mut(name) else { continue };
            for id in named.removable(position, self.window) {
                let cleaning = named.cleaning(id).filter(|cleaning| cleaning.is_due(now, is_first));
                let Some(cleaning) = cleaning else { continue };
                if due.len() == most {
                    return due;
                }
                cleaning.sent = Some(now);
                due.push((Arc::clone(name), id));
            }
        }
        due
    }

    /// Replaces the last change of a name, and returns the former one.
    fn put(&mut self, name: &Arc<str>, last: Option<InForce>) -> Option<InForce> {
        let of = |last: &Option<InForce>| {
            let last = last.as_ref().filter(|last| !last.change.deleted);
            last.map_or((0, 0, 0), |last| (1, last.bytes(), last.digest(name)))
        };
        let (rules, bytes, sum) = of(&last);
        let former = std::mem::replace(&mut self.names.entry(Arc::clone(name)).or_default().last, last);
        let less = of(&former);
        let RuleTotals { rules: all, bytes: all_bytes, sum: all_sums } = self.totals;
        let sum = all_sums.wrapping_sub(less.2).wrapping_add(sum);
        self.totals = RuleTotals { rules: all + rules - less.0, bytes: all_bytes + bytes - less.1, sum };
        former
    }

    /// Notes whether there is something to clean under a name, and forgets a name without changes.
    fn tidy(&mut self, name: &Arc<str>) {
        let Some(named) = self.names.get(name) else { return };
        if named.refuse.is_empty() && named.last.as_ref().is_none_or(|last| !last.change.deleted) {
            self.untidy.remove(name);
        } else {
            self.untidy.insert(Arc::clone(name));
        }
        if named.last.is_none() && named.refuse.is_empty() {
            self.names.remove(name);
        }
    }
}

/// Mixes the bits of a number, as splitmix64 does. Different numbers stay different.
pub(super) fn mixed(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}
