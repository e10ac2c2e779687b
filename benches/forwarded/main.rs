//! Counts the instructions that a forwarded record takes in the engine's thread, for the check of
//! `scripts/instructions`.
//!
//! Prints `NAME = INSTRUCTIONS` for each case. This process runs an embedded broker, filled with records. For each case
//! an engine runs in a process of its own under valgrind's callgrind, which counts only [`engine::measured`]: reading,
//! deciding, producing and releasing records, including the work of librdkafka in that thread. The other threads of
//! librdkafka (fetching, compressing, sending) are excluded, because the number of their wake-ups depends on time. So
//! would the number of rounds; here a round ends when it is full. A busy machine still makes this thread poll and wait a
//! few times more often, which adds up to 1 % to one count. Nothing makes a count too small, so the least of [`ATTEMPTS`] counts.
//!
//! - `records.rs`: the records that wait in the source
//! - `engine.rs`: the measured cases, and the engine that runs one of them

mod engine;
mod records;

use std::process::{Child, Command, ExitCode, Stdio};
use std::{error::Error, thread};

use watermaster_kafka::embedded::Embedded;

use engine::Case;

/// The allocator of the program, so that the counts include its work.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The number of counts of each case.
const ATTEMPTS: usize = 3;

fn main() -> ExitCode {
    // Cargo passes `--bench` to every benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let result = match &arguments[..] {
        [] => count_all("/dev/null"),
        [option, folder] if option == "--profile" => count_all(&format!("{folder}/%q{{CASE}}.callgrind")),
        [broker, case] => engine::measured(broker, case),
        _ => Err("usage: forwarded [--profile FOLDER | BROKER CASE]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts all cases; callgrind writes its profiles to `profile`.
fn count_all(profile: &str) -> Result<(), Box<dyn Error>> {
    let broker = Embedded::start(1)?;
    for topic in [records::SOURCE, engine::TARGET, engine::DEAD_LETTER] {
        broker.create_topic(topic, records::PARTITIONS)?;
    }
    let address = broker.bootstrap_servers();
    records::fill(&address)?;
    // One process for each processor, to save time: other processes do not change a count.
    let at_a_time = thread::available_parallelism().map_or(1, usize::from);
    let mut least = [u64::MAX; Case::ALL.len()];
    for _ in 0..ATTEMPTS {
        for (cases, least) in Case::ALL.chunks(at_a_time).zip(least.chunks_mut(at_a_time)) {
            let start = |case| start(&address, case, profile);
            let started: Vec<Child> = cases.iter().map(start).collect::<Result<_, _>>()?;
            for (least, child) in least.iter_mut().zip(started) {
                *least = instructions(child)?.min(*least);
            }
        }
    }
    for (case, least) in Case::ALL.iter().zip(least) {
        println!("{} = {}", case.name, least / records::RECORDS);
    }
    Ok(())
}

fn start(broker: &str, case: &Case, profile: &str) -> Result<Child, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let profile = format!("--callgrind-out-file={profile}");
    let options = ["--tool=callgrind", &profile, "--toggle-collect=forwarded::engine::measured"];
    let mut command = Command::new("valgrind");
    command
        .args(options)
        .arg(program)
        .args([broker, case.name])
        .env("CASE", case.name)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// Reads the count that callgrind prints at the end.
fn instructions(child: Child) -> Result<u64, Box<dyn Error>> {
    let output = child.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let counted = printed.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    counted.filter(|_| output.status.success()).ok_or_else(|| format!("callgrind printed no count: {printed}").into())
}
