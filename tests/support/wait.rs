//! Waiting by probing, instead of sleeping for a fixed time.

use std::time::{Duration, Instant};

/// Probes until there is an answer; panics with `what` if there is none in time.
pub fn wait_for<T>(what: &str, timeout: Duration, probe: impl FnMut() -> Option<T>) -> T {
    answer_within(timeout, probe).unwrap_or_else(|| panic!("waited {timeout:?} for {what} without success"))
}

/// Probes until there is an answer, or no more time.
fn answer_within<T>(timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let answer = probe();
        if answer.is_some() || Instant::now() >= deadline {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Probes until `probe` returns true. Returns whether it did in time.
pub fn probe_until(timeout: Duration, mut probe: impl FnMut() -> bool) -> bool {
    answer_within(timeout, || probe().then_some(())).is_some()
}

/// Probes until `probe` returns true.
pub fn wait_until(what: &str, timeout: Duration, mut probe: impl FnMut() -> bool) {
    wait_for(what, timeout, || probe().then_some(()));
}

/// Sleeps for the duration of a fault, which no probe can shorten.
pub fn let_the_fault_last(duration: Duration) {
    std::thread::sleep(duration);
}
