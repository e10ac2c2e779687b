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
    /// Whether anybody reads what became of the records.
    read_back: bool,
    before: (Duration, u64, u64),
}

impl Progress {
    /// Of a scenario of this length, of which more than what was sent is known only if it is read back.
    pub fn new(length: Duration, read_back: bool) -> Progress {
        let every = Duration::from_secs(if std::io::stderr().is_terminal() { 1 } else { 10 });
        Progress { every, next: every, length, read_back, before: (Duration::ZERO, 0, 0) }
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
        let mut line = format!(
            "{:>4} s{}: {} sent ({:.0}/s)",
            now.as_secs(),
            if account.is_played() { " (all sent)".to_owned() } else { format!(" of {}", self.length.as_secs()) },
            total.sent,
            rate(total.sent, sent),
        );
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
        line + &format!(", generator late by {} at most", seconds(account.lag().quantile(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;

    /// It said "0 admitted, 0 rejected" of records that nobody had looked for.
    #[test]
    fn what_is_not_read_back_is_not_spoken_of() {
        let account = Account::new(plan(
            "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"steady\"\nrate = 10\nfor = \"60s\"\n",
        ));
        let line =
            |read_back| Progress::new(Duration::from_secs(60), read_back).line(Duration::from_secs(10), &account);
        assert_eq!(line(false), "  10 s of 60: 0 sent (0/s), generator late by 0 s at most");
        assert!(line(true).contains(", 0 admitted (0/s), 0 rejected, 0 waiting, "), "{}", line(true));
    }
}
