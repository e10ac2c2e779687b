//! Plain words: how comments, documents and messages read, as figures that must not rise.
//!
//! A comment block counts as headless if it opens with a question word ("What was read …"), because its reader has to
//! find out first what the sentence is about. Words for persons count wherever they stand, because records, clients and
//! partitions are things. CONTRIBUTING.md has the rules.

use std::{collections::BTreeMap, fs, path::Path};

use super::{root, rust_files};

/// The source folders, one for each crate.
pub(super) const CRATES: [&str; 7] =
    ["src", "api/src", "core/src", "kafka/src", "schemas/src", "settings/src", "tools/src"];
const QUESTIONS: [&str; 11] =
    ["What", "Who", "Whose", "Whom", "When", "Where", "How", "Whether", "Why", "Whatever", "Whoever"];
const PRONOUNS: [&str; 8] = ["It", "Its", "Their", "They", "Those", "These", "So", "Them"];
const PERSONS: [&str; 9] =
    ["who", "whose", "whom", "whoever", "nobody", "somebody", "everybody", "anybody", "whatever"];

/// The figures of one crate.
#[derive(Debug, Default)]
struct Figures {
    blocks: usize,
    headless: usize,
    pronoun_docs: usize,
    words: usize,
    persons: usize,
    /// The number of definitions of each type name.
    types: BTreeMap<String, usize>,
    string_errors: usize,
    long_lines: usize,
}

#[test]
fn every_crate_reads_plainly() {
    let mut broken = Vec::new();
    let mut types = BTreeMap::new();
    for folder in CRATES {
        let figures = Figures::of(&root().join(folder));
        assert!(figures.blocks > 0, "{folder} has comments");
        figures.types.iter().for_each(|(name, times)| *types.entry(name.clone()).or_default() += times);
        let checks = [
            ("comment blocks that open with a question word, per mille", 1000 * figures.headless / figures.blocks, 40),
            ("doc comments that open with a pronoun", figures.pronoun_docs, 0),
            ("words for persons, per 10 000 words", 10_000 * figures.persons / figures.words, 5),
            ("types whose name is used twice, per mille", repeated(&figures.types), 60),
            ("results with a text as their error", figures.string_errors, 0),
            ("lines over 120 characters", figures.long_lines, 0),
        ];
        for (what, found, most) in checks {
            if found > most {
                broken.push(format!("{folder}: {found} {what}; allowed: {most}"));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    assert!(repeated(&types) <= 80, "{} of 1000 types share their name with one of any crate", repeated(&types));
}

/// Returns how many of 1000 types have a name that another one has.
fn repeated(types: &BTreeMap<String, usize>) -> usize {
    let repeated: usize = types.values().filter(|times| **times > 1).sum();
    1000 * repeated / types.values().sum::<usize>()
}

#[test]
fn documents_speak_of_things_as_things() {
    let mut broken = Vec::new();
    let mut documents = vec!["README.md".into(), "ARCHITECTURE.md".into(), "CONTRIBUTING.md".into()];
    for folder in ["docs", "docs/design"] {
        let docs = fs::read_dir(root().join(folder)).expect("docs can be read");
        documents.extend(docs.map(|entry| Path::new(folder).join(entry.expect("docs can be read").file_name())));
    }
    for document in documents.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(root().join(document)).expect("documents are text");
        let (words, persons) = count_words(&text);
        if persons * 1000 > words {
            broken.push(format!("{}: {persons} words for persons in {words}", document.display()));
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn messages_name_things_as_things() {
    let mut broken = Vec::new();
    for folder in CRATES {
        for file in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(&file).expect("source files are text");
            for (n, line) in production(&text).lines().enumerate() {
                if !is_comment(line) && strings_of(line).any(|string| count_words(string).1 > 0) {
                    broken.push(format!("{}:{}: {}", file.display(), n + 1, line.trim()));
                }
            }
        }
    }
    for folder in ["grafana/dashboards", "prometheus/rules"] {
        for entry in fs::read_dir(root().join(folder)).expect("the folder exists") {
            let path = entry.expect("the folder can be read").path();
            let text = if path.is_file() { fs::read_to_string(&path).expect("it is text") } else { String::new() };
            let lines = text.lines().enumerate().filter(|(_, line)| count_words(line).1 > 0);
            broken.extend(lines.map(|(n, line)| format!("{}:{}: {}", path.display(), n + 1, line.trim())));
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn the_figures_are_counted() {
    let mut figures = Figures::default();
    figures.add(
        "/// What it is.\npub struct A;\n/// Its name,\n/// of somebody.\nenum A {}\nfn f() -> Result<u8, String> {}\n",
    );
    assert_eq!((figures.blocks, figures.headless, figures.pronoun_docs, figures.persons), (2, 1, 1, 1));
    assert_eq!((figures.types["A"], figures.string_errors), (2, 1));
    let declared = "mod a;\n#[cfg(test)]\nmod tests;\nmod b;\n#[cfg(test)]\nmod tests {}\n";
    assert!(production(declared).ends_with("mod b;"));
    assert_eq!(strings_of(r#"a("who", b"x") + "it""#).collect::<Vec<_>>(), ["who", "x", "it"]);
}

impl Figures {
    fn of(folder: &Path) -> Figures {
        let mut figures = Figures::default();
        for file in rust_files(folder) {
            let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
            if !file.strip_prefix(folder).expect("it lies in the folder").iter().any(is_test) {
                figures.add(&fs::read_to_string(&file).expect("source files are text"));
            }
        }
        figures
    }

    fn add(&mut self, text: &str) {
        let text = production(text);
        self.long_lines += text.lines().filter(|line| line.chars().count() > 120).count();
        for (marker, block) in comment_blocks(text) {
            if !block.contains(char::is_alphabetic)
                || ["#", "SAFETY", "```"].iter().any(|start| block.starts_with(start))
            {
                continue;
            }
            let first = block.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let (words, persons) = count_words(&block);
            self.blocks += 1;
            self.headless += usize::from(QUESTIONS.contains(&first));
            self.pronoun_docs +=
                usize::from(marker != "//" && (PRONOUNS.contains(&first) || block.starts_with("The same")));
            self.words += words;
            self.persons += persons;
        }
        for line in text.lines().map(str::trim_start).filter(|line| !is_comment(line)) {
            self.string_errors += line.matches("Result<").filter(|_| line.contains(", String>")).count();
            if let Some(name) = type_defined(line) {
                *self.types.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
}

/// Returns the part of a source file before the tests at its end. Tests in a file of their own may be declared further up.
pub(super) fn production(text: &str) -> &str {
    let tests = ["\n#[cfg(test)]\nmod tests {", "\n#[cfg(test)]\npub mod tests {"];
    tests.iter().fold(text, |text, tests| text.split(tests).next().unwrap_or_default())
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// Returns each run of comment lines with its marker, the lines joined.
fn comment_blocks(text: &str) -> Vec<(&'static str, String)> {
    let mut blocks: Vec<(&'static str, String)> = Vec::new();
    let mut open = None;
    for line in text.lines().map(str::trim_start) {
        let marker = ["///", "//!", "//"].into_iter().find(|marker| line.starts_with(marker));
        let Some(marker) = marker else {
            open = None;
            continue;
        };
        let words = line[marker.len()..].trim();
        match blocks.last_mut() {
            Some((_, block)) if open == Some(marker) => {
                block.push(' ');
                block.push_str(words);
            }
            _ => blocks.push((marker, words.to_owned())),
        }
        open = Some(marker);
    }
    blocks
}

/// Returns the number of words in a text, and of words for persons among them.
fn count_words(text: &str) -> (usize, usize) {
    let words = text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| !word.is_empty());
    words.fold((0, 0), |(all, persons), word| {
        (all + 1, persons + usize::from(PERSONS.contains(&word.to_lowercase().as_str())))
    })
}

/// Returns the name of the type that a line defines, if it does.
fn type_defined(line: &str) -> Option<&str> {
    let words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let (kind, name) = {
        let mut words = words;
        (words.next()?, words.next()?)
    };
    let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    ["struct", "enum", "trait"].contains(&kind).then_some(name)
}

/// Returns the string literals of a line, as far as one line shows.
fn strings_of(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}
