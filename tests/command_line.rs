//! The command line: usage errors, `load`, `allocate` and `demo`.

#[path = "support/documents.rs"]
mod documents;
mod program;
#[allow(dead_code)] // Only `documents` uses it.
#[path = "support/repository.rs"]
mod repository;

use program::{file, text, watermaster};

#[test]
fn malformed_command_lines_are_usage_errors() {
    let lines: [&[&str]; 18] = [
        &[],
        &["config"],
        &["config", "--schema", "--config", "watermaster.toml"],
        &["walk"],
        &["run"],
        &["check", "--config"],
        &["demo", "--mode", "dance"],
        &["load", "--config", "watermaster.toml"],
        &["load", "--config", "watermaster.toml", "--scenario", "s.toml", "--seconds", "0"],
        &["dlq", "close", "--config", "watermaster.toml"],
        &["dlq", "close", "--config", "watermaster.toml", "--all", "--where", "reason=expired"],
        &["trace", "--config", "watermaster.toml", "--out", "x", "--from", "tomorrow"],
        &["simulate", "--config", "watermaster.toml", "--trace", "x", "--find", "capacity"],
        &["simulate", "--config", "watermaster.toml", "--trace", "x", "--capacity", "5..1/1"],
        &["allocate", "--capacity", "0", "--wants", "A=1"],
        &["allocate", "--capacity", "4", "--wants", "A"],
        &["allocate", "--capacity", "4", "--wants", "A=1,A=2"],
        &["allocate", "--capacity", "4", "--wants", "A=1", "--weight", "B=2"],
    ];
    for line in lines {
        let output = watermaster(line, &[], "");
        assert_eq!(output.status.code(), Some(2), "{line:?}: {}", text(&output.stderr));
        assert!(!output.stderr.is_empty(), "{line:?}");
    }
}

/// With `--help` as the last option, every option before it is parsed, and nothing is run.
#[test]
fn the_command_lines_of_the_documents_are_parsed() {
    let commands = documents::commands();
    assert!(commands.iter().any(|command| command.is_line) && commands.iter().any(|command| !command.is_line));
    for documents::DocumentedCommand { file, text: line, is_line } in commands {
        let known = line.replace("$WATERMASTER", "http://localhost").replace("=…", "=expired").replace(" N", " 1");
        let words: Vec<&str> = known.split_whitespace().take_while(|word| !["#", "|", ">"].contains(word)).collect();
        let output = watermaster(&[&words[..], &["--help"]].concat(), &[], "");
        let said = text(&output.stderr);
        let is_cut = !is_line && said.contains("a value is required");
        assert!(output.status.success() || is_cut, "{file}: watermaster {line}: {said}");
    }
}

#[test]
fn the_schema_is_printed_without_a_configuration() {
    let output = watermaster(&["config", "--schema"], &[], "");
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(schema["properties"]["service"]["items"]["required"][0], "name");
}

#[test]
fn completions_and_manual_pages_name_the_commands() {
    let help = text(&watermaster(&["--help"], &[], "").stdout);
    let commands = help.split_once("Commands:").and_then(|(_, rest)| rest.split_once("\n\n")).unwrap().0;
    // Further lines of a description are indented further.
    let lines = commands.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let commands: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"man"), "{help}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&watermaster(&["completions", shell], &[], "").stdout);
        let words = [&commands[..], &["accept-foreign-offsets"]].concat();
        words.iter().for_each(|word| assert!(script.contains(word), "{shell}: {word}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man1");
    assert_eq!(watermaster(&["man", folder.to_str().unwrap()], &[], "").status.code(), Some(0));
    let nested = ["dlq-ls", "dlq-show", "dlq-export", "dlq-redrive", "dlq-close"];
    for command in commands.into_iter().filter(|command| *command != "help").chain(nested) {
        let page = std::fs::read_to_string(folder.join(format!("watermaster-{command}.1"))).unwrap();
        assert!(page.contains(".SH EXAMPLES\n.nf\nExamples:"), "the manual page of {command} has no examples");
    }
}

/// A folder and a file beside it are one configuration.
#[test]
fn the_configuration_may_be_several_files() {
    let (folder, base) = file(include_str!("../config/watermaster.minimal.toml"));
    let (_other, site) = file("[[service]]\nname = \"kyc\"\ncapacity = 9000\n");
    let (folder, site) = (folder.path().to_str().unwrap(), site.to_str().unwrap());
    let output = watermaster(&["config", "--config", folder, "--config", site], &[], "");
    let shown = text(&output.stdout);
    let line = |text: &str, origin: String| shown.lines().any(|line| line.starts_with(text) && line.ends_with(&origin));
    assert!(line("capacity = 9000", format!("# {site}:3")), "{shown}{}", text(&output.stderr));
    assert!(line("target = \"kyc.requests\"", format!("# {}:6", base.display())), "{shown}");
}

/// The case of `watermaster config … | head -1`.
#[test]
fn a_closed_stdout_is_not_an_error() {
    let many: Vec<_> = (0..5_000).map(|n| format!("c{n}=1")).collect();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_watermaster"))
        .args(["allocate", "--capacity", "400", "--wants", &many.join(",")])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

/// The bugs: `rules export > rules.toml` and `completions` on a full disk ended with 0, a picture with 2.
#[cfg(target_os = "linux")]
#[test]
fn a_result_that_can_not_be_written_is_an_error() {
    for line in [&["allocate", "--capacity", "4", "--wants", "A=1"][..], &["completions", "bash"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_watermaster"));
        let output = command.args(line).stdout(full).stderr(std::process::Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(70), "{}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("error: the result can't be written: "), "{}", text(&output.stderr));
    }
    let picture = simulate(lines().as_bytes(), &["--capacity", "1000,2000", "--picture", "/dev/full"]);
    for output in [picture, watermaster(&["man", "/dev/full"], &[], "")] {
        assert_eq!(output.status.code(), Some(70), "{}", text(&output.stderr));
    }
}

/// The command ends before it connects to a broker.
#[test]
fn load_reports_errors_of_its_scenario_and_its_service() {
    let (_config_folder, config) = file(include_str!("../config/demo.toml"));
    let (_folder, scenario) = file("[[client]]\nid = \"a\"\n\n[[client.phase]]\nkind = \"steady\"\nrate = \"fast\"\n");
    let (config, scenario) = (config.to_str().unwrap(), scenario.to_str().unwrap());
    let output = watermaster(&["load", "--config", config, "--scenario", scenario], &[], "");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("scenario: 2 errors") && said.contains("client[0].phase[0].rate is \"fast\""), "{said}");
    assert!(said.contains(&format!("{scenario}:6")) && said.contains("phase[0].for is missing"), "{said}");
    let output = watermaster(&["load", "--config", config, "--scenario", "/nowhere.toml"], &[], "");
    assert_eq!(output.status.code(), Some(78), "{}", text(&output.stderr));
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/config/scenarios/steady.toml");
    let output = watermaster(&["load", "--config", config, "--scenario", shipped, "--service", "x"], &[], "");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the configuration has kyc"), "{said}");
}

/// Runs `simulate` with a service of 2 000 per 10 s.
fn simulate(trace: &[u8], arguments: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let (config, path) = (folder.path().join("watermaster.toml"), folder.path().join("kyc.trace"));
    std::fs::write(&config, include_str!("../config/watermaster.minimal.toml")).unwrap();
    std::fs::write(&path, trace).unwrap();
    let files = ["simulate", "--config", config.to_str().unwrap(), "--trace", path.to_str().unwrap()];
    watermaster(&[&files[..], arguments].concat(), &[], "")
}

/// Two clients for a minute: 100 records a second, and 20 in the first half and 300 in the second half.
fn lines() -> String {
    let line = |ms: u64| {
        let steady = ms.is_multiple_of(10).then(|| format!("{ms},steady,0,300\n"));
        let many = ms >= 30_000 && ms * 3 % 10 < 3;
        let burst = (many || ms.is_multiple_of(50)).then(|| format!("{ms},burst,{},900\n", 1 + ms % 3));
        [steady, burst].into_iter().flatten().collect::<String>()
    };
    (0..60_000).map(line).collect()
}

#[test]
fn simulate_prints_the_same_with_any_number_of_jobs() {
    let lines = lines();
    let sweep = ["--capacity", "1000..4000/500", "--mode", "shape,reject", "--lending", "proportional,max_min"];
    let service = ["--retries", "model:1s,3", "--service-rate", "200", "--service-knee", "4s"];
    let sweep = [&sweep[..], &service].concat();
    for format in ["json", "text"] {
        let printed = |jobs: &str| {
            let output = simulate(lines.as_bytes(), &[&sweep[..], &["--output", format, "--jobs", jobs]].concat());
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            output.stdout
        };
        assert!(printed("1") == printed("4"), "{format}");
    }
}

#[test]
fn simulate_finds_the_smallest_capacity_that_suffices() {
    let lines = lines();
    let holds = |capacity: u64| {
        let arguments = ["--output", "json", "--capacity", &capacity.to_string()];
        let output = simulate(lines.as_bytes(), &arguments);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let burst = &json["points"][0]["clients"][1];
        assert_eq!(burst["name"], "burst");
        burst["rejected"].as_object().unwrap().is_empty() && burst["delay_seconds"]["p99"].as_f64().unwrap() <= 5.0
    };
    let find = ["--output", "json", "--find", "capacity", "--client", "burst", "--p99", "5s"];
    let output = simulate(lines.as_bytes(), &find);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = json["answers"][0]["capacity"].as_u64().unwrap();
    assert!(holds(found) && !holds(found - found / 100), "{found}");
    // The whole minute brings less in any cycle than it takes to admit each record within a microsecond.
    let impossible = ["--find", "capacity", "--client", "burst", "--p99", "1us"];
    let output = simulate(lines.as_bytes(), &impossible);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("no capacity up to 4000"), "{}", text(&output.stdout));
    let output = simulate(lines.as_bytes(), &["--find", "capacity", "--client", "other", "--rejected", "1%"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn simulate_names_what_is_wrong_with_a_trace() {
    let mut trace = watermaster_tools::trace_file::csv::parse(&lines()).unwrap();
    assert_eq!(simulate(&trace, &[]).status.code(), Some(0));
    trace[1_000] ^= 1;
    for (bytes, said) in [
        (&trace[..], "kyc.trace: block 1 is damaged"),
        (&trace[..2_000], "kyc.trace: the file does not end as a trace does"),
        (&b"10,a,0,1\nx,a,0,1"[..], "kyc.trace: line 2: the first column"),
        (&b""[..], "kyc.trace holds no record"),
    ] {
        let output = simulate(bytes, &[]);
        assert_eq!(output.status.code(), Some(78));
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
}

/// In mode reject the clients of this scenario send rejected records again, and the service has to finish what is
/// admitted.
#[test]
fn simulate_takes_a_scenario_in_place_of_a_trace() {
    let of = |path: &str| format!("{}/config/{path}", env!("CARGO_MANIFEST_DIR"));
    let (config, scenario) = (of("watermaster.minimal.toml"), of("scenarios/retry-storm.toml"));
    let point = |more: &[&str]| {
        let arguments =
            ["simulate", "--config", &config, "--scenario", &scenario, "--mode", "reject", "--output", "json"];
        let output = watermaster(&[&arguments[..], more].concat(), &[], "");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["points"][0].clone()
    };
    let (kept, dropped) = (point(&["--service-rate", "100"]), point(&["--retries", "drop"]));
    let count = |point: &serde_json::Value, key: &str| point["all"][key].as_u64().unwrap();
    assert!(count(&kept, "retries") > 1_000 && count(&dropped, "retries") == 0, "{kept:#}\n{dropped:#}");
    assert_eq!(count(&kept, "records"), count(&dropped, "records"));
    assert!(kept["service"]["wait_seconds"]["max"].as_f64().unwrap() > 10.0, "{kept:#}");
    assert!(dropped["service"].is_null() && dropped["all"].get("finish_seconds").is_none(), "{dropped:#}");
    let both = ["simulate", "--config", &config, "--scenario", &scenario, "--trace", "x"];
    assert_eq!(watermaster(&both, &[], "").status.code(), Some(2));
}

#[test]
fn simulate_draws_its_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep.svg");
    let lines = lines().replace("burst", "<burst & co>");
    let arguments = ["--capacity", "1000..3000/1000", "--mode", "shape,reject", "--picture", path.to_str().unwrap()];
    assert_eq!(simulate(lines.as_bytes(), &arguments).status.code(), Some(0));
    let picture = std::fs::read_to_string(&path).unwrap();
    assert_eq!(picture.matches("<g ").count(), 4);
    assert!(picture.contains("&#60;burst &#38; co&#62;"), "{picture}");
}

fn granted(arguments: &[&str], input: &str) -> serde_json::Value {
    let arguments: Vec<_> = ["allocate", "--output", "json"].iter().chain(arguments).copied().collect();
    let output = watermaster(&arguments, &[], input);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["granted"].clone()
}

#[test]
fn allocate_reproduces_the_worked_example() {
    let rows = [
        ("A=2,B=15,C=10,D=10", [5, 15, 10, 10]),
        ("A=3,B=15,C=50,D=10", [3, 11, 16, 10]),
        ("A=0,B=15,C=50,D=5", [1, 12, 22, 5]),
    ];
    for (wants, [a, b, c, d]) in rows {
        let expected = serde_json::json!({"A": a, "B": b, "C": c, "D": d});
        let terms = ["--capacity", "40", "--reservation", "0.1"];
        assert_eq!(granted(&[&terms[..], &["--wants", wants]].concat(), ""), expected);
        let lines = wants.replace(',', "\n");
        assert_eq!(granted(&[&terms[..], &["--wants", "-"]].concat(), &format!("# a comment\n\n{lines}\n")), expected);
        let (_guard, path) = file(&lines);
        let from_file = format!("@{}", path.display());
        assert_eq!(granted(&[&terms[..], &["--wants", &from_file]].concat(), ""), expected);
    }
}

#[test]
fn allocate_lends_by_progressive_filling_when_asked() {
    // 7 records are lent; B lacks 5 and C 40, and D wants exactly its share: B and C get 3.5 each, and B wins the tie.
    let arguments = ["--capacity", "40", "--lending", "max_min", "--wants", "A=3,B=15,C=50,D=10"];
    let expected = serde_json::json!({"A": 3, "B": 14, "C": 13, "D": 10});
    assert_eq!(granted(&arguments, ""), expected);
}

#[test]
fn allocate_explains_its_result() {
    let wants = ["allocate", "--capacity", "40", "--wants", "A=3,B=15", "--wants", "C=50,D=10"];
    let output = watermaster(&wants, &[], "");
    let shown = text(&output.stdout);
    for part in ["default share", "wants", "floor", "granted", "+6", "Too little is lent", "15.6 %"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn allocate_writes_no_sign_before_a_zero() {
    for wants in ["A=20,B=20", "A=0,B=0", "A=40,B=40"] {
        let output = watermaster(&["allocate", "--capacity", "40", "--wants", wants], &[], "");
        let shown = text(&output.stdout);
        let zeros = shown.split_whitespace().filter(|word| word.trim_end_matches('.') == "-0").count();
        assert_eq!(zeros, 0, "{shown}");
    }
}

#[test]
fn allocate_is_exact_for_many_clients_and_odd_weights() {
    // Floating-point arithmetic would grant 28 18 27 66 13 16.
    let weights = [
        "--weight", "a=2.3", "--weight", "b=1.5", "--weight", "c=2.3", "--weight", "d=3", "--weight", "e=1.1",
        "--weight", "f=1.3",
    ];
    let rest = ["--capacity", "168", "--reservation", "0.2", "--wants", "a=0,b=0,c=0,d=66,e=0,f=0"];
    let exact = granted(&[&weights[..], &rest[..]].concat(), "");
    assert_eq!(exact, serde_json::json!({"a": 28, "b": 18, "c": 28, "d": 66, "e": 13, "f": 15}));
}

/// Computes the grants by the formulas as written, for clients of weight 1 and a reservation of 10 %, if more is wanted
/// than lent. All terms are integers: records × 10 N.
fn grants_by_hand(capacity: u128, wants: &[(String, u128)]) -> serde_json::Map<String, serde_json::Value> {
    let clients = wants.len() as u128;
    let (default, reserved) = (10 * capacity, capacity);
    let floor = |wanted: u128| (10 * clients * wanted).max(reserved);
    let over = |wanted: u128| floor(wanted).saturating_sub(default);
    let surplus: u128 = wants.iter().map(|(_, wanted)| default.saturating_sub(floor(*wanted))).sum();
    let deficit: u128 = wants.iter().map(|(_, wanted)| over(*wanted)).sum();
    assert!(deficit >= surplus, "more is wanted than lent");
    // Shares are numerators over 10 N · deficit.
    let exact = |wanted: u128| default.min(floor(wanted)) * deficit + over(wanted) * surplus;
    let unit = 10 * clients * deficit;
    let mut order: Vec<&(String, u128)> = wants.iter().collect();
    order.sort_by(|(a, a_wants), (b, b_wants)| (exact(*b_wants) % unit).cmp(&(exact(*a_wants) % unit)).then(a.cmp(b)));
    let left = capacity - wants.iter().map(|(_, wanted)| exact(*wanted) / unit).sum::<u128>();
    let grant = |(rank, (name, wanted)): (usize, &(String, u128))| {
        let records = exact(*wanted) / unit + u128::from((rank as u128) < left);
        (name.clone(), serde_json::json!(records as u64))
    };
    order.into_iter().enumerate().map(grant).collect()
}

#[test]
fn allocate_grants_ten_thousand_clients_exactly_what_the_formulas_say() {
    let wants: Vec<(String, u128)> = (0..10_000).map(|n| (format!("client-{n}"), n * n)).collect();
    let lines: String = wants.iter().map(|(name, wanted)| format!("{name}={wanted}\n")).collect();
    let granted = granted(&["--capacity", "1000000", "--reservation", "0.1", "--wants", "-"], &lines);
    assert_eq!(granted.as_object().unwrap(), &grants_by_hand(1_000_000, &wants));
}

/// Runs the demo in a mode; returns its summary.
fn demo(mode: &str) -> serde_json::Value {
    let output = watermaster(&["demo", "--mode", mode, "--seconds", "8", "--output", "json"], &[], "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let service = summary["services"][0].take();
    eprintln!("{service:#}");
    let broken: Vec<_> = service["claims"].as_array().unwrap().iter().filter(|claim| claim["kept"] != true).collect();
    assert!(broken.is_empty(), "{broken:?}");
    service
}

/// Returns all clients of the demo except the one with the campaign.
fn within_their_share(service: &serde_json::Value) -> Vec<&serde_json::Value> {
    let clients = service["clients"].as_array().unwrap().iter().filter(|client| client["name"] != "credit-card");
    let clients: Vec<_> = clients.collect();
    assert_eq!(clients.len(), 3);
    clients
}

#[test]
fn the_demo_rejects_no_record_within_its_clients_share_as_over_allocation() {
    let service = demo("reject");
    for client in within_their_share(&service) {
        let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
        let (sent, above) = (count(&client["sent"]), count(&client["sent_above_share"]));
        let rejected = count(&client["rejected"]["over_allocation"]);
        assert!(rejected <= above, "{client}");
        assert!(above * 2 < sent, "too few records within the share for a conclusive test: {client}");
    }
}

#[test]
fn the_demo_delays_no_client_within_its_share_for_longer_than_a_cycle() {
    let service = demo("shape");
    for client in within_their_share(&service) {
        let rejected = client["rejected"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64);
        assert_eq!(rejected.sum::<u64>(), 0, "{client}");
        assert!(client["delay_p99_seconds"].as_f64().unwrap() <= 1.0, "{client}");
        assert_eq!(client["sent"], client["admitted"], "{client}");
    }
}
