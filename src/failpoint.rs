//! Ways to die and mistakes to make on demand, for `scripts/chaos`. Without the feature `failpoints` nothing here does anything.

/// A mistake that the oracle has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The map of what is completed out of order is not committed.
    EmptyMap,
    /// Offsets are committed by nobody in particular.
    UnfencedGroupMetadata,
    /// Open transactions are not waited for.
    ReadUncommitted,
    /// What belonged to a revoked partition is kept.
    NoPurgeOnRevoke,
    /// A record that did not arrive counts as sent.
    IgnoredSendError,
    /// Offsets are committed by themselves, before the outputs.
    OffsetsOutsideTransaction,
    /// One offset too many is committed.
    OffsetOffByOne,
    /// A producer whose connection broke is used on.
    NoTaint,
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
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Fault;

    /// Ends the process, as a power cut would, when `WATERMASTER_FAILPOINT=<step>:<n>` names the step for the n-th time.
    pub fn reach(step: &str) {
        static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
        static REACHED: AtomicU64 = AtomicU64::new(0);
        let wanted = WANTED.get_or_init(|| {
            let text = std::env::var("WATERMASTER_FAILPOINT").ok()?;
            let (name, nth) = text.split_once(':')?;
            Some((name.to_owned(), nth.parse().ok()?))
        });
        if let Some((name, nth)) = wanted
            && name == step
            && REACHED.fetch_add(1, Ordering::Relaxed) + 1 == *nth
        {
            std::process::abort();
        }
    }

    /// Whether `WATERMASTER_PLANT` names this mistake.
    pub fn planted(fault: Fault) -> bool {
        static PLANTED: OnceLock<Option<String>> = OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("WATERMASTER_PLANT").ok()).as_deref() == Some(fault.name())
    }

    impl Fault {
        fn name(self) -> &'static str {
            match self {
                Fault::EmptyMap => "empty_map",
                Fault::UnfencedGroupMetadata => "unfenced_group_metadata",
                Fault::ReadUncommitted => "read_uncommitted",
                Fault::NoPurgeOnRevoke => "no_purge_on_revoke",
                Fault::IgnoredSendError => "ignored_send_error",
                Fault::OffsetsOutsideTransaction => "offsets_outside_transaction",
                Fault::OffsetOffByOne => "offset_off_by_one",
                Fault::NoTaint => "no_taint",
            }
        }
    }
}

pub use imp::{planted, reach};
