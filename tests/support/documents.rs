//! The commands that the documents for operators name.

use std::path::Path;

use super::repository::{files, read, root};

/// A command of a document, without the name of the program.
#[derive(Debug)]
pub struct DocumentedCommand {
    pub file: String,
    pub text: String,
    /// A line of its own, which is meant to be run as it is. In a sentence, values may be left out.
    pub is_line: bool,
}

/// Returns the commands `watermaster …` of README.md, deploy/README.md and docs/, in the order of the files.
pub fn commands() -> Vec<DocumentedCommand> {
    let documents = ["README.md", "deploy/README.md"].map(root).into_iter().chain(files("docs", "md"));
    documents.flat_map(|path| commands_of(&path)).collect()
}

fn commands_of(path: &Path) -> Vec<DocumentedCommand> {
    let file = path.strip_prefix(root("")).expect("a file of the repository").display().to_string();
    let (mut is_fenced, mut found, mut prose) = (false, Vec::new(), String::new());
    let mut add = |text: &str, is_line| {
        let command = text.trim_start_matches("$ ").strip_prefix("watermaster ");
        found.extend(command.map(|text| DocumentedCommand { file: file.clone(), text: text.to_owned(), is_line }));
    };
    for line in read(path).replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    watermaster ") {
            add(line.trim(), true);
        } else {
            prose.push_str(&format!("{}\n", line.trim()));
        }
    }
    for paragraph in prose.split("\n\n") {
        paragraph.replace('\n', " ").split('`').skip(1).step_by(2).for_each(|code| add(code, false));
    }
    found
}
