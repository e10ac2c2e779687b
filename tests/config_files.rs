//! The files in `config/` are valid, and the reference names every key.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use watermaster_settings::Settings;
use watermaster_settings::config::{Config, Fallback, Origin, REFUSED_PROPERTIES, SCHEMA};

const NOTHING: [(OsString, OsString); 0] = [];

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

fn load(name: &str) -> Config {
    Config::load(&[shipped(name)], NOTHING, watermaster_kafka::PROPERTY_RULES)
        .unwrap_or_else(|errors| panic!("{name}: {errors}"))
}

#[test]
fn every_shipped_file_is_valid_without_a_warning() {
    let folder = std::fs::read_dir(shipped("")).expect("config/ exists");
    // Subfolders hold scenarios, not configurations.
    let files = folder.map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_file());
    let names: Vec<_> = files.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        assert_eq!(load(&name).warnings, [], "{name}");
    }
}

/// Returns the line of the reference with `key`, even if it is commented out.
fn reference_line(text: &str, key: &str) -> String {
    let (section_of_key, name) = key.rsplit_once('.').expect("every key is in a section");
    let header =
        |line: &str| line.trim_start_matches('[').split(']').next().unwrap_or_default().replace(".home-loan", "");
    let mut section = String::new();
    for line in text.lines() {
        let assignment = line.strip_prefix("# ").unwrap_or(line);
        if assignment.starts_with('[') {
            section = header(assignment);
        }
        if section == section_of_key && assignment.split(" = ").next() == Some(name) {
            return line.to_owned();
        }
    }
    panic!("the reference does not name {key}");
}

#[test]
fn the_reference_names_every_key_with_its_default() {
    let text = std::fs::read_to_string(shipped("watermaster.reference.toml")).unwrap();
    for (section, key) in SCHEMA.keys() {
        let line = reference_line(&text, &section.child(key.name).to_string());
        match key.fallback {
            Fallback::Text(default) => {
                let value = line.split(" = ").nth(1).unwrap().split(" #").next().unwrap().trim();
                let bare = value.replace(['[', ']', '"'], "");
                assert_eq!(bare, default, "{line}");
            }
            Fallback::Derived(how) => {
                let at = text.find(&line).unwrap();
                assert!(line.starts_with('#'), "{line}");
                let comment: String = text[at..].split("\n# ").next().unwrap().split_whitespace().collect();
                let how: String = how.split_whitespace().collect();
                assert!(comment.contains(&how), "{line}");
            }
            Fallback::Required => assert!(line.contains("# required"), "{line}"),
            Fallback::Unset => assert!(line.starts_with('#') || line.contains("# example"), "{line}"),
        }
    }
}

/// The reference gives every key the value that the key has without the reference.
#[test]
fn the_reference_changes_nothing() {
    let minimal = load("watermaster.minimal.toml").effective.to_json();
    let reference = load("watermaster.reference.toml").effective.to_json();
    for section in ["kafka", "admin", "log"] {
        assert_eq!(minimal[section], reference[section]);
    }
    let (minimal, reference) = (&minimal["service"][0], &reference["service"][0]);
    for (key, value) in minimal.as_object().unwrap().iter().filter(|(key, _)| *key != "source") {
        assert_eq!(value, &reference[key], "{key}");
    }
}

/// The README's sample is the first service of the lending platform.
#[test]
fn the_readmes_sample_is_valid() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, sample) = readme.split_once("```toml\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    let config = Config::parse(sample, Path::new("README.md"), NOTHING, watermaster_kafka::PROPERTY_RULES)
        .unwrap_or_else(|errors| panic!("{errors}"));
    let platform = load("lending-platform.toml").settings.services;
    assert_eq!(format!("{:?}", config.settings.services), format!("{:?}", &platform[..1]));
}

/// Each service of the lending platform has its topics, a program that works them off, and a load in docker-compose.yml.
#[test]
fn compose_runs_every_service_of_the_lending_platform() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (compose, script) = (read("docker-compose.yml"), read("deploy/compose/topics.sh"));
    let words = |line: &str| script.split(line).nth(1).unwrap().split(';').next().unwrap().to_owned();
    let (names, products) = (words("for service in "), words("for product in "));
    let services = load("lending-platform.toml").settings.services;
    assert_eq!(services.iter().map(|service| service.name.as_str()).collect::<Vec<_>>().join(" "), names);
    for service in services {
        for command in ["work", "load"] {
            let start =
                format!("[{command}, --config, /etc/watermaster/lending-platform.toml, --service, {},", service.name);
            assert!(compose.contains(&start), "{start}");
        }
        let topics: Vec<String> = products.split(' ').map(|product| format!("{product}.{}", service.name)).collect();
        assert_eq!(service.sources.iter().map(|source| source.topic.clone()).collect::<Vec<_>>(), topics);
    }
}

/// Returns whether a cargo feature is in this build.
fn is_built(feature: &str) -> bool {
    match feature {
        "oidc" => cfg!(feature = "oidc"),
        "gssapi" => cfg!(feature = "gssapi"),
        _ => panic!("no feature {feature}"),
    }
}

/// Writes a certificate, its key and a password into a folder, in place of the files that docs/connect.md names.
fn write_secrets(folder: &Path) {
    let key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"];
    let mut openssl = Command::new("openssl");
    openssl.args(key).args(["-keyout", "watermaster.key", "-out", "watermaster.pem"]).current_dir(folder);
    assert!(openssl.output().unwrap().status.success());
    for name in ["ca.pem", "ca.crt"] {
        std::fs::copy(folder.join("watermaster.pem"), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("password"), "hush").unwrap();
}

/// The blocks of docs/connect.md can be put in front of a service. Those that need a cargo feature are refused without it.
#[test]
fn each_way_to_connect_is_valid_where_its_feature_is_built() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/connect.md");
    let page = std::fs::read_to_string(page).unwrap();
    let minimal = std::fs::read_to_string(shipped("watermaster.minimal.toml")).unwrap();
    let service = &minimal[minimal.find("[[service]]").unwrap()..];
    let folder = tempfile::tempdir().unwrap();
    write_secrets(folder.path());
    let here = format!("{}/", folder.path().display());
    let mut blocks = 0;
    for (text, block) in page.split("\n### ").skip(1).filter_map(|section| section.split_once("```toml\n")) {
        let mut block = block.split("```").next().unwrap().to_owned();
        let variables = block.split("${").skip(1).map(|rest| rest.split_once('}').unwrap().0.into());
        let variables: Vec<_> = variables.map(|name: OsString| (name, "hush".into())).collect();
        for path in ["/etc/watermaster/", "/run/secrets/my-cluster-cluster-ca-cert/", "/run/secrets/watermaster/"] {
            block = block.replace(path, &here);
        }
        let feature = text.split("the feature `").nth(1).and_then(|rest| rest.split('`').next());
        let file = format!("{block}\n{service}");
        let parsed = Config::parse(&file, Path::new("connect.md"), variables, watermaster_kafka::PROPERTY_RULES);
        assert_eq!(parsed.is_ok(), feature.is_none_or(is_built), "{block}\n{:?}", parsed.err());
        blocks += 1;
    }
    assert_eq!(blocks, page.matches("```toml").count(), "each block stands below a heading of its own");
    assert!(blocks >= 12, "{blocks}");
}

#[test]
fn the_effective_configuration_is_toml_with_the_same_meaning() {
    for name in ["watermaster.reference.toml", "watermaster.minimal.toml", "lending-platform.toml", "demo.toml"] {
        let first = load(name);
        let text = first.effective.to_toml();
        let second = Config::parse(&text, Path::new("printed.toml"), NOTHING, watermaster_kafka::PROPERTY_RULES)
            .unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(first.effective.to_json(), second.effective.to_json(), "{text}");
        assert_eq!(first.effective.hash(), second.effective.hash());
        // The printed text writes every key.
        let meaning = |config: Config| format!("{:?}", Settings { start_from_is_written: true, ..config.settings });
        assert_eq!(meaning(first), meaning(second));
    }
}

#[test]
fn origins_are_lines_variables_and_defaults() {
    let variable = [("WATERMASTER_KAFKA__GROUP_ID".into(), "other".into())];
    let config =
        Config::load(&[shipped("watermaster.minimal.toml")], variable, watermaster_kafka::PROPERTY_RULES).unwrap();
    let origin = |key: &str| {
        let found = config.effective.iter().find(|entry| entry.key.to_string() == key);
        found.unwrap_or_else(|| panic!("{key}")).origin.clone()
    };
    let line = std::fs::read_to_string(shipped("watermaster.minimal.toml"))
        .unwrap()
        .lines()
        .position(|line| line.starts_with("capacity"))
        .unwrap()
        + 1;
    assert_eq!(
        origin("service[0].capacity"),
        Origin::File { path: shipped("watermaster.minimal.toml"), line: Some(line) }
    );
    assert_eq!(origin("service[0].cycle"), Origin::Default);
    assert_eq!(origin("kafka.group_id"), Origin::Variable("WATERMASTER_KAFKA__GROUP_ID".to_owned()));
}

#[test]
fn the_hash_follows_the_meaning_and_not_the_instance() {
    let hash = |name: &str, value: &str| {
        Config::load(&[shipped("demo.toml")], [(name.into(), value.into())], watermaster_kafka::PROPERTY_RULES)
            .unwrap()
            .effective
            .hash()
    };
    let plain = hash("UNRELATED__NAME", "x");
    assert_eq!(plain, hash("WATERMASTER_KAFKA__INSTANCE_ID", "another"));
    assert_eq!(plain, hash("WATERMASTER_ADMIN__LISTEN", "127.0.0.1:1"));
    assert_ne!(plain, hash("WATERMASTER_KAFKA__GROUP_ID", "another"));
    // The bug: instances in several zones had different configurations for ever, as an alert told.
    for key in ["CLIENT_RACK", "CLIENT_ID"].map(|key| format!("WATERMASTER_KAFKA__PROPERTIES__{key}")) {
        assert_eq!(hash(&key, "zone-a"), hash(&key, "zone-b"), "{key}");
    }
}

#[test]
fn the_refused_properties_are_those_of_the_contract() {
    let refused: Vec<_> = REFUSED_PROPERTIES.iter().map(|(name, _)| *name).collect();
    for name in [
        "group.id", "group.instance.id", "transactional.id", "enable.idempotence", "acks", "isolation.level",
        "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "partition.assignment.strategy",
        "partitioner", "delivery.report.only.error",
    ] {
        assert!(refused.contains(&name), "{name}");
    }
}
