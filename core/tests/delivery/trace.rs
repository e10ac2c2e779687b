//! A readable log of the last events. Recorded only when a failing seed is run again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use watermaster_core::units::Time;

use super::sim::START;

/// Number of lines that are kept.
const LINES: usize = 60;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static NOW: Cell<Time> = const { Cell::new(START) };
    static KEPT: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

/// Starts the trace of this thread.
pub fn start() {
    ON.set(true);
    KEPT.with_borrow_mut(VecDeque::clear);
}

/// Stops the trace and returns its last lines.
pub fn stop() -> Vec<String> {
    ON.set(false);
    KEPT.with_borrow_mut(|kept| kept.drain(..).collect())
}

/// Sets the time of the events that follow.
pub fn at(now: Time) {
    NOW.set(now);
}

/// Records an event of `subject`.
pub fn note<W: std::fmt::Display>(subject: W, what: impl FnOnce() -> String) {
    if ON.get() {
        let line = format!("{:>9.3} s  {subject:<12} {}", NOW.get().since(START).as_secs_f64(), what());
        KEPT.with_borrow_mut(|kept| {
            if kept.len() == LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        });
    }
}
