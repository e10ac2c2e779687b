//! The families that have a label `client`, written from the labels of every service at each scrape.

use watermaster_core::reason::Reason;

use super::fold::{Levels, Tally, TallyHalf};
use super::series::ServiceSeries;
use super::table::{self, Metric};
use super::text::{write_head, write_sample};

type HalfOf = for<'a> fn(&'a Tally) -> TallyHalf<'a>;

/// Families of decisions: what was really done, then what would have been done.
const HALVES: [(HalfOf, &Metric, &Metric, &Metric); 2] = [
    (Tally::done, &table::RECORDS, &table::REJECTED, &table::DELAYED),
    (Tally::shadow, &table::SHADOW_RECORDS, &table::SHADOW_REJECTED, &table::SHADOW_DELAYED),
];

type LevelOf = fn(&Levels) -> f64;

/// Gauges, and where the value of each is found.
const LEVELS: [(&Metric, LevelOf); 6] = [
    (&table::WANTS, |levels| levels.wants as f64),
    (&table::GRANTED, |levels| levels.granted as f64),
    (&table::DEFAULT_SHARE, |levels| levels.default_share),
    (&table::CLIENT_LIMIT, |levels| levels.limit.map_or(f64::INFINITY, |limit| limit as f64)),
    (&table::BACKLOG_RECORDS, |levels| levels.backlog as f64),
    (&table::SHADOW_BACKLOG, |levels| levels.shadow_backlog as f64),
];

/// Writes all of them.
pub(super) fn write<'a>(out: &mut String, services: impl Iterator<Item = (&'a String, &'a ServiceSeries)>) {
    let labels: Vec<_> = services
        .flat_map(|(service, series)| {
            series.clients().map(move |(client, tally, levels)| (service, client, tally, levels))
        })
        .collect();
    for (half, records, rejected, delayed) in HALVES {
        write_head(out, records);
        for (service, client, tally, _) in &labels {
            let half = half(tally);
            for (decision, count) in [("admitted", half.admitted()), ("rejected", half.rejected())] {
                let labels = [("service", service.as_str()), ("client", client), ("decision", decision)];
                write_sample(out, records.name, &labels, count);
            }
        }
        write_head(out, rejected);
        for (service, client, tally, _) in &labels {
            for (reason, count) in Reason::ALL.iter().zip(half(tally).reasons()) {
                let labels = [("service", service.as_str()), ("client", client), ("reason", reason.as_str())];
                write_sample(out, rejected.name, &labels, count);
            }
        }
        write_head(out, delayed);
        for (service, client, tally, _) in &labels {
            write_sample(out, delayed.name, &[("service", service), ("client", client)], half(tally).delayed());
        }
    }
    for (metric, value_of) in LEVELS {
        write_head(out, metric);
        for (service, client, _, levels) in &labels {
            let labels = [("service", service.as_str()), ("client", client)];
            match value_of(levels) {
                f64::INFINITY => write_sample(out, metric.name, &labels, "+Inf"),
                value => write_sample(out, metric.name, &labels, value),
            }
        }
    }
}
