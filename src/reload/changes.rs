//! Tells the differences of two configurations, and their effect.

use serde_json::Value;
use tracing::{info, warn};
use watermaster_api::{ChangeView, NextCycle};
use watermaster_settings::{Settings, config::Changed, files::NamedFile};

use crate::clock;
use crate::rules::with_run_time;
use crate::services::ServiceHandle;
use crate::snapshot::ClientSnapshot;

/// Describes the keys that changed, and the files with another content, which is not shown.
pub(super) fn described(changed: &[Changed], files: &[NamedFile]) -> Vec<ChangeView> {
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
pub(super) fn log(change: &ChangeView, by: &str) {
    let ChangeView { key, service, from, to, origin, doubtful_factor } = change;
    match doubtful_factor {
        None => info!(service, %key, %from, %to, origin, by, "changed"),
        Some(factor) => {
            warn!(service, %key, %from, %to, origin, by, factor, "changed to more than twice, or less than half")
        }
    }
}

/// Returns the effect on each running service with another policy, if as many records are wanted as now.
pub(super) fn next_cycle(before: &Settings, after: &Settings, handles: &[ServiceHandle]) -> Vec<NextCycle> {
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
