//! Each reason for a rejection is explained wherever people meet one.

use watermaster_core::reason::Reason;

use crate::assert_none;
use crate::repository::{read, root};

const PRODUCERS: &str = "docs/for-producers.md";
const CONSOLE: &str = "src/admin/console/page/causes.js";

#[test]
fn each_reason_is_explained() {
    let letters = read(&root("docs/dead-letters.md"));
    let (causes, runbook) = letters.split_once("\n## Runbook\n").expect("the page has a runbook");
    let mut missing = Vec::new();
    for reason in Reason::NAMES {
        if !causes.lines().any(|line| line.starts_with(&format!("| `{reason}` |"))) {
            missing.push(format!("docs/dead-letters.md: Reasons does not explain {reason}"));
        }
        if !runbook.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{reason}`"))) {
            missing.push(format!("docs/dead-letters.md: Runbook does not explain {reason}"));
        }
    }
    assert_none(missing);
}

#[test]
fn producers_and_the_console_have_the_causes_of_all_reasons() {
    const HEAD: &str = "| reason | cause | what you can do |\n|---|---|---|\n";
    let page = read(&root(PRODUCERS));
    let (before, rest) = page.split_once(HEAD).expect("the page has a table of reasons");
    let (_, after) = rest.split_once("\n\n").expect("text follows the table");
    let (mut rows, mut causes) = (String::new(), String::new());
    for (reason, name) in Reason::ALL.iter().zip(Reason::NAMES) {
        let message = reason.message().strip_prefix("The record was not processed: ").expect("the message begins so");
        let (cause, remedy) = message.split_once("; ").expect("the message has a cause and a remedy");
        rows += &format!("| `{name}` | {cause} | {remedy} |\n");
        let (first, rest) = cause.split_at(1);
        causes += &format!("  {name}: \"{}{rest}.\",\n", first.to_uppercase());
    }
    assert_current(PRODUCERS, &format!("{before}{HEAD}{rows}\n{after}"));
    let head = "// The cause of each reason, as core/src/reason.rs states it.";
    assert_current(CONSOLE, &format!("{head}\n\nexport const CAUSES = {{\n{causes}}};\n"));
}

/// Compares a file with the text that follows from the table of reasons. `UPDATE_DOCS=1` writes the text.
fn assert_current(file: &str, text: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root(file), text).expect("the file can be written");
    }
    assert!(read(&root(file)) == text, "{file} differs from core/src/reason.rs; UPDATE_DOCS=1 rewrites it");
}
