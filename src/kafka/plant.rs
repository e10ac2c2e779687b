//! Mistakes in what is committed, which `scripts/chaos --teeth` asks for: the oracle has to find each.

use std::borrow::Cow;

use watermaster_core::offset_map::{self, MapBudget};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_core::tracker::Tracker;

use super::consumer::PartitionCommit;
use crate::failpoint::{Fault, planted};

/// Offset and metadata as they are to be committed.
pub(super) fn damaged(commit: &PartitionCommit) -> (i64, Cow<'_, str>) {
    let mut base = commit.offset;
    if !planted(Fault::EmptyMap) && !planted(Fault::OffsetOffByOne) {
        return (base, Cow::Borrowed(&commit.metadata));
    }
    let Ok(mut map) = offset_map::decode(base, commit.metadata.as_bytes()) else {
        return (base, Cow::Borrowed(&commit.metadata));
    };
    if planted(Fault::EmptyMap) {
        map.completed = OffsetRuns::new();
    } else if !map.completed.is_empty() {
        // Where the next record exists: an offset beyond the end would be noticed by whoever starts there.
        base += 1;
        map.completed = map.completed.iter().filter(|run| run.end > base).collect();
    }
    let tracker = Tracker::restore(base, &map.completed);
    // One slice a second: the exact width matters to nobody here.
    let metadata = offset_map::encode(MapBudget::default(), &tracker, 1_000, &map.admitted).unwrap_or_default();
    (tracker.base(), Cow::Owned(metadata))
}
