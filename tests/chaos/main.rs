//! Chaos for `delivery = "exactly_once"`: three brokers, several instances, faults from a seed, and an oracle. See `scripts/chaos`.
//!
//! One executable in three roles, each a process of its own: this one conducts, `generate` fills the source topics, and
//! `oracle` reads everything and judges. Nothing here uses Watermaster's library, but for the names of
//! the mistakes that can be planted: what judges the program must not share its own.

#[path = "../support/mod.rs"]
mod support;

mod args;
mod children;
mod cluster;
mod conductor;
mod faults;
mod flow;
mod generate;
mod instances;
mod journal;
mod oracle;
mod origin;
mod plan;
mod proxy;
mod records;
mod schedule;
mod teeth;
mod wire;
mod world;

use std::path::Path;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("oracle") => oracle::run(Path::new(&words[1])),
        Some("generate") => generate::run(Path::new(&words[1])),
        _ => match args::parse(&words) {
            Ok(args) => std::process::exit(conductor::run(&args)),
            Err((text, code)) => {
                eprint!("{text}");
                std::process::exit(code);
            }
        },
    }
}
