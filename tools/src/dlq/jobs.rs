//! The number of redrive jobs by state.

use std::collections::BTreeMap;

use strum::VariantNames;
use watermaster_kafka::dead_letters::JobPositions;

use super::scope::is_at_end;

/// The state of a job that has dead letters left, or had some at the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum JobState {
    /// The position has moved since the last look.
    Running,
    /// The job stands before its end: it was interrupted, ended by `--limit`, or waits.
    Unfinished,
}

/// The number of jobs for each [`JobState`].
pub type JobCounts = [u64; JobState::VARIANTS.len()];

/// Counts jobs. `before` are the positions at the last look; `None` at the first one, by which no job is seen to move.
pub fn count_jobs(before: Option<&BTreeMap<String, JobPositions>>, now: &BTreeMap<String, JobPositions>) -> JobCounts {
    let mut counts = JobCounts::default();
    for (group, positions) in now {
        if before.is_some_and(|before| before.get(group) != Some(positions)) {
            counts[JobState::Running as usize] += 1;
        } else if !positions.values().all(|(offset, extent)| is_at_end(*offset, extent)) {
            counts[JobState::Unfinished as usize] += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use watermaster_kafka::record::SourceIndex;

    use super::*;

    /// Returns jobs by name, each with the position in a partition whose end is 10.
    fn jobs(all: &[(&str, i64)]) -> BTreeMap<String, JobPositions> {
        let extent = r#"{"end":10,"select":{"conditions":[]},"to":"source"}"#;
        let at = |offset| [((SourceIndex(0), 3), (offset, extent.to_owned()))].into();
        all.iter().map(|(job, offset)| ((*job).to_owned(), at(*offset))).collect()
    }

    #[test]
    fn a_job_that_moves_runs_and_one_that_stands_before_its_end_is_unfinished() {
        let first = jobs(&[("done", 10), ("killed", 4), ("steady", 5), ("last", 9)]);
        assert_eq!(count_jobs(None, &first), [0, 3]);
        let second = jobs(&[("done", 10), ("killed", 4), ("steady", 6), ("last", 10), ("new", 1)]);
        assert_eq!(count_jobs(Some(&first), &second), [3, 1]);
        assert_eq!(count_jobs(Some(&second), &second), [0, 3]);
    }

    #[test]
    fn a_group_of_another_program_is_no_job() {
        let foreign: BTreeMap<String, JobPositions> =
            [("x".to_owned(), [((SourceIndex(0), 0), (3, "lag-checker".to_owned()))].into())].into();
        assert_eq!(count_jobs(None, &foreign), [0, 0]);
    }
}
