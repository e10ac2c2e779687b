//! The architecture's invariants: what each part of the code must not know. A line here fails, not a review.

mod circles;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// A word that code may use in some places only.
struct Rule {
    word: &'static str,
    /// Where the rule looks.
    within: &'static str,
    /// Where the word is at home: paths that start so.
    allowed: &'static [&'static str],
    why: &'static str,
}

const fn never(word: &'static str, within: &'static str, why: &'static str) -> Rule {
    Rule { word, within, allowed: &[], why }
}

const CLOCK: &str = "the core is handed the time, so that tests own it";
const QUIET: &str = "the core does no I/O and logs nothing";
const EXACT: &str = "grants and gates are decided without floats";
const ASKING: &str = "only tools/src/endpoint.rs, schemas/src/registry and kafka/src/msk ask over HTTP";

const RULES: [Rule; 24] = [
    never("rdkafka", "src", "only the crate kafka knows rdkafka"),
    Rule {
        word: "rdkafka",
        within: "settings/src",
        allowed: &["settings/src/properties.rs"],
        why: "only the crate kafka knows rdkafka",
    },
    Rule { word: "axum", within: "src", allowed: &["src/admin"], why: "only src/admin knows axum" },
    Rule { word: "hyper", within: "src", allowed: &["src/admin"], why: "only src/admin serves HTTP" },
    Rule { word: "hyper_util", within: "src", allowed: &["src/admin"], why: "only src/admin serves HTTP" },
    never("rdkafka", "tools/src", "only the crate kafka knows rdkafka"),
    never("rdkafka", "schemas/src", "only the crate kafka knows rdkafka"),
    Rule {
        word: "watermaster_tools",
        within: "src",
        allowed: &["src/cli"],
        why: "the library does not know its tools",
    },
    never("ratatui", "src", "only tools/src/top draws on terminals"),
    Rule { word: "ureq", within: "src", allowed: &["src/admin/tests.rs"], why: ASKING },
    Rule {
        word: "ratatui",
        within: "tools/src",
        allowed: &["tools/src/top"],
        why: "only tools/src/top draws on terminals",
    },
    Rule { word: "ureq", within: "tools/src", allowed: &["tools/src/endpoint.rs"], why: ASKING },
    Rule { word: "ureq", within: "kafka/src", allowed: &["kafka/src/msk/http.rs"], why: ASKING },
    Rule { word: "ureq", within: "schemas/src", allowed: &["schemas/src/registry/http.rs"], why: ASKING },
    never("rdkafka", "core", "the core knows no Kafka"),
    never("Instant::now", "core/src", CLOCK),
    never("SystemTime", "core/src", CLOCK),
    never("sleep", "core/src", CLOCK),
    never("std::fs", "core/src", QUIET),
    never("std::net", "core/src", QUIET),
    never("std::env", "core/src", QUIET),
    never("tracing", "core", QUIET),
    Rule { word: "f64", within: "core/src/allocator", allowed: &["core/src/allocator/fixed"], why: EXACT },
    Rule {
        word: "f64",
        within: "core/src/scheduler",
        // Evictions, and figures for people.
        allowed: &["core/src/scheduler/bucket", "core/src/scheduler/bounds", "core/src/scheduler/limits"],
        why: EXACT,
    },
];

#[test]
fn the_code_keeps_to_its_boundaries() {
    let broken: Vec<String> = RULES.iter().flat_map(violations).collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// All crates deny `unsafe`; a module needs an attribute to have it.
#[test]
fn one_module_has_unsafe_code() {
    let allowed: &[&str] = &["kafka/src/ffi"];
    let rules = words::CRATES.map(|within| Rule { word: "unsafe_code", within, allowed, why: "`unsafe` stands there" });
    let broken: Vec<String> = rules.iter().flat_map(violations).collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    assert!(fs::read_to_string(root().join("kafka/src/ffi.rs")).expect("it is text").contains("unsafe_code"));
}

#[test]
fn a_broken_rule_is_seen() {
    assert!(uses("use rdkafka::Message;", "rdkafka"));
    assert!(uses("    let now = std::time::Instant::now();", "Instant::now"));
    assert!(uses("todo!()", "todo"));
    assert!(uses("std::fs::read(path)", "std::fs"));
    assert!(!uses("/// librdkafka's, and rdkafka's too", "rdkafka"));
    assert!(!uses("let librdkafka = 1; // rdkafka", "rdkafka"));
    assert!(!uses("let instant_answer = nowhere();", "now"));
    assert!(uses("let url = \"http://x\"; axum::serve()", "axum"));
}

/// The core can't take the list of mistakes from the program: its simulation of delivery has the same ones under the same
/// names. Its simulation of a group has mistakes that no decorator could make.
#[test]
fn the_simulation_plants_what_chaos_plants() {
    let text = fs::read_to_string(root().join("core/tests/delivery/planted.rs")).expect("the simulation can be read");
    let (_, rest) = text.split_once("pub enum Plant {").expect("it has a list of plants");
    let lines = rest.lines().map(str::trim).take_while(|line| *line != "}");
    let plants: Vec<&str> = lines.filter_map(|line| line.strip_suffix(',')).collect();
    let faults = watermaster_kafka::failpoint::Fault::ALL.iter().filter(|fault| !fault.is_of_the_group());
    let faults: Vec<String> = faults.map(|fault| format!("{fault:?}")).collect();
    let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
    assert!(plants.starts_with(&faults), "{plants:?}, {faults:?}");
}

/// A build script refused each build outside of this repository, where Cargo finds no `.cargo/config.toml`. One crate came
/// without its licence.
#[test]
fn each_crate_has_its_licence_and_no_build_script() {
    for name in [".", "api", "core", "kafka", "schemas", "settings", "tools"] {
        let folder = root().join(name);
        assert!(folder.join("Cargo.toml").exists() && folder.join("LICENSE").exists(), "{name} has no LICENSE");
        assert!(!folder.join("build.rs").exists(), "{name} has a build script");
    }
}

/// A room without a name on the map is not found.
#[test]
fn the_architecture_names_each_module_of_each_crate() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let mut missing = Vec::new();
    for folder in words::CRATES {
        let name = folder.split('/').next().expect("a path has a first part");
        let rows: Vec<&str> = map.lines().filter(|line| line.starts_with(&format!("| {name} |"))).collect();
        let text = fs::read_to_string(root().join(folder).join("lib.rs")).expect("source files are text");
        let modules = text.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
        let modules = modules.map(|module| module.trim_end_matches(';')).filter(|module| *module != "tests");
        let unnamed = modules.filter(|module| rows.iter().all(|row| !row.contains(&format!("`{module}`"))));
        missing.extend(unnamed.map(|module| format!("{name}: {module}")));
    }
    assert!(missing.is_empty(), "not in the table of ARCHITECTURE.md: {missing:?}");
}

/// A document that names a file that is not there sends its reader away.
#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = vec![root().join("README.md"), root().join("ARCHITECTURE.md"), root().join("CONTRIBUTING.md")];
    let folders = ["docs", "docs/design"].map(|folder| fs::read_dir(root().join(folder)).expect("docs can be read"));
    let docs = folders.into_iter().flatten().map(|entry| entry.expect("docs can be read").path());
    documents.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut broken = Vec::new();
    for document in documents {
        let text = fs::read_to_string(&document).expect("documents are text");
        let folder = document.parent().expect("a file lies in a folder");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://")) {
            let file = target.split_once('#').map_or(target, |(file, _)| file);
            if !folder.join(file).exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

fn violations(rule: &Rule) -> Vec<String> {
    let files = rust_files(&root().join(rule.within));
    assert!(!files.is_empty(), "nothing to look at in {}", rule.within);
    let mut found = Vec::new();
    for file in files {
        let path = file.strip_prefix(root()).expect("it lies below the root").display().to_string();
        // `src/admin` is both `src/admin.rs` and `src/admin/`, but not `src/administration.rs`.
        let is_in = |home: &str| path == home || path == format!("{home}.rs") || path.starts_with(&format!("{home}/"));
        if rule.allowed.iter().any(|home| is_in(home)) {
            continue;
        }
        let text = fs::read_to_string(&file).expect("source files are text");
        let lines = text.lines().enumerate().filter(|(_, line)| uses(line, rule.word));
        found.extend(lines.map(|(n, line)| format!("{path}:{}: {} ({})", n + 1, line.trim(), rule.why)));
    }
    found
}

/// Whether the line's code, its comment left out, has this word.
fn uses(line: &str, word: &str) -> bool {
    let code = if line.trim_start().starts_with("//") { "" } else { line.split(" // ").next().unwrap_or_default() };
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part))
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("the directory exists") {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
