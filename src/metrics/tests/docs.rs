//! `docs/metrics.md`, generated from the table.

use std::fmt::Write;

use crate::metrics::table::{Metric, TABLE, Unit};
use crate::rules::{CHANGE_RESULTS, CHANGE_VERBS, UNREADABLE};
use crate::tests::assert_current;
use watermaster_core::delays::{BOUNDS, CLIENT_BOUNDS};

const HEAD: &str = "\
# Metrics

This page is generated from the table in `src/metrics/table.rs`; `UPDATE_DOCS=1 cargo test --lib metrics` rewrites it.

`GET /metrics` returns these metrics in Prometheus' text format. Each metric exists from the start, at 0, with every
known value of its labels. Counters never decrease while the process lives. `units` are records per cycle.

Beyond 8 192 clients of a service, the first 1 024 clients, configured clients before all others, are always current, here
and at `/v1/services`. The others take turns: of 100 000 clients none is more than 14 rounds old. Sums over all
clients and `_other` never decrease.

A wait below one commit interval is no delay in the histograms with the label `client`. `watermaster_delayed_total` counts
every record that entered a backlog. For the client `_other`, `watermaster_client_oldest_seconds` is the largest age.

Brokers are asked for `watermaster_source_partitions` and `watermaster_target_lag_records` every 10 s. Without an answer,
the number of partitions stays as it is, the lag vanishes, and the log says why. The lag exists only with `consumer_group`,
while that group has a committed offset, the metrics of the search for the capacity only with `[service.pace]`
([pace.md](pace.md)). `watermaster_dead_letter_*` are missing while unknown ([dead-letters.md](dead-letters.md#metrics)).
`watermaster_engine_busy_seconds_total` grows by at most one second a second: near that, the engine is at its limit.

";

/// Returns the page.
fn markdown() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| name | kind | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for metric in TABLE {
        let Metric { name, kind, unit, labels, help, .. } = metric;
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        let _ = writeln!(page, "| `{name}` | {} | {} | {labels} | {help} |", kind.into_str(), unit_text(*unit));
    }
    push_labels(&mut page);
    push_buckets(&mut page);
    page
}

fn unit_text(unit: Unit) -> &'static str {
    match unit {
        Unit::Records => "records",
        Unit::Seconds => "seconds",
        Unit::Bytes => "bytes",
        Unit::Ratio => "ratio (0 to 1)",
        Unit::Bool => "0 or 1",
        Unit::Count => "count",
    }
}

fn push_labels(page: &mut String) {
    page.push_str(
        "
## Labels

| label | values |
|---|---|
| `service` | the name of the service |
| `client` | Each configured client has a label, of 10 000 at most. Of the other clients, the first `admin.metrics_clients` \
of a service get one. Later, a client that keeps sending takes over the label of the unlisted client that has been \
idle longest, for at least two cycles. `_other` counts all other clients, \
records of no client, and clients that lost their label. |
| `group` | a group of clients: each configured one, and `admin.metrics_clients` of those that rules make of the names \
in records; `_other`: the sum of the other groups; `_unlisted`: the clients that are not configured |
| `topic`, `partition` | of a source; the series of a partition vanish when the partition is revoked |
| `decision` | `admitted`, `rejected` |
| `consumer_group` | the service's `consumer_group`, which reads its target |
| `hash` | sixteen hexadecimal digits, as `GET /v1/config` shows them; `instance_id`, \
`admin.listen`, `client.id`, `client.rack` and hidden values do not count |
| `mode` | `shape`, `reject` |
| `reason` of a rejection | [the reasons](dead-letters.md#reasons) of dead letters |
",
    );
    for (label, of, name) in [
        ("reason", "a paused partition", "paused_partitions"),
        ("cause", "an allocation", "allocations_total"),
        ("cause", "a change of the found capacity", "capacity_changes_total"),
        ("direction", "such a change", "capacity_changes_total"),
        ("state", "the search for the capacity", "pace_state"),
        ("cause", "a producer's replacement", "producer_recreations_total"),
        ("outcome", "a round", "rounds_total"),
        ("outcome", "a request to the schema registry", "schema_requests_total"),
        ("phase", "a round", "round_phase_seconds"),
        ("class", "an error", "transaction_errors_total"),
        ("found", "a record", "resynced_records_total"),
        ("state", "a rule", "rules"),
    ] {
        let metric = TABLE.iter().find(|metric| metric.name == format!("watermaster_{name}")).unwrap();
        push_values(page, label, of, metric.values.iter().find(|(name, _)| *name == label).unwrap().1);
    }
    push_values(page, "verb", "a change of a rule", &[&CHANGE_VERBS[..], &[UNREADABLE.0]].concat());
    push_values(page, "result", "a change of a rule", &[&CHANGE_RESULTS[..], &[UNREADABLE.1]].concat());
}

fn push_values(page: &mut String, label: &str, of: &str, values: &[&str]) {
    let _ = writeln!(page, "| `{label}` of {of} | `{}` |", values.join("`, `"));
}

fn push_buckets(page: &mut String) {
    let listed = |bounds: &[f64]| bounds.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    let (all, of_clients) = (listed(&BOUNDS), listed(&CLIENT_BOUNDS));
    let _ = writeln!(
        page,
        "\n## Buckets\n\nThe upper bounds of the buckets of histograms with the label `client`, in seconds: \
         {of_clients}.\nThose of all other histograms: {all}."
    );
}

/// The page about metrics that no dashboard shows.
fn uncharted() -> String {
    let mut page = "# Metrics on no dashboard, and why\n\nThe dashboards in `dashboards/` show every other metric of \
                    [docs/metrics.md](../docs/metrics.md). A test checks this.\n\n| metric | reason |\n|---|---|\n"
        .to_owned();
    for (metric, why) in TABLE.iter().filter_map(|metric| Some((metric, metric.uncharted?))) {
        let _ = writeln!(page, "| `{}` | {why} |", metric.name);
    }
    page
}

#[test]
fn pages_about_metrics_are_current() {
    assert_current("docs/metrics.md", &markdown());
    assert_current("grafana/not-charted.md", &uncharted());
}
