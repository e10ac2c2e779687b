//! SIGHUP reloads; SIGTERM and SIGINT stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
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
            let _ = tokio::task::spawn_blocking(move || configuration.reload()).await;
        }
    });
}

/// SIGTERM and SIGINT: the first signal drains, a second one leaves at once.
pub(super) struct StopSignals {
    seen: mpsc::UnboundedReceiver<()>,
}

impl StopSignals {
    /// Listens; the first signal sets `stop`.
    pub(super) fn new(stop: &Arc<AtomicBool>) -> StopSignals {
        let (sender, seen) = mpsc::unbounded_channel();
        for (name, kind) in [("SIGTERM", SignalKind::terminate()), ("SIGINT", SignalKind::interrupt())] {
            let Some(mut signals) = listen(name, kind) else { continue };
            let (sender, stop) = (sender.clone(), Arc::clone(stop));
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    if !stop.swap(true, Ordering::Relaxed) {
                        info!("{name}: finishing the round");
                    }
                    let _ = sender.send(());
                }
            });
        }
        StopSignals { seen }
    }

    /// Waits for a second signal, at least [`SAME_SIGNAL_INTERVAL`] after the first.
    pub(super) async fn second(&mut self) {
        let mut first: Option<Instant> = None;
        while self.seen.recv().await.is_some() {
            match first {
                None => first = Some(Instant::now()),
                Some(first) if first.elapsed() > SAME_SIGNAL_INTERVAL => return,
                Some(_) => {}
            }
        }
        std::future::pending::<()>().await;
    }
}

fn listen(name: &str, kind: SignalKind) -> Option<Signal> {
    signal(kind).inspect_err(|why| warn!("{name} can't be handled: {why}")).ok()
}
