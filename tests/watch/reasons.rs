//! Each reason for a rejection is explained wherever people meet one.

use watermaster_core::reason::Reason;

use crate::assert_none;
use crate::repository::{read, root};

#[test]
fn each_reason_is_explained() {
    let letters = read(&root("docs/dead-letters.md"));
    let (causes, runbook) = letters.split_once("\n## Runbook\n").expect("the page has a runbook");
    let (producers, console) = (read(&root("docs/for-producers.md")), read(&root("src/admin/console/page/letters.js")));
    let mut missing = Vec::new();
    for reason in Reason::NAMES {
        let has_row = |page: &str| page.lines().any(|line| line.starts_with(&format!("| `{reason}` |")));
        let is_in_a_row = runbook.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{reason}`")));
        let is_shown = console.lines().any(|line| line.trim_start().starts_with(&format!("{reason}: '")));
        for (explained, place) in [
            (has_row(causes), "docs/dead-letters.md: Reasons"),
            (is_in_a_row, "docs/dead-letters.md: Runbook"),
            (has_row(&producers), "docs/for-producers.md"),
            (is_shown, "src/admin/console/page/letters.js"),
        ] {
            if !explained {
                missing.push(format!("{place} does not explain {reason}"));
            }
        }
    }
    assert_none(missing);
}
