//! No circle between the modules of a crate: a module can be read, tested and moved together with those that it uses,
//! and these are never all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::words::{CRATES, production};
use super::{root, rust_files};

/// The modules that each module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_modules_use_each_other_in_a_circle() {
    for source in CRATES {
        let uses = uses_in(source);
        let found: Vec<&String> = uses.keys().filter(|module| reaches(&uses, module, module)).collect();
        assert!(found.is_empty(), "modules of {source} in circles: {found:?}");
    }
}

#[test]
fn a_circle_is_seen() {
    let text = "use crate::{one::{Two, Three}, four::Five,\n six};\n// crate::seven\nlet x = crate::eight::nine();";
    assert_eq!(modules_of(text).into_iter().collect::<Vec<_>>(), ["eight", "four", "one", "six"]);
    let uses = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let uses: Uses = uses.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()]))).into();
    assert_eq!(uses.keys().filter(|module| reaches(&uses, module, module)).collect::<Vec<_>>(), ["b", "c"]);
}

/// Returns whether a module uses another one, by itself or by way of others.
fn reaches(uses: &Uses, from: &str, to: &str) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(module) = left.pop() {
        let next = uses.get(module).into_iter().flatten().filter(|next| seen.insert(next.as_str()));
        left.extend(next.map(String::as_str));
    }
    seen.contains(to)
}

/// A module is a file or a folder at the top of the crate. Unit tests may use what they like.
fn uses_in(source: &str) -> Uses {
    let source = root().join(source);
    let mut uses = Uses::new();
    for file in rust_files(&source) {
        let path = file.strip_prefix(&source).expect("it lies in there").with_extension("");
        let mut parts = path.iter().map(|part| part.to_str().expect("names are text"));
        let module = parts.next().expect("a file has a name").to_owned();
        if !matches!(&*module, "lib" | "main") && !parts.any(|part| part == "tests") {
            let text = fs::read_to_string(&file).expect("source files are text");
            let used = modules_of(production(&text)).into_iter().filter(|used| *used != module);
            uses.entry(module.clone()).or_default().extend(used);
        }
    }
    uses
}

/// Returns the names that follow `crate::`, alone or in braces.
fn modules_of(code: &str) -> BTreeSet<String> {
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.join("\n").split("crate::").skip(1).flat_map(first_names).filter(|name| !name.is_empty()).collect()
}

/// Returns the first name of a path, or of each path in braces.
fn first_names(paths: &str) -> Vec<String> {
    let Some(list) = paths.strip_prefix('{') else {
        return vec![paths.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()];
    };
    // Braces within these ones hold items of modules.
    let (mut depth, mut outermost) = (1, String::new());
    for c in list.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match depth {
            0 => break,
            1 => outermost.push(c),
            _ => {}
        }
    }
    outermost.split(',').flat_map(|path| first_names(path.trim())).collect()
}
