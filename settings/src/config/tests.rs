//! Reading configurations: layers, variables, errors and warnings. The properties of librdkafka are not checked here.

use std::path::Path;

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

const RULES: PropertyRules = PropertyRules { version: || "0".to_owned(), check: |_, _| Ok(()) };

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
