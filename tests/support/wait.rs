//! Waiting by probing, instead of sleeping for a fixed time.

use std::time::{Duration, Instant};

/// Probes until there is an answer; panics with `what` if there is none in time.
pub fn wait_for<T>(what: &str, timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} for {what} without success");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Probes until `probe` returns true.
pub fn wait_until(what: &str, timeout: Duration, mut probe: impl FnMut() -> bool) {
    wait_for(what, timeout, || probe().then_some(()));
}

/// Sleeps for the duration of a fault, which no probe can shorten.
pub fn let_the_fault_last(duration: Duration) {
    std::thread::sleep(duration);
}
