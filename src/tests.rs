//! The configuration of the demo, for tests.

use std::path::Path;

use watermaster_core::policy::Mode;
use watermaster_settings::{Service, config::Config};

/// Returns `config/demo.toml` with another mode, and without rules of run time.
pub fn config(mode: Mode, enforce: bool) -> Config {
    let text = include_str!("../config/demo.toml");
    let config = Config::parse(text, Path::new("config/demo.toml"), [], watermaster_kafka::PROPERTY_RULES);
    let mut config = config.unwrap_or_else(|errors| panic!("{errors}"));
    let service = &mut config.settings.services[0];
    service.rules_topic = None;
    let policy = &mut service.policy;
    (policy.mode, policy.enforce) = (mode, enforce);
    config
}

/// Compares a file of the repository with the text that follows from the code. `UPDATE_DOCS=1` writes the text.
pub fn assert_current(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let changed = text.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(written == text, "{file} is not current; UPDATE_DOCS=1 rewrites it. First difference: {changed:#?}");
}

/// Returns the service of `config/demo.toml` with another mode.
pub fn service(mode: Mode, enforce: bool) -> Service {
    config(mode, enforce).settings.services.remove(0)
}
