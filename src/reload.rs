//! Takes over another configuration while the program runs: all of it, or nothing.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tracing::field::display;
use tracing::{error, info, warn};

use crate::clock;
use crate::fleet::Fleet;
use crate::rules::with_run_time;
use crate::services::{Change, ServiceHandle};
use crate::shared::Shared;
use crate::snapshot::ClientSnapshot;
use watermaster_api::{ChangeView, NextCycle, PastChange, ReloadView};
use watermaster_kafka::preflight::{Finding, Report, Severity};
use watermaster_settings::config::{Changed, Config, ConfigError, ConfigErrors, Entry, SCHEMA, Segment};
use watermaster_settings::files::NamedFile;
use watermaster_settings::{Admin, Service, Settings};

/// The number of changes that are kept.
const KEPT_CHANGES: usize = 10;

/// The configuration in force, and the services that run by it.
#[derive(Debug)]
pub struct Configuration {
    /// The files and folders that it came from; `None` if it can't be reloaded.
    paths: Option<Vec<PathBuf>>,
    /// The handles of all services of the configuration in force.
    pub services: Shared<Vec<ServiceHandle>>,
    /// `None` where nothing runs.
    engines: Option<Arc<Fleet>>,
    /// Held during a reload, which may ask the brokers.
    reloading: Shared<()>,
    state: Shared<ReloadState>,
}

#[derive(Debug)]
struct ReloadState {
    config: Config,
    hash: String,
    last: LastReload,
    /// The names of all topics of the cluster.
    names: Option<Vec<String>>,
    /// The last answer of the brokers to the question for these names.
    answer: Vec<String>,
    /// The last changes, the newest first.
    past: VecDeque<PastChange>,
}

impl ReloadState {
    /// Returns the topics of the cluster after this answer. A topic is deleted when two answers in a row lack it: a
    /// broker that has just started may not know every topic yet.
    fn names_after(&mut self, answer: Vec<String>) -> Vec<String> {
        let names: BTreeSet<_> = answer.iter().chain(&self.answer).cloned().collect();
        self.answer = answer;
        names.into_iter().collect()
    }
}

/// Another configuration that could be in force, and what it would change.
struct NewConfig {
    config: Config,
    report: Option<Report>,
    /// A file has another content, which only clients that are made anew take.
    needs_clients: bool,
    view: ReloadView,
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
    /// Takes the configuration that was read at the start, from the files at `paths` if there are any, and makes a
    /// handle for each service.
    pub fn new(paths: Option<Vec<PathBuf>>, config: Config) -> Configuration {
        let services = Shared::new(config.settings.services.iter().map(ServiceHandle::new).collect());
        let hash = config.effective.hash();
        let last = LastReload::at_start();
        let state = ReloadState { config, hash, last, names: None, answer: vec![], past: VecDeque::new() };
        Configuration { paths, services, engines: None, reloading: Shared::default(), state: Shared::new(state) }
    }

    /// Returns the configuration with engines, which a reload starts and stops.
    pub(crate) fn with_engines(self, engines: Arc<Fleet>) -> Configuration {
        Configuration { engines: Some(engines), ..self }
    }

    /// Returns the effective configuration without secrets, each value perhaps beside the place where it is written,
    /// and its hash.
    pub fn shown(&self, with_origins: bool) -> (Value, String) {
        let state = self.state.lock();
        let effective = &state.config.effective;
        let config = if with_origins { effective.to_json_with_origins() } else { effective.to_json() };
        (config, state.hash.clone())
    }

    /// Returns the result of the last attempt.
    pub fn last(&self) -> LastReload {
        self.state.lock().last
    }

    /// Returns the hash of the configuration in force.
    pub fn hash(&self) -> String {
        self.state.lock().hash.clone()
    }

    /// Returns the last changes, the newest first.
    pub fn past_changes(&self) -> Vec<PastChange> {
        self.state.lock().past.iter().cloned().collect()
    }

    /// Returns the services with the sources that their patterns match now, and the handle of each.
    pub fn running(&self) -> Vec<(Service, ServiceHandle)> {
        let services = {
            let state = self.state.lock();
            state.config.settings.with_matches(state.names.as_deref().unwrap_or_default()).services
        };
        let handles = self.services.get();
        let with_handle = |service: Service| {
            let handle = handles.iter().find(|handle| handle.name == service.name)?.clone();
            Some((service, handle))
        };
        services.into_iter().filter_map(with_handle).collect()
    }

    /// Reads the files and the environment again, leaves each engine its change, starts and stops engines, and waits
    /// until the snapshots show the changes; `None` if there are no files. `by` names the cause in the log.
    ///
    /// # Errors
    /// The errors that `check --connect` would report, or the changed keys that only a restart can take over. Nothing
    /// changes then.
    pub fn reload(&self, by: &str) -> Option<Result<ReloadView, ConfigErrors>> {
        let reloaded = self.paths.as_deref().map(|paths| self.reload_from(paths, by));
        self.services.get().iter().for_each(ServiceHandle::wait_until_shown);
        reloaded
    }

    /// Returns what a [`reload`](Configuration::reload) would change, or why it would fail. Nothing changes.
    pub fn dry_run(&self) -> Option<Result<ReloadView, ConfigErrors>> {
        let _one_at_a_time = self.reloading.lock();
        let before = self.state.lock().config.clone();
        let candidate = self.paths.as_deref().map(|paths| self.candidate(paths, &before, true))?;
        Some(candidate.map(|candidate| candidate.view))
    }

    /// Returns the files that the configuration in force names.
    pub fn named_files(&self) -> Vec<NamedFile> {
        self.state.lock().config.files.clone()
    }

    /// Returns the settings of the HTTP side in force. Its tokens and its certificate are those that were read last.
    pub fn admin(&self) -> Admin {
        self.state.lock().config.settings.admin.clone()
    }

    /// Reports whether the sources of any service depend on the topics of the cluster.
    pub fn has_patterns(&self) -> bool {
        self.state.lock().config.settings.has_patterns()
    }

    /// Takes over the names of all topics of the cluster: engines with patterns get the sources that match.
    pub fn discovered(&self, answer: Vec<String>) {
        let _one_at_a_time = self.reloading.lock();
        let mut state = self.state.lock();
        let names = state.names_after(answer);
        if state.names.as_ref() == Some(&names) {
            return;
        }
        let services = state.config.settings.with_matches(&names).services;
        state.names = Some(names);
        for handle in self.services.get() {
            let service = services.iter().find(|service| service.name == handle.name && !service.patterns.is_empty());
            if let Some(service) = service {
                handle.inbox.leave(Change { sources: Some(service.sources.clone()), ..Change::default() });
            }
        }
    }

    /// Reads and checks the files.
    fn candidate(&self, paths: &[PathBuf], before: &Config, dry_run: bool) -> Result<NewConfig, ConfigErrors> {
        let config = Config::load(paths, std::env::vars_os(), watermaster_kafka::PROPERTY_RULES)?;
        let changes = before.changes(&config)?;
        let report = self.check(&before.settings, &config)?;
        let renewed = renewed(before, &config);
        let changes = described(&changes, &renewed);
        let next_cycle = next_cycle(&before.settings, &config.settings, &self.services.get());
        let warnings = config.warnings.iter().map(ToString::to_string).collect();
        let view = ReloadView::new(config.effective.hash(), dry_run, changes, next_cycle, warnings);
        Ok(NewConfig { config, report, needs_clients: renewed.iter().any(NamedFile::needs_clients), view })
    }

    fn reload_from(&self, paths: &[PathBuf], by: &str) -> Result<ReloadView, ConfigErrors> {
        let _one_at_a_time = self.reloading.lock();
        let before = self.state.lock().config.clone();
        let accepted = self.candidate(paths, &before, false);
        self.state.lock().last.successful = accepted.is_ok();
        let NewConfig { mut config, mut report, needs_clients, view } = accepted.inspect_err(|errors| {
            error!(by, "the new configuration is refused, the one in force stays: {errors}");
        })?;
        for warning in &config.warnings {
            warn!(key = %warning.key, origin = %warning.origin, "{} {}", warning.title(), warning.problem);
        }
        keep_shared(&before.settings, &mut config.settings, needs_clients);
        if let Some(told) = report.as_mut().and_then(|report| report.names.as_mut()) {
            let mut state = self.state.lock();
            if !before.settings.has_patterns() {
                // The brokers were not asked meanwhile: the former answer is old.
                state.answer.clear();
            }
            *told = state.names_after(told.clone());
        }
        let told = report.as_ref().and_then(|report| report.names.clone());
        let names = told.or_else(|| self.state.lock().names.clone());
        self.apply(&before.settings, &config.settings, &report, names.as_deref());
        view.changes.iter().for_each(|change| log(change, by));
        info!(configuration = view.hash, changes = view.changes.len(), by, "the configuration is reloaded");
        let mut state = self.state.lock();
        let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        for change in &view.changes {
            state.past.push_front(PastChange { at: at.clone(), by: by.to_owned(), change: change.clone() });
        }
        state.past.truncate(KEPT_CHANGES);
        let last = LastReload { successful: true, success_at: clock::since_epoch() };
        (state.config, state.hash, state.last, state.names) = (config, view.hash.clone(), last, names);
        Ok(view)
    }

    /// Asks the brokers about services that are new or have new sources; `None` if no broker answers.
    fn check(&self, before: &Settings, config: &Config) -> Result<Option<Report>, ConfigErrors> {
        let is_known = |service: &Service| {
            let mut former = before.services.iter().filter(|former| former.name == service.name);
            let reads = |former: &Service, topic: &str| former.sources.iter().any(|source| source.topic == topic);
            former.any(|former| {
                former.patterns == service.patterns && service.sources.iter().all(|source| reads(former, &source.topic))
            })
        };
        let settings = &config.settings;
        let asked = settings.services.iter().filter(|service| !is_known(service)).map(|service| service.name.as_str());
        let asked: Vec<&str> = asked.collect();
        let engines = self.engines.as_ref().filter(|_| !asked.is_empty());
        let Some(mut report) = engines.map_or_else(|| Some(Report::default()), |engines| engines.check(settings))
        else {
            return Ok(None);
        };
        let is_asked = |finding: &Finding| finding.service.as_deref().is_none_or(|name| asked.contains(&name));
        report.findings.retain(is_asked);
        if report.has_errors() { Err(refused(config, &report)) } else { Ok(Some(report)) }
    }

    /// Leaves each service that changed its change, and starts and stops services.
    fn apply(&self, before: &Settings, settings: &Settings, report: &Option<Report>, names: Option<&[String]>) {
        let matched = settings.with_matches(names.unwrap_or_default());
        let former = self.services.get();
        let facts = report.as_ref().map(|report| report.topics.clone()).unwrap_or_default();
        let handle = |service: &Service| {
            if let Some(handle) = former.iter().find(|former| former.name == service.name) {
                let was = before.services.iter().find(|was| was.name == service.name);
                if service.patterns.is_empty() && was == Some(service) {
                    return handle.clone();
                }
                let has_other_policy = |was: &Service| (&was.policy, &was.pace) != (&service.policy, &service.pace);
                let is_known = names.is_some() || service.patterns.is_empty();
                let has_other_policy = was.is_none_or(has_other_policy);
                let capacity = if has_other_policy { handle.pace.lock().change(service) } else { None };
                let policy = has_other_policy.then(|| service.policy.clone());
                handle.open.lock().max = service.max_open;
                handle.rules.known().max_capacity = service.rules_max_capacity;
                let sources = is_known.then(|| service.sources.clone());
                // With a bound, the next count tells the room.
                let open_room = service.max_open.is_none().then_some(None);
                handle.inbox.leave(Change {
                    policy,
                    capacity,
                    open_room,
                    sources,
                    facts: facts.clone(),
                    ..Change::default()
                });
                return handle.clone();
            }
            info!(service = service.name, "a new service starts");
            let handle = ServiceHandle::new(service);
            let engines = self.engines.iter();
            engines.for_each(|engines| engines.launch(settings, &handle, report.clone(), false));
            handle
        };
        self.services.set(matched.services.iter().map(handle).collect());
        for gone in former.iter().filter(|former| settings.services.iter().all(|service| service.name != former.name)) {
            info!(service = gone.name, "a service is no longer configured: finishing its round");
            gone.stop();
        }
    }
}

/// Returns the files that have another content now, by the same key.
fn renewed(before: &Config, now: &Config) -> Vec<NamedFile> {
    let is_renewed = |file: &&NamedFile| {
        let mut former = before.files.iter().filter(|former| former.key == file.key);
        former.any(|former| former.path == file.path && former.fingerprint != file.fingerprint)
    };
    now.files.iter().filter(is_renewed).cloned().collect()
}

/// Puts the secrets of new settings where clients and engines look for them: in those of the first configuration.
fn keep_shared(first: &Settings, new: &mut Settings, needs_clients: bool) {
    first.kafka.secrets.renew(new.kafka.secrets.values(), needs_clients);
    new.kafka.secrets = first.kafka.secrets.clone();
    for service in &mut new.services {
        let former = first.services.iter().find(|former| former.name == service.name);
        if let (Some(key), Some(former)) = (&service.redrive_key, former.and_then(|former| former.redrive_key.clone()))
        {
            former.set(key.get());
            service.redrive_key = Some(former);
        }
    }
}

/// Returns the brokers' objections as errors of the configuration.
fn refused(config: &Config, report: &Report) -> ConfigErrors {
    let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let error = |finding: &Finding| {
        let entry = concerned(config, finding)?;
        let problem = match &finding.topic {
            Some(topic) => format!("names the topic {topic:?}: {}", finding.problem),
            None => format!("can't be used: {}", finding.problem),
        };
        Some(ConfigError {
            key: entry.key.clone(),
            service: finding.service.clone(),
            problem,
            allowed: "services for which `watermaster check --connect` finds no error".to_owned(),
            origin: entry.origin.clone(),
        })
    };
    ConfigErrors::new(SCHEMA.subject, errors.filter_map(error).collect())
}

/// Returns the key that a finding is about: that of its topic, else its service's name, else the brokers' addresses.
fn concerned<'a>(config: &'a Config, finding: &Finding) -> Option<&'a Entry> {
    let name = finding.service.as_deref();
    let at = config.settings.services.iter().position(|service| Some(service.name.as_str()) == name);
    let is_in_service = |entry: &&Entry| entry.key.segments().get(1) == at.map(Segment::Index).as_ref();
    let names_topic = |entry: &&Entry| {
        let value = entry.value.as_ref().and_then(Value::as_str);
        let key = entry.key.segments().last().map(ToString::to_string).unwrap_or_default();
        value == finding.topic.as_deref()
            && ["topic", "target", "dead_letter", "control_topic", "rules_topic"].contains(&key.as_str())
    };
    let of_service = || config.effective.iter().filter(is_in_service);
    let name = || of_service().find(|entry| entry.key.to_string().ends_with(".name"));
    let servers = || config.effective.iter().find(|entry| entry.key.to_string() == "kafka.bootstrap_servers");
    of_service().find(names_topic).or_else(name).or_else(servers)
}

/// Describes the keys that changed, and the files with another content, which is not shown.
fn described(changed: &[Changed], files: &[NamedFile]) -> Vec<ChangeView> {
    let value = |value: &Option<Value>| value.clone().unwrap_or_default();
    let key = |changed: &Changed| ChangeView {
        key: changed.key.to_string(),
        service: changed.service.clone(),
        from: value(&changed.from),
        to: value(&changed.to),
        origin: changed.origin.to_string(),
        doubtful_factor: changed.doubtful_factor(),
    };
    let file = |file: &NamedFile| {
        let (key, origin) = (file.key.to_string(), file.path.display().to_string());
        let [from, to] = ["former content", "content that was read now"].map(Value::from);
        ChangeView { key, service: None, from, to, origin, doubtful_factor: None }
    };
    changed.iter().map(key).chain(files.iter().map(file)).collect()
}

/// Writes a line to the log.
fn log(change: &ChangeView, by: &str) {
    let ChangeView { key, service, from, to, origin, doubtful_factor } = change;
    // A value that was or is not set has no field.
    let [from, to] = [from, to].map(|value| (!value.is_null()).then(|| display(value)));
    match doubtful_factor {
        None => info!(service, %key, from, to, origin, by, "changed"),
        Some(factor) => {
            warn!(service, %key, from, to, origin, by, factor, "changed to more than twice, or less than half")
        }
    }
}

/// Returns the effect on each running service with another policy, if as many records are wanted as now.
fn next_cycle(before: &Settings, after: &Settings, handles: &[ServiceHandle]) -> Vec<NextCycle> {
    let effect = |handle: &ServiceHandle| {
        let policy = |settings: &Settings| {
            let service = settings.services.iter().find(|service| service.name == handle.name)?;
            Some(service.policy.clone())
        };
        let (before, after) = (policy(before)?, policy(after)?);
        if before == after {
            return None;
        }
        // Rules of the file and of run time decide now, and go on to.
        let (rules, now) = (handle.rules.rules(), clock::wall_ms());
        let [before, after] = [before, after].map(|policy| with_run_time(&policy, &rules).at(now));
        let snapshot = handle.cell.get();
        let wants = |client: &ClientSnapshot| client.levels.wants.max(client.levels.backlog);
        let wanted = snapshot.clients.iter().map(wants).sum();
        let [admits_at_most, would_admit_at_most] =
            [&before, &after].map(|policy| policy.enforce.then_some(policy.capacity));
        let [admits, would_admit] = [&before, &after].map(|policy| {
            if !policy.enforce {
                return wanted;
            }
            let limit_of = policy.limits_in_cycle();
            let within = |client: &ClientSnapshot| {
                limit_of(&client.name).map_or(wants(client), |most| wants(client).min(most.ceil() as u64))
            };
            snapshot.clients.iter().map(within).sum::<u64>().min(policy.capacity)
        });
        let [cycle_seconds, would_last] = [before, after].map(|policy| policy.cycle.as_secs_f64());
        Some(NextCycle {
            service: handle.name.clone(),
            wanted,
            admits,
            admits_at_most,
            cycle_seconds,
            would_admit,
            would_admit_at_most,
            would_last,
        })
    };
    handles.iter().filter_map(effect).collect()
}
