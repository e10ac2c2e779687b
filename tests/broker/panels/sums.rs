//! The queries whose series add up to one capacity, not to one for each instance, where two instances share it.

use super::prometheus::Prometheus;
use super::question::Run;
use super::stage::{REJECTS, SHARED, SHARED_CAPACITY};
use crate::support::board::{Board, list, text};

/// A query for a service with two instances.
pub struct Sum {
    place: String,
    expression: String,
    service: &'static str,
}

/// Returns the queries for the capacity, the grants and the held parts. Only mode `reject` grants whole records at each
/// instance.
pub fn questions(boards: &[Board]) -> Vec<Sum> {
    let capacities = [
        ("watermaster-service", 10, "C"),
        ("watermaster-service", 12, "B"),
        ("watermaster-service", 13, "B"),
        ("watermaster-service", 51, "A"),
        ("watermaster-service", 57, "A"),
        ("watermaster-capacity-planning", 3, "A"),
        ("watermaster-capacity-planning", 8, "C"),
        ("watermaster-platform", 29, "A"),
    ];
    let grants = [("watermaster-service", 13, "A"), ("watermaster-capacity-planning", 17, "A")];
    let all = capacities.iter().flat_map(|query| SHARED.map(|service| (query, service)));
    all.chain(grants.iter().map(|query| (query, REJECTS)))
        .map(|(query, service)| Sum::of(boards, query, service))
        .collect()
}

impl Sum {
    fn of(boards: &[Board], &(board, panel, query): &(&str, u64, &str), service: &'static str) -> Sum {
        let board = boards.iter().find(|found| found.uid() == board).expect("the board exists");
        let panel = board.panels().find(|found| found.id() == panel).expect("the panel exists");
        let target = panel.targets().find(|target| text(&target["refId"]) == query).expect("the query exists");
        let place = format!("{} › {}, query {query}, service {service}", board.name(), panel.title());
        Sum { place, expression: text(&target["expr"]).to_owned(), service }
    }

    /// Sends the query; the error says how far its series are from the capacity.
    pub fn ask(&self, prometheus: &Prometheus, run: Run) -> Result<(), String> {
        let expression = run.substitute(&self.expression, self.service);
        let data = prometheus.ask("query", &[("query", &expression)])?;
        let values = list(&data["result"]).map(|series| text(&series["value"][1]).parse::<f64>().unwrap_or(f64::NAN));
        let sum: f64 = values.sum();
        let is_right = (sum - SHARED_CAPACITY as f64).abs() < 0.5;
        is_right.then_some(()).ok_or_else(|| format!("{}: {sum}, not {SHARED_CAPACITY}: {expression}", self.place))
    }
}
