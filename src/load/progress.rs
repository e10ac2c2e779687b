//! What is seen while it runs: a line a second on a terminal, one every ten elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use super::account::Account;
use crate::words::seconds;

/// Tells from time to time how it goes, on stderr.
pub struct Progress {
    every: Duration,
    next: Duration,
    length: Duration,
    before: (Duration, u64, u64),
}

impl Progress {
    /// Of a scenario of this length.
    pub fn new(length: Duration) -> Progress {
        let every = Duration::from_secs(if std::io::stderr().is_terminal() { 1 } else { 10 });
        Progress { every, next: every, length, before: (Duration::ZERO, 0, 0) }
    }

    /// A line, if it is time for one.
    pub fn tell(&mut self, now: Duration, account: &Account) {
        if now >= self.next {
            self.next = now + self.every;
            eprintln!("{}", self.line(now, account));
        }
    }

    fn line(&mut self, now: Duration, account: &Account) -> String {
        let total = account.total();
        let (then, sent, admitted) = std::mem::replace(&mut self.before, (now, total.sent, total.admitted));
        let time = now.saturating_sub(then).as_secs_f64().max(0.001);
        let rate = |now: u64, then: u64| (now - then) as f64 / time;
        format!(
            "{:>4} s{}: {} sent ({:.0}/s), {} admitted ({:.0}/s), {} rejected, {} waiting, delay p99 {}, generator late by {} at most",
            now.as_secs(),
            if account.is_played() { " (all sent)".to_owned() } else { format!(" of {}", self.length.as_secs()) },
            total.sent,
            rate(total.sent, sent),
            total.admitted,
            rate(total.admitted, admitted),
            total.rejected_total(),
            total.waiting,
            seconds(total.delays.quantile(0.99)),
            seconds(account.lag().quantile(1.0)),
        )
    }
}
