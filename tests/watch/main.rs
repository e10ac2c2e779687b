//! Boards, rules and runbooks name only metrics, labels and values that exist in the table of metrics.
//!
//! A panel of a renamed metric, or an alert on a label value that never occurs, shows no error: it is only empty or
//! silent.

// Some functions are used only by the live test of the panels (tests/broker/panels).
#[allow(dead_code)]
#[path = "../support/board.rs"]
mod board;
mod boards;
mod catalogue;
mod promql;
mod reasons;
#[path = "../support/repository.rs"]
mod repository;
mod rules;
mod runbooks;

/// Fails with all problems at once.
fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
