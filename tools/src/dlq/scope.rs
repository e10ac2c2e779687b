//! The dead letters that a job is about, and how far it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use watermaster_kafka::dead_letters::{Positions, Ranges, Reader};

use super::{CONNECT_TIMEOUT, DlqError, plan::Destination, select::SelectArgs};

/// The extent of a job in one partition. It is kept as the metadata of the job's committed offset, so that a job that
/// goes on later ends where it was to end.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Extent {
    end: i64,
    select: SelectArgs,
    to: Destination,
}

/// Returns whether a job has reached its end in a partition, by its committed offset and the metadata; also if another
/// program committed it.
pub(super) fn is_at_end(offset: i64, extent: &str) -> bool {
    serde_json::from_str(extent).map_or(true, |extent: Extent| offset >= extent.end)
}

/// The part of the dead letters that a job is about.
pub(super) struct Scope {
    pub(super) select: SelectArgs,
    /// The end in each partition, and the text to commit for it.
    pub(super) extents: BTreeMap<i32, (i64, String)>,
    /// The first offset of each partition that is left.
    pub(super) positions: BTreeMap<i32, i64>,
}

impl Scope {
    /// Takes the extents of a job that was interrupted, or makes those of a new one. A job that has reached its end
    /// begins anew behind it.
    pub(super) fn find(
        reader: &Reader, select: &SelectArgs, to: Destination, committed: Positions,
    ) -> Result<Scope, DlqError> {
        let foreign = |_| DlqError::Stopped("the group of this job has offsets of another program".to_owned());
        let mut begun = BTreeMap::new();
        for (partition, (offset, text)) in committed {
            let extent: Extent = serde_json::from_str(&text).map_err(foreign)?;
            begun.insert(partition, (offset, text, extent));
        }
        let mut scope = Scope { select: select.clone(), extents: BTreeMap::new(), positions: BTreeMap::new() };
        if begun.values().all(|(offset, _, extent)| *offset >= extent.end) {
            for (partition, range) in select.ranges(reader, CONNECT_TIMEOUT)? {
                let extent = Extent { end: range.end, select: select.clone(), to };
                let text = serde_json::to_string(&extent).map_err(|error| DlqError::Usage(error.to_string()))?;
                scope.extents.insert(partition, (range.end, text));
                let begun = begun.get(&partition).map_or(0, |(offset, ..)| *offset);
                scope.positions.insert(partition, range.start.max(begun));
            }
            return Ok(scope);
        }
        for (partition, (offset, text, extent)) in begun {
            if extent.to != to || !select.continues(&extent.select) {
                let text =
                    "this job was interrupted and begun with other options: leave them out, or use another --job";
                return Err(DlqError::Usage(text.to_owned()));
            }
            scope.select = SelectArgs::clone(&extent.select);
            scope.select.limit = select.limit;
            scope.extents.insert(partition, (extent.end, text));
            scope.positions.insert(partition, offset);
        }
        Ok(scope)
    }

    /// Returns the offsets that are left.
    pub(super) fn ranges(&self) -> Ranges {
        let range = |(partition, (end, _)): (&i32, &(i64, String))| (*partition, self.positions[partition]..*end);
        self.extents.iter().map(range).collect()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.ranges().values().all(|range| range.is_empty())
    }
}
