//! Another configuration while the program runs: as a whole, or not at all.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tracing::{error, info, warn};
use watermaster_core::policy::Policy;

use crate::clock;
use crate::config::{Config, ConfigErrors};

/// Where an engine finds its next policy.
#[derive(Debug, Default)]
pub struct Inbox(Mutex<Option<Policy>>);

impl Inbox {
    /// Leaves a policy; one that was not taken yet is void.
    pub fn leave(&self, policy: Policy) {
        *lock(&self.0) = Some(policy);
    }

    /// The newest policy that was left, once.
    pub fn take(&self) -> Option<Policy> {
        lock(&self.0).take()
    }
}

/// What a reload changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// Names the configuration in force.
    pub hash: String,
    /// The keys that changed.
    pub changed: Vec<String>,
}

/// The configuration in force, and the way to another one.
#[derive(Debug)]
pub struct Configuration {
    path: PathBuf,
    /// One for each service, in the order of the configuration.
    inboxes: Vec<Arc<Inbox>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    config: Config,
    last: LastReload,
}

/// How the last attempt to take over a configuration ended. The start is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastReload {
    pub successful: bool,
    /// When the configuration in force was taken over, since the Unix epoch.
    pub success_at: Duration,
}

impl LastReload {
    /// The start, which is one.
    pub fn at_start() -> LastReload {
        LastReload { successful: true, success_at: clock::since_epoch() }
    }
}

impl Configuration {
    /// What was read from this path at the start.
    pub fn new(path: PathBuf, config: Config) -> Configuration {
        let inboxes = config.settings.services.iter().map(|_| Arc::default()).collect();
        Configuration { path, inboxes, state: Mutex::new(State { config, last: LastReload::at_start() }) }
    }

    /// Where the engine of each service looks for its policies.
    pub fn inboxes(&self) -> &[Arc<Inbox>] {
        &self.inboxes
    }

    /// The effective configuration without secrets, and its name.
    pub fn shown(&self) -> (Value, String) {
        let state = lock(&self.state);
        (state.config.effective.to_json(), state.config.effective.hash())
    }

    /// How the last attempt ended.
    pub fn last(&self) -> LastReload {
        lock(&self.state).last
    }

    /// Reads the file and the environment again, and hands every engine its policy.
    ///
    /// # Errors
    /// Those that `check` would name, or the keys that only a restart can change. Everything stays as it was then.
    pub fn reload(&self) -> Result<Reloaded, ConfigErrors> {
        let mut state = lock(&self.state);
        let read = Config::load(&self.path, std::env::vars_os());
        let changed = read.and_then(|config| Ok((state.config.changes(&config)?, config)));
        state.last.successful = changed.is_ok();
        let (changed, config) = changed.inspect_err(|errors| {
            error!("the configuration is not reloaded, all stays as it was: {errors}");
        })?;
        for warning in &config.warnings {
            warn!(key = warning.key, origin = %warning.origin, "{} {}", warning.title(), warning.problem);
        }
        for (service, inbox) in config.settings.services.iter().zip(&self.inboxes) {
            inbox.leave(service.policy.clone());
        }
        let hash = config.effective.hash();
        info!(configuration = hash, changed = changed.join(", "), "the configuration is reloaded");
        *state = State { config, last: LastReload { successful: true, success_at: clock::since_epoch() } };
        Ok(Reloaded { hash, changed })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
