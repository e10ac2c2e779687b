//! SIGHUP reloads; SIGTERM and SIGINT stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::reload::Configuration;

/// Signals closer together than this count as one: `timeout` and some supervisors signal the process and its group.
const SAME_SIGNAL_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the configuration again at each SIGHUP.
pub(super) fn reload_on_hangup(configuration: &Arc<Configuration>) {
    let Some(mut hangups) = listen("SIGHUP", SignalKind::hangup()) else { return };
    let configuration = Arc::clone(configuration);
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let configuration = Arc::clone(&configuration);
            // The reload logs its own result.
            let _ = tokio::task::spawn_blocking(move || configuration.reload("by SIGHUP")).await;
        }
    });
}

/// Sets `stop` at the first SIGTERM or SIGINT, which drains. Returns at a second signal, at least
/// [`SAME_SIGNAL_INTERVAL`] after the first.
pub(super) async fn second_stop_signal(stop: &AtomicBool) {
    let mut terminate = listen("SIGTERM", SignalKind::terminate());
    let mut interrupt = listen("SIGINT", SignalKind::interrupt());
    let mut first: Option<Instant> = None;
    loop {
        let name = tokio::select! {
            () = next(&mut terminate) => "SIGTERM",
            () = next(&mut interrupt) => "SIGINT",
        };
        if first.get_or_insert_with(Instant::now).elapsed() > SAME_SIGNAL_INTERVAL {
            return;
        }
        if !stop.swap(true, Ordering::Relaxed) {
            info!("{name}: finishing the round");
        }
    }
}

/// Waits for a signal, for ever if it can't be handled.
async fn next(signals: &mut Option<Signal>) {
    let seen = match signals {
        Some(signals) => signals.recv().await,
        None => None,
    };
    if seen.is_none() {
        std::future::pending::<()>().await;
    }
}

fn listen(name: &str, kind: SignalKind) -> Option<Signal> {
    signal(kind).inspect_err(|why| warn!("{name} can't be handled: {why}")).ok()
}
