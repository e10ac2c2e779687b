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
    /// Bounds say that a stopped member has nothing left in its window.
    HastyBounds,
    /// The member does not tell the records in its window, and promises to have fewer.
    ForgottenWindow,
    /// A newcomer takes a compacted log for the whole history.
    CompactionTrusted,
    /// A reader does not notice that unread records were compacted away.
    GapUnnoticed,
    /// The member measures by a wall clock, which is set forward now and then.
    WallClock,
    /// A member that was put out goes on with its former limit until it has joined again.
    FormerLimitKept,
}

impl Mistake {
    pub const ALL: [Mistake; 8] = [
        Mistake::EarlyRaise,
        Mistake::EndlessLease,
        Mistake::HastyBounds,
        Mistake::ForgottenWindow,
        Mistake::CompactionTrusted,
        Mistake::GapUnnoticed,
        Mistake::WallClock,
        Mistake::FormerLimitKept,
    ];

    /// Changes the records that a member wants to append.
    pub fn spoil(self, records: &mut [Record]) {
        for record in records {
            if let (Mistake::HastyBounds, Record::Bound(bound)) = (self, record) {
                bound.x = 0;
            }
        }
    }

    /// Changes the clocks that a member reads.
    pub fn clocks(self, now: Time, jumps: Time) -> Clocks {
        match self {
            Mistake::EndlessLease => Clocks { slow: now, fast: Time::ZERO },
            Mistake::WallClock => Clocks::same(now + jumps.since(Time::ZERO)),
            _ => Clocks::same(now),
        }
    }
}
