//! Valid scenarios, and the errors of invalid ones.

use watermaster_core::policy::Mode;

use super::*;

fn parse(text: &str) -> Result<Scenario, ConfigErrors> {
    Scenario::parse(text, Path::new("s.toml"))
}

const LEAST: &str = "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"steady\"\nrate = 5\nfor = \"10s\"\n";

#[test]
fn the_shortest_scenario_is_valid() {
    let scenario = parse(LEAST).unwrap();
    assert_eq!((scenario.name.as_str(), scenario.seed, scenario.length()), ("s", 1, Duration::from_secs(10)));
    let client = &scenario.clients[0];
    assert_eq!((client.topic.as_deref(), client.value_bytes, client.keys), (None, (300, 300), 100));
    let (rate, length) = (Rate::PerSecond(5.0), Duration::from_secs(10));
    assert_eq!(client.phases, [ScenarioPhase { length, from: rate, to: rate }]);
}

#[test]
fn every_key_is_read() {
    let text = r#"
        name = "all"
        description = "everything"
        seed = 9
        [[client]]
        id = "a"
        topic = "t"
        value_bytes = [10, 20]
        arrivals = "even"
        keys = 0
        retry = { backoff = "1s", max_backoff = "3s", attempts = 4 }
        phase = []
        [[client]]
        id = "b"
        [[client.phase]]
        kind = "ramp"
        from = "10%"
        to = 0.5
        for = "1s"
        [[client.phase]]
        kind = "burst"
        records = 7
        [[client.phase]]
        kind = "campaign"
        base = 1
        peak = "400%"
        rise = "2s"
        plateau = "3s"
        decay = "4s"
    "#;
    let scenario =
        parse(&text.replace("        phase = []\n", "        [[client.phase]]\nkind=\"burst\"\nrecords=1\n")).unwrap();
    assert_eq!((scenario.seed, scenario.description.as_str()), (9, "everything"));
    let (a, b) = (&scenario.clients[0], &scenario.clients[1]);
    assert_eq!((a.topic.as_deref(), a.value_bytes, a.arrivals, a.keys), (Some("t"), (10, 20), Arrivals::Even, 0));
    let retry = a.retry.unwrap();
    let waits: Vec<_> = (1..=4).map(|attempt| retry.wait_after(attempt).map(|wait| wait.as_secs())).collect();
    assert_eq!(waits, [Some(1), Some(2), Some(3), None]);
    let seconds = Duration::from_secs;
    let phase = |length, from, to| ScenarioPhase { length, from, to };
    let (base, peak) = (Rate::PerSecond(1.0), Rate::OfCapacity(4.0));
    let expected = [
        phase(seconds(1), Rate::OfCapacity(0.1), Rate::PerSecond(0.5)),
        phase(Duration::from_millis(100), Rate::Records(7), Rate::Records(7)),
        phase(seconds(2), base, peak),
        phase(seconds(3), peak, peak),
        phase(seconds(4), peak, base),
    ];
    assert_eq!(b.phases, expected);
}

#[test]
fn rates_are_per_second() {
    let rates = [Rate::PerSecond(3.0), Rate::OfCapacity(4.0), Rate::Records(7)];
    assert_eq!(rates.map(|rate| rate.per_second(Duration::from_millis(500), 50.0)), [3.0, 200.0, 14.0]);
}

#[test]
fn all_errors_are_reported_with_their_lines() {
    let text = "seed = -1\nspeed = 3\n[[client]]\nid = \"\"\n[[client.phase]]\nkind = \"steady\"\nrate = \"much\"\n\
                [[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"dance\"\n[[client]]\nid = \"b\"\nretry = 3\n";
    let errors = parse(text).unwrap_err();
    let found: Vec<_> = errors.iter().map(|error| (error.key.to_string(), error.origin.to_string())).collect();
    let expected = [
        ("client[0].id", 4),
        ("client[0].phase[0].for", 5),
        ("client[0].phase[0].rate", 7),
        ("client[1].phase[0].kind", 11),
        ("client[2].phase", 12),
        ("client[2].retry", 14),
        ("seed", 1),
        ("speed", 2),
    ];
    assert_eq!(found, expected.map(|(key, line)| (key.to_owned(), format!("s.toml:{line}"))), "{errors}");
    let text = errors.to_string();
    assert!(text.starts_with("scenario: 8 errors"), "{text}");
    assert!(text.contains("allowed: \"steady\" or \"ramp\" or \"burst\" or \"campaign\""), "{text}");
}

#[test]
fn invalid_toml_and_empty_text_are_refused() {
    assert!(parse("[[client").unwrap_err().to_string().contains("s.toml:1"));
    assert!(parse("").unwrap_err().to_string().contains("at least one [[client]]"));
    let twice = format!("{LEAST}{LEAST}");
    assert!(parse(&twice).unwrap_err().to_string().contains("the id of client[0], too"));
}

#[test]
fn sizes_and_rates_have_their_limits() {
    let with = |line: &str| parse(&LEAST.replace("id = \"a\"", &format!("id = \"a\"\n{line}")));
    assert!(
        ["value_bytes = [3, 2]", "value_bytes = [1]", "value_bytes = -1", "value_bytes = [1, 2000000]", "keys = 1.5"]
            .iter()
            .all(|line| with(line).is_err())
    );
    let rate = |rate: &str| parse(&LEAST.replace("rate = 5", &format!("rate = {rate}")));
    assert!(["-1", "nan", "inf", "1e7", "\"5\"", "\"-1%\"", "\"1e9%\"", "true"].iter().all(|r| rate(r).is_err()));
    assert!(["0", "0.25", "1000000", "\"0.5%\"", "\"100000 %\""].iter().all(|r| rate(r).is_ok()));
}

#[test]
fn stretching_keeps_rates() {
    let scenario = parse(LEAST).unwrap().stretched(Duration::from_secs(4));
    assert_eq!(scenario.length(), Duration::from_secs(4));
    assert_eq!(scenario.clients[0].phases[0].from, Rate::PerSecond(5.0));
}

#[test]
fn the_shipped_scenarios_are_valid_and_fit_the_demo() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/scenarios");
    let demo = crate::demo::config(Mode::Shape, false, "localhost:1").settings.services.remove(0);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let scenario = Scenario::parse(&text, &path).unwrap_or_else(|errors| panic!("{errors}"));
        crate::load::plan::Plan::new(&scenario, &demo).unwrap();
        assert!(!scenario.description.is_empty());
        // The one of the lending platform is the story of `docker compose up`.
        let longest = if scenario.name == "lending-platform" { 600 } else { 120 };
        assert!(scenario.length() <= Duration::from_secs(longest), "{}", scenario.name);
        let lengths: Vec<Duration> = scenario.clients.iter().map(ClientLoad::length).collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{}: {lengths:?}", scenario.name);
        names.push(scenario.name);
    }
    names.sort();
    assert_eq!(names, ["burst", "campaign", "lending-platform", "retry-storm", "steady"]);
}
