//! Errors of configurations: each names the key, its origin and the allowed values, and all are reported at once.

mod program;

use program::{file, text, watermaster};

/// A configuration without errors, which the cases change.
const RIGHT: &str = r#"[kafka]
commit_interval = "100ms"

[kafka.properties]

[admin]

[log]

[[service]]
name = "kyc"
target = "kyc.requests"
dead_letter = "kyc.dead-letter"
capacity = 2000
cycle = "10s"

[service.shape]

[[service.source]]
topic = "loans.kyc"
"#;

/// One wrong configuration and its expected error.
struct Case {
    what: &'static str,
    text: String,
    environment: Vec<(&'static str, &'static str)>,
    key: &'static str,
    /// The text in the line that the error must name; `None` if the origin is not a line.
    line_of: Option<&'static str>,
    origin: Option<&'static str>,
    says: Vec<&'static str>,
}

/// Returns a case with the correct configuration, in which the caller makes one error.
fn wrong(what: &'static str) -> Case {
    Case { what, text: RIGHT.to_owned(), environment: vec![], key: "", line_of: None, origin: None, says: vec![] }
}

impl Case {
    /// Puts `line` under the header `section`.
    fn under(mut self, section: &str, line: &'static str) -> Case {
        let header = format!("{section}\n");
        assert!(self.text.contains(&header), "{section}");
        self.text = self.text.replacen(&header, &format!("{header}{line}\n"), 1);
        self.line_of = Some(line);
        self
    }

    fn replace(mut self, from: &str, to: &'static str) -> Case {
        assert!(self.text.contains(from), "{from}");
        self.text = self.text.replacen(from, to, 1);
        self.line_of = (!to.is_empty()).then_some(to);
        self
    }

    fn text(mut self, text: &str) -> Case {
        self.text = text.to_owned();
        self
    }

    fn append(mut self, text: &'static str) -> Case {
        self.text.push_str(text);
        self
    }

    fn variable(mut self, name: &'static str, value: &'static str) -> Case {
        self.environment.push((name, value));
        self.line_of = None;
        self.from(name)
    }

    fn at(mut self, line_of: &'static str) -> Case {
        self.line_of = Some(line_of);
        self
    }

    fn from(mut self, origin: &'static str) -> Case {
        self.origin = Some(origin);
        self
    }

    fn key(mut self, key: &'static str) -> Case {
        self.key = key;
        self
    }

    fn says(mut self, words: &[&'static str]) -> Case {
        self.says.extend(words);
        self
    }

    /// The line that the error must name.
    fn line(&self) -> Option<usize> {
        let wanted = self.line_of?.trim_start().lines().next()?;
        let line = self.text.lines().position(|line| line == wanted);
        Some(line.unwrap_or_else(|| panic!("{}: {wanted:?} is not a line of\n{}", self.what, self.text)) + 1)
    }
}

fn cases() -> Vec<Case> {
    let [kafka, properties, admin, log] = ["[kafka]", "[kafka.properties]", "[admin]", "[log]"];
    let [service, shape, source] = ["[[service]]", "[service.shape]", "[[service.source]]"];
    vec![
        wrong("unknown section").append("[kafak]\n").key("kafak").at("[kafak]").says(&["not a key", "kafka, admin, log, service"]),
        wrong("unknown key").under(kafka, "group = \"a\"").key("kafka.group").says(&["not a key", "bootstrap_servers, group_id"]),
        wrong("key in the wrong section").under(service, "max_delay = \"1s\"").key("service[0].max_delay").says(&["service.shape.max_delay"]),
        wrong("unknown key by environment").variable("WATERMASTER_KAFKA__GROUPID", "a").key("kafka.groupid").says(&["not a key", "did you mean WATERMASTER_KAFKA__GROUP_ID?"]),
        wrong("list by environment").variable("WATERMASTER_SERVICE__KYC__SOURCE__0__TOPIC", "a").key("service.kyc.source.0.topic").says(&["not a key", "lists can't be set by the environment"]),
        wrong("wrong value by environment").variable("WATERMASTER_KAFKA__COMMIT_INTERVAL", "soon").key("kafka.commit_interval").says(&["\"soon\"", "1ms to 10s"]),
        wrong("missing key").replace("capacity = 2000\n", "").key("service[0].capacity").at("[[service]]").says(&["is missing", "1 to 1000000000000"]),
        wrong("capacity zero").replace("capacity = 2000", "capacity = 0").key("service[0].capacity").says(&["is 0", "1 to 1000000000000"]),
        wrong("capacity too large").replace("capacity = 2000", "capacity = 1000000000001").key("service[0].capacity").says(&["is 1000000000001"]),
        wrong("capacity negative").replace("capacity = 2000", "capacity = -4").key("service[0].capacity").says(&["is -4", "a whole number"]),
        wrong("capacity as text").replace("capacity = 2000", "capacity = \"2000\"").key("service[0].capacity").says(&["is \"2000\"", "a whole number"]),
        wrong("capacity with a fraction").replace("capacity = 2000", "capacity = 2000.5").key("service[0].capacity").says(&["is 2000.5", "a whole number"]),
        wrong("a capacity above its fence").replace("capacity = 2000", "capacity = 20000\ncapacity_max = 4000").at("capacity = 20000").key("service[0].capacity").says(&["is 20000, above capacity_max (4000)", "4000 or less"]),
        wrong("a capacity below its fence").replace("capacity = 2000", "capacity = 200\ncapacity_min = 1000").at("capacity = 200").key("service[0].capacity").says(&["is 200, below capacity_min (1000)", "1000 or more"]),
        wrong("a fence without room").under(service, "capacity_min = 2000\ncapacity_max = 1999").at("capacity_min = 2000").key("service[0].capacity_min").says(&["is 2000, above capacity_max (1999)", "1999 or less"]),
        wrong("a capacity of rules above the fence").under(service, "capacity_max = 4000\nrules_max_capacity = 40000").at("rules_max_capacity = 40000").key("service[0].rules_max_capacity").says(&["is 40000, above capacity_max (4000)", "4000 or less"]),
        wrong("a ceiling above the fence").under(service, "capacity_max = 4000").under(shape, "[service.pace]\nceiling = 5000\ngroup = \"a\"").at("ceiling = 5000").key("service[0].pace.ceiling").says(&["is 5000, above capacity_max (4000)"]),
        wrong("duration without unit").replace("cycle = \"10s\"", "cycle = \"10\"").key("service[0].cycle").says(&["time unit needed", "100ms to 1day"]),
        wrong("duration as number").replace("cycle = \"10s\"", "cycle = 10").key("service[0].cycle").says(&["is 10", "a duration with its unit"]),
        wrong("duration out of range").replace("cycle = \"10s\"", "cycle = \"1ms\"").key("service[0].cycle").says(&["is \"1ms\"", "100ms to 1day"]),
        wrong("reservation above one").under(service, "reservation = 1.1").key("service[0].reservation").says(&["is 1.1", "0 to 1"]),
        wrong("reservation too fine").under(service, "reservation = 0.1000000000000000055").key("service[0].reservation").says(&["is 0.1000000000000000055", "at most six decimals"]),
        wrong("reservation not a number").under(service, "reservation = nan").key("service[0].reservation").says(&["0 to 1"]),
        wrong("burst negative").under(shape, "burst = -0.1").key("service[0].shape.burst").says(&["is -0.1", "0 to 1"]),
        wrong("weight too fine").append("[service.client.a]\nweight = 1.0005\n").key("service[0].client.a.weight").at("weight = 1.0005").says(&["more than 3 decimals", "0.001 to 1000000"]),
        wrong("weight zero").append("[service.client.\"a.b\"]\nweight = 0\n").key("service[0].client.\"a.b\".weight").at("weight = 0").says(&["0.001 to 1000000"]),
        wrong("client name too long").append(LONG_CLIENT).key("service[0].client").at("[service.client.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggggggggghhhhhhhhhhiiiiiiiiiijjjjjjjjjjkkkkkkkkkkllllllllllmmmmmmmmmm]").says(&["130 bytes", "1 to 128 bytes"]),
        wrong("group with a slash").append("[service.group.\"a/b\"]\nweight = 1\n").key("service[0].group").at("[service.group.\"a/b\"]").says(&["has a group with an unusable name", "without /"]),
        wrong("client in two groups").append("[service.group.a]\nclients = [\"x\"]\n[service.group.b]\nclients = [\"x*\", \"x\"]\n").key("service[0].group.b.clients").at("clients = [\"x*\", \"x\"]").says(&["lists \"x\", as the group \"a\" does", "each id in one group"]),
        wrong("rule without a target").append("[[service.rule]]\nname = \"r\"\nweight = 1\n").key("service[0].rule[0].clients").at("[[service.rule]]").says(&["no other target", "one of clients, groups, service"]),
        wrong("rule that ends before it begins").append("[[service.rule]]\nname = \"r\"\nclients = [\"a\"]\nweight = 1\nfrom = 2026-07-03T00:00:00Z\nuntil = 2026-07-02T00:00:00Z\n").key("service[0].rule[0].until").at("until = 2026-07-02T00:00:00Z").says(&["is not after from"]),
        wrong("place of a group").under(service, "group_from = [\"topics\"]").key("service[0].group_from[0]").at("group_from = [\"topics\"]").says(&["\"topics\""]),
        wrong("limit without rate").append("[service.client.a]\nlimit = { burst = 1 }\n").key("service[0].client.a.limit.rate").at("limit = { burst = 1 }").says(&["is missing", "1 to 4294967295"]),
        wrong("unknown word").under(service, "mode = \"shaping\"").key("service[0].mode").says(&["\"shaping\"", "\"shape\" or \"reject\""]),
        wrong("word of the wrong type").under(service, "enforce = \"yes\"").key("service[0].enforce").says(&["\"yes\"", "true or false"]),
        wrong("delivery").under(kafka, "delivery = \"at_most_once\"").key("kafka.delivery").says(&["at_most_once", "\"at_least_once\" or \"exactly_once\""]),
        wrong("unknown scope").under(service, "scope = \"cluster\"").key("service[0].scope").says(&["\"cluster\"", "\"instance\" or \"group\""]),
        wrong("short silence").under(service, "group_silence = \"100ms\"").key("service[0].group_silence").says(&["100ms", "1s"]),
        wrong("key of former versions").under(service, "group_lease = \"10s\"").key("service[0].group_lease").says(&["former versions", "group_silence"]),
        wrong("empty consumer group").under(service, "consumer_group = \"\"").key("service[0].consumer_group").says(&["empty", "1 to 255 bytes"]),
        wrong("max_open without a group").under(service, "max_open = 5").key("service[0].max_open").says(&["without consumer_group", "reads the target"]),
        wrong("pace without a group").under(shape, "[service.pace]").key("service[0].pace.group").says(&["is missing", "consumer_group"]),
        wrong("pace of another group").replace("[service.shape]", "consumer_group = \"a\"\n[service.pace]\ngroup = \"b\"").at("group = \"b\"").key("service[0].pace.group").says(&["is \"b\", but consumer_group is \"a\""]),
        wrong("a limit that follows without a ceiling").under(shape, "[service.pace]\ngroup = \"a\"\ncontrol = \"apply\"").at("[service.pace]").key("service[0].pace.ceiling").says(&["is missing", "control = \"apply\""]),
        wrong("a floor above the capacity").under(shape, "[service.pace]\nfloor = 2001\ngroup = \"a\"").at("floor = 2001").key("service[0].pace.floor").says(&["is 2001, above the capacity", "2000 or less"]),
        wrong("a ceiling below the capacity").under(shape, "[service.pace]\nceiling = 1999\ngroup = \"a\"").at("ceiling = 1999").key("service[0].pace.ceiling").says(&["is 1999, below the capacity", "2000 or more"]),
        wrong("rare polls").under(shape, "[service.pace]\npoll = \"2s\"\ngroup = \"a\"").at("poll = \"2s\"").key("service[0].pace.poll").says(&["is \"2s\", above a fifth", "1s or less"]),
        wrong("size without a known unit").under(shape, "queue_bytes = \"256mib\"").key("service[0].shape.queue_bytes").says(&["no unit of size", "256MiB"]),
        wrong("map budget").under(kafka, "map_budget = \"9999 chars\"").key("kafka.map_budget").says(&["9999 chars", "64 to 4096"]),
        wrong("client from an unknown part").under(service, "client_from = [\"key\", \"body\"]").key("service[0].client_from[1]").says(&["\"body\"", "header:NAME", "json:/pointer"]),
        wrong("client from a bad pointer").under(service, "client_from = [\"json:/a~2\"]").key("service[0].client_from[0]").says(&["~0", "~1"]),
        wrong("client from a bad pattern").under(service, "client_from = ['key:^([a-z']").key("service[0].client_from[0]").says(&["character 3 of the pattern: unclosed character class", "key:^PATTERN"]),
        wrong("client from two groups").under(service, "client_from = ['header:x:^(a)(b)']").key("service[0].client_from[0]").says(&["the pattern has 2 groups"]),
        wrong("client from a schema without a registry").under(service, "client_from = [\"key\", \"avro:/a/b\"]").key("service[0].client_from").says(&["\"avro:/a/b\"", "no kafka.schema_registry.url"]),
        wrong("client from an empty list").under(service, "client_from = []").key("service[0].client_from").says(&["an empty list", "one or more"]),
        wrong("bad topic").replace("topic = \"loans.kyc\"", "topic = \"loans/kyc\"").key("service[0].source[0].topic").says(&["'/' is not allowed", "1 to 249"]),
        wrong("reserved topic").replace("target = \"kyc.requests\"", "target = \"..\"").key("service[0].target").says(&["reserves", "1 to 249"]),
        wrong("a loop").replace("target = \"kyc.requests\"", "target = \"loans.kyc\"").key("service[0].target").says(&["service[0].source[0]", "loop"]),
        wrong("dead letter is the target").replace("dead_letter = \"kyc.dead-letter\"", "dead_letter = \"kyc.requests\"").key("service[0].dead_letter").says(&["the target too"]),
        wrong("a loop by a source's target").under(source, "target = \"loans.kyc\"").key("service[0].source[0].target").says(&["service[0].source[0]", "loop"]),
        wrong("a loop by a source's dead letters").under(source, "dead_letter = \"loans.kyc\"").key("service[0].source[0].dead_letter").says(&["service[0].source[0]", "loop"]),
        wrong("a source in the ledger of dead letters").replace("topic = \"loans.kyc\"", "topic = \"kyc.dead-letter.ledger\"").key("service[0].source[0].topic").says(&["dlq keeps the ledger", "a topic of its own"]),
        wrong("a target among parked dead letters").replace("target = \"kyc.requests\"", "target = \"kyc.dead-letter.parked\"").key("service[0].target").says(&["dlq keeps parked dead letters", "a topic of its own"]),
        wrong("a source's target is the dead-letter topic").under(source, "target = \"kyc.dead-letter\"").key("service[0].source[0].target").says(&["the dead_letter too"]),
        wrong("a source's dead letters in the control topic").under(source, "dead_letter = \"watermaster.kyc.seats\"").key("service[0].source[0].dead_letter").says(&["the control_topic too"]),
        wrong("bad target of a source").under(source, "target = \"a/b\"").key("service[0].source[0].target").says(&["'/' is not allowed", "1 to 249"]),
        wrong("dead letters of two services with two ledgers").under(source, "dead_letter = \"c\" # first").append(SECOND_KYC).replace("name = \"kyc\" # again", "name = \"b\"").key("service[1].dead_letter").at("dead_letter = \"c\"").says(&["a ledger of its own"]),
        wrong("one control topic for two services").under(service, "control_topic = \"seats\" # first").append(SECOND_KYC).replace("name = \"kyc\" # again", "name = \"b\"\ncontrol_topic = \"seats\"").key("service[1].control_topic").at("control_topic = \"seats\"").says(&["is \"seats\", which is that of service[0] too", "a topic of its own"]),
        wrong("pace with two targets").under(source, "target = \"other\"").replace("[service.shape]", "[service.pace]\ngroup = \"a\"").at("target = \"other\"").key("service[0].source[0].target").says(&["follow one target"]),
        wrong("a source twice").append("[[service.source]] # again\ntopic = \"loans.kyc\" # again\n").key("service[0].source[1].topic").at("topic = \"loans.kyc\" # again").says(&["service[0].source[0] too", "only once"]),
        wrong("no source").replace("[[service.source]]\ntopic = \"loans.kyc\"\n", "").key("service[0].source").at("[[service]]").says(&["is missing", "at least one [[service.source]]"]),
        wrong("two services of one name").append(SECOND_KYC).key("service[1].name").at("name = \"kyc\" # again").says(&["service[0] too", "a name of its own"]),
        wrong("service name").replace("name = \"kyc\"", "name = \"k y c\"").key("service[0].name").says(&["' ' is not allowed", "1 to 64 letters"]),
        wrong("service is no list").text("[service]\nname = \"kyc\"\n").key("service").at("[service]").says(&["a table", "[[service]]"]),
        wrong("no service").text("").key("service").from("watermaster.toml").says(&["is missing", "at least one [[service]]"]),
        wrong("idle timeout below two cycles").under(service, "client_idle_timeout = \"19s\"").key("service[0].client_idle_timeout").says(&["below two cycles", "20s or more"]),
        wrong("commit interval above a tenth of the cycle").replace("commit_interval = \"100ms\"", "commit_interval = \"1001ms\"").key("kafka.commit_interval").says(&["service[0]", "1s or less"]),
        wrong("shortest commit interval above the longest").under(kafka, "min_commit_interval = \"101ms\"").key("kafka.min_commit_interval").says(&["above commit_interval (100ms)", "100ms or less"]),
        wrong("more clients than max_clients").under(service, "max_clients = 1").append("[service.client.a]\n[service.client.b]\n").key("service[0].max_clients").says(&["2 clients are configured", "2 or more"]),
        wrong("no instance").under(kafka, "instance_id = \"\"").key("kafka.instance_id").says(&["empty", "1 to 128"]),
        wrong("instance with the ids of seats").under(kafka, "instance_id = \"seat.a\"").key("kafka.instance_id").says(&["\"seat.\"", "1 to 128"]),
        wrong("group id").under(kafka, "group_id = \"\"").key("kafka.group_id").says(&["empty", "1 to 100"]),
        wrong("servers").under(kafka, "bootstrap_servers = \"a:99999\"").key("kafka.bootstrap_servers").says(&["no valid port", "host:port"]),
        wrong("beyond loopback without token").under(admin, "listen = \"0.0.0.0:9464\"").key("admin.listen").says(&["beyond loopback", "admin.token_file"]),
        wrong("listen on a name").under(admin, "listen = \"localhost:9464\"").key("admin.listen").says(&["an IP address and a port"]),
        wrong("console is no flag").under(admin, "console = \"off\"").key("admin.console").says(&["true or false"]),
        wrong("token file is a folder").under(admin, "token_file = \"/tmp\"").key("admin.token_file").says(&["not a regular file"]),
        wrong("token file missing").under(admin, "token_file = \"/nowhere/token\"").key("admin.token_file").says(&["No such file", "can be read"]),
        wrong("token without a file").append("[[admin.token]]\nname = \"a\"\nrole = \"read\"\n").key("admin.token[0].file").at("[[admin.token]]").says(&["is missing"]),
        wrong("TLS certificate without key").under(admin, "tls_cert = \"/nowhere\"").key("admin.tls_key").at("[admin]").says(&["is missing beside tls_cert", "both of them, or none"]),
        wrong("TLS key without certificate").under(admin, "tls_key = \"/nowhere\"").key("admin.tls_cert").at("[admin]").says(&["is missing beside tls_key"]),
        wrong("TLS files missing").under(admin, "tls_cert = \"/nowhere/a\"\ntls_key = \"/nowhere/b\"").key("admin.tls_cert").at("tls_cert = \"/nowhere/a\"").says(&["\"/nowhere/a\" can't be read"]),
        wrong("log format").under(log, "format = \"xml\"").key("log.format").says(&["\"auto\" or \"text\" or \"json\""]),
        wrong("property that Watermaster sets").under(properties, "\"group.id\" = \"mine\"").key("kafka.properties.\"group.id\"").says(&["can't be set", "kafka.group_id"]),
        wrong("property that Watermaster sets by environment").variable("WATERMASTER_KAFKA__PROPERTIES__ENABLE_AUTO_COMMIT", "true").key("kafka.properties.\"enable.auto.commit\"").says(&["committed in rounds"]),
        wrong("group protocol").under(kafka, "group_protocol = \"share\"").key("kafka.group_protocol").says(&["\"share\"", "\"classic\" or \"consumer\""]),
        wrong("group protocol as a property").under(properties, "\"group.protocol\" = \"consumer\"").key("kafka.properties.\"group.protocol\"").says(&["can't be set", "kafka.group_protocol"]),
        wrong("session of the consumer protocol").under(kafka, "group_protocol = \"consumer\"").under(properties, "\"session.timeout.ms\" = 6000").key("kafka.properties.\"session.timeout.ms\"").at("\"session.timeout.ms\" = 6000").says(&["the brokers have it", "group.consumer.session.timeout.ms"]),
        wrong("heartbeat of the consumer protocol").under(kafka, "group_protocol = \"consumer\"").under(properties, "\"heartbeat.interval.ms\" = 1000").key("kafka.properties.\"heartbeat.interval.ms\"").at("\"heartbeat.interval.ms\" = 1000").says(&["the brokers have it", "group.consumer.heartbeat.interval.ms"]),
        wrong("assignor").under(kafka, "group_protocol = \"consumer\"").under(properties, "\"partition.assignment.strategy\" = \"range\"").key("kafka.properties.\"partition.assignment.strategy\"").at("\"partition.assignment.strategy\" = \"range\"").says(&["can't be set"]),
        wrong("property that librdkafka does not know").under(properties, "\"fetch.min.byte\" = 1").key("kafka.properties.\"fetch.min.byte\"").says(&["No such configuration property"]),
        wrong("property with a value that librdkafka refuses").under(properties, "\"linger.ms\" = \"soon\"").key("kafka.properties.\"linger.ms\"").says(&["refused by librdkafka"]),
        wrong("property that is no scalar").under(properties, "debug = [\"all\"]").key("kafka.properties.debug").says(&["is a list", "a string, a number or true or false"]),
        wrong("property file missing").append("[kafka.properties_file]\n\"sasl.password\" = \"/nowhere/secret\"\n").key("kafka.properties_file.\"sasl.password\"").at("\"sasl.password\" = \"/nowhere/secret\"").says(&["/nowhere/secret", "can be read"]),
        wrong("allowed clients").under(source, "allowed_clients = [\"\"]").key("service[0].source[0].allowed_clients[0]").says(&["empty", "1 to 128 bytes"]),
        wrong("not TOML").replace("cycle = \"10s\"", "cycle = 10s").key("(file)").says(&["line 15, column", "TOML"]),
        wrong("a key twice").under(service, "name = \"twice\"").key("(file)").at("name = \"kyc\"").says(&["duplicate key", "line 12"]),
    ]
}

const LONG_CLIENT: &str = "[service.client.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggggggggghhhhhhhhhhiiiiiiiiiijjjjjjjjjjkkkkkkkkkkllllllllllmmmmmmmmmm]\n";

const SECOND_KYC: &str = r#"
[[service]] # again
name = "kyc" # again
target = "b"
dead_letter = "c"
capacity = 2000
[[service.source]]
topic = "d"
"#;

#[test]
fn the_correct_configuration_is_accepted() {
    let (_guard, path) = file(RIGHT);
    let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("the configuration is valid"));
}

#[test]
fn each_error_names_its_key_its_origin_and_the_allowed_values() {
    let cases = cases();
    assert!(cases.len() >= 30);
    for case in &cases {
        let (_guard, path) = file(&case.text);
        let path = path.to_str().unwrap();
        for command in ["check", "run"] {
            let output = watermaster(&[command, "--config", path], &case.environment, "");
            let said = text(&output.stderr);
            let context = format!("{} ({command}):\n{said}", case.what);
            assert_eq!(output.status.code(), Some(78), "{context}");
            assert!(said.starts_with("configuration: 1 error\n"), "{context}");
            assert!(said.contains(&format!("\n{} ", case.key)), "{context}\nexpected key {}", case.key);
            assert!(said.contains("\n    allowed: "), "{context}");
            let origin = match (case.line(), case.origin) {
                (Some(line), _) => format!("{path}:{line}\n"),
                (None, Some(origin)) => format!("{origin}\n"),
                (None, None) => panic!("{}: the case has neither a line nor an origin", case.what),
            };
            assert!(said.contains("\n    from:    ") && said.contains(&origin), "{context}\nexpected origin {origin}");
            for words in &case.says {
                assert!(said.contains(words), "{context}\nexpected {words:?}");
            }
        }
    }
}

#[test]
fn all_errors_are_shown_at_once_and_sorted() {
    let broken = RIGHT
        .replace("capacity = 2000", "capacity = 0\nmode = \"x\"")
        .replace("[admin]", "[admin]\nlisten = \"nowhere\"")
        .replace("topic = \"loans.kyc\"", "topic = \"loans kyc\"\nbogus = 1");
    let (_guard, path) = file(&broken);
    let arguments = ["check", "--config", path.to_str().unwrap(), "--output", "json"];
    let output = watermaster(&arguments, &[("WATERMASTER_KAFKA__START_FROM", "middle")], "");
    assert_eq!(output.status.code(), Some(78));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys: Vec<_> =
        report["errors"].as_array().unwrap().iter().map(|error| error["key"].as_str().unwrap()).collect();
    assert_eq!(
        keys,
        [
            "admin.listen", "kafka.start_from", "service[0].capacity", "service[0].mode", "service[0].source[0].bogus",
            "service[0].source[0].topic"
        ]
    );
    assert_eq!(report["ok"], false);
    assert_eq!(report["errors"][1]["origin"], "environment variable WATERMASTER_KAFKA__START_FROM");
    assert_eq!(report["errors"][2]["service"], "kyc");
}

#[test]
fn a_missing_file_is_a_configuration_error() {
    for command in ["run", "check", "config"] {
        let output = watermaster(&[command, "--config", "/nowhere/at-all.toml"], &[], "");
        assert_eq!(output.status.code(), Some(78), "{command}");
        assert!(text(&output.stderr).contains("/nowhere/at-all.toml"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_doubtful_configuration_is_allowed_with_a_warning() {
    let (_guard, path) = file(&RIGHT.replace("capacity = 2000", "capacity = 400\nmax_clients = 1000"));
    let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("warning: service[0].capacity (service kyc) is 400, less than 1000 clients"));
}

/// A letter too much away makes two clients of one product, each with a share of its own.
#[test]
fn clients_with_almost_one_name_are_doubtful() {
    let warns = |names: [&str; 2]| {
        let tables = names.map(|name| format!("[service.client.{name}]\nweight = 1.0\n")).concat();
        let (_guard, path) = file(&format!("{RIGHT}{tables}"));
        let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
        assert_eq!(output.status.code(), Some(0));
        let strict = watermaster(&["check", "--strict", "--config", path.to_str().unwrap()], &[], "");
        let warns = text(&output.stdout).contains("are they two clients?");
        assert_eq!(strict.status.code(), Some(if warns { 78 } else { 0 }), "{}", text(&strict.stdout));
        warns
    };
    assert!(warns(["home-loan", "hone-loan"]));
    for names in
        [["team-a", "team-b"], ["loan-de", "loan-dk"], ["team1x-loan", "team2x-loan"], ["east-loan", "west-loan"]]
    {
        assert!(!warns(names), "{names:?}");
    }
}

#[test]
fn the_environment_takes_precedence_and_secrets_are_hidden() {
    let (folder, path) = file(&RIGHT.replace("[kafka.properties]", "[kafka.properties]\n\"sasl.password\" = \"hush\"\n\"socket.timeout.ms\" = 5_000\n[kafka.properties_file]\n\"ssl.key.pem\" = \"SECRET_FILE\""));
    let secret = folder.path().join("key.pem");
    std::fs::write(&secret, "whisper\n").unwrap();
    let written = std::fs::read_to_string(&path).unwrap().replace("SECRET_FILE", secret.to_str().unwrap());
    std::fs::write(&path, written).unwrap();
    let environment = [
        ("WATERMASTER_KAFKA__COMMIT_INTERVAL", "200ms"),
        ("WATERMASTER_KAFKA__PROPERTIES__SSL_KEY_PASSWORD", "murmur"),
        ("WATERMASTER_TEST_BROKER", "x"),
    ];
    for format in ["text", "json"] {
        let output = watermaster(&["config", "--config", path.to_str().unwrap(), "--output", format], &environment, "");
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        for secret in ["hush", "whisper", "murmur"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        for part in [
            "200ms", "environment variable WATERMASTER_KAFKA__COMMIT_INTERVAL", "socket.timeout.ms", "5000",
            "(redacted)",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }
}

/// The hidden properties hold a command, a part of a credential, a user name, and an address with a password.
#[test]
fn only_harmless_properties_show_their_values() {
    let hidden = r#"
"sasl.kerberos.kinit.cmd" = "kinit -w hush"
"sasl.oauthbearer.config" = "principal=hush"
"sasl.username" = "hush"
"client.rack" = "https://user:hush@host"
"sasl.password" = "hush"
"sasl.mechanism" = "PLAIN"
"security.protocol" = "sasl_ssl""#;
    let (_folder, path) = file(&RIGHT.replace("[kafka.properties]", &format!("[kafka.properties]{hidden}")));
    for format in ["text", "json"] {
        let output = watermaster(&["config", "--config", path.to_str().unwrap(), "--output", format], &[], "");
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(shown.matches("(redacted)").count(), 5, "{shown}");
        assert!(!shown.contains("hush") && shown.contains("sasl_ssl"), "{shown}");
    }
}

#[test]
fn errors_do_not_show_secrets() {
    let cases = [
        ("[kafka.properties]", "[kafka.properties]\n\"sasl.pasword\" = \"hush\"", "No such configuration property"),
        #[cfg(not(feature = "oidc"))]
        (
            "[kafka.properties]",
            "[kafka.properties]\n\"sasl.oauthbearer.token.endpoint.url\" = \"https://user:hush@host\"",
            "this build of librdkafka has no OAuth/OIDC support",
        ),
        ("[kafka]", "[kafka]\nbootstrap_servers = \"b:9092,SSL://user:hu,sh@host:9092\"", "holds no user"),
    ];
    for (from, to, said) in cases {
        let (_folder, path) = file(&RIGHT.replacen(from, to, 1));
        let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{error}");
        assert!(error.contains(said) && !error.contains("hush") && !error.contains("hu,sh"), "{error}");
    }
}

#[test]
fn tokens_have_names_and_texts_of_their_own() {
    let (_first, first) = file("the first of all tokens");
    let (_second, second) = file("the second of all tokens");
    let token = |name: &str, path: &std::path::Path| {
        format!("[[admin.token]]\nname = {name:?}\nfile = {path:?}\nrole = \"read\"\n")
    };
    for (more, said) in [
        (token("a", &second).replace("read", "admin"), "admin.token[0].role is \"admin\""),
        (token("token", &second), "admin.token[0].name is \"token\", as that of another token"),
        (token("a", &first), "admin.token[0].file holds the token \"token\""),
        (token("a", &second) + &token("a", &first), "admin.token[1].name is \"a\""),
    ] {
        let with_first = RIGHT.replace("[admin]", &format!("[admin]\ntoken_file = {first:?}"));
        let (_folder, path) = file(&format!("{with_first}\n{more}"));
        let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{error}");
        assert!(error.contains(said) && !error.contains("of all tokens"), "{error}");
    }
}

#[test]
fn a_token_for_a_service_that_is_not_configured_is_doubtful() {
    let (_token, token) = file("the token of a team");
    let table = format!("[[admin.token]]\nname = \"a\"\nfile = {token:?}\nrole = \"write\"\n");
    let table = table + "services = [\"kyc\", \"kyb\"]\n";
    let (_folder, path) = file(&format!("{RIGHT}{table}"));
    let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("admin.token[0].services has \"kyb\", which is the name of no service"), "{said}");
    assert!(!said.contains("has \"kyc\""), "{said}");
}

#[test]
fn a_short_or_writable_token_is_refused_and_a_readable_one_is_reported() {
    use std::os::unix::fs::PermissionsExt;

    for (above, key, title) in [
        ("[admin]", "token_file", "admin.token_file"),
        ("capacity = 2000", "redrive_key_file", "service[0].redrive_key_file (service kyc)"),
    ] {
        for (token, mode, code, said) in [
            ("fifteen-letters", 0o600, 78, "the token has 15 characters, fewer than 16"),
            ("sixteen--letters", 0o666, 78, "every user of this machine may write the file (mode 0666)"),
            ("sixteen--letters", 0o644, 0, &format!("warning: {title} is")),
            ("sixteen--letters", 0o640, 0, "configuration"),
        ] {
            let (_token_folder, token_file) = file(token);
            std::fs::set_permissions(&token_file, std::fs::Permissions::from_mode(mode)).unwrap();
            let (_folder, path) = file(&RIGHT.replace(above, &format!("{above}\n{key} = {token_file:?}")));
            let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
            let all = text(&output.stdout) + &text(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{all}");
            assert!(all.contains(said) && !all.contains(token), "{all}");
            assert_eq!(mode == 0o640, !all.contains(key), "{all}");
            assert_eq!(code == 78, all.contains("at least 16 characters and at most 4096 bytes"), "{all}");
        }
    }
}

/// Without a key no record counts for the redrive's client, whatever its table says.
#[test]
fn a_configured_redrive_client_without_a_key_is_reported() {
    let (_key_folder, key) = file("sixteen--letters");
    let client = |name: &str| RIGHT.to_owned() + &format!("[service.client.{name}]\nweight = 0.5\n");
    let with_key = client("redrive").replace("cycle =", &format!("redrive_key_file = {key:?}\ncycle ="));
    for (configuration, reported) in [(client("redrive"), true), (client("other"), false), (with_key, false)] {
        let (_folder, path) = file(&configuration);
        let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
        assert_eq!(said.contains("redrive_key_file (service kyc) is not set"), reported, "{said}");
    }
}

#[test]
fn a_syntax_error_does_not_show_its_line() {
    let (_guard, path) = file("[kafka.properties]\n\"sasl.password\" = \"hush\" oops\n");
    let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
    assert_eq!(output.status.code(), Some(78));
    let said = text(&output.stderr);
    assert!(said.contains("line 2, column") && !said.contains("hush"), "{said}");
}
