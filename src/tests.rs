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

/// Returns the service of `config/demo.toml` with another mode.
pub fn service(mode: Mode, enforce: bool) -> Service {
    config(mode, enforce).settings.services.remove(0)
}
