//! What watches the program names only what there is: boards, rules and runbooks, against the table of metrics.
//!
//! A panel over a metric that was renamed, or an alert on a label's value that never comes, is silent for ever; nobody
//! finds out before the night in which it is needed.

// What only the live test of the panels (tests/broker/panels) asks for is unused here.
#[allow(dead_code)]
#[path = "../support/board.rs"]
mod board;
mod boards;
mod catalogue;
mod promql;
#[path = "../support/repository.rs"]
mod repository;
mod rules;
mod runbooks;

/// Fails with all problems at once.
fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
