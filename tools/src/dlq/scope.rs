//! The dead letters that a job is about, and how far it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use watermaster_kafka::dead_letters::{DEFAULT_JOB, Ledger, Positions, Ranges, Reader};

use super::{CONNECT_TIMEOUT, plan::Destination, select::SelectArgs};
use crate::cli::Failure;

/// The options that a job keeps from its begin on.
#[derive(Debug, Clone)]
pub(super) struct JobOptions {
    pub(super) id: String,
    pub(super) select: SelectArgs,
    pub(super) to: Destination,
    /// Send dead letters that are not open, too.
    pub(super) again: bool,
}

/// The extent of a job in one partition. It is kept as the metadata of the job's committed offset, so that a job that
/// goes on later ends where it was to end.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Extent {
    end: i64,
    select: SelectArgs,
    to: Destination,
    /// `None` if a version without a ledger began the job.
    again: Option<bool>,
}

/// Returns whether a version without a ledger committed one of these positions. A process of it may still run: it does
/// not fence others by the id that all jobs have now.
pub(super) fn is_former(committed: &Positions) -> bool {
    let extents = committed.values().filter_map(|(_, text)| serde_json::from_str::<Extent>(text).ok());
    extents.into_iter().any(|extent| extent.again.is_none())
}

/// The part of the dead letters that a job is about.
pub(super) struct Scope {
    pub(super) select: SelectArgs,
    pub(super) again: bool,
    /// The end in each partition, and the text to commit for it.
    pub(super) extents: BTreeMap<i32, (i64, String)>,
    /// The first offset of each partition that is left.
    pub(super) positions: BTreeMap<i32, i64>,
}

impl Scope {
    /// Makes the scope of a job that has not begun.
    pub(super) fn of(options: &JobOptions) -> Scope {
        let (extents, positions) = (BTreeMap::new(), BTreeMap::new());
        Scope { select: options.select.clone(), again: options.again, extents, positions }
    }

    /// Takes the extents of a job that was interrupted, or makes those of a new one. A job that has reached its end
    /// goes on behind it with the same selection; with `again`, it begins anew.
    pub(super) fn find(
        reader: &Reader, ledger: &Ledger, options: &JobOptions, committed: Positions,
    ) -> Result<Scope, Failure> {
        let foreign = |_| Failure::stopped("the group of this job has offsets of another program");
        let mut begun = BTreeMap::new();
        for (partition, (offset, text)) in committed {
            let extent: Extent = serde_json::from_str(&text).map_err(foreign)?;
            begun.insert(partition, (offset, text, extent));
        }
        let is_done = begun.values().all(|(offset, _, extent)| *offset >= extent.end);
        // Former versions let the job of all dead letters have a selection.
        let is_default = is_done && options.id == DEFAULT_JOB;
        if is_default && !begun.values().all(|(.., extent)| extent.select.is_everything()) {
            begun.clear();
        }
        let mut scope = Scope::of(options);
        for (_, _, extent) in begun.values() {
            let is_other = extent.to != options.to || options.again && extent.again != Some(true);
            if !options.select.continues(&extent.select) || !is_done && is_other {
                return Err(Failure::usage(
                    "this job was begun with other options: leave the selection and --again out, give the --to that it \
                     was begun with, or use another --job",
                ));
            }
            scope.select.clone_from(&extent.select);
            scope.select.limit = options.select.limit;
            scope.again = options.again || !is_done && extent.again == Some(true);
        }
        if !is_done {
            for (partition, (offset, text, extent)) in begun {
                scope.extents.insert(partition, (extent.end, text));
                scope.positions.insert(partition, offset);
            }
            return Ok(scope);
        }
        for (partition, range) in scope.select.ranges(reader, CONNECT_TIMEOUT)? {
            let (select, to, again) = (scope.select.clone(), options.to, Some(scope.again));
            let text = serde_json::to_string(&Extent { end: range.end, select, to, again });
            scope.extents.insert(partition, (range.end, text.map_err(Failure::usage)?));
            let start = match begun.get(&partition) {
                _ if scope.again => range.start,
                begun => ledger.first_open(partition, range.start.max(begun.map_or(0, |(offset, ..)| *offset))),
            };
            scope.positions.insert(partition, start.min(range.end).max(range.start));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs that an earlier program began have these texts in Kafka, and go on with this one; names and order stay.
    #[test]
    fn the_text_of_an_extent_stays() {
        let texts = [
            r#"{"end":9,"select":{"conditions":[],"since":null,"until":null,"partition":null,"offsets":null},"to":"source","again":false}"#,
            r#"{"end":9,"select":{"conditions":[{"reason":"expired"},{"client":"a"},{"topic":"t"}],"since":1,"until":2,"partition":3,"offsets":{"start":4,"end":5}},"to":"target","again":true}"#,
        ];
        for text in texts {
            let extent: Extent = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&extent).unwrap(), text);
        }
        let former = r#"{"end":9,"select":{"conditions":[],"since":null},"to":"source"}"#;
        let extent: Extent = serde_json::from_str(former).unwrap();
        assert!(extent.select.is_everything() && extent.again.is_none());
    }
}
