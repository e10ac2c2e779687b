//! The oracle's process: reads sources, target and dead-letter topic while the run lasts, then once more from the beginning.
//!
//! It shares nothing with the program and reads past the proxies. Orders come by lines: `instances N` (so many may have
//! admitted something from now on), `judge N` (so many records are known to be in the sources). Five times a second it tells how
//! far it is; its last word has the field `verdict`.

mod judge;
mod kafka;
mod pass;
mod promise;

use std::io::{BufRead, stdin};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::plan::{Plan, now_ms};
use judge::judge;
use kafka::Reader;
use pass::Pass;

const NEWS: Duration = Duration::from_millis(200);
const LOOK_FOR_PARTITIONS: Duration = Duration::from_secs(3);

pub fn run(plan: &Path) {
    let plan = Plan::read(plan);
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut live = Pass::new(&plan);
    let mut reader = Reader::new(&plan);
    let mut instances: Vec<(u64, u64)> = Vec::new();
    let (mut told, mut looked) = (Instant::now(), Instant::now());
    let acknowledged = loop {
        reader.read(&mut live, Duration::from_millis(100));
        if told.elapsed() > NEWS {
            told = Instant::now();
            println!("{}", live.news());
        }
        if looked.elapsed() > LOOK_FOR_PARTITIONS {
            looked = Instant::now();
            reader.look_for_partitions();
        }
        match orders.try_recv().as_deref() {
            Ok(order) if order.starts_with("judge ") => break order["judge ".len()..].parse().expect("a count"),
            Ok(order) => instances.extend(order.strip_prefix("instances ").map(|n| (now_ms(), n.parse().unwrap_or(0)))),
            Err(_) => {}
        }
    };
    let mut last = Pass::new(&plan);
    let ended = kafka::read_all(&plan, &mut last, Duration::from_secs(180));
    // What came to light since the last look.
    let caught_up = Instant::now();
    while live.records() < last.records() && caught_up.elapsed() < Duration::from_secs(20) {
        reader.read(&mut live, Duration::from_millis(100));
    }
    let mut verdict = judge(&plan, &live, &last, acknowledged);
    if let Err(why) = ended {
        verdict.wrong("unreadable", why);
    }
    kafka::check_ends(&plan, &last, &mut verdict);
    promise::check(&plan, &last, &instances, &mut verdict);
    println!("{}", json!({ "verdict": verdict }));
}
