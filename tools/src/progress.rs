//! The progress of a command that reads many records: a bar on a terminal, lines elsewhere.

use std::cell::Cell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The interval of lines where stderr is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of one command, on stderr.
pub struct OffsetProgress {
    /// `None` where stderr is no terminal.
    bar: Option<ProgressBar>,
    verb: &'static str,
    total: u64,
    begun: Instant,
    next: Cell<Instant>,
}

impl OffsetProgress {
    /// Begins; `verb` tells what happens to the `total` offsets.
    pub fn new(verb: &'static str, total: u64) -> OffsetProgress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = "{bar:30} {percent:>3} % of {human_len} offsets {prefix}, {eta} left{msg}";
            let style = ProgressStyle::with_template(template).expect("the template is well formed");
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            bar.with_style(style).with_prefix(verb)
        });
        let begun = Instant::now();
        OffsetProgress { bar, verb, total, begun, next: Cell::new(begun + LINE_INTERVAL) }
    }

    /// Shows that the first `done` offsets are done.
    pub fn set(&self, done: u64, more: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                if !more.is_empty() {
                    bar.set_message(format!("; {more}"));
                }
            }
            None if Instant::now() >= self.next.get() => {
                self.next.set(Instant::now() + LINE_INTERVAL);
                let left = self.begun.elapsed().mul_f64((self.total as f64 / done.max(1) as f64 - 1.0).max(0.0));
                let separator = if more.is_empty() { "" } else { "; " };
                let OffsetProgress { verb, total, .. } = self;
                eprintln!("{done} of {total} offsets {verb}, about {} s left{separator}{more}", left.as_secs());
            }
            None => {}
        }
    }

    /// Shows a line that stays.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
