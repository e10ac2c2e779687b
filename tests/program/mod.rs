//! Runs the built program.

use std::process::{Command, Output, Stdio};
use std::{io::Write as _, path::PathBuf};

/// Runs the built program with only this environment.
pub fn watermaster(arguments: &[&str], environment: &[(&str, &str)], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_watermaster"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that refuses its arguments never reads its input.
    let _ = child.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

/// Returns output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).expect("output is UTF-8")
}

/// Creates a file with `text` in a folder that is removed when the guard is dropped.
pub fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watermaster.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}
