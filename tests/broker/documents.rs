//! Each command line of the documents is run as it is written, or by another test that is named here.

use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::rig::{DRAIN_TIMEOUT, an_hour_ago};
use crate::support::documents::{DocumentedCommand, commands};
use crate::support::generator::Random;
use crate::support::own_broker::{OwnBroker, free_ports, jars};
use crate::support::process::{Process, Signal};
use crate::support::producer::{Outgoing, Producer};
use crate::support::repository::{read, root};
use crate::support::{broker::Topic, wait::wait_until, watermaster::PROGRAM, watermaster::START_TIMEOUT};

/// Commands that this test does not run: how each begins, and the test that runs it.
const ELSEWHERE: [(&str, &str, &str); 2] = [
    ("handover ", "tests/broker/handover.rs", "a_service_takes_its_sources_over_and_gives_them_back"),
    // The campaign takes 90 s.
    ("load ", "tests/broker/load.rs", "the_report_of_a_campaign_agrees_with_the_metrics"),
];
/// The clients of the lending platform.
const PRODUCTS: [&str; 4] = ["home-loan", "personal-loan", "car-loan", "credit-card"];
/// The rules in a file of their own.
const RULES: &str =
    "[[service]]\nname = \"kyc\"\n[[service.rule]]\nname = \"summer\"\ngroups = [\"credit-card\"]\nweight = 2\n";
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// The scripts of Kafka's distribution that the documents name, made of its jars.
const KAFKAS_SCRIPTS: &str = "java() { command java -cp \"$JARS\" \"$@\"; }; \
    kafka-topics.sh() { java org.apache.kafka.tools.TopicCommand \"$@\"; }; \
    kafka-consumer-groups.sh() { java org.apache.kafka.tools.consumer.group.ConsumerGroupCommand \"$@\"; };";
/// The largest record that the target takes, so that `dlq show` finds one that is undeliverable.
const TARGET_BYTES: &str = "10000";

/// The folder in which the commands run, and the ports of an instance that they ask, and of one that they start.
struct Desk {
    dir: TempDir,
    ports: [u16; 2],
    broker: OwnBroker,
}

impl Desk {
    /// Starts a broker with the topics of the service `kyc` of the lending platform, and writes the files that the
    /// documents name.
    fn new() -> Desk {
        let (broker, ports) = (OwnBroker::start(), free_ports());
        let dir = tempfile::tempdir().expect("a temporary directory");
        let platform = read(&root("config/lending-platform.toml"));
        // The rules of this service may change while the program runs.
        let platform = platform.replacen("capacity = 2000 ", "rules_topic = \"kyc.rules\"\ncapacity = 2000 ", 1);
        let [first, second] = [0, 1].map(|n| platform.match_indices("[[service]]").nth(n).expect("services").0);
        std::fs::create_dir(dir.path().join("services")).expect("a folder");
        for (name, text) in [
            ("watermaster.toml", &platform[..second]),
            ("base.toml", &platform[..first]),
            ("services/kyc.toml", &platform[first..second]),
            ("site.toml", "[log]\nformat = \"json\"\n"),
            ("token", "the token of the documents"),
            ("rules.toml", RULES),
        ] {
            std::fs::write(dir.path().join(name), text).expect("the file can be written");
        }
        let sources = PRODUCTS.map(|product| format!("{product}.kyc"));
        let outputs = ["kyc.dead-letter", "kyc.requests"].map(str::to_owned);
        let mut topics: Vec<Topic> = sources.iter().chain(&outputs).map(|name| Topic::new(name, 3)).collect();
        topics.last_mut().expect("the target").set("max.message.bytes", TARGET_BYTES);
        // The topics live as long as the broker.
        std::mem::forget(broker.create(&topics));
        // Many cycles of records, for `simulate`.
        let (start, product) = (an_hour_ago(), |n: u64| n as usize % PRODUCTS.len());
        let record = |n: u64| Outgoing {
            timestamp: Some(start + 500 * n as i64),
            ..Outgoing::numbered(&sources[product(n)], n, PRODUCTS[product(n)])
        };
        let mut random = Random(1);
        // The documents look for dead letters of credit-card.
        let large = Outgoing { value: Some((0..20_000).map(|_| random.below(256) as u8).collect()), ..record(3) };
        let of_another = Outgoing::numbered("credit-card.kyc", 0, "another");
        Producer::to(&broker).send_all((0..200).map(record).chain([large, of_another]));
        Desk { dir, ports, broker }
    }

    /// Starts a line of bash. An instance that it runs has the id and the port of this number.
    fn start(&self, line: &str, instance: usize) -> Process {
        let [asked, _] = self.ports;
        let path = format!("{}:/usr/bin:/bin", PROGRAM.trim_end_matches("/watermaster"));
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(self.dir.path()).env_clear().env("PATH", path);
        // On a terminal, `top` would go on.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.env("JARS", jars());
        command.env("WATERMASTER", format!("http://127.0.0.1:{asked}"));
        command.env("WATERMASTER_KAFKA__BOOTSTRAP_SERVERS", &self.broker.bootstrap);
        command.env("WATERMASTER_KAFKA__INSTANCE_ID", format!("instance-{instance}"));
        command.env("WATERMASTER_ADMIN__LISTEN", format!("127.0.0.1:{}", self.ports[instance]));
        command.env("WATERMASTER_ADMIN__TOKEN_FILE", self.dir.path().join("token"));
        Process::start(&mut command)
    }

    /// Runs a command of the program to its end, and returns whether it succeeded.
    fn succeeds(&self, text: &str) -> bool {
        self.start(&format!("watermaster {text}"), 0).wait(COMMAND_TIMEOUT).success()
    }

    /// Runs the lines of kcat in the page for product teams, and the functions around Kafka's commands in the runbooks.
    fn run_kafkas_commands(&self) {
        let succeeds = |line: &str| {
            eprintln!("{line}");
            // A pipe fails with any of its commands.
            let line = format!("set -euo pipefail; BROKER={}; {line}", self.broker.bootstrap);
            assert!(self.start(&line, 0).wait(COMMAND_TIMEOUT).success(), "{line}");
        };
        let lines = shell_lines("docs/for-producers.md", "kcat ");
        assert!(lines.len() >= 5, "{lines:?}");
        lines.iter().for_each(|line| succeeds(line));
        let functions = shell_lines("docs/runbooks.md", ".sh ");
        for (function, argument) in [("topic", "kyc.requests"), ("members", "watermaster.kyc")] {
            let start = format!("{function}() {{");
            let line = functions.iter().find(|line| line.starts_with(&start)).expect("a function of the runbooks");
            succeeds(&format!("{KAFKAS_SCRIPTS} {line}; {function} {argument}"));
        }
    }

    /// Starts an instance, and waits until it is ready.
    fn start_instance(&self, text: &str, instance: usize) -> Process {
        let mut process = self.start(&format!("exec watermaster {text}"), instance);
        wait_until(&format!("{text} to be ready"), START_TIMEOUT, || {
            assert_eq!(process.try_wait(), None, "{text}");
            self.succeeds(&format!("health --url http://127.0.0.1:{} 2>/dev/null", self.ports[instance]))
        });
        process
    }

    /// Runs a command as it is written. One that asks an instance, and names none, asks that of this test.
    fn run(&self, DocumentedCommand { file, text, .. }: &DocumentedCommand) {
        eprintln!("{file}: watermaster {text}");
        let name = text.split(' ').next().unwrap_or_default();
        if name == "run" {
            let mut process = self.start_instance(text, 1);
            process.signal(Signal::Term);
            assert!(process.wait(COMMAND_TIMEOUT).success(), "{file}: watermaster {text}");
            return;
        }
        let words: Vec<&str> = text.split(' ').take(2).collect();
        let asks = match words[..] {
            ["health" | "reload" | "top", ..] => Some(name.to_owned()),
            ["rules", command] if command != "explain" => Some(words.join(" ")),
            _ => None,
        };
        let asked = asks.filter(|_| !text.contains("--url"));
        let text =
            asked.map_or_else(|| text.clone(), |asks| text.replacen(&asks, &format!("{asks} --url $WATERMASTER"), 1));
        assert!(self.succeeds(&text), "{file}: watermaster {text}");
    }
}

/// Returns the lines of shell in a document that have this word, each with the lines in which its pipe goes on.
fn shell_lines(file: &str, word: &str) -> Vec<String> {
    let text = read(&root(file)).replace("|\n", "| ");
    let fenced = text.split("```").skip(1).step_by(2).flat_map(str::lines);
    fenced.map(str::trim).filter(|line| line.contains(word)).map(str::to_owned).collect()
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn the_command_lines_of_the_documents_run() {
    for (_, file, test) in ELSEWHERE {
        assert!(read(&root(file)).contains(&format!("fn {test}()")), "{file} has no {test}");
    }
    let desk = Desk::new();
    let mut instance = desk.start_instance("run --config watermaster.toml", 0);
    for reason in ["undeliverable", "unknown_client"] {
        wait_until(&format!("a dead letter: {reason}"), DRAIN_TIMEOUT, || {
            desk.succeeds(&format!("dlq show --config watermaster.toml --where reason={reason} >/dev/null 2>&1"))
        });
    }
    let all = commands().into_iter().filter(|command| command.is_line);
    let here: Vec<_> =
        all.filter(|command| !ELSEWHERE.iter().any(|(start, ..)| command.text.starts_with(start))).collect();
    here.iter().for_each(|command| desk.run(command));
    assert!(here.len() >= 10, "only {} commands were found", here.len());
    desk.run_kafkas_commands();
    instance.signal(Signal::Term);
    assert!(instance.wait(COMMAND_TIMEOUT).success());
}
