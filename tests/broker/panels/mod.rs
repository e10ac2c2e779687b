//! Runs every query of every panel on a real Prometheus that scrapes a running Watermaster: each query returns data for
//! the scenario that [`placed`] assigns to its panel.

mod placed;
pub mod prometheus;
mod question;
mod stage;
mod sums;

use std::time::{Duration, Instant};

use serde_json::Value;

use self::placed::{Needs, needs};
use self::prometheus::{Prometheus, SCRAPE};
use self::question::{Question, Run};
use self::stage::{CAMPAIGN, CLIENT, SERVICES, Stage};
use self::sums::Sum;
use crate::support::board::{Board, text};

/// The time in which every query must return data. The campaign takes less than half of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs a real Kafka and Prometheus: scripts/test"]
fn every_panel_shows_data() {
    let boards = Board::all();
    let (panels, annotations) = (questions_of_panels(&boards), questions_of_annotations(&boards));
    let counts = [boards.iter().flat_map(Board::panels).count(), panels.len(), annotations.len()];
    let ports = Stage::ports();
    let addresses = Stage::addresses(ports);
    let run = Run::start();
    let prometheus = Prometheus::start(&addresses, Some(SCRAPE));
    let mut stage = Stage::start(ports);
    // A rate omits the increase of a counter before the first scrape.
    until_answered(&mut stage, "the first instance", || all_ready(&prometheus, &addresses[..1]));
    stage.fence();
    stage.join();
    let sums = sums::questions(&boards);
    until_answered(&mut stage, "the second instance", || all_ready(&prometheus, &addresses));
    let mut open: Vec<&Sum> = sums.iter().collect();
    until_answered(&mut stage, "sums over two instances", || {
        let mut complaints = Vec::new();
        open.retain(|sum| sum.ask(&prometheus, run).map_err(|why| complaints.push(why)).is_err());
        complaints
    });
    let mut open = panels;
    until_answered(&mut stage, "panels, variables and rules", || {
        let mut complaints = still_open(&mut open, &prometheus, run);
        complaints.extend(unanswered_variables(&boards, &prometheus, run, &addresses));
        complaints.extend(unhealthy_rules(&prometheus));
        complaints
    });
    stage.reload();
    let mut open = annotations;
    until_answered(&mut stage, "the annotations", || still_open(&mut open, &prometheus, run));
    stage.end();
    let [panels, queries, annotations] = counts;
    let sums = sums.len();
    eprintln!(
        "{panels} panels, {queries} queries, {annotations} annotations: all returned data; {sums} sums are right"
    );
}

fn questions_of_panels(boards: &[Board]) -> Vec<Question> {
    let panels = boards.iter().flat_map(|board| board.panels().map(move |panel| (board, panel)));
    let questions = panels.flat_map(|(board, panel)| {
        let needs = needs(board.uid(), panel.id(), panel.targets().count());
        let needs = needs.unwrap_or_else(|| panic!("{}", panel.problem("not placed in tests/broker/panels/placed.rs")));
        let place = format!("{} › {} ({})", board.name(), panel.title(), panel.id());
        panel.targets().zip(needs).map(move |(target, needs)| Question::of_target(place.clone(), target, needs))
    });
    questions.collect()
}

fn questions_of_annotations(boards: &[Board]) -> Vec<Question> {
    let annotations = boards.iter().flat_map(|board| board.annotations().map(move |one| (board, one)));
    let question = |(board, annotation): (&Board, &Value)| {
        let place = format!("{} › annotation {}", board.name(), text(&annotation["name"]));
        Question::of_annotation(place, annotation, Needs::Filled(CAMPAIGN))
    };
    annotations.map(question).collect()
}

/// Calls `complaints` once per scrape interval until it returns none.
fn until_answered(stage: &mut Stage, what: &str, mut complaints: impl FnMut() -> Vec<String>) {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    loop {
        stage.assert_well();
        let left = complaints();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: incomplete after {ANSWER_TIMEOUT:?}:\n{}\n", left.join("\n"));
        std::thread::sleep(SCRAPE);
    }
}

/// Asks the open questions and removes those with an answer: a value need not stay above zero.
fn still_open(open: &mut Vec<Question>, prometheus: &Prometheus, run: Run) -> Vec<String> {
    let mut complaints = Vec::new();
    open.retain(|question| match question.ask(prometheus, run) {
        Ok(()) => false,
        Err(why) => {
            complaints.push(why);
            true
        }
    });
    complaints
}

fn all_ready(prometheus: &Prometheus, instances: &[String]) -> Vec<String> {
    let ready = |instance: &&String| {
        let query = format!("min(watermaster_ready{{instance={instance:?}}})");
        prometheus.ask("query", &[("query", &query)]).is_ok_and(|data| data["result"][0]["value"][1] == "1")
    };
    instances.iter().filter(|instance| !ready(instance)).cloned().collect()
}

/// Returns the boards' variables that do not offer the test's values.
fn unanswered_variables(boards: &[Board], prometheus: &Prometheus, run: Run, addresses: &[String]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (board, variable) in boards.iter().flat_map(|board| board.variables().map(move |one| (board, one))) {
        let expected: Vec<&str> = match variable.name {
            "cluster" => vec!["the-cluster"],
            "namespace" => vec!["the-namespace"],
            "job" => vec!["watermaster"],
            "instance" => addresses.iter().map(String::as_str).collect(),
            "service" => SERVICES.to_vec(),
            "client" => vec![CLIENT],
            other => panic!("{}: this test does not know the variable {other}", board.file),
        };
        let series = run.substitute(variable.series, CAMPAIGN);
        let [start, end, _] = run.range();
        let parameters = [("match[]", series.as_str()), (start.0, &start.1), (end.0, &end.1)];
        let answer = prometheus.ask(&format!("label/{}/values", variable.label), &parameters);
        if !answer.as_ref().is_ok_and(|found| expected.iter().all(|value| found.to_string().contains(value))) {
            complaints.push(format!("{} › ${}: {answer:?} instead of {expected:?}", board.name(), variable.name));
        }
    }
    complaints
}

/// Returns the rules that Prometheus could not evaluate on the scraped series, or has not evaluated yet.
fn unhealthy_rules(prometheus: &Prometheus) -> Vec<String> {
    let data = match prometheus.ask("rules", &[]) {
        Ok(data) => data,
        Err(why) => return vec![why],
    };
    let groups = data["groups"].as_array().cloned().unwrap_or_default();
    let rules: Vec<_> =
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect();
    if rules.is_empty() {
        return vec!["no rules are loaded".to_owned()];
    }
    let unwell = rules.iter().filter(|rule| rule["health"] != "ok");
    unwell.map(|rule| format!("rule {}: {} {}", rule["name"], rule["health"], rule["lastError"])).collect()
}
