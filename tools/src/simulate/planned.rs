//! Traffic that a scenario plans: the records that `watermaster load` would send, as a trace.

use itertools::Itertools as _;
use watermaster_settings::Service;
use watermaster_settings::config::ConfigErrors;

use crate::load::plan::{Plan, PlannedClient};
use crate::load::scenario::{RetryPolicy, Scenario};
use crate::load::schedule::schedule;
use crate::trace_file::reader::TraceSource;
use crate::trace_file::{Contents, TraceError, TraceRecord, TraceWriter, TracedPartition};

/// The partitions of each topic. A key decides which one a record goes to.
const PARTITIONS: u32 = 4;
/// The time at which a scenario begins: 2000-01-01, in milliseconds since 1970.
pub const START_MS: u64 = 946_684_800_000;
/// The memory for a delayed record beyond its value: key, header and bookkeeping.
const BESIDE_VALUE_BYTES: u32 = 250;

/// Records that are planned, and the retries of their clients.
pub struct Planned {
    pub trace: TraceSource,
    plan: Plan,
}

impl Planned {
    /// Plans the first attempts of a scenario, from [`START_MS`] on.
    ///
    /// # Errors
    /// No source of the service admits a client.
    pub fn new(scenario: &Scenario, service: &Service) -> Result<Planned, ConfigErrors> {
        let plan = Plan::new(scenario, service)?;
        let trace = trace(&plan, service).expect("memory can be written");
        Ok(Planned { trace: TraceSource::Memory(trace.into()), plan })
    }

    /// Returns how a client retries.
    pub fn retry_of(&self, name: &str) -> Option<RetryPolicy> {
        self.plan.clients.iter().find(|client| client.load.id == name)?.load.retry
    }
}

/// Writes the first attempts of a plan.
fn trace(plan: &Plan, service: &Service) -> Result<Vec<u8>, TraceError> {
    let partition = |(topic, number): (&String, u32)| TracedPartition {
        topic: topic.clone(),
        number: number as i32,
        ..TracedPartition::default()
    };
    let partitions = plan.topics.iter().cartesian_product(0..PARTITIONS).map(partition).collect();
    let contents = Contents { service: service.name.clone(), partitions, ..Contents::default() };
    let mut writer = TraceWriter::new(Vec::new(), contents)?;
    let numbers: Vec<u32> = plan.clients.iter().map(|client| writer.client(&client.load.id)).collect();
    for attempt in schedule(plan) {
        let PlannedClient { topic, .. } = plan.clients[attempt.client];
        writer.push(TraceRecord {
            at_ms: START_MS + attempt.due.as_millis() as u64,
            client: numbers[attempt.client],
            partition: topic as u32 * PARTITIONS + attempt.shape.key % PARTITIONS,
            bytes: attempt.shape.value_bytes + BESIDE_VALUE_BYTES,
            retried: false,
        })?;
    }
    Ok(writer.finish()?.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::load::plan::tests::service;

    #[test]
    fn a_scenario_becomes_a_trace() {
        let text = "seed = 3\n[[client]]\nid = \"a\"\nvalue_bytes = 50\n\
                    [[client.phase]]\nkind = \"steady\"\nrate = \"50%\"\nfor = \"10s\"\n\
                    [[client]]\nid = \"b\"\nretry = { backoff = \"1s\" }\n\
                    [[client.phase]]\nkind = \"burst\"\nrecords = 30\nfor = \"1s\"\n";
        let scenario = Scenario::parse(text, Path::new("s.toml")).unwrap();
        let service = service("[\"header:client-id\"]", "[[service.source]]\ntopic = \"in\"\n");
        let planned = Planned::new(&scenario, &service).unwrap();
        let due: Vec<_> = schedule(&Plan::new(&scenario, &service).unwrap()).map(|attempt| attempt.due).collect();
        let (mut trace, mut records) = (planned.trace.open().unwrap(), Vec::new());
        assert!(trace.next_block(&mut records).unwrap());
        let times: Vec<_> = records.iter().map(|record| Duration::from_millis(record.at_ms - START_MS)).collect();
        assert!(times.iter().zip(&due).all(|(at, due)| due.abs_diff(*at) < Duration::from_millis(1)));
        assert_eq!((times.len(), &trace.contents().clients[..]), (due.len(), &["a".to_owned(), "b".to_owned()][..]));
        assert!(records.iter().any(|record| record.bytes == 50 + BESIDE_VALUE_BYTES && record.partition == 3));
        assert_eq!(planned.retry_of("a"), None);
        assert_eq!(planned.retry_of("b").map(|retry| retry.attempts), Some(5));
    }
}
