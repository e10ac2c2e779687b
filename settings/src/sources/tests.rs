use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::config::{Config, ConfigErrors, PropertyRules};
use crate::model::{ClientFrom, sole_client};

const RULES: PropertyRules = PropertyRules { version: String::new, check: |_, _| Ok(()), clients: |_| Ok(()) };

fn parse(sources: &str) -> Result<Settings, ConfigErrors> {
    let service = |name: &str, sources: &str| {
        format!(
            "[[service]]\nname = {name:?}\ntarget = \"{name}.t\"\ndead_letter = \"{name}.d\"\ncontrol_topic = \"{name}.c\"\n\
             capacity = 2000\nclient_from = [\"topic\"]\n{sources}\n"
        )
    };
    let text = service("a", sources) + &service("b", "[[service.source]]\ntopic = \"a.a.kyc\"\n");
    Config::parse(&text, Path::new("test.toml"), [], RULES).map(|config| config.settings)
}

fn pattern(text: &str, more: &str) -> String {
    format!("[[service.source]]\ntopic_pattern = '{text}'\n{more}\n")
}

/// Returns topic and client of each source of the service `a`.
fn matches(sources: &str, topics: &[&str]) -> Vec<(String, String)> {
    let settings = parse(sources).unwrap_or_else(|errors| panic!("{errors}"));
    let topics: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
    let mut service = settings.with_matches(&topics).services.remove(0);
    service.sources.drain(..).map(|source| (source.topic, source.client.unwrap_or_default())).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(topic, client)| ((*topic).to_owned(), (*client).to_owned())).collect()
}

#[test]
fn the_client_is_captured_or_given_or_the_topics_name() {
    let topics = ["car-loan.kyc", "home-loan.kyc", "home-loan.kyc.old", "x.home-loan.kyc"];
    let captured = pairs(&[("car-loan.kyc", "car-loan"), ("home-loan.kyc", "home-loan")]);
    assert_eq!(matches(&pattern(r"^(?<client>[a-z-]+)\.kyc$", ""), &topics), captured);
    // The whole name has to match, with anchors or without.
    assert_eq!(matches(&pattern(r"(?<client>[a-z-]+)\.kyc", ""), &topics), captured);
    let given = pairs(&[("car-loan.kyc", "loans"), ("home-loan.kyc", "loans")]);
    assert_eq!(matches(&pattern(r"[a-z-]+\.kyc", "client = \"loans\""), &topics), given);
    let named = pairs(&[("car-loan.kyc", "car-loan.kyc"), ("home-loan.kyc", "home-loan.kyc")]);
    assert_eq!(matches(&pattern(r"(?<client>x)?(car|home)-loan\.kyc", ""), &topics), named);
    assert_eq!(matches(&pattern("nothing", ""), &topics), []);
}

#[test]
fn the_first_pattern_wins_and_topics_come_before_patterns() {
    let sources = pattern("a.*", "client = \"first\"") + &pattern(".*", "client = \"second\"");
    let named = "[[service.source]]\ntopic = \"ab\"\nclient = \"named\"\n";
    let all = [
        "b", "ab", "ac", "a.t", "a.d", "a.c", "b.t", "b.d", "b.c", "a.a.kyc", "__consumer_offsets",
        "watermaster.b.control",
    ];
    let expected = pairs(&[("ab", "named"), ("ac", "first"), ("b", "second")]);
    assert_eq!(matches(&(sources + named), &all), expected);
}

#[test]
fn a_source_has_the_outputs_of_its_service_or_its_own() {
    let cards = "[[service.source]]\ntopic = \"cards\"\ntarget = \"cards.t\"\ndead_letter = \"cards.d\"\n";
    let sources =
        cards.to_owned() + "[[service.source]]\ntopic = \"rent\"\n" + &pattern("l.*", "dead_letter = \"l.d\"");
    let settings = parse(&sources).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(settings.services[0].dead_letters(), ["a.d", "cards.d", "l.d"], "with those of an idle pattern");
    // No output of a source is read, nor is the topic of its parked dead letters.
    let topics = ["l.d", "l.d.parked", "leases", "loans"].map(str::to_owned);
    let service = settings.with_matches(&topics).services.remove(0);
    assert_eq!(service.targets(), ["a.t", "cards.t"]);
    let outputs = |source: Source| [source.topic, source.target, source.dead_letter];
    let found: Vec<[String; 3]> = service.sources.into_iter().map(outputs).collect();
    let expected =
        [["cards", "cards.t", "cards.d"], ["rent", "a.t", "a.d"], ["leases", "a.t", "l.d"], ["loans", "a.t", "l.d"]];
    assert_eq!(found, expected);
}

#[test]
fn a_source_has_a_topic_or_a_pattern() {
    let cases = [
        ("[[service.source]]\nclient = \"x\"\n".to_owned(), "source[0].topic"),
        (pattern("a", "topic = \"a\""), "source[0].topic_pattern"),
        (pattern("(a", ""), "unclosed group"),
        (pattern("a)(b", ""), "unopened group"),
        (pattern("", ""), "source[0].topic_pattern"),
        (pattern("(?<client>a)", "client = \"x\""), "source[0].client"),
        (pattern("a", "") + &pattern("a", ""), "source[1].topic_pattern"),
    ];
    for (sources, expected) in cases {
        let errors = parse(&sources).expect_err(expected).to_string();
        assert!(errors.contains(expected) && errors.contains(": 1 error"), "{expected}: {errors}");
    }
}

#[test]
fn a_pattern_without_a_topic_has_a_nearest_one() {
    let topics = ["__consumer_offsets", "cards.kyc", "home-loans.kyc", "home-loans.kyb", "rent"].map(str::to_owned);
    for (text, nearest) in [
        ("home-loan.*\\.kyc", None),
        ("home-loan\\.kyc", Some("home-loans.kyc")),
        ("(?<client>[a-z]+)_loans\\.kyb", Some("home-loans.kyb")),
        ("(?i:RENTS?)_?", None),
        ("rent-.+", Some("rent")),
        ("[0-9]card\\.kyc|card", Some("cards.kyc")),
    ] {
        let settings = parse(&pattern(text, "")).unwrap_or_else(|errors| panic!("{errors}"));
        let settings = settings.with_matches(&topics);
        let expected: Vec<_> = nearest.iter().map(|nearest| (text, Some(*nearest))).collect();
        assert_eq!(settings.services[0].idle_patterns(&topics), expected, "{text}");
        assert_eq!(settings.services[1].idle_patterns(&topics), [], "a service without patterns");
    }
    let settings = parse(&pattern("rent", "")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(settings.services[0].idle_patterns(&[]), [("rent", None)]);
}

proptest! {
    /// Each topic has one source at most, no output is read, and the order in
    /// which the brokers list topics changes nothing.
    #[test]
    fn each_topic_has_one_source_and_outputs_have_none(
        patterns in vec("[ab.]{1,2}[*+?]?|(?:\\(\\?<client>\\[ab\\]\\+\\))[.]?[a-c]{0,3}", 1..4),
        topics in vec("[ab]{0,2}[.]?[a-d]{1,2}|__[ab]|a.a.kyc", 0..12),
    ) {
        let distinct: BTreeSet<&String> = patterns.iter().collect();
        let sources: String = distinct.iter().map(|text| pattern(text, "")).collect();
        let Ok(settings) = parse(&sources) else { return Ok(()) };
        let resolved = settings.with_matches(&topics);
        let read: Vec<&str> =
            resolved.services.iter().flat_map(|service| &service.sources).map(|source| source.topic.as_str()).collect();
        let distinct: BTreeSet<&str> = read.iter().copied().collect();
        prop_assert_eq!(distinct.len(), read.len());
        for topic in &distinct {
            prop_assert!(!["a.t", "a.d", "a.c", "b.t", "b.d", "b.c"].contains(topic) && !topic.starts_with("__"));
        }
        let reversed: Vec<String> = topics.iter().rev().cloned().collect();
        prop_assert_eq!(&settings.with_matches(&reversed), &resolved);
        prop_assert_eq!(settings.with_matches(&[]), settings);
    }
}

/// A service with these keys and sources.
fn service_of(keys: &str, sources: &str) -> Service {
    let text =
        format!("[[service]]\nname = \"kyc\"\ntarget = \"t\"\ndead_letter = \"d\"\ncapacity = 2000\n{keys}\n{sources}");
    let config = Config::parse(&text, Path::new("test.toml"), [], RULES);
    config.unwrap_or_else(|errors| panic!("{errors}")).settings.services.remove(0)
}

fn flood_of(keys: &str, sources: &str) -> String {
    service_of(keys, sources).flood_text()
}

/// The weight of the group beside the other group, the client that stands alone and the unlisted clients.
#[test]
fn each_group_is_told_with_its_share() {
    let tables = "[service.group.home-loan]\nweight = 3\n[service.group.cards]\nclients = [\"card-*\"]\n\
                  limit = { rate = 500, per = \"1s\" }\n[service.client.alone]\n[service.client.card-a]\nweight = 9\n\
                  [service.client.\"home-loan/web\"]\n[[service.source]]\ntopic = \"a\"\n";
    let service = service_of("group_from = [\"key\"]", tables);
    assert_eq!(
        service.group_texts(),
        [
            "group cards: a default share of at least 333 records per 10s, a limit of 500 per 1s",
            "group home-loan: a default share of at least 1000 records per 10s",
        ]
    );
    assert_eq!(service_of("", "[[service.source]]\ntopic = \"a\"\n").group_texts(), Vec::<String>::new());
}

#[test]
fn a_flood_waits_where_a_source_belongs_to_one_client() {
    let (one, other) =
        ("[[service.source]]\ntopic = \"a\"\n", "[[service.source]]\ntopic_pattern = \"b-(?<client>.*)\"\n");
    let both = format!("{one}{other}");
    let waits = "when a client floods, its records wait in Kafka, and none is rejected";
    assert_eq!(flood_of("", &both), waits);
    assert_eq!(flood_of("client_from = [\"topic\"]", &both), waits);
    let by_key = "client_from = [\"key\"]";
    let shared = flood_of(by_key, &both);
    assert!(shared.ends_with("rejected as queue_full once 10000 wait: every source has records of several clients"));
    assert_eq!(flood_of(by_key, &format!("{one}allowed_clients = [\"home\"]\n")), waits);
    let mixed = flood_of(by_key, &format!("{one}allowed_clients = [\"home\"]\n{other}"));
    assert!(mixed.contains("those of sources with several clients (b-(?<client>.*)) are rejected"), "{mixed}");
    let expires = flood_of("", &format!("[service.shape]\nmax_delay = \"5m\"\n{one}"));
    assert!(expires.ends_with(". Records that waited for 5m are rejected as expired"), "{expires}");
    assert!(flood_of("mode = \"reject\"", one).ends_with("beyond its grant are rejected"));
    assert!(flood_of("enforce = false", one).contains("shadow mode only counts"));
}

#[test]
fn allowed_clients_may_make_a_topic_a_shared_one() {
    let (one, both) = (["b".to_owned()], ["a", "b"].map(str::to_owned));
    let topic = [ClientFrom::Topic];
    assert_eq!(sole_client(Some("a"), None, &topic), Some("a"));
    assert_eq!(sole_client(Some("a"), None, &[ClientFrom::Key]), None);
    assert_eq!(sole_client(None, Some(&one), &[ClientFrom::Key]), Some("b"));
    assert_eq!(sole_client(Some("a"), Some(&both), &topic), Some("a"));
    assert_eq!(sole_client(Some("a"), Some(&both), &[ClientFrom::Key, ClientFrom::Topic]), None);
}
