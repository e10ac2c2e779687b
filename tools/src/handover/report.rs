//! The result of a handover.

use std::fmt::Write as _;

use serde::Serialize;

use super::plan::PartitionPlan;

/// A partition.
#[derive(Debug, Serialize)]
pub(super) struct PartitionRow {
    topic: String,
    partition: i32,
    /// The committed offsets before the handover.
    watermaster_offset: Option<i64>,
    group_offset: Option<i64>,
    /// The offset of the taking group after it.
    offset: i64,
    /// The number of records that will be done again.
    pub twice: u64,
    /// Offsets from there to the end.
    pub left: u64,
    note: Option<String>,
}

impl PartitionRow {
    pub fn new(
        topic: &str, partition: i32, [watermaster_offset, group_offset]: [Option<i64>; 2], end: i64,
        step: &PartitionPlan, twice: u64,
    ) -> PartitionRow {
        let (offset, note) = (step.offset, step.note.map(|note| note.to_string()));
        let left = u64::try_from(end - offset).unwrap_or(0);
        PartitionRow { topic: topic.to_owned(), partition, watermaster_offset, group_offset, offset, twice, left, note }
    }
}

/// The whole handover.
#[derive(Debug, Serialize)]
pub(super) struct HandoverReport<'a> {
    pub service: &'a str,
    pub watermaster: &'a str,
    pub group: &'a str,
    pub to_group: bool,
    pub executed: bool,
    /// The number of partitions that get another offset.
    pub commits: usize,
    pub twice: u64,
    /// A group is set back: its offsets do not tell whether its consumers did the records before them, or skipped some.
    pub twice_is_upper_bound: bool,
    pub left: u64,
    pub may_repeat_a_round: bool,
    pub consumer_group: Option<&'a str>,
    /// The offsets that `consumer_group` has not committed in each target; `None` if it has committed none.
    pub target_lag: Vec<(String, Option<u64>)>,
    pub partitions: Vec<PartitionRow>,
}

impl HandoverReport<'_> {
    /// Returns the text for people.
    pub fn text(&self, is_refused: bool) -> String {
        let titles = ["topic", "partition", self.watermaster, self.group, "new offset", "twice", "left", ""];
        let mut table = crate::format::table(titles, None, |index| (1..7).contains(&index));
        let offset = |offset: Option<i64>| offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
        for row in &self.partitions {
            let numbers = [row.partition.to_string(), offset(row.watermaster_offset), offset(row.group_offset)];
            let plan = [row.offset.to_string(), row.twice.to_string(), row.left.to_string()];
            let note = row.note.clone().unwrap_or_default();
            table.add_row([row.topic.clone()].into_iter().chain(numbers).chain(plan).chain([note]));
        }
        let takes = if self.to_group { self.group } else { self.watermaster };
        let bound = if self.twice_is_upper_bound { "at most " } else { "" };
        let mut text = format!(
            "{table}\n\n{}: {bound}{} records will be done twice; {} offsets are left for {takes}",
            self.service, self.twice, self.left
        );
        if self.may_repeat_a_round {
            text.push_str("\nwith delivery = \"at_least_once\", a crash repeats the records of one more round");
        }
        for (target, lag) in &self.target_lag {
            let left = lag.map_or_else(|| "nothing yet".to_owned(), |lag| format!("all but {lag} offsets"));
            let group = self.consumer_group.unwrap_or_default();
            _ = write!(text, "\n{target}: {group} has committed {left}; what is left there is in no other topic");
        }
        if is_refused {
            return text;
        }
        match (self.commits, self.executed) {
            (0, _) => text.push_str("\nnothing is left to do: the group has these offsets"),
            (commits, true) => _ = write!(text, "\ndone: {takes} has new offsets in {commits} partitions"),
            (_, false) => {
                let parts = std::env::args_os().map(|part| part.to_string_lossy().into_owned());
                let command = parts.map(|part| if part.contains(' ') { format!("'{part}'") } else { part });
                let command = command.collect::<Vec<_>>().join(" ");
                _ = write!(text, "\nnothing is changed. To hand over:\n{command} --execute");
            }
        }
        text
    }
}
