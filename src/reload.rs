//! Takes over another configuration while the program runs: all of it, or nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tracing::{error, info, warn};
use watermaster_core::policy::Policy;

use crate::clock;
use watermaster_settings::config::{Config, ConfigErrors};

/// The place where an engine finds its next policy.
#[derive(Debug, Default)]
pub struct Inbox(Mutex<Option<Policy>>);

impl Inbox {
    /// Leaves a policy, in place of a former policy that was not taken yet.
    pub fn leave(&self, policy: Policy) {
        *lock(&self.0) = Some(policy);
    }

    /// Takes the policy that was left, if any.
    pub fn take(&self) -> Option<Policy> {
        lock(&self.0).take()
    }
}

/// The result of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// The hash of the configuration in force.
    pub hash: String,
    /// The keys that changed.
    pub changed: Vec<String>,
}

/// The configuration in force.
#[derive(Debug)]
pub struct Configuration {
    /// The files and folders that it came from; `None` if it can't be reloaded.
    paths: Option<Vec<PathBuf>>,
    /// The inboxes of the services' engines, in the order of the configuration.
    pub inboxes: Vec<Arc<Inbox>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    config: Config,
    last: LastReload,
}

/// The result of the last attempt to take over a configuration, of which the start is the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastReload {
    pub successful: bool,
    /// The time at which the configuration in force was taken over, since the Unix epoch.
    pub success_at: Duration,
}

impl LastReload {
    /// Returns a successful attempt, now.
    pub fn at_start() -> LastReload {
        LastReload { successful: true, success_at: clock::since_epoch() }
    }
}

impl Configuration {
    /// Takes the configuration that was read at the start, from the files at `paths` if there are any.
    pub fn new(paths: Option<Vec<PathBuf>>, config: Config) -> Configuration {
        let inboxes = config.settings.services.iter().map(|_| Arc::default()).collect();
        Configuration { paths, inboxes, state: Mutex::new(State { config, last: LastReload::at_start() }) }
    }

    /// Returns the effective configuration without secrets, and its hash.
    pub fn shown(&self) -> (Value, String) {
        let state = lock(&self.state);
        (state.config.effective.to_json(), state.config.effective.hash())
    }

    /// Returns the result of the last attempt.
    pub fn last(&self) -> LastReload {
        lock(&self.state).last
    }

    /// Reads the files and the environment again and leaves each engine its policy; `None` if there are no files.
    ///
    /// # Errors
    /// The errors that `check` would report, or the changed keys that only a restart can take over. Nothing changes
    /// then.
    pub fn reload(&self) -> Option<Result<Reloaded, ConfigErrors>> {
        self.paths.as_deref().map(|paths| self.reload_from(paths))
    }

    fn reload_from(&self, paths: &[PathBuf]) -> Result<Reloaded, ConfigErrors> {
        let mut state = lock(&self.state);
        let read = Config::load(paths, std::env::vars_os(), watermaster_kafka::PROPERTY_RULES);
        let changed = read.and_then(|config| Ok((state.config.changes(&config)?, config)));
        state.last.successful = changed.is_ok();
        let (changed, mut config) = changed.inspect_err(|errors| {
            error!("the new configuration is refused, the one in force stays: {errors}");
        })?;
        for warning in &config.warnings {
            warn!(key = %warning.key, origin = %warning.origin, "{} {}", warning.title(), warning.problem);
        }
        for (service, inbox) in config.settings.services.iter().zip(&self.inboxes) {
            inbox.leave(service.policy.clone());
        }
        let hash = config.effective.hash();
        let mut changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
        // The engines hold the secrets of the first configuration.
        let secrets = state.config.settings.kafka.secrets.clone();
        let renewed = secrets.renew(config.settings.kafka.secrets.values());
        changed.extend(renewed.into_iter().map(|name| format!("kafka.properties_file.{name:?}")));
        config.settings.kafka.secrets = secrets;
        info!(configuration = hash, changed = changed.join(", "), "the configuration is reloaded");
        *state = State { config, last: LastReload { successful: true, success_at: clock::since_epoch() } };
        Ok(Reloaded { hash, changed })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
