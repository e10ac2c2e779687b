//! Ends the process at a given step, and names the mistakes that can be planted, for `scripts/chaos`. Does nothing
//! without the feature `failpoints`.

/// Declares the mistakes, each with the name that asks for it.
macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal,)*) => {
        /// A mistake that the oracle of `scripts/chaos --teeth` has to find.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All mistakes.
            pub const ALL: &[Fault] = &[$(Fault::$fault),*];

            /// The name in `WATERMASTER_PLANT` and `scripts/chaos --plants`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Fault::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// Commits the offset without the map of records completed out of order.
    EmptyMap = "empty_map",
    /// Commits offsets without generation and member id.
    UnfencedGroupMetadata = "unfenced_group_metadata",
    /// Reads records of open and aborted transactions.
    ReadUncommitted = "read_uncommitted",
    /// Keeps the records of a revoked partition.
    NoPurgeOnRevoke = "no_purge_on_revoke",
    /// Counts a record that did not arrive as sent.
    IgnoredSendError = "ignored_send_error",
    /// Commits offsets outside of the transaction, before the outputs.
    OffsetsOutsideTransaction = "offsets_outside_transaction",
    /// Commits one offset too many.
    OffsetOffByOne = "offset_off_by_one",
    /// Keeps a producer after its connection broke.
    NoTaint = "no_taint",
}

#[cfg(not(feature = "failpoints"))]
mod imp {
    use super::Fault;

    /// Marks a step.
    #[inline(always)]
    pub fn reach(_step: &str) {}

    /// Returns true if this mistake is planted.
    #[inline(always)]
    pub const fn planted(_fault: Fault) -> bool {
        false
    }
}

#[cfg(feature = "failpoints")]
mod imp {
    use std::{path::PathBuf, sync::OnceLock};

    use super::Fault;

    /// Ends the process, as a power cut would, if the file that `WATERMASTER_FAILPOINT` names contains the name of this
    /// step. A round reaches each step once, so reading a file is cheap enough.
    pub fn reach(step: &str) {
        static STEP_FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
        let step_file = STEP_FILE.get_or_init(|| std::env::var_os("WATERMASTER_FAILPOINT").map(PathBuf::from));
        if let Some(step_file) = step_file
            && std::fs::read_to_string(step_file).is_ok_and(|wanted| wanted == step)
        {
            std::process::abort();
        }
    }

    /// Returns true if `WATERMASTER_PLANT` names this mistake.
    pub fn planted(fault: Fault) -> bool {
        static PLANTED: OnceLock<Option<String>> = OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("WATERMASTER_PLANT").ok()).as_deref() == Some(fault.name())
    }
}

pub use imp::{planted, reach};
