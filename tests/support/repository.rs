//! Access to the files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns a path below the repository's root.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the files of a folder with this extension, sorted; panics if there is none.
pub fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root(folder)).unwrap_or_else(|why| panic!("{folder}: {why}"));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == ending));
    files.sort();
    assert!(!files.is_empty(), "no .{ending} file in {folder}");
    files
}
