//! A configuration is reloaded as a whole or not at all; the error names keys that need a restart.

#[allow(dead_code)] // Other tests use the rest.
#[path = "support/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "support/wait.rs"]
mod wait;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use process::{Process, Signal};
use wait::{let_the_fault_last, wait_for};
use watermaster::reload::Configuration;
use watermaster::rules::KnownRule;
use watermaster::snapshot::{ClientSnapshot, Levels};
use watermaster_core::policy::Policy;
use watermaster_core::rules::log::record::{ChangeId, RuleVersion};
use watermaster_settings::config::{Config, SCHEMA, rule_of_json};

const SECRET: &str = "sasl-password";

/// Returns a configuration with every key that a reload may change, and some that need a restart.
fn text(change: impl Fn(String) -> String) -> String {
    change(
        r#"[kafka]
bootstrap_servers = "localhost:9092"
[kafka.properties]
"sasl.password" = "sasl-password"
[[service]]
name = "kyc"
target = "kyc.requests"
dead_letter = "kyc.dead-letter"
capacity = 2000
cycle = "10s"
scope = "instance"
reservation = 0.1
lending = "proportional"
mode = "shape"
enforce = true
window = "sliding"
catch_up = "delay"
max_clients = 1000
unlisted_weight = 1.0
client_idle_timeout = "10m"
[service.shape]
queue_capacity = 10000
max_delay = "60s"
overflow = "dead_letter"
[service.pace]
group = "kyc"
floor = 100
ceiling = 5000
[[service.source]]
topic = "home-loan.kyc"
client = "home-loan"
[service.client.home-loan]
weight = 2.0
limit = { rate = 50 }
[service.group.home-loan]
weight = 4.0
clients = ["mortgage"]
limit = { rate = 70 }
[[service.rule]]
name = "one"
clients = ["*"]
in_groups = ["home-loan"]
priority = 1
note = "why"
from = 2026-07-03T00:00:00Z
weight = 6.0
limit = { rate = 90 }
[[service.rule]]
name = "two"
groups = ["home-loan"]
limits = [{ rate = 100, per = "3s" }]
[[service.rule]]
name = "three"
service = true
capacity = 1500
[[service.rule]]
name = "four"
clients = ["d"]
group = "home-loan"
"#
        .to_owned(),
    )
}

fn changed(text: String, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

struct File {
    path: PathBuf,
    configuration: Configuration,
    _dir: tempfile::TempDir,
}

impl File {
    fn new() -> File {
        File::with(&[])
    }

    fn with(changes: &[(&str, &str)]) -> File {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("watermaster.toml");
        std::fs::write(&path, text(|text| changed(text, changes))).expect("the file is written");
        let config =
            Config::load(&[&path], [], watermaster_kafka::PROPERTY_RULES).unwrap_or_else(|errors| panic!("{errors}"));
        File { configuration: Configuration::new(Some(vec![path.clone()]), config), path, _dir: dir }
    }

    /// Replaces `from` by `to` in the file and reloads it; returns the changed keys or the errors as text.
    fn reload(&self, from: &str, to: &str) -> Result<Vec<String>, String> {
        self.reload_all(&[(from, to)])
    }

    fn reload_all(&self, changes: &[(&str, &str)]) -> Result<Vec<String>, String> {
        std::fs::write(&self.path, text(|text| changed(text, changes))).expect("the file is written");
        self.configuration
            .reload("a test")
            .unwrap()
            .map(|reloaded| reloaded.changed)
            .map_err(|errors| errors.to_string())
    }

    fn change_arrived(&self) -> bool {
        self.configuration.services.get()[0].inbox.take().is_some()
    }

    fn policy(&self) -> Option<Policy> {
        self.configuration.services.get()[0].inbox.take()?.policy
    }
}

#[test]
fn every_key_of_a_policy_takes_effect() {
    let changes = [
        ("capacity = 2000", "capacity = 4000", "capacity"),
        ("capacity = 2000", "capacity = 2000\ncapacity_min = 1", "capacity_min"),
        ("capacity = 2000", "capacity = 2000\ncapacity_max = 6000", "capacity_max"),
        ("cycle = \"10s\"", "cycle = \"5s\"", "cycle"),
        ("reservation = 0.1", "reservation = 0.2", "reservation"),
        ("lending = \"proportional\"", "lending = \"max_min\"", "lending"),
        ("mode = \"shape\"", "mode = \"reject\"", "mode"),
        ("enforce = true", "enforce = false", "enforce"),
        ("enforce = true", "enforce = true\nmax_open = 500", "max_open"),
        ("window = \"sliding\"", "window = \"fixed\"", "window"),
        ("catch_up = \"delay\"", "catch_up = \"reject\"", "catch_up"),
        ("max_clients = 1000", "max_clients = 999", "max_clients"),
        ("unlisted_weight = 1.0", "unlisted_weight = 0.5", "unlisted_weight"),
        ("client_idle_timeout = \"10m\"", "client_idle_timeout = \"20m\"", "client_idle_timeout"),
        ("queue_capacity = 10000", "queue_capacity = 10", "shape.queue_capacity"),
        ("max_delay = \"60s\"", "max_delay = \"30s\"", "shape.max_delay"),
        ("overflow = \"dead_letter\"", "overflow = \"pause\"", "shape.overflow"),
        ("[service.shape]\n", "[service.shape]\nqueue_bytes = \"1MiB\"\n", "shape.queue_bytes"),
        ("[service.shape]\n", "[service.shape]\nburst = 0.5\n", "shape.burst"),
        ("floor = 100\n", "floor = 200\n", "pace.floor"),
        ("ceiling = 5000\n", "ceiling = 6000\n", "pace.ceiling"),
        ("[service.pace]\n", "[service.pace]\ncontrol = \"apply\"\n", "pace.control"),
        ("[service.pace]\n", "[service.pace]\nmax_behind = \"3s\"\n", "pace.max_behind"),
        ("[service.pace]\n", "[service.pace]\ninterval = \"6s\"\n", "pace.interval"),
        ("[service.pace]\n", "[service.pace]\npoll = \"1s\"\n", "pace.poll"),
        ("[service.pace]\n", "[service.pace]\nsignal_timeout = \"1m\"\n", "pace.signal_timeout"),
        ("client = \"home-loan\"\n", "client = \"car-loan\"\n", "source[0].client"),
        (
            "client = \"home-loan\"\n", "client = \"home-loan\"\nallowed_clients = [\"a\"]\n",
            "source[0].allowed_clients",
        ),
        ("weight = 2.0\n", "weight = 3.0\n", "client.home-loan.weight"),
        ("rate = 50 ", "rate = 60, burst = 50 ", "client.home-loan.limit.rate"),
        ("rate = 50 ", "rate = 50, per = \"2s\" ", "client.home-loan.limit.per"),
        ("rate = 50 ", "rate = 50, burst = 60 ", "client.home-loan.limit.burst"),
        ("weight = 4.0\n", "weight = 5.0\n", "group.home-loan.weight"),
        ("\"mortgage\"", "\"mortgages\"", "group.home-loan.clients"),
        ("rate = 70 ", "rate = 80, burst = 70 ", "group.home-loan.limit.rate"),
        ("rate = 70 ", "rate = 70, per = \"2s\" ", "group.home-loan.limit.per"),
        ("rate = 70 ", "rate = 70, burst = 80 ", "group.home-loan.limit.burst"),
        ("capacity = 2000", "capacity = 2000\nrules_max_capacity = 4500", "rules_max_capacity"),
        ("clients = [\"*\"]", "clients = [\"a*\"]", "rule[0].clients"),
        ("in_groups = [\"home-loan\"]", "in_groups = [\"*\"]", "rule[0].in_groups"),
        ("priority = 1\n", "priority = -1\n", "rule[0].priority"),
        ("note = \"why\"", "note = \"because\"", "rule[0].note"),
        ("from = 2026-07-03", "from = 2026-07-04", "rule[0].from"),
        ("from = 2026", "until = 2027-01-01T00:00:00Z\nfrom = 2026", "rule[0].until"),
        ("from = 2026", "disabled = true\nfrom = 2026", "rule[0].disabled"),
        ("from = 2026", "max_delay = \"5s\"\nfrom = 2026", "rule[0].max_delay"),
        ("from = 2026", "hold = true\nfrom = 2026", "rule[0].hold"),
        ("from = 2026", "expire_before = 2026-07-05T00:00:00Z\nfrom = 2026", "rule[0].expire_before"),
        ("weight = 6.0", "weight = 7.0", "rule[0].weight"),
        ("rate = 90 ", "rate = 95, burst = 90 ", "rule[0].limit.rate"),
        ("rate = 90 ", "rate = 90, per = \"2s\" ", "rule[0].limit.per"),
        ("rate = 90 ", "rate = 90, burst = 80 ", "rule[0].limit.burst"),
        ("rate = 90 ", "rate = 90, scale = \"weight\" ", "rule[0].limit.scale"),
        ("groups = [\"home-loan\"]\nlimits", "groups = [\"h*\"]\nlimits", "rule[1].groups"),
        ("rate = 100, ", "rate = 110, burst = 100, ", "rule[1].limits[0].rate"),
        ("per = \"3s\" ", "per = \"4s\" ", "rule[1].limits[0].per"),
        ("per = \"3s\" ", "per = \"3s\", burst = 80 ", "rule[1].limits[0].burst"),
        ("per = \"3s\" ", "per = \"3s\", scale = \"weight\" ", "rule[1].limits[0].scale"),
        ("capacity = 1500", "capacity = 1600", "rule[2].capacity"),
        ("capacity = 1500", "capacity = 1500\nenforce = false", "rule[2].enforce"),
        ("capacity = 1500", "capacity = 1500\npace = \"observe\"", "rule[2].pace"),
        ("group = \"home-loan\"", "group = \"\"", "rule[3].group"),
    ];
    for (section, key) in SCHEMA.keys().iter().filter(|(section, key)| {
        let is_name = key.name.starts_with("topic")
            || key.name == "name"
            || section.to_string() == "service.rule" && key.name == "service";
        key.reloads && !is_name && section.to_string().starts_with("service")
    }) {
        let key = section.child(key.name).to_string();
        let plain = |changed: &str| changed.replace(".home-loan", "").replace(|c: char| "[]0123".contains(c), "");
        let is_tried = |changed: &str| key == format!("service.{}", plain(changed));
        assert!(changes.iter().any(|(.., changed)| is_tried(changed)), "no change of {key} is tested");
    }
    for (from, to, key) in changes {
        let file = File::new();
        assert_eq!(file.reload(from, to), Ok(vec![format!("service[0].{key}")]));
        // The fence concerns the configuration alone.
        assert_eq!(file.change_arrived(), !key.starts_with("capacity_"), "{key}");
        assert!(file.configuration.last().successful);
        assert_eq!(file.reload(from, from), Ok(vec![format!("service[0].{key}")]), "the original value is restored");
    }
}

/// The members of a group compare their windows, so that all need one cycle and one mode at any time.
#[test]
fn a_group_keeps_its_cycle_and_its_mode() {
    let scope = ("scope = \"instance\"", "scope = \"group\"");
    let file = File::with(&[scope]);
    for (from, to) in [("cycle = \"10s\"", "cycle = \"5s\""), ("mode = \"shape\"", "mode = \"reject\"")] {
        let refused = file.reload_all(&[scope, (from, to)]).unwrap_err();
        assert!(refused.contains("has changed from") && refused.contains("a restart takes it over"), "{refused}");
    }
    assert_eq!(
        file.reload_all(&[scope, ("capacity = 2000", "capacity = 4000")]),
        Ok(vec!["service[0].capacity".into()])
    );
}

/// The first start of a new group asks for `start_from`, so people write it down while other instances run.
#[test]
fn a_default_that_is_written_down_is_no_change() {
    let start = ("[kafka]\n", "[kafka]\nstart_from = \"earliest\"\n");
    assert_eq!(File::new().reload(start.0, start.1), Ok(vec![]));
}

#[test]
fn a_reload_adds_and_removes_clients() {
    let file = File::new();
    let with_another = "weight = 2.0\n[service.client.car-loan]\nweight = 0.5\n[service.client.home-loan.more]\n";
    let changed = file.reload("weight = 2.0\nlimit = { rate = 50 }\n", "[service.client.car-loan]\nweight = 0.5\n");
    let changed = changed.unwrap();
    assert!(changed.contains(&"service[0].client.car-loan.weight".to_owned()), "{changed:?}");
    let policy = file.policy().unwrap();
    assert!(policy.clients.iter().any(|client| client.name == "car-loan"));
    assert!(file.reload("weight = 2.0\n", with_another).is_err(), "an unknown key");
}

#[test]
fn keys_that_need_a_restart_are_refused_and_nothing_changes() {
    let changes = [
        ("localhost:9092", "elsewhere:9092", "kafka.bootstrap_servers"),
        (SECRET, "another", "kafka.properties"),
        ("name = \"kyc\"", "name = \"scoring\"", "service[0].name"),
        ("kyc.requests", "kyc.other", "service[0].target"),
        ("dead_letter = \"kyc.dead-letter\"", "dead_letter = \"kyc.other\"", "service[0].dead_letter"),
        ("[kafka]\n", "[kafka]\nmap_budget = \"1024 chars\"\n", "kafka.map_budget"),
        ("[kafka]\n", "[admin]\nlisten = \"127.0.0.1:9465\"\n[kafka]\n", "admin.listen"),
        ("[kafka]\n", "[admin]\nconsole = false\n[kafka]\n", "admin.console"),
    ];
    for (from, to, key) in changes {
        let file = File::new();
        let before = file.configuration.shown(false);
        let error = file.reload_all(&[("capacity = 2000", "capacity = 4000"), (from, to)]).expect_err(key);
        assert!(error.contains(key) && error.contains("restart"), "{key}: {error}");
        assert!(!error.contains(SECRET) && !error.contains("another"), "{error}");
        assert!(!file.change_arrived(), "{key}");
        assert_eq!(file.configuration.shown(false), before);
        assert!(!file.configuration.last().successful);
        assert_eq!(file.reload("capacity = 2000", "capacity = 2001").map(|changed| changed.len()), Ok(1));
        assert!(file.configuration.last().successful);
    }
}

#[test]
fn a_secret_in_a_file_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("password");
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| dir.path().join(name));
    let in_file = format!(
        "[kafka.properties]\n\"ssl.key.location\" = {key:?}\n\"ssl.certificate.location\" = {certificate:?}\n\"security.protocol\" = \"SASL_SSL\"\n\
         \"sasl.mechanism\" = \"PLAIN\"\n\"sasl.username\" = \"u\"\n\
         [kafka.properties_file]\n\"sasl.password\" = {secret:?}\n"
    );
    let written = "[kafka.properties]\n\"sasl.password\" = \"sasl-password\"\n";
    let path = dir.path().join("watermaster.toml");
    std::fs::write(&path, text(|text| changed(text, &[(written, &in_file)]))).unwrap();
    std::fs::write(&secret, "hush\n").unwrap();
    new_pair(&key, &certificate);
    let config = Config::load(&[&path], [], watermaster_kafka::PROPERTY_RULES).unwrap();
    let secrets = config.settings.kafka.secrets.clone();
    let configuration = Configuration::new(Some(vec![path]), config);
    for (value, changed) in [
        ("murmur", vec!["kafka.properties_file.\"sasl.password\""]),
        ("murmur", vec![]),
        ("whisper", vec!["kafka.properties_file.\"sasl.password\""]),
    ] {
        std::fs::write(&secret, value).unwrap();
        assert_eq!(configuration.reload("a test").unwrap().unwrap().changed, changed);
        assert_eq!(secrets.values()["sasl.password"], value);
    }
    assert_eq!((secrets.login_changes(), secrets.other_changes()), (2, 0));
    new_pair(&key, &certificate);
    let changed = configuration.reload("test").unwrap().unwrap().changed;
    let keys = ["certificate", "key"].map(|name| format!("kafka.properties.\"ssl.{name}.location\""));
    assert_eq!(changed, keys, "the paths are the same");
    assert_eq!((secrets.login_changes(), secrets.other_changes()), (2, 1));
    let former = secrets.values();
    assert_eq!(former["ssl.key.pem"], std::fs::read_to_string(&key).unwrap());
    std::fs::write(&key, "no key").unwrap();
    let error = configuration.reload("test").unwrap().unwrap_err().to_string();
    assert!(error.contains("ssl.key.location failed") && !error.contains("ssl.key.pem"), "{error}");
    assert_eq!(secrets.values(), former, "clients that are made now get the key that was accepted last");
}

fn new_pair(key: &Path, certificate: &Path) {
    let mut command = std::process::Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=wm"]);
    command.arg("-keyout").arg(key).arg("-out").arg(certificate);
    assert!(command.output().expect("openssl is installed").status.success());
}

#[test]
fn a_broken_file_is_refused_with_the_error_that_check_gives() {
    let broken = [
        ("capacity = 2000", "capacity = 0"),
        ("capacity = 2000", "capacity = \"many\"\ncapacitance = 3"),
        ("[[service]]", "[[service]"),
        ("client_idle_timeout = \"10m\"", "client_idle_timeout = \"10s\""),
    ];
    for (from, to) in broken {
        let file = File::new();
        let error = file.reload(from, to).expect_err(to);
        let check = Config::load(&[&file.path], [], watermaster_kafka::PROPERTY_RULES).expect_err(to).to_string();
        assert_eq!(error, check);
        assert!(!file.change_arrived() && !file.configuration.last().successful);
    }
    let file = File::new();
    std::fs::remove_file(&file.path).unwrap();
    assert!(file.configuration.reload("a test").unwrap().unwrap_err().to_string().contains("can't be read"));
}

#[test]
fn an_unchanged_file_is_accepted() {
    let file = File::new();
    assert_eq!(file.reload("capacity = 2000", "capacity = 2000"), Ok(vec![]));
    let (before, after) = (Path::new("a"), Path::new("b"));
    let parse = |path| Config::parse(&text(|text| text), path, [], watermaster_kafka::PROPERTY_RULES).unwrap();
    assert_eq!(parse(before).changes(&parse(after)), Ok(vec![]), "the path of a file is not a change");
}

/// The answer of a reload came up to half a second before `/v1` showed the change, so a script that looked at once saw
/// the former capacity.
#[test]
fn a_reload_ends_after_the_engine_shows_the_change() {
    let file = File::new();
    let handle = file.configuration.services.get().remove(0);
    let show = |capacity, changes| {
        let mut snapshot = (*handle.cell.get()).clone();
        (snapshot.figures.capacity, snapshot.changes) = (capacity, Some(changes));
        handle.cell.set(snapshot);
    };
    show(2_000, 0);
    std::thread::scope(|scope| {
        // An engine that has a round to finish before it takes the change over.
        scope.spawn(|| {
            let change = wait_for("a change", Duration::from_secs(10), || handle.inbox.take());
            let_the_fault_last(Duration::from_millis(100));
            show(change.policy.expect("another policy").capacity, change.number);
        });
        file.reload("capacity = 2000", "capacity = 3000").unwrap();
        assert_eq!(handle.cell.get().figures.capacity, 3_000);
    });
}

#[test]
fn a_dry_run_tells_the_changes_and_the_next_cycle_and_changes_nothing() {
    let file = File::new();
    let before = file.configuration.shown(false);
    let write = |to| std::fs::write(&file.path, text(|text| changed(text, &[("capacity = 2000", to)]))).unwrap();
    write("capacity = 4500");
    let view = file.configuration.dry_run().unwrap().unwrap();
    let [change] = &view.changes[..] else { panic!("{view:?}") };
    let told = (change.key.as_str(), change.service.as_deref(), &change.from, &change.to, change.doubtful_factor);
    assert_eq!(told, ("service[0].capacity", Some("kyc"), &2000.into(), &4500.into(), Some(2.25)));
    assert!(change.origin.contains("watermaster.toml:"), "{}", change.origin);
    let cycle = &view.next_cycle[0];
    assert_eq!((cycle.service.as_str(), cycle.wanted, cycle.admits, cycle.would_admit), ("kyc", 0, 0, 0));
    // The bug: the capacity of the file was told, although the rule `three` decides.
    assert_eq!((cycle.admits_at_most, cycle.would_admit_at_most), (Some(1_500), Some(1_500)));
    std::fs::write(&file.path, text(|text| changed(text, &[("capacity = 1500", "capacity = 1800")]))).unwrap();
    let cycle = &file.configuration.dry_run().unwrap().unwrap().next_cycle[0];
    assert_eq!((cycle.admits_at_most, cycle.would_admit_at_most), (Some(1_500), Some(1_800)));
    assert!(view.dry_run && !file.change_arrived() && file.configuration.past_changes().is_empty());
    // A client gets no more than its own limit allows: 50 a second, and then 4.
    let handle = file.configuration.services.get().remove(0);
    let client = |name: &str, wants| ClientSnapshot {
        name: name.into(),
        levels: Levels { wants, ..Levels::default() },
        ..ClientSnapshot::default()
    };
    let mut snapshot = (*handle.cell.get()).clone();
    snapshot.clients = [client("home-loan", 1_600), client("savings", 90)].into_iter().collect();
    handle.cell.set(snapshot);
    let limited = [("limit = { rate = 50 }", "limit = { rate = 4 }")];
    std::fs::write(&file.path, text(|text| changed(text, &limited))).unwrap();
    let cycle = &file.configuration.dry_run().unwrap().unwrap().next_cycle[0];
    assert_eq!((cycle.wanted, cycle.admits, cycle.would_admit), (1_690, 590, 130));
    // A rule of run time decides before those of the file.
    let body = serde_json::json!({ "service": true, "capacity": 500 });
    let rule = rule_of_json("summer", body.as_object().unwrap(), u64::MAX);
    let (version, forbidden_capacity) = (RuleVersion { n: 1, id: ChangeId(1) }, None);
    let (by, body, rule) = ("one".into(), body.to_string().into(), Ok(rule.unwrap()));
    let known = KnownRule { version, by, at_ms: 1, body, rule, forbidden_capacity };
    handle.rules.known().rules.insert("summer".into(), known);
    write("capacity = 4500");
    let cycle = &file.configuration.dry_run().unwrap().unwrap().next_cycle[0];
    assert_eq!((cycle.admits_at_most, cycle.would_admit_at_most), (Some(500), Some(500)));
    assert_eq!((cycle.admits, cycle.would_admit), (500, 500));
    assert_eq!(file.configuration.shown(false), before);
    write("capacity = 0");
    file.configuration.dry_run().unwrap().unwrap_err();
    assert!(file.configuration.last().successful, "nothing was to be taken over");
}

#[test]
fn the_last_ten_changes_are_kept_with_their_values() {
    let file = File::new();
    for capacity in 2001..2015 {
        file.reload("capacity = 2000", &format!("capacity = {capacity}")).unwrap();
    }
    let past = file.configuration.past_changes();
    let values: Vec<_> = past.iter().map(|past| past.change.to.as_u64().unwrap()).collect();
    assert_eq!(values, (2005..2015).rev().collect::<Vec<_>>());
    assert!(past.iter().all(|past| past.by == "a test" && past.change.doubtful_factor.is_none()));
}

#[test]
fn only_services_that_changed_get_a_change() {
    let file = File::new();
    file.reload("[[service]]", &format!("{SCORING}[[service]]")).unwrap();
    let handles = file.configuration.services.get();
    let arrived = || {
        let takes = handles.iter().filter(|handle| handle.inbox.take().is_some());
        takes.map(|handle| handle.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(arrived(), [""; 0], "another service is no change of this one");
    file.reload_all(&[("capacity = 2000", "capacity = 3000"), ("[[service]]", &format!("{SCORING}[[service]]"))])
        .unwrap();
    assert_eq!(arrived(), ["kyc"]);
}

#[test]
fn more_than_twice_and_less_than_half_is_doubtful() {
    let factor = |from, to: &str| {
        let parse = |text: String| Config::parse(&text, Path::new("a"), [], watermaster_kafka::PROPERTY_RULES).unwrap();
        let [before, after] = [from, to].map(|line| parse(text(|text| changed(text, &[(from, line)]))));
        before.changes(&after).unwrap()[0].doubtful_factor()
    };
    for (from, to, expected) in [
        ("capacity = 2000", "capacity = 4000", None),
        ("capacity = 2000", "capacity = 4002", Some(2.001)),
        ("capacity = 2000", "capacity = 1000", None),
        ("capacity = 2000", "capacity = 500", Some(0.25)),
        ("cycle = \"10s\"", "cycle = \"1m\"", Some(6.0)),
        ("enforce = true", "enforce = false", None),
        ("weight = 2.0\n", "weight = 6.0\n", Some(3.0)),
    ] {
        assert_eq!(factor(from, to), expected, "{from} -> {to}");
    }
}

const CARDS: &str = "[[service.source]]\ntopic = \"credit-card.kyc\"\n";
const SCORING: &str = "[[service]]\nname = \"scoring\"\ntarget = \"scoring.requests\"\n\
                       dead_letter = \"scoring.dead-letter\"\ncapacity = 2000\n[[service.source]]\ntopic = \"a.score\"\n";

#[test]
fn sources_come_and_go() {
    let file = File::new();
    let topics = || {
        let sources = file.configuration.services.get()[0].inbox.take().expect("a change").sources;
        sources.expect("sources").into_iter().map(|source| source.topic).collect::<Vec<_>>()
    };
    let with_cards = format!("{CARDS}[[service.source]]\n");
    // The position of the old source shifts, but that is no change.
    assert_eq!(file.reload("[[service.source]]\n", &with_cards), Ok(vec!["service[0].source[0]".to_owned()]));
    assert_eq!(topics(), ["credit-card.kyc", "home-loan.kyc"]);
    let other_client = [("[[service.source]]\n", &*with_cards), ("client = \"home-loan\"", "client = \"a\"")];
    assert_eq!(file.reload_all(&other_client), Ok(vec!["service[0].source[1].client".to_owned()]));
    let replaced = file.reload("home-loan.kyc", "car-loan.kyc").unwrap();
    assert_eq!(replaced, ["service[0].source[0]", "service[0].source[1]"], "two are gone, one is new");
    assert_eq!(topics(), ["car-loan.kyc"]);
    // A new source brings its own outputs; another output of an old one takes a restart, as that of a service does.
    let with_outputs =
        with_cards.replace("[[service.source]]\ntopic", "[[service.source]]\ndead_letter = \"cards\"\ntopic");
    file.reload("[[service.source]]\n", &with_outputs).expect("another source");
    let error = file.reload("[[service.source]]\n", &with_cards).expect_err("another topic");
    assert!(error.contains("service[0].source[0].dead_letter") && error.contains("restart"), "{error}");
}

#[test]
fn services_come_and_go() {
    let file = File::new();
    let names = || file.configuration.services.get().into_iter().map(|service| service.name).collect::<Vec<_>>();
    let kyc = file.configuration.services.get().remove(0);
    let before = format!("{SCORING}[[service]]\n");
    assert_eq!(file.reload("[[service]]\n", &before), Ok(vec!["service[0]".to_owned()]));
    assert_eq!(names(), ["scoring", "kyc"]);
    let scoring = file.configuration.services.get().remove(0);
    // A change of a service whose position has shifted.
    let changed = file.reload_all(&[("capacity = 2000", "capacity = 4000"), ("[[service]]\n", &before)]);
    assert_eq!(changed, Ok(vec!["service[1].capacity".to_owned()]));
    let found = kyc.inbox.take().and_then(|change| change.policy).map(|policy| policy.capacity);
    assert_eq!(found, Some(4000), "the handle of the service stays");
    assert_eq!(file.reload("capacity", "capacity").map(|changed| changed.len()), Ok(2));
    assert_eq!((names(), kyc.is_stopped(), scoring.is_stopped()), (vec!["kyc".to_owned()], false, true));
    assert!(file.change_arrived());
}

#[test]
fn sources_by_pattern_follow_the_topics_of_the_cluster() {
    let file = File::new();
    let named = "topic = \"home-loan.kyc\"\nclient = \"home-loan\"\n";
    let by_pattern = "topic_pattern = '(?<client>.*)[.]kyc'\n";
    assert_eq!(file.reload(named, by_pattern), Ok(vec!["service[0].source[0]".to_owned()]));
    let take = || file.configuration.services.get()[0].inbox.take().and_then(|change| change.sources);
    assert_eq!(take(), None, "the engine keeps its sources until the topics are known");
    let discovered = |names: &[&str]| {
        file.configuration.discovered(names.iter().map(|name| (*name).to_owned()).collect());
        let sources = take().into_iter().flatten();
        sources.map(|source| (source.topic, source.client.unwrap_or_default())).collect::<Vec<_>>()
    };
    let pair = |topic: &str, client: &str| (topic.to_owned(), client.to_owned());
    assert_eq!(discovered(&["a.kyc", "kyc.requests"]), [pair("a.kyc", "a")]);
    assert_eq!(discovered(&["a.kyc", "kyc.requests"]), [], "nothing is new");
    assert_eq!(discovered(&["a.kyc", "b.kyc"]), [pair("a.kyc", "a"), pair("b.kyc", "b")]);
    let changes = [(named, by_pattern), ("capacity = 2000", "capacity = 4000")];
    assert_eq!(file.reload_all(&changes), Ok(vec!["service[0].capacity".to_owned()]));
    assert_eq!(take().map(|sources| sources.len()), Some(2), "a reload keeps the topics that match");
    // A broker that has just started once stopped the reading of each topic that it did not know yet.
    assert_eq!(discovered(&["a.kyc"]), [pair("a.kyc", "a"), pair("b.kyc", "b")], "one answer may lack a topic");
    assert_eq!(discovered(&["a.kyc"]), [pair("a.kyc", "a")], "a topic that two answers lack is deleted");
}

#[test]
fn another_redrive_key_in_the_same_file_takes_effect() {
    let key = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(key.path(), "the former redrive key").expect("the key is written");
    let with_key = format!("redrive_key_file = {:?}\ncapacity = 2000", key.path());
    let file = File::with(&[("capacity = 2000", &with_key)]);
    let held = file.configuration.running()[0].0.redrive_key.clone().expect("a key");
    assert_eq!(file.reload("capacity = 2000", &with_key), Ok(vec![]));
    std::fs::write(key.path(), "the present redrive key").expect("the key is written");
    let changed = file.reload("capacity = 2000", &with_key);
    assert_eq!(changed, Ok(vec!["service[0].redrive_key_file".to_owned()]));
    assert_eq!(held.get().bytes(), b"the present redrive key", "an engine holds the key of the first configuration");
    std::fs::write(key.path(), "short").expect("the key is written");
    let error = file.reload("capacity = 2000", &with_key).expect_err("a key that is too short");
    assert!(error.contains("service[0].redrive_key_file"), "{error}");
    assert_eq!(held.get().bytes(), b"the present redrive key");
}

#[test]
fn tokens_come_go_and_change() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let token = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the token is written");
        path
    };
    let admin = |text: &str| format!("[admin]\n{text}[kafka]\n");
    let first = format!("token_file = {:?}\n", token("first", "the first of all tokens"));
    let board =
        format!("[[admin.token]]\nname = \"board\"\nfile = {:?}\nrole = ", token("board", "the token of a board"));
    let file = File::new();
    let reload = |text: &str| file.reload("[kafka]\n", &admin(text));
    let held = || {
        let tokens = file.configuration.admin().tokens;
        tokens
            .iter()
            .map(|token| format!("{} {} {}", token.name, token.role, token.token.bytes().len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(reload(&first), Ok(vec!["admin.token_file".to_owned()]));
    let with_board = first.clone() + &board + "\"read\"\n";
    assert_eq!(reload(&with_board), Ok(vec!["admin.token[0]".to_owned()]));
    assert_eq!(held(), ["token operate 23", "board read 20"]);
    token("board", "another token of the board");
    assert_eq!(reload(&with_board), Ok(vec!["admin.token[0].file".to_owned()]));
    assert_eq!(held(), ["token operate 23", "board read 26"]);
    assert!(!file.configuration.shown(false).0.to_string().contains("another token"), "no token is shown");
    token("board", "short");
    assert!(reload(&with_board).expect_err("a short token").contains("admin.token[0].file"));
    assert_eq!(held(), ["token operate 23", "board read 26"], "the former one stays");
    token("board", "another token of the board");
    let operates = board.clone() + "\"operate\"\n";
    assert_eq!(reload(&(first.clone() + &operates)), Ok(vec!["admin.token[0].role".to_owned()]));
    assert_eq!(reload(&operates), Ok(vec!["admin.token_file".to_owned()]));
    assert_eq!(reload(&(first + "metrics_token = true\n")).map(|changed| changed.len()), Ok(3));
    assert!(file.configuration.admin().metrics_token);
}

/// Without a broker a run waits, and takes signals meanwhile.
#[test]
fn a_hangup_reads_the_configuration_again_and_a_termination_ends_a_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [path, log] = ["watermaster.toml", "log"].map(|name| folder.path().join(name));
    let write = |capacity: &str| {
        let [kafka, capacity] = ["bootstrap_servers = \"127.0.0.1:1\"", capacity];
        let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n[kafka]\n";
        let changes =
            [("bootstrap_servers = \"localhost:9092\"", kafka), ("capacity = 2000", capacity), ("[kafka]\n", admin)];
        std::fs::write(&path, changed(text(|text| text), &changes)).expect("the file is written");
    };
    write("capacity = 2000");
    let mut command = Command::new(env!("CARGO_BIN_EXE_watermaster"));
    command.args(["run", "--config"]).arg(&path).env_clear();
    let mut run = Process::start(command.stderr(std::fs::File::create(&log).expect("the log is made")));
    let says = |words: &[&str]| {
        wait_for(&words.join(", "), Duration::from_secs(60), || {
            let text = std::fs::read_to_string(&log).expect("the log is text");
            text.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    };
    says(&["waiting for the brokers"]);
    write("capacity = 2100\ncapacity_max = 6000");
    run.signal(Signal::HangUp);
    says(&["service[0].capacity", "\"to\":\"2100\"", "SIGHUP"]);
    // The limit was not set before.
    let line = says(&["service[0].capacity_max", "\"to\":\"6000\""]);
    assert!(!line.contains("\"from\""), "{line}");
    run.signal(Signal::Term);
    assert_eq!(run.wait(Duration::from_secs(60)).code(), Some(0));
}
