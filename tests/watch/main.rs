//! What watches the program names only what there is: boards, rules and runbooks, against the table of metrics.
//!
//! A panel over a metric that was renamed, or an alert on a label's value that never comes, is silent for ever; nobody
//! finds out before the night in which it is needed.

mod boards;
mod catalogue;
mod promql;
mod rules;
mod runbooks;

use std::fs;
use std::path::{Path, PathBuf};

/// A path below the repository's root.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The files of a folder with this ending, sorted; at least one.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root(folder)).unwrap_or_else(|why| panic!("{folder}: {why}"));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == ending));
    files.sort();
    assert!(!files.is_empty(), "no .{ending} in {folder}");
    files
}

/// Fails with all problems at once.
fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
