//! The wait for the brokers at the start of a service.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::services::{STARTING, ServiceHandle};
use watermaster_kafka::log_limiter::LogLimiter;
use watermaster_kafka::preflight::{self, ConnectError, Report, Unreachable};
use watermaster_settings::Settings;

/// The longest wait for one answer about the topics and, with `--fail-fast`, for the first answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the topics once a broker answers: the services wait for as long as that takes, unless `keeps_waiting` returns
/// false.
pub(crate) fn check(
    settings: &Settings, handles: &[ServiceHandle], keeps_waiting: impl Fn(&Unreachable) -> bool,
) -> Result<Report, ConnectError> {
    let mut log_limiter = LogLimiter::default();
    let report = preflight::check_patiently(settings, ANSWER_TIMEOUT, |unreachable| {
        for handle in handles {
            // Another start of the process would bring no broker back.
            handle.heartbeat.beat(Instant::now());
            handle.cell.show_trouble(format!("no broker can be reached: {}", unreachable.last_error));
        }
        log_limiter.warn("unreachable", |_| warn!("{unreachable}; waiting for the brokers"));
        keeps_waiting(unreachable)
    });
    handles.iter().for_each(|handle| handle.cell.show_trouble(STARTING.to_owned()));
    report
}
