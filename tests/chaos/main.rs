//! Fault injection for `delivery = "exactly_once"`: three brokers, several instances, faults from a seed, and an
//! oracle. See `scripts/chaos`.
//!
//! The executable has three roles, each in a process of its own: the main process injects the faults, `generate` fills
//! the source topics, and `oracle` reads all topics and judges. No role uses Watermaster's library, so that the oracle
//! cannot share its errors; only the names of the faults that can be planted in the program come from it.

#[path = "../support/mod.rs"]
mod support;

mod args;
mod campaign;
mod children;
mod cluster;
mod faults;
mod flow;
mod generate;
mod instances;
mod journal;
mod mutants;
mod oracle;
mod origin;
mod outcome;
mod plan;
mod proxy;
mod records;
mod rules;
mod runs;
mod schedule;
mod wire;
mod workers;
mod world;

use std::path::{Path, PathBuf};
use std::{error::Error, sync::Arc};

use args::Args;
use world::Site;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("oracle") => oracle::run(Path::new(&words[1])),
        Some("generate") => generate::run(Path::new(&words[1])),
        _ => match args::parse(&words) {
            Ok(args) => std::process::exit(run(&args)),
            Err(exit) => {
                eprint!("{}", exit.text);
                std::process::exit(exit.code);
            }
        },
    }
}

/// Runs what the options ask for, and returns the exit code: 0 if all checks passed.
fn run(args: &Args) -> i32 {
    // Inside the directory of the test run, where there is one: its owner removes it even if this process is killed.
    let parent = std::env::var_os("WATERMASTER_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let temporary = tempfile::Builder::new().prefix("watermaster-chaos-").tempdir_in(parent);
    let temporary = temporary.expect("a temporary directory can be created");
    let dir = args.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&dir).expect("the directory for logs can be created");
    eprintln!("seed {}; logs in {}", args.seed, dir.display());
    let result = run_in(args, &dir);
    // The nodes' data takes gigabytes, and the logs suffice to explain a failure.
    for node in 1..=cluster::NODES {
        let _ = std::fs::remove_dir_all(dir.join(format!("cluster/node-{node}/data")));
    }
    let good = result.unwrap_or_else(|error| {
        eprintln!("the run itself failed: {error}");
        false
    });
    if !good && args.keep.is_none() {
        eprintln!("logs are kept in {}", temporary.keep().display());
    }
    i32::from(!good)
}

fn run_in(args: &Args, dir: &Path) -> Result<bool, Box<dyn Error>> {
    let site = Arc::new(Site::start(&dir.join("cluster"))?);
    match args {
        Args { mutants: true, .. } => mutants::run(args, &site, dir),
        Args { campaign: true, .. } => campaign::run(args, &site, dir),
        _ => runs::run(args, &site, dir),
    }
}
