//! What a forwarded record costs the engine's thread, in instructions: the check that `scripts/instructions` makes of it.
//!
//! Prints `NAME = INSTRUCTIONS` for each case. An embedded broker runs here, filled with records. For each case an engine runs in a
//! process of its own under valgrind's callgrind, which counts [`engine::measured`] alone: reading, deciding, handing over to the
//! producer and letting go, with all that librdkafka does for that in the same thread. Its other threads (fetching, compressing,
//! sending) are left out: how often they look up depends on time. So do rounds: here they end when they are full.
//!
//! - `records.rs`: what waits in the source
//! - `engine.rs`: the engine of a case

mod engine;
mod records;

use std::error::Error;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;

use watermaster_kafka::embedded::Embedded;

use engine::Case;

/// The program's own.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // `--bench` is what cargo says to every bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let done = match &arguments[..] {
        [] => count_all("/dev/null"),
        [option, folder] if option == "--profile" => count_all(&format!("{folder}/%q{{CASE}}.callgrind")),
        [broker, case] => engine::measured(broker, case),
        _ => Err("usage: forwarded [--profile FOLDER | BROKER CASE]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts all cases; callgrind writes where the instructions went to `profile`.
fn count_all(profile: &str) -> Result<(), Box<dyn Error>> {
    let broker = Embedded::start(1)?;
    for topic in [records::SOURCE, engine::TARGET, engine::DEAD_LETTER] {
        broker.create_topic(topic, records::PARTITIONS)?;
    }
    let address = broker.bootstrap_servers();
    records::fill(&address)?;
    // As many at a time as there are processors, for the suite's sake: who else runs changes no count.
    let at_a_time = thread::available_parallelism().map_or(1, usize::from);
    for cases in Case::ALL.chunks(at_a_time) {
        let started: Vec<Child> = cases.iter().map(|case| start(&address, case, profile)).collect::<Result<_, _>>()?;
        for (case, child) in cases.iter().zip(started) {
            println!("{} = {}", case.name, instructions(child)? / engine::RECORDS);
        }
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

/// What callgrind says at the end.
fn instructions(child: Child) -> Result<u64, Box<dyn Error>> {
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let counted = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    counted.filter(|_| output.status.success()).ok_or_else(|| format!("not counted: {said}").into())
}
