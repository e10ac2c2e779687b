//! What is seen while the demo runs: a table redrawn in place on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::scenario::{PHASES, Scenario};
use super::{Output, table};
use crate::snapshot::ServiceSnapshot;

/// How often the terminal is redrawn.
pub const REDRAW: Duration = Duration::from_millis(250);

/// Shows the running demo.
pub enum View {
    /// On a terminal: the phase, the table and a bar, redrawn in place on stderr.
    Live(ProgressBar),
    /// Elsewhere: a block for each phase and a line for each second.
    Plain(Plain),
}

/// What has been printed so far.
pub struct Plain {
    to_stdout: bool,
    /// Whoever read has hung up.
    unread: bool,
    phase: Option<usize>,
    second: u64,
}

impl View {
    /// Live if a person looks at stderr. Plain lines go to stdout, unless that is kept for JSON.
    pub fn new(scenario: &Scenario, output: Output) -> View {
        if std::io::stderr().is_terminal() {
            let length = u64::try_from(scenario.length().as_millis()).unwrap_or(u64::MAX);
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{prefix}\n\n{msg}\n\n{bar:60} {elapsed}")
                .expect("the template is well formed");
            bar.set_style(style.progress_chars("━╸─"));
            View::Live(bar)
        } else {
            View::Plain(Plain { to_stdout: output == Output::Text, unread: false, phase: None, second: 0 })
        }
    }

    /// Shows the moment so long after the start.
    pub fn show(&mut self, scenario: &Scenario, at: Duration, snapshot: &ServiceSnapshot) {
        let phase = scenario.phase_at(at);
        match self {
            View::Live(bar) => {
                bar.set_prefix(heading(phase));
                bar.set_message(table::render(snapshot));
                bar.set_position(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
            }
            View::Plain(plain) => plain.show(phase, at, snapshot),
        }
    }

    /// False once whoever read has hung up, as `| head` does.
    pub fn is_watched(&self) -> bool {
        !matches!(self, View::Plain(Plain { unread: true, .. }))
    }

    /// The last moment stays on the screen.
    pub fn finish(&mut self, snapshot: &ServiceSnapshot) {
        match self {
            View::Live(bar) => {
                bar.set_message(table::render(snapshot));
                bar.abandon();
            }
            View::Plain(plain) => plain.print(&format!("\n{}\n", table::render(snapshot))),
        }
    }
}

impl Plain {
    fn show(&mut self, phase: usize, at: Duration, snapshot: &ServiceSnapshot) {
        if self.phase != Some(phase) {
            if self.phase.is_some() {
                self.print(&table::render(snapshot));
            }
            self.phase = Some(phase);
            self.print(&format!("\n{}", heading(phase)));
        }
        if at.as_secs() > self.second {
            self.second = at.as_secs();
            self.print(&format!("{:>4} s  {}", self.second, table::one_line(snapshot)));
        }
    }

    fn print(&mut self, text: &str) {
        if self.to_stdout {
            self.unread |= writeln!(std::io::stdout(), "{text}").is_err();
        } else {
            eprintln!("{text}");
        }
    }
}

fn heading(phase: usize) -> String {
    let count = PHASES.len();
    let phase_number = phase + 1;
    let phase = &PHASES[phase];
    format!("{phase_number} of {count}: {}\n{}", phase.name, phase.look_at)
}
