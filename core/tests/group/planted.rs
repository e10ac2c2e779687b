//! Mistakes that an owner or a member could make. They stand outside the member: in its inputs and its outputs.

use watermaster_core::group::Clocks;
use watermaster_core::group::record::Record;
use watermaster_core::units::Time;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The member uses a raise before it has read its post back.
    EarlyRaise,
    /// The member goes on after its lease.
    EndlessLease,
    /// The member tells a shorter lease than it takes.
    ShortLeaseTold,
    /// Bounds say that a stopped member has nothing left in its window, a cycle too early.
    HastyBounds,
    /// The member does not tell the records in its window, and promises to have fewer.
    ForgottenWindow,
    /// A newcomer takes a compacted log for the whole history.
    CompactionTrusted,
    /// A reader does not notice that unread records were compacted away.
    GapUnnoticed,
    /// The member measures its window by a clock that is set forward now and then.
    WallClock,
    /// A member that was put out goes on with its former limit until it has joined again.
    FormerLimitKept,
    /// The first members do not charge the records that were admitted before them.
    MemoryForgotten,
}

impl Mistake {
    pub const ALL: [Mistake; 10] = [
        Mistake::EarlyRaise,
        Mistake::EndlessLease,
        Mistake::ShortLeaseTold,
        Mistake::HastyBounds,
        Mistake::ForgottenWindow,
        Mistake::CompactionTrusted,
        Mistake::GapUnnoticed,
        Mistake::WallClock,
        Mistake::FormerLimitKept,
        Mistake::MemoryForgotten,
    ];

    /// Changes the records that a member wants to append.
    pub fn spoil(self, records: &mut [Record]) {
        for record in records {
            match (self, record) {
                (Mistake::HastyBounds, Record::Bound(bound)) => bound.x = 0,
                (Mistake::ShortLeaseTold, Record::Post(post)) => post.lease /= 4,
                _ => {}
            }
        }
    }

    /// Changes the clocks that a member reads.
    pub fn clocks(self, clocks: Clocks) -> Clocks {
        match self {
            Mistake::EndlessLease => Clocks { fast: Time::ZERO, ..clocks },
            Mistake::WallClock => Clocks { slow: clocks.fast, ..clocks },
            _ => clocks,
        }
    }
}
