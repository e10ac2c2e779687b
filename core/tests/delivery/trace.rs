//! What happened, for people. Written down only when a failing seed is run again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use watermaster_core::units::Time;

use super::sim::START;

/// The lines that are kept.
const LINES: usize = 60;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static NOW: Cell<Time> = const { Cell::new(START) };
    static KEPT: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

/// Writes down what this thread does from now on.
pub fn start() {
    ON.set(true);
    KEPT.with_borrow_mut(VecDeque::clear);
}

/// The last lines; nothing is written down any more.
pub fn stop() -> Vec<String> {
    ON.set(false);
    KEPT.with_borrow_mut(|kept| kept.drain(..).collect())
}

/// What follows happens now.
pub fn at(now: Time) {
    NOW.set(now);
}

/// Something happened: to whom, and what.
pub fn note<W: std::fmt::Display>(who: W, what: impl FnOnce() -> String) {
    if ON.get() {
        let line = format!("{:>9.3} s  {who:<12} {}", NOW.get().since(START).as_secs_f64(), what());
        KEPT.with_borrow_mut(|kept| {
            if kept.len() == LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        });
    }
}
