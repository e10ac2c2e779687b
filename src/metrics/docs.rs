//! `docs/metrics.md`, made from the table.

use std::fmt::Write;

use super::table::{Metric, TABLE};
use crate::snapshot::{ALLOCATION_CAUSES, PAUSE_REASONS, PRODUCER_CAUSES, RESYNCED, ROUND_OUTCOMES};
use watermaster_core::delays::BOUNDS;
use watermaster_core::delivery::{ErrorClass, Phase};
use watermaster_core::reason::Reason;

const HEAD: &str = "\
# Metrics

Made from the table in `src/metrics/table.rs`; `UPDATE_DOCS=1 cargo test --lib metrics` rewrites it.

`GET /metrics` serves these in Prometheus' text format. Each exists from the start, at 0, with every known value of its
labels. Counters count since the process started and never decrease. Counts are records, also where the name says
`units`: those are measured per cycle.

Beyond 8 192 clients of a service, what is shown of them, here and at `/v1/services`, may be of different moments: the first 1 024 to
come, the configured ones before all, are shown as they are, the others take turns, 7 168 with each round (and each half second). Of
100 000 clients one is at most 14 rounds old. Sums over all clients and `_other` never decrease and never exceed what was decided.

";

/// The page, as it should be.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| name | kind | unit | labels | tells |\n|---|---|---|---|---|\n");
    for metric in TABLE {
        let Metric { name, kind, unit, labels, help, .. } = metric;
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        let _ = writeln!(page, "| `{name}` | {} | {} | {labels} | {help} |", kind.as_str(), unit.as_str());
    }
    push_labels(&mut page);
    push_buckets(&mut page);
    page
}

fn push_labels(page: &mut String) {
    page.push_str(
        "
## Labels

| label | values |
|---|---|
| `service` | the service's name |
| `client` | configured clients, and up to `admin.metrics_clients` labels for each service that the first other ids to come get; when all are given, a client that keeps sending takes over the label of the other client that has been idle longest, at least two cycles; `_other`: all others, records of no client, and the counts of clients that lost their label |
| `topic`, `partition` | of a source; those of a partition vanish when it is revoked |
| `decision` | `admitted`, `rejected` |
| `mode` | `shape`, `reject` |
",
    );
    let reasons = Reason::ALL.map(Reason::as_str);
    push_values(page, "`reason` of a rejection", &reasons);
    push_values(page, "`reason` of a paused partition", PAUSE_REASONS);
    push_values(page, "`cause` of an allocation", ALLOCATION_CAUSES);
    push_values(page, "`cause` of a producer's replacement", PRODUCER_CAUSES);
    push_values(page, "`outcome` of a round", ROUND_OUTCOMES);
    push_values(page, "`phase` of a round", &Phase::NAMES);
    push_values(page, "`class` of an error", &ErrorClass::NAMES);
    push_values(page, "`found` of a record", &RESYNCED);
}

fn push_values(page: &mut String, label: &str, values: &[&str]) {
    let _ = writeln!(page, "| {label} | `{}` |", values.join("`, `"));
}

fn push_buckets(page: &mut String) {
    let bounds: Vec<_> = BOUNDS.iter().map(f64::to_string).collect();
    let _ = writeln!(page, "\n## Buckets\n\nOf every histogram, in seconds: {}.", bounds.join(", "));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, markdown()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == markdown(), "docs/metrics.md differs from the table; UPDATE_DOCS=1 rewrites it");
    }
}
