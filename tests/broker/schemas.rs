//! Clients in Avro, Protobuf and JSON values, by the schemas of a registry.

/// These tests run only with `scripts/test --long`.
mod long {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};
    use std::time::Duration;

    use serde_json::json;

    use crate::registry_stub::{StubRegistry, not_found, stored};
    use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime, an_hour_ago};
    use crate::support::judge::Judge;
    use crate::support::producer::{Outgoing, Producer};
    use crate::support::record::{Identity, Record};
    use crate::support::wait::wait_until;
    use crate::support::{broker::Broker, config::Config, reader::Follower, watermaster, watermaster::Watermaster};

    const STOP_TIMEOUT: Duration = Duration::from_secs(10);
    const RECORDS: u64 = 3_000;
    /// Partitions 0 and 1 have values of all kinds; all records of partition 2 name their client in a header.
    const PARTITIONS: u64 = 3;

    const AVRO: &str = r#"{"type": "record", "name": "Loan", "fields": [{"name": "note", "type": ["null", "string"]},
        {"name": "client", "type":
            {"type": "record", "name": "Client", "fields": [{"name": "id", "type": "string"}]}}]}"#;
    const PROTOBUF: &str = "syntax = \"proto3\"; import \"client.proto\"; message Loan { int64 amount = 1; \
                            bank.Client client = 2; }";

    /// The header in which Confluent's serializers name the schema.
    const ID_HEADER: &str = "__value_schema_id";
    /// A GUID that the registry has, and one that it says nothing about.
    const GUID: &[u8] = b"\x01\x89\x79\x17\x62\x23\x36\x41\x86\x9f\x0c\xff\x9a\xeb\x34\x5e\x41";
    const STRANGE_GUID: &[u8] = b"\x01strangers' bytes";

    type Header = (&'static str, &'static [u8]);

    /// The place of record `n`'s client, its header and its value.
    fn kind(n: u64) -> (&'static str, Option<Header>, &'static [u8]) {
        match (n % PARTITIONS, n / PARTITIONS % 12) {
            (2, _) | (_, 0) => ("header", Some(("client-id", b"by-header")), b"plain"),
            (_, 1) => ("avro", None, b"\0\0\0\0\x07\x02\x06abc\x14avro-loans"),
            (_, 2) => ("protobuf", None, b"\0\0\0\0\x08\0\x08\x96\x01\x12\x0b\x0a\x09proto-car"),
            (_, 3) => ("json", None, b"\0\0\0\0\x0a{\"client\": {\"id\": \"json-home\"}}"),
            // The value looks as if it began with an id.
            (_, 4) => ("avro", Some((ID_HEADER, GUID)), b"\0\x14avro-loans"),
            // The way to the message is in the header, too.
            (_, 5) => ("protobuf", Some((ID_HEADER, b"\0\0\0\0\x08\0")), b"\x08\x96\x01\x12\x0b\x0a\x09proto-car"),
            (_, 6) => ("json", Some((ID_HEADER, b"\0\0\0\0\x0a")), b"{\"client\": {\"id\": \"json-home\"}}"),
            (_, 7) => ("none", None, b"\0\0\0\0\x09abc"),
            // No registry gives such a number, and this one answers as it does about any page that it does not have.
            (_, 8) => ("none", None, b"\0\xff\xff\xff\xffabc"),
            (_, 9) => ("none", Some((ID_HEADER, STRANGE_GUID)), b"\0\x14avro-loans"),
            (_, 10) => ("none", Some((ID_HEADER, b"7")), b"\0\0\0\0\x07\x02\x06abc\x14avro-loans"),
            (_, _) => ("none", None, b"\0\0\0\0\x07\x02\x06ab"),
        }
    }

    fn client(n: u64) -> Option<&'static str> {
        match kind(n).0 {
            "header" => Some("by-header"),
            "avro" => Some("avro-loans"),
            "protobuf" => Some("proto-car"),
            "json" => Some("json-home"),
            _ => None,
        }
    }

    fn answer(path: &str) -> (u16, String) {
        match path {
            "/schemas/ids/7" | "/schemas/guids/89791762-2336-4186-9f0c-ff9aeb345e41" => {
                (200, stored("AVRO", AVRO, &json!([])))
            }
            "/schemas/ids/10" => (200, stored("JSON", "{}", &json!([]))),
            "/schemas/ids/8" => {
                let references = json!([{"name": "client.proto", "subject": "client.proto", "version": 2}]);
                (200, stored("PROTOBUF", PROTOBUF, &references))
            }
            "/subjects/client%2Eproto/versions/2?deleted=true" => {
                (200, stored("PROTOBUF", "package bank; message Client { string id = 1; }", &json!([])))
            }
            "/schemas/ids/0" | "/schemas/ids/9" => (404, not_found()),
            _ => (404, "<html>".to_owned()),
        }
    }

    fn config(rig: &Rig, url: &str) -> Config {
        let places = "client_from = [\"header:client-id\", \"avro:/client/id\", \"protobuf:/client/id\", \
                      \"json:/client/id\"]";
        let mut config = rig.config(rig.service(100_000, "1s", places, ""));
        config.kafka = format!(
            "delivery = \"exactly_once\"\n[kafka.schema_registry]\nurl = {url:?}\n\
             username = \"wm\"\npassword = \"hush\"\n"
        );
        config
    }

    /// While the registry refuses, the partitions with its values wait and the third one goes on.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn values_with_schemas_reach_the_right_client_once_the_registry_answers() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "schemas", 1, PARTITIONS as i32, TargetTime::Create);
        let refusal = Arc::new(AtomicU16::new(401));
        let status = Arc::clone(&refusal);
        let registry = StubRegistry::start(move |question| match status.load(Ordering::Relaxed) {
            0 => answer(&question.path),
            refused => (refused, String::new()),
        });
        let config = config(&rig, &registry.url);
        let (code, said) = watermaster::check(&config);
        assert!(code == Some(78) && said.contains("does not accept the user or the password"), "{code:?}: {said}");

        let start = an_hour_ago();
        let identity = Identity::TimestampFrom(start);
        Producer::to(&broker).send_all((0..RECORDS).map(|n| Outgoing {
            topic: rig.sources[0].clone(),
            partition: Some((n % PARTITIONS) as i32),
            timestamp: Some(start + n as i64),
            value: Some(kind(n).2.to_vec()),
            headers: kind(n).1.map(|(name, value)| (name.to_owned(), Some(value.to_vec()))).into_iter().collect(),
            ..Outgoing::default()
        }));
        let mut watermaster = Watermaster::spawn(&config);
        // The third partition, and the first record of each of the others.
        let at_first = RECORDS / PARTITIONS + 2;
        let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], identity);
        follower.wait_for(at_first, DRAIN_TIMEOUT);
        let waiting = ["reason=\"schema\""];
        wait_until("two partitions to wait", DRAIN_TIMEOUT, || {
            watermaster.metric("watermaster_paused_partitions", &waiting) == Some(2.0) && !watermaster.is_ready()
        });
        refusal.store(503, Ordering::Relaxed);
        wait_until("another answer", DRAIN_TIMEOUT, || watermaster.log().contains("answers 503"));
        assert_eq!(follower.seen() as u64, at_first, "no record of a partition that waits is decided");
        refusal.store(0, Ordering::Relaxed);
        let (code, said) = watermaster::check(&config);
        assert!(code == Some(0) && said.contains("the schema registry answers"), "{code:?}: {said}");
        follower.wait_for(RECORDS, DRAIN_TIMEOUT);
        watermaster.wait_ready(DRAIN_TIMEOUT);

        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        (0..RECORDS).filter_map(client).for_each(|client| *expected.entry(client).or_default() += 1);
        let service = watermaster.service("kyc");
        let clients = service["clients"].as_array().expect("a list");
        let admitted =
            clients.iter().map(|client| (client["name"].as_str().unwrap(), client["admitted"].as_u64().unwrap()));
        assert_eq!(admitted.collect::<BTreeMap<_, _>>(), expected);
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        assert!(!watermaster.log().contains("hush"), "{}", watermaster.log());
        let paths = registry.paths();
        assert_eq!(paths.iter().filter(|path| path.as_str() == "/schemas/ids/8").count(), 1, "{paths:?}");
        let judge = Judge {
            identity,
            client_of: &|record: &Record| identity.of(record).and_then(client).map(str::to_owned),
            ..NUMBERED
        };
        judge.judge(&rig.read_sources(), &rig.read_target(), &rig.read_dead_letter()).assert_right();
        drop(registry);
    }

    /// A registry that is not there is named, beside brokers that answer.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_registry_that_cannot_be_reached_is_named() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "no-registry", 1, 1, TargetTime::Create);
        let (code, said) = watermaster::check(&config(&rig, "http://127.0.0.1:1"));
        assert!(code == Some(69) && said.contains("http://127.0.0.1:1 can't be reached"), "{code:?}: {said}");
        assert!(said.contains("the brokers have what the configuration needs") && !said.contains("hush"), "{said}");
    }
}
