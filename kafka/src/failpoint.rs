//! Ends or stops the process at a given step, and names the mistakes that can be planted, for `scripts/chaos`. Only
//! decorators ask for them, which are compiled with the feature `failpoints`.

use strum::VariantArray as _;

/// A mistake that the oracle of `scripts/chaos --teeth` has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Fault {
    /// Commits the offset without the map of records completed out of order.
    EmptyMap,
    /// Commits offsets without generation and member id.
    UnfencedGroupMetadata,
    /// Reads records of open and aborted transactions.
    ReadUncommitted,
    /// Keeps the records of a revoked partition.
    NoPurgeOnRevoke,
    /// Counts a record that did not arrive as sent.
    IgnoredSendError,
    /// Commits offsets outside of the transaction, before the outputs.
    OffsetsOutsideTransaction,
    /// Commits one offset too many.
    OffsetOffByOne,
    /// Keeps a producer after its connection broke.
    NoTaint,
    /// Takes the whole capacity, as if the group had no other member.
    ForeignStatesIgnored,
    /// Opens seats under transactional ids of this process only, so that no earlier owner is fenced.
    UnfencedSeats,
}

impl Fault {
    /// All mistakes.
    pub const ALL: &[Fault] = Fault::VARIANTS;

    /// Returns whether it is a mistake of an instance's part of the capacity, and not of delivery.
    pub fn is_of_the_group(self) -> bool {
        matches!(self, Fault::ForeignStatesIgnored | Fault::UnfencedSeats)
    }

    /// Returns the name in `WATERMASTER_PLANT` and `scripts/chaos --plants`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Ends the process, as a power cut would, if the file that `WATERMASTER_FAILPOINT` names contains the name of this
/// step. Stops it until a signal continues it, if "stop" stands before the name. A round reaches each step once, so
/// reading a file is cheap enough.
#[cfg(feature = "failpoints")]
pub fn reach(step: &str) {
    let Some(file) = std::env::var_os("WATERMASTER_FAILPOINT") else { return };
    let Ok(wanted) = std::fs::read_to_string(&file) else { return };
    if wanted == step {
        std::process::abort();
    }
    if wanted.strip_prefix("stop ") == Some(step) {
        std::fs::remove_file(&file).expect("the step is reached once");
        let pid = std::process::id().to_string();
        std::process::Command::new("kill").args(["-STOP", &pid]).status().expect("there is a program kill");
    }
}

/// Returns true if `WATERMASTER_PLANT` names this mistake.
#[cfg(feature = "failpoints")]
pub fn planted(fault: Fault) -> bool {
    std::env::var("WATERMASTER_PLANT").is_ok_and(|name| name == fault.name())
}
