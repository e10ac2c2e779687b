//! Reading configurations: layers, variables, errors and warnings. The properties of librdkafka are not checked here.

use std::{path::Path, time::Duration};

use watermaster_core::units::Weight;

use super::*;

/// A configuration without errors.
const RIGHT: &str = r#"[[service]]
name = "kyc"
target = "kyc.requests"
dead_letter = "kyc.dead-letter"
capacity = 2000

[[service.source]]
topic = "loans.kyc"
"#;

const RULES: PropertyRules = PropertyRules { version: || "0".to_owned(), check: |_, _| Ok(()), clients: |_| Ok(()) };

fn read(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
    Config::parse(text, Path::new("w.toml"), environment, RULES).map_err(|errors| errors.to_string())
}

#[test]
fn a_text_takes_variables_and_its_errors_name_the_line() {
    let text = RIGHT.replace("2000", "\"${CAPACITY:-7}00\"").replace("loans.kyc", "${TEAM}.kyc");
    let config = read(&text, &[("TEAM", "cards")]).unwrap();
    let service = &config.settings.services[0];
    assert_eq!((service.policy.capacity, &*service.sources[0].topic), (700, "cards.kyc"));

    let errors = read(&text, &[("CAPACITY", "much")]).unwrap_err();
    let unset = "service[0].source[0].topic needs the environment variable TEAM, which is not set\n    \
                 allowed: a value for TEAM, or a default: ${TEAM:-default}\n    from:    w.toml:8";
    assert!(errors.contains(unset), "{errors}");
    assert!(errors.contains("service[0].capacity (service kyc) is \"much00\"\n"), "{errors}");
    assert!(errors.starts_with("configuration: 2 errors"), "{errors}");
}

#[test]
fn a_variable_over_a_text_hides_the_variable_in_it() {
    let text = RIGHT.to_owned() + "[kafka]\ngroup_id = \"${NONE}\"\n";
    assert!(read(&text, &[]).unwrap_err().contains("NONE, which is not set"));
    assert!(read(&text, &[("WATERMASTER_KAFKA__GROUP_ID", "a")]).is_ok());
}

#[test]
fn a_printed_configuration_has_the_values_of_the_one_that_was_read() {
    let text = RIGHT.replace("capacity", "client_from = [\"header:$${a}$$ $b\\u007f\"]\ncapacity");
    let first = read(&text, &[("a", "x")]).unwrap();
    assert_eq!(first.effective.to_json()["service"][0]["client_from"][0], "header:${a}$ $b\u{7f}");
    let second = read(&first.effective.to_toml(), &[("a", "x")]).unwrap();
    // The printed text writes every key.
    assert_eq!(Settings { start_from_is_written: true, ..first.settings }, second.settings);
}

#[test]
fn a_login_that_is_not_used_is_reported() {
    let warnings = |properties: &str| {
        let config = read(&format!("{RIGHT}[kafka.properties]\n{properties}"), &[]).unwrap();
        config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let login = "\"sasl.username\" = \"u\"\n\"ssl.ca.location\" = \"ca.pem\"\n";
    let both = warnings(login);
    assert!(both.contains("\"sasl.username\" has no effect: security.protocol is PLAINTEXT"), "{both}");
    assert!(both.contains("\"ssl.ca.location\" has no effect"), "{both}");
    let tls = warnings(&format!("{login}\"security.protocol\" = \"ssl\""));
    assert!(tls.contains("sasl.username") && !tls.contains("ssl.ca.location"), "{tls}");
    assert_eq!(warnings(&format!("{login}\"security.protocol\" = \"sasl_ssl\"")), "");
}

#[test]
fn a_group_that_captures_no_client_is_reported() {
    for (pattern, is_reported) in [
        ("(?<client>[a-z-]+)\\\\.kyc", false),
        ("(?:a|b)\\\\.kyc", false),
        ("(?<klient>.+)\\\\.kyc", true),
        ("(.+)\\\\.kyc", true),
    ] {
        let text = RIGHT.replace("topic = \"loans.kyc\"", &format!("topic_pattern = \"{pattern}\""));
        let warnings = read(&text, &[]).unwrap().warnings;
        assert_eq!(warnings.iter().any(|one| one.to_string().contains("names no client")), is_reported, "{pattern}");
    }
}

#[test]
fn a_secret_from_a_variable_is_hidden() {
    let text = RIGHT.to_owned() + "[kafka.properties]\n\"sasl.password\" = \"${PASSWORD}\"\n";
    let config = read(&text, &[("PASSWORD", "hush")]).unwrap();
    assert_eq!(config.settings.kafka.properties["sasl.password"], "hush");
    let shown = config.effective.to_toml();
    assert!(shown.contains("(redacted)") && !shown.contains("hush"), "{shown}");
    let refuse = PropertyRules { check: |_, _| Err(PropertyRefused::HiddenValue), ..RULES };
    let variable = [("PASSWORD".into(), "hush".into())];
    let errors = Config::parse(&text, Path::new("w.toml"), variable, refuse).unwrap_err().to_string();
    assert!(errors.contains("sasl.password") && !errors.contains("hush"), "{errors}");
    let text = RIGHT.to_owned() + "[kafka]\nbootstrap_servers = \"${USER}@b:1\"\n";
    assert!(!read(&text, &[("USER", "hush")]).unwrap_err().contains("hush"));
}

#[test]
fn a_variable_sets_a_key_of_a_service_by_its_name() {
    let second = RIGHT.replace("kyc", "credit-check").replace("loans", "cards");
    let text = RIGHT.to_owned() + "[service.client.\"a.b\"]\n" + &second;
    let environment = [
        ("WATERMASTER_SERVICE__CREDIT_CHECK__CAPACITY", "7000"),
        ("WATERMASTER_SERVICE__KYC__SHAPE__MAX_DELAY", "5s"),
        ("WATERMASTER_SERVICE__KYC__CLIENT__A_B__WEIGHT", "2.5"),
        ("WATERMASTER_SERVICE__KYC__CLIENT__A_B__LIMIT__RATE", "9"),
    ];
    let config = read(&text, &environment).unwrap();
    let [first, second] = config.settings.services.as_slice() else { panic!("two services") };
    assert_eq!(
        (&*first.name, first.policy.capacity, &*second.name, second.policy.capacity),
        ("kyc", 2000, "credit-check", 7000)
    );
    assert_eq!(first.policy.max_delay, Some(Duration::from_secs(5)));
    let client = &first.policy.clients[0];
    assert_eq!((client.weight.thousandths(), client.limits[0].rate.get()), (2_500, 9));
    let entry = config.effective.iter().find(|entry| entry.key.to_string() == "service[1].capacity").unwrap();
    assert_eq!(entry.origin.to_string(), "environment variable WATERMASTER_SERVICE__CREDIT_CHECK__CAPACITY");
}

#[test]
fn a_variable_with_the_prefix_that_names_no_key_is_an_error() {
    let text = RIGHT.to_owned() + &RIGHT.replace("kyc", "a-b") + &RIGHT.replace("kyc", "a_b").replace("loans", "x");
    for (variable, key, said) in [
        ("UNRELATED", "unrelated", "WATERMASTER_SECTION__KEY, or WATERMASTER_SERVICE__NAME__KEY"),
        ("KAFKA_GROUP_ID", "kafka_group_id", "did you mean WATERMASTER_KAFKA__GROUP_ID?"),
        ("KAFKA__GROUPID", "kafka.groupid", "did you mean WATERMASTER_KAFKA__GROUP_ID?"),
        ("KAFKA", "kafka", "is not a key that a variable sets"),
        ("KAFKA__PROPERTIES__", "kafka.properties.", "is not a key"),
        ("SERVICE__0__CAPACITY", "service.0.capacity", "did you mean WATERMASTER_SERVICE__"),
        ("SERVICE__KYC__CAPACTIY", "service.kyc.capactiy", "did you mean WATERMASTER_SERVICE__KYC__CAPACITY?"),
        ("SERVICE__KYC__SOURCE__0__TOPIC", "service.kyc.source.0.topic", "other lists can't be set"),
        ("SERVICE__KYC__CLIENT__A__WEIGHT", "service.kyc.client.a.weight", "is not a key"),
        (
            "SERVICE__A_B__CAPACITY",
            "service.a_b.capacity",
            "one of service[1].capacity, service[2].capacity in the file",
        ),
    ] {
        let variable = format!("WATERMASTER_{variable}");
        let errors = read(&text, &[(&variable, "1")]).unwrap_err();
        assert!(errors.contains(&format!("\n\n{key}")) && errors.contains(said), "{variable}: {errors}");
        assert!(errors.contains(&format!("from:    environment variable {variable}")), "{errors}");
    }
}

#[test]
fn variables_for_other_purposes_are_no_errors() {
    for variable in [
        "FAILPOINT", "PLANT", "TEST_BROKER", "SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_9464_TCP_ADDR",
        "METRICS_PORT",
    ] {
        let variable = format!("WATERMASTER_{variable}");
        assert!(read(RIGHT, &[(&variable, "1")]).is_ok(), "{variable}");
    }
}

#[test]
fn a_record_without_a_client_belongs_to_its_topic_by_default() {
    use crate::model::ClientFrom;

    let service = |text: &str| read(text, &[]).unwrap().settings.services.remove(0);
    let least = service(RIGHT);
    assert_eq!(least.client_from, [ClientFrom::Header("client-id".to_owned()), ClientFrom::Topic]);
    assert_eq!(least.sources[0].client.as_deref(), Some("loans.kyc"));
    assert_eq!(service(&(RIGHT.to_owned() + "client = \"cards\"\n")).sources[0].client.as_deref(), Some("cards"));
    let by_key = service(&RIGHT.replace("capacity", "client_from = [\"key\"]\ncapacity"));
    assert_eq!(by_key.sources[0].client, None);
    // Only a name that is written can be a mistake.
    let warned =
        |line: &str| !read(&format!("{RIGHT}allowed_clients = [\"a\"]\n{line}"), &[]).unwrap().warnings.is_empty();
    assert!(!warned("") && warned("client = \"b\""));
    // A topic may have a longer name than a client.
    let long = read(&RIGHT.replace("loans", &"l".repeat(125)), &[]).unwrap_err();
    assert!(long.contains("service[0].source[0].client") && long.contains("129 bytes long"), "{long}");
}

#[test]
fn a_mistyped_key_is_recognised() {
    for (line, said) in [
        ("capasity = 1", "(did you mean capacity?)"),
        ("max_delay = \"1s\"", "(did you mean service.shape.max_delay or service.rule.max_delay?)"),
        ("queue_capcity = 1", "(did you mean service.shape.queue_capacity?)"),
        ("weigth = 1", "(did you mean service.client.weight or service.group.weight or service.rule.weight?)"),
        ("colour = 1", "unlisted_weight, client_idle_timeout, shape, pace, client, group, source, rule\n"),
    ] {
        let errors = read(&RIGHT.replace("capacity", &format!("{line}\ncapacity")), &[]).unwrap_err();
        assert!(errors.contains(said), "{line}: {errors}");
    }
    assert!(read(&format!("[kafak]\n{RIGHT}"), &[]).unwrap_err().contains("(did you mean kafka?)"));
}

#[test]
fn a_number_in_quotes_is_recognised() {
    let line = |line: &str| read(&RIGHT.replace("capacity = 2000", line), &[]).unwrap_err();
    assert!(line("capacity = \"2000\"").contains("1 to 1000000000000, without quotes\n"));
    assert!(line("capacity = 1\nenforce = \"false\"").contains("true or false, without quotes\n"));
    assert!(line("capacity = 1\nreservation = \"0.1\"").contains("six decimals, without quotes\n"));
    for other in ["capacity = \"many\"", "capacity = 1\ncycle = 10", "capacity = 1\nreservation = \"2\""] {
        assert!(!line(other).contains("quotes"), "{other}");
    }
}

#[test]
fn later_files_add_services_and_override_keys() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let load = |paths: &[&Path], environment: &[(&str, &str)]| {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        Config::load(paths, environment, RULES).map_err(|errors| errors.to_string())
    };
    let base = write("1-base.toml", &format!("[kafka]\ngroup_id = \"a\"\nstart_from = \"latest\"\n{RIGHT}"));
    let aml = write("2-aml.toml", &RIGHT.replace("kyc", "aml"));
    let site = write(
        "3-site.toml",
        "[kafka]\ngroup_id = \"b\"\n[[service]]\nname = \"aml\"\ncapacity = 9000\n[service.shape]\nmax_delay = \"5s\"\n",
    );
    write(".#hidden.toml", "nonsense");
    write("notes.txt", "nonsense");
    let of_folder = load(&[folder.path()], &[("WATERMASTER_SERVICE__AML__CYCLE", "20s")]).unwrap();
    let in_order = load(&[&base, &aml, &site], &[("WATERMASTER_SERVICE__AML__CYCLE", "20s")]).unwrap();
    assert_eq!(of_folder.settings, in_order.settings);
    let [kyc, aml_service] = of_folder.settings.services.as_slice() else { panic!("two services") };
    assert_eq!(
        (&*kyc.name, kyc.policy.capacity, &*aml_service.name, aml_service.policy.capacity),
        ("kyc", 2000, "aml", 9000)
    );
    assert_eq!(
        (
            aml_service.policy.max_delay.map(|delay| delay.as_secs()),
            aml_service.policy.cycle.as_secs(),
            kyc.policy.cycle.as_secs()
        ),
        (Some(5), 20, 10)
    );
    let origin = |key: &str| {
        let entry = of_folder.effective.iter().find(|entry| entry.key.to_string() == key).unwrap();
        entry.origin.to_string().rsplit('/').next().unwrap().to_owned()
    };
    assert_eq!([origin("kafka.group_id"), origin("kafka.start_from")], ["3-site.toml:2", "1-base.toml:3"]);
    assert_eq!([origin("service[1].capacity"), origin("service[1].target")], ["3-site.toml:5", "2-aml.toml:3"]);

    // The errors of all files are reported at once, each with its file.
    write("3-site.toml", &format!("{}capacity = 0\n", RIGHT.replace("capacity", "bogus")));
    let errors = load(&[folder.path()], &[]).unwrap_err();
    assert!(
        errors.contains("service[0].source[0].capacity (service kyc) is not a key") && errors.contains("3-site.toml:9"),
        "{errors}"
    );
    write("1-base.toml", "[[service]");
    write("3-site.toml", "[kafka");
    let errors = load(&[folder.path()], &[]).unwrap_err();
    assert!(errors.contains("1-base.toml:1") && errors.contains("3-site.toml:1"), "{errors}");
    let nothing = tempfile::tempdir().unwrap();
    assert!(load(&[nothing.path()], &[]).unwrap_err().contains("the folder has no file *.toml"));
    assert!(load(&[&aml, Path::new("/nowhere.toml")], &[]).unwrap_err().contains("from:    /nowhere.toml"));
}

/// Rules of a later file once replaced all rules of the service, so that a team's file lost those of the platform's.
#[test]
fn later_files_add_rules_and_change_them_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let rule = |name: &str, rest: &str| format!("[[service.rule]]\nname = \"{name}\"\n{rest}");
    let service = "[[service]]\nname = \"kyc\"\n";
    let files = [
        format!(
            "{RIGHT}\n{}{}",
            rule("everyone", "clients = [\"*\"]\nlimit = { rate = 20, per = \"1s\" }\n"),
            rule("summer", "clients = [\"web\"]\nweight = 2\n")
        ),
        // A rule of another service has a name of its own.
        format!("{}\n{}", RIGHT.replace("kyc", "aml"), rule("summer", "clients = [\"app\"]\nweight = 5\n")),
        format!(
            "{service}{}{}",
            rule("summer", "priority = 10\n"),
            rule("night", "clients = [\"batch\"]\nhold = true\n")
        ),
    ];
    let write = |(at, text): (usize, &String)| {
        let path = folder.path().join(format!("{at}.toml"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let paths: Vec<_> = files.iter().enumerate().map(write).collect();
    let paths: Vec<&Path> = paths.iter().map(|path| &**path).collect();
    let load = |paths: &[&Path]| Config::load(paths, [], RULES).map_err(|errors| errors.to_string());
    let config = load(&paths).unwrap();
    let rules = |service: usize| {
        let rules = config.settings.services[service].policy.rules.iter();
        let rules =
            rules.map(|rule| (rule.name.to_string(), rule.priority, rule.effects.weight.map(Weight::thousandths)));
        rules.collect::<Vec<_>>()
    };
    let name = str::to_owned;
    assert_eq!(rules(0), [(name("everyone"), 0, None), (name("summer"), 10, Some(2000)), (name("night"), 0, None)]);
    assert_eq!(rules(1), [(name("summer"), 0, Some(5000))]);

    // An error names the file of the value; of two rules with one name in one file, the second is refused.
    std::fs::write(folder.path().join("2.toml"), format!("{service}{}", rule("summer", "priority = 2000\n"))).unwrap();
    let errors = load(&paths).unwrap_err();
    assert!(errors.contains("service[0].rule[1].priority") && errors.contains("2.toml:5"), "{errors}");
    let twice = format!("{service}{0}{0}", rule("summer", "priority = 5\n"));
    std::fs::write(folder.path().join("2.toml"), twice).unwrap();
    let errors = load(&paths).unwrap_err();
    assert!(errors.contains("rule[2]") && errors.contains("summer") && errors.contains("2.toml"), "{errors}");
}

#[test]
fn one_file_cannot_name_a_service_twice() {
    let folder = tempfile::tempdir().unwrap();
    let [base, twice] = ["a.toml", "b.toml"].map(|name| folder.path().join(name));
    std::fs::write(&base, RIGHT).unwrap();
    std::fs::write(&twice, "[[service]]\nname = \"kyc\"\n[[service]]\nname = \"kyc\"\n").unwrap();
    let errors = Config::load(&[&base, &twice], [], RULES).unwrap_err().to_string();
    assert!(errors.contains("service[1].name (service kyc) is \"kyc\", which is service[0] too"), "{errors}");
}

/// The fault: keys of the table became entries of the other file's list, each with errors of its own.
#[test]
fn a_table_in_place_of_a_list_is_one_error_in_any_file() {
    let folder = tempfile::tempdir().unwrap();
    let [list, table] = ["a.toml", "b.toml"].map(|name| folder.path().join(name));
    std::fs::write(&list, RIGHT).unwrap();
    std::fs::write(&table, "[service]\nname = \"kyc\"\ncapacity = 7\n").unwrap();
    for files in [[&*list, &*table], [&*table, &*list]] {
        let errors = Config::load(&files, [], RULES).unwrap_err();
        assert_eq!(errors.iter().count(), 1, "{errors}");
        let text = errors.to_string();
        assert!(
            text.contains("service is a table\n    allowed: at least one [[service]]") && text.contains("b.toml"),
            "{text}"
        );
    }
}

#[test]
fn what_is_legal_and_doubtful_is_reported() {
    let warnings = |text: &str| {
        let warnings = read(text, &[]).unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let reservation = |value: &str| warnings(&RIGHT.replace("capacity", &format!("reservation = {value}\ncapacity")));
    assert_eq!(reservation("0.999999"), Vec::<String>::new());
    assert!(reservation("1.0")[0].starts_with("service[0].reservation (service kyc) is 1: no client lends"));

    let from = |place: &str| warnings(&RIGHT.replace("capacity", &format!("client_from = ['{place}']\ncapacity")));
    assert_eq!(from("header:a:b"), Vec::<String>::new());
    assert_eq!(from("header:a:^(b)$"), Vec::<String>::new());
    assert!(from("header:a:(b)")[0].contains("names the header \"a:(b)\": a pattern begins with ^"));

    let likeness = |allowed: &str, configured: &str| {
        let clients: String = configured.split(' ').map(|name| format!("[service.client.\"{name}\"]\n")).collect();
        warnings(&format!("{RIGHT}allowed_clients = [\"{allowed}\"]\n{clients}"))
    };
    for (allowed, configured) in [
        ("home_loan", "home-loan"),
        ("Home-Loan", "home-loan"),
        ("homeloan", "home.loan"),
        ("home-laon", "home-loan"),
        ("home-loans", "home-loan"),
    ] {
        let said = likeness(allowed, configured);
        let expected = format!("has {allowed:?}, which is not configured, but {configured:?} is\n");
        assert!(said.len() == 1 && said[0].contains(&expected) && said[0].contains("w.toml:9"), "{said:?}");
    }
    for (allowed, configured) in [
        ("home-loan", "home-loan"),
        ("home-loan", "home-loans home-loan"),
        ("team-a", "team-b"),
        ("client1", "client10"),
        ("b", "ab"),
        ("car", "home"),
    ] {
        assert_eq!(likeness(allowed, configured), Vec::<String>::new(), "{allowed}");
    }
}

/// A test, a script or a planted fault that gets a variable of its own must not keep the program from starting.
#[test]
fn every_other_variable_of_the_repository_is_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<_> = ["scripts", "tests", "benches", "core", "kafka"].map(|name| root.join(name)).into();
    let mut found = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(path) {
                let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
                let rest = text.split("WATERMASTER_").skip(1);
                let names = rest.map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
                found.extend(names.filter(|name| !name.is_empty() && !name.contains("__")).map(str::to_owned));
            }
        }
    }
    assert!(found.contains("TEST_BROKER") && found.contains("FAILPOINT"), "{found:?}");
    let unknown = |name: &&String| read(RIGHT, &[(&format!("WATERMASTER_{name}"), "1")]).is_err();
    assert_eq!(found.iter().filter(unknown).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn a_schema_registry_has_a_url_and_perhaps_a_login_that_is_never_shown() {
    use crate::model::SchemaRegistry;
    use crate::secrets::Password;

    let with = |lines: &str| read(&format!("[kafka.schema_registry]\n{lines}\n{RIGHT}"), &[("HUSH", "hush")]);
    let registry = |lines: &str| with(lines).unwrap().settings.kafka.schema_registry;
    assert_eq!((registry(""), read(RIGHT, &[]).unwrap().settings.kafka.schema_registry), (None, None));
    let open = SchemaRegistry { url: "http://r:8081".to_owned(), login: None, ca_file: None };
    assert_eq!(registry("url = \"http://r:8081\""), Some(open));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "hush\r\n").unwrap();
    let lines = format!("url = \"https://r\"\nusername = \"wm\"\npassword_file = {file:?}\nca_file = {file:?}");
    let from_file = registry(&lines).unwrap();
    assert_eq!(from_file.ca_file.as_deref(), Some(file.as_path()));
    assert_eq!(from_file.login.unwrap().password.read().unwrap(), "hush");
    let config = with("url = \"https://r\"\nusername = \"wm\"\npassword = \"${HUSH}\"").unwrap();
    let login = config.settings.kafka.schema_registry.clone().unwrap().login.unwrap();
    assert_eq!((login.username.as_str(), login.password), ("wm", Password::Text("hush".to_owned())));
    let shown = format!("{config:?}{}{}", config.effective.to_json(), config.effective.to_toml());
    assert!(!shown.contains("hush") && shown.contains("(redacted)"), "{shown}");
    let other = with("url = \"https://r\"\nusername = \"wm\"\npassword = \"murmur\"").unwrap();
    let refused = config.changes(&other).unwrap_err().to_string();
    assert!(refused.contains("kafka.schema_registry") && !refused.contains("murmur"), "{refused}");
    for (lines, said) in [
        ("username = \"wm\"", "kafka.schema_registry.url is missing"),
        ("url = \"http://wm:hush@r\"", "kafka.schema_registry.url is (redacted)"),
        ("url = \"http://r\"\nusername = \"wm\"", "password is missing beside username"),
        ("url = \"http://r\"\npassword = \"hush\"", "username is missing beside a password"),
        ("url = \"http://r\"\nusername = \"wm\"\npassword = 1234567", "password is (redacted)"),
        ("url = \"http://r\"\nca_file = \"/nowhere/ca.pem\"", "ca_file is \"/nowhere/ca.pem\""),
    ] {
        let errors = with(lines).unwrap_err();
        // An error has its key on one line, and its problem on the next.
        let errors = errors.replace('\n', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        let (key, problem) = said.split_once(' ').unwrap();
        assert!(errors.contains(key.rsplit('.').next().unwrap()) && errors.contains(problem), "{said}: {errors}");
        assert!(!errors.contains("hush") && !errors.contains("1234567"), "{errors}");
    }
    let both = format!("url = \"http://r\"\nusername = \"wm\"\npassword = \"hush\"\npassword_file = {file:?}");
    assert!(with(&both).unwrap_err().contains("stands beside password"));
}

#[test]
fn every_file_that_a_configuration_names_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, "-----BEGIN a token of sixteen characters").unwrap();
        path
    };
    let text = format!(
        "[kafka.properties]\n\"ssl.ca.location\" = {:?}\n\"ssl.keystore.location\" = {:?}\n\
         \"security.protocol\" = \"SSL\"\n[kafka.properties_file]\n\"sasl.password\" = {:?}\n\
         [kafka.schema_registry]\nurl = \"https://r\"\nusername = \"wm\"\npassword_file = {:?}\nca_file = {:?}\n\
         [admin]\ntoken_file = {:?}\n{}",
        file("ca"),
        file("store"),
        file("password"),
        file("registry"),
        file("registry-ca"),
        file("token"),
        RIGHT.replace("capacity =", &format!("redrive_key_file = {:?}\ncapacity =", file("redrive")))
    );
    let config = read(&text, &[]).unwrap();
    let names = config.files.iter().map(|file| file.path.file_name().unwrap().to_string_lossy().into_owned());
    let names: std::collections::BTreeSet<_> = names.collect();
    assert_eq!(
        names.iter().map(String::as_str).collect::<Vec<_>>(),
        ["ca", "password", "redrive", "registry", "registry-ca", "store", "token"]
    );
    let anew = config.files.iter().filter(|file| file.needs_clients()).map(|file| file.key.to_string());
    let anew: Vec<_> = anew.collect();
    assert_eq!(anew, ["kafka.properties.\"ssl.ca.location\"", "kafka.properties.\"ssl.keystore.location\""]);
    // Every client gets the text that was read with the configuration.
    let properties = config.settings.kafka.all_properties();
    assert!(properties["ssl.ca.pem"].starts_with("-----BEGIN") && !properties.contains_key("ssl.ca.location"));
    assert!(properties.contains_key("ssl.keystore.location"));
    // Kinds tell the files of all other keys, so that a new key can't be forgotten.
    let keys = SCHEMA.keys();
    let named = keys.iter().filter(|(_, key)| key.name.ends_with("_file"));
    for (section, key) in named {
        assert!(matches!(key.kind, crate::reader::Kind::File(_)), "{}", section.child(key.name));
    }
}

#[test]
fn a_group_that_nothing_is_in_is_reported() {
    let warnings = |service: &str, group: &str| {
        let text = RIGHT.replace("capacity", &format!("{service}capacity")) + "[service.group.a]\n" + group;
        read(&text, &[]).unwrap().warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert!(warnings("", "weight = 2\n").contains("no record names its group: nothing is in this group"));
    assert_eq!(warnings("", "clients = [\"x*\"]\n"), "");
    assert_eq!(warnings("group_from = [\"key\"]\n", "weight = 2\n"), "");
}

/// A name of a group that is typed wrong leaves its table, or a client's, without records.
#[test]
fn a_group_that_no_record_names_is_reported() {
    let warnings = |place: &str, source: &str, tables: &str| {
        let text = RIGHT.replace("capacity", &format!("group_from = [\"{place}\"]\ncapacity"));
        let text = text.replace("[[service.source]]", &format!("[[service.source]]\n{source}"));
        let warnings = read(&(text + tables), &[]).unwrap().warnings;
        let warnings =
            warnings.iter().map(|one| format!("{} {}; {}; {}", one.key, one.problem, one.allowed, one.origin));
        warnings.collect::<Vec<_>>()
    };
    let client = "[service.group.home-loan]\n[service.client.\"home-loans/web\"]\n[service.client.\"other/web\"]\n";
    let unknown = |name, better| {
        format!(
            "service[0].client.\"{name}/web\" is of the group {name:?}, which no table has: no record reaches it; {better}"
        )
    };
    assert_eq!(
        warnings("key", "", client),
        [
            unknown("home-loans", "[service.client.\"home-loan/web\"]; w.toml:12"),
            unknown("other", "a table [service.group.\"other\"], too; w.toml:13")
        ]
    );
    let groups = "[service.group.home-laon]\n[service.group.other]\n";
    let of_none =
        |name, better| format!("service[0].group.{name} is the group of no source: nothing is in it; {better}");
    assert_eq!(
        warnings("topic", "client = \"home-loan\"", groups),
        [
            of_none("home-laon", "[service.group.\"home-loan\"]; w.toml:11"),
            of_none("other", "the client of a source: its topic, or its `client`; w.toml:12")
        ]
    );
    let right = "[service.group.home-loan]\n[service.client.\"home-loan/web\"]\n[service.client.web]\n";
    let pattern = "topic_pattern = \"(?<client>.*)-loans\"\n[[service.source]]";
    for (place, source, tables) in
        [("topic", "client = \"home-loan\"", right), ("key", "", groups), ("topic", pattern, groups)]
    {
        assert_eq!(warnings(place, source, tables), Vec::<String>::new(), "{place} {source}");
    }
}

/// The bug: a group without any key came and went without a change, and two instances with other groups had one hash.
#[test]
fn a_table_without_keys_is_a_change() {
    let with = |tables: &str| read(&format!("{RIGHT}\n{tables}"), &[]).unwrap();
    let table = "[service.group.gold]\nclients = [\"a\"]\n";
    let (one, two) = (with(table), with(&format!("{table}[service.group.iron]\n[service.client.x]\n")));
    let keys = |from: &Config, to: &Config| {
        let changes = from.changes(to).unwrap();
        changes.iter().map(|change| format!("{}: {:?}", change.key, change.to)).collect::<Vec<_>>()
    };
    let came = [r#"service[0].client.x: Some(String("x"))"#, r#"service[0].group.iron: Some(String("iron"))"#];
    assert_eq!(keys(&one, &two), came);
    assert_eq!(keys(&two, &one), ["service[0].client.x: None", "service[0].group.iron: None"]);
    assert_ne!(one.effective.hash(), two.effective.hash());
    assert!(keys(&one, &one).is_empty());
}

/// The bug: an element that took the place of another one was told as the one that went or the one that came, by the
/// order of their names.
#[test]
fn an_element_in_the_place_of_another_has_both_names() {
    let reads = |topic: &str| read(&RIGHT.replace("loans.kyc", topic), &[]).unwrap();
    for [from, to] in [["a", "b"], ["b", "a"]] {
        let changes = reads(from).changes(&reads(to)).unwrap();
        let told = changes.into_iter().map(|change| (change.key.to_string(), change.from, change.to));
        let expected = ("service[0].source[0]".to_owned(), Some(from.into()), Some(to.into()));
        assert_eq!(told.collect::<Vec<_>>(), [expected]);
    }
}
