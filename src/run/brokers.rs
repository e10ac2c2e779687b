//! The wait for the brokers at the start.

use std::time::{Duration, Instant};

use tracing::warn;

use super::{Parts, fleet::STARTING};
use crate::admin::ServiceHandle;
use watermaster_kafka::log_limiter::LogLimiter;
use watermaster_kafka::preflight::{self, ConnectError, Report, Unreachable};
use watermaster_settings::Settings;

/// The longest wait for one answer about the topics and, with `--fail-fast`, for the first answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows that the program waits for the brokers.
struct BrokerWait {
    fail_fast: bool,
    handles: Vec<ServiceHandle>,
    log_limiter: LogLimiter,
}

/// Checks the topics once a broker answers: the program waits for as long as that takes. With `fail_fast` it gives up
/// after [`ANSWER_TIMEOUT`]. A program that stops meanwhile does not wait for this function.
pub(super) async fn check(
    settings: &Settings, parts: &Parts, fail_fast: bool,
) -> Result<Result<Report, ConnectError>, tokio::task::JoinError> {
    let settings = settings.clone();
    let mut wait = BrokerWait { fail_fast, handles: parts.handles.clone(), log_limiter: LogLimiter::default() };
    let check = move || {
        let report = preflight::check_patiently(&settings, ANSWER_TIMEOUT, |unreachable| wait.goes_on(unreachable));
        wait.handles.iter().for_each(|handle| handle.show_trouble(STARTING.to_owned()));
        report
    };
    tokio::task::spawn_blocking(check).await
}

impl BrokerWait {
    fn goes_on(&mut self, unreachable: &Unreachable) -> bool {
        for handle in &self.handles {
            // Another start of the process would bring no broker back.
            handle.heartbeat.beat(Instant::now());
            handle.show_trouble(format!("no broker can be reached: {}", unreachable.last_error));
        }
        self.log_limiter.warn("unreachable", |_| warn!("{unreachable}; waiting for the brokers"));
        !self.fail_fast || unreachable.waited < ANSWER_TIMEOUT
    }
}
