//! Progress on stderr: a line each second on a terminal, otherwise one every ten seconds.

use std::{io::IsTerminal, time::Duration};

use super::account::Account;
use crate::format::seconds;

/// Prints the progress of a run from time to time.
pub struct Progress {
    interval: Duration,
    next: Duration,
    /// Outcomes are known.
    read_back: bool,
    /// Time, records sent and records admitted when the last line was printed.
    before: (Duration, u64, u64),
}

impl Progress {
    /// Prepares the first line.
    pub fn new(read_back: bool) -> Progress {
        let interval = Duration::from_secs(if std::io::stderr().is_terminal() { 1 } else { 10 });
        Progress { interval, next: interval, read_back, before: (Duration::ZERO, 0, 0) }
    }

    /// Prints a line if one is due.
    pub fn update(&mut self, now: Duration, account: &Account) {
        if now >= self.next {
            self.next = now + self.interval;
            eprintln!("{}", self.line(now, account));
        }
    }

    fn line(&mut self, now: Duration, account: &Account) -> String {
        let total = account.total();
        let (then, sent, admitted) = std::mem::replace(&mut self.before, (now, total.sent, total.admitted));
        let elapsed = now.saturating_sub(then).as_secs_f64().max(0.001);
        let rate = |now: u64, then: u64| (now - then) as f64 / elapsed;
        let stage = match account.played {
            true => " (all sent)".to_owned(),
            false => format!(" of {}", account.plan.length.as_secs()),
        };
        let mut line = format!("{:>4} s{stage}: {} sent ({:.0}/s)", now.as_secs(), total.sent, rate(total.sent, sent));
        if self.read_back {
            line += &format!(
                ", {} admitted ({:.0}/s), {} rejected, {} waiting, delay p99 {}",
                total.admitted,
                rate(total.admitted, admitted),
                total.rejected_total(),
                total.waiting,
                seconds(total.delays.quantile(0.99)),
            );
        }
        line + &format!(", generator late by {} at most", seconds(account.lateness.quantile(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;

    /// The bug: the line showed "0 admitted, 0 rejected" for records that were not read back.
    #[test]
    fn unknown_outcomes_are_not_shown() {
        let account = Account::new(plan(
            "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"steady\"\nrate = 10\nfor = \"60s\"\n",
        ));
        let line = |read_back| Progress::new(read_back).line(Duration::from_secs(10), &account);
        assert_eq!(line(false), "  10 s of 60: 0 sent (0/s), generator late by 0 s at most");
        assert!(line(true).contains(", 0 admitted (0/s), 0 rejected, 0 waiting, "), "{}", line(true));
    }
}
