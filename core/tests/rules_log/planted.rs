//! Mistakes that a program, a producer or a design of the log could make. Each one is planted outside of the reader: in
//! the records, their order, or what its owner tells it.

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// All changes of a rule have one key: compaction keeps the last attempt.
    SameKey,
    /// Two attempts at one version of a rule have one key.
    SlotKey,
    /// A reader takes a change only if it follows the version before, also in a compacted log.
    StrictReplay,
    /// A change is acknowledged when the brokers have it, before it is read back.
    EarlyAnswer,
    /// A reader that meets a gap goes on.
    GapIgnored,
    /// Changes never become void by their age, and a deleted rule is forgotten as soon as the log is clean.
    NoUntil,
    /// A grave is cleaned before other changes of its time.
    GraveFirst,
    /// A grave is cleaned before other changes of its time once the rule is made anew.
    GraveAsRefuse,
    /// A new reader takes longer than tombstones stay.
    SlowStart,
    /// A new reader decides at the end that the log had when it began.
    OneEnd,
    /// A producer that is not idempotent doubles records.
    Doubled,
}

impl Mistake {
    pub const ALL: [Mistake; 11] = [
        Mistake::SameKey,
        Mistake::SlotKey,
        Mistake::StrictReplay,
        Mistake::EarlyAnswer,
        Mistake::GapIgnored,
        Mistake::NoUntil,
        Mistake::GraveFirst,
        Mistake::GraveAsRefuse,
        Mistake::SlowStart,
        Mistake::OneEnd,
        Mistake::Doubled,
    ];

    /// Returns whether the keys of records are wrong, so that nothing can be cleaned.
    pub fn is_of_keys(self) -> bool {
        matches!(self, Mistake::SameKey | Mistake::SlotKey)
    }
}
