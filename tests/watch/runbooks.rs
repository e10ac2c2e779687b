//! The runbooks name metrics, panels and log lines that exist.

use std::{collections::BTreeSet, path::Path};

use crate::repository::{read, root};
use crate::{assert_none, boards::panel_titles, catalogue::Series};

/// Returns the page as one line, because a name may be broken over two lines.
fn page() -> String {
    read(&root("docs/runbooks.md")).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn metrics_exist() {
    let page = page();
    let code: Vec<_> = page.split('`').skip(1).step_by(2).collect();
    let names = code.iter().map(|code| code.split('{').next().unwrap_or_default());
    let metrics = names.filter(|name| name.starts_with("watermaster_") || name.starts_with("process_"));
    assert_none(metrics.filter(|name| Series::find(name).is_none()).map(str::to_owned).collect());
}

/// A panel is named `*Board › Panel*`.
#[test]
fn panels_exist() {
    let (page, boards) = (page(), panel_titles());
    let mut named: BTreeSet<_> = page.split('*').filter_map(|name| name.split_once(" › ")).collect();
    // The page explains the notation with this example.
    named.remove(&("Board", "Panel"));
    assert!(named.len() > 20, "too few panels are named as *Board › Panel*: {named:?}");
    let exists = |board: &str, panel: &str| boards.get(board).is_some_and(|titles| titles.contains(panel));
    let missing = named.iter().filter(|named| !exists(named.0, named.1));
    assert_none(missing.map(|(board, panel)| format!("{board} › {panel}")).collect());
}

/// A log line is quoted in “”, with … for its variable parts.
#[test]
fn log_lines_exist() {
    let mut source = String::new();
    ["src", "core/src", "kafka/src", "settings/src"].iter().for_each(|folder| collect(&root(folder), &mut source));
    let page = page();
    let quoted = page.split('“').skip(1).filter_map(|rest| rest.split_once('”'));
    let lines: BTreeSet<_> = quoted.map(|(line, _)| line).collect();
    assert!(lines.len() > 10, "too few log lines are quoted in “”: {lines:?}");
    let parts = lines.iter().flat_map(|line| line.split('…')).map(str::trim).filter(|part| part.len() > 3);
    assert_none(parts.filter(|part| !source.contains(part)).map(str::to_owned).collect());
}

/// Appends all code as one line, in which strings that are broken over lines are joined.
fn collect(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, text);
        } else {
            let code = read(&path).replace("\\\n", "\n");
            text.push_str(&code.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
}
