//! Waiting by probing: no test sleeps for a fixed time and hopes.

use std::time::{Duration, Instant};

/// Probes until there is an answer, and panics with `what` when there is none in time.
pub fn wait_for<T>(what: &str, timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Probes until it is true.
pub fn wait_until(what: &str, timeout: Duration, mut probe: impl FnMut() -> bool) {
    wait_for(what, timeout, || probe().then_some(()));
}

/// Lets a fault last: the time is the fault, nothing is waited for.
pub fn let_the_fault_last(duration: Duration) {
    std::thread::sleep(duration);
}
