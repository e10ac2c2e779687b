//! Ways to die and mistakes to make on demand, for `scripts/chaos`. Without the feature `failpoints` nothing here does anything.

/// The one list of mistakes, each with the name by which it is asked for.
macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal,)*) => {
        /// A mistake that the oracle has to find.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$fault),*];

            /// What `WATERMASTER_PLANT` and `scripts/chaos --plants` call it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Fault::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// The map of what is completed out of order is not committed.
    EmptyMap = "empty_map",
    /// Offsets are committed by nobody in particular.
    UnfencedGroupMetadata = "unfenced_group_metadata",
    /// Open transactions are not waited for.
    ReadUncommitted = "read_uncommitted",
    /// What belonged to a revoked partition is kept.
    NoPurgeOnRevoke = "no_purge_on_revoke",
    /// A record that did not arrive counts as sent.
    IgnoredSendError = "ignored_send_error",
    /// Offsets are committed by themselves, before the outputs.
    OffsetsOutsideTransaction = "offsets_outside_transaction",
    /// One offset too many is committed.
    OffsetOffByOne = "offset_off_by_one",
    /// A producer whose connection broke is used on.
    NoTaint = "no_taint",
}

#[cfg(not(feature = "failpoints"))]
mod imp {
    use super::Fault;

    /// A step that was reached.
    #[inline(always)]
    pub fn reach(_step: &str) {}

    /// Whether this mistake is to be made.
    #[inline(always)]
    pub const fn planted(_fault: Fault) -> bool {
        false
    }
}

#[cfg(feature = "failpoints")]
mod imp {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use super::Fault;

    /// Ends the process, as a power cut would, once the file that `WATERMASTER_FAILPOINT` names holds the name of this step.
    /// A round reaches each step once, so a look at a file costs nothing that matters here.
    pub fn reach(step: &str) {
        static ORDERS: OnceLock<Option<PathBuf>> = OnceLock::new();
        let orders = ORDERS.get_or_init(|| std::env::var_os("WATERMASTER_FAILPOINT").map(PathBuf::from));
        if let Some(orders) = orders
            && std::fs::read_to_string(orders).is_ok_and(|wanted| wanted == step)
        {
            std::process::abort();
        }
    }

    /// Whether `WATERMASTER_PLANT` names this mistake.
    pub fn planted(fault: Fault) -> bool {
        static PLANTED: OnceLock<Option<String>> = OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("WATERMASTER_PLANT").ok()).as_deref() == Some(fault.name())
    }
}

pub use imp::{planted, reach};
