//! The screen while the demo runs: a table redrawn in place on a terminal, otherwise plain lines.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{cli::Output, top::fetch::ServiceStatus, top::plain};

/// A part of the demo.
struct Scene {
    /// The end of the scene, in percent of the whole.
    until_percent: u32,
    title: &'static str,
    hint: &'static str,
}

const SCENES: [Scene; 4] = [
    Scene {
        until_percent: 20,
        title: "an ordinary day",
        hint: "home-loan is nearly idle and lends; personal-loan borrows a little of it.",
    },
    Scene {
        until_percent: 60,
        title: "the credit-card campaign",
        hint: "credit-card sends 8 times its share and gets what the others leave.",
    },
    Scene {
        until_percent: 90,
        title: "the lender wants its share back",
        hint: "home-loan needs its share again; credit-card gives back what it borrowed.",
    },
    Scene {
        until_percent: 100,
        title: "after the campaign",
        hint: "credit-card goes quiet; if it has a backlog, that takes what the others leave.",
    },
];

/// Shows the demo while it runs.
pub struct View {
    length: Duration,
    form: Form,
}

enum Form {
    /// On a terminal: the scene, the table and a bar, redrawn in place on stderr.
    Live(ProgressBar),
    /// Elsewhere: a block for each scene and a line for each second.
    Lines(Lines),
}

/// The lines printed so far.
struct Lines {
    to_stdout: bool,
    /// The reader of stdout has hung up.
    unread: bool,
    scene: Option<usize>,
    second: u64,
}

impl View {
    /// Shows the demo live if stderr is a terminal. Lines go to stdout, unless that is reserved for JSON.
    pub fn new(length: Duration, output: Output) -> View {
        let form = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(millis(length)), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{prefix}\n\n{msg}\n\n{bar:60} {elapsed}")
                .expect("the template is well formed");
            bar.set_style(style.progress_chars("━╸─"));
            Form::Live(bar)
        } else {
            Form::Lines(Lines { to_stdout: output == Output::Text, unread: false, scene: None, second: 0 })
        };
        View { length, form }
    }

    /// Shows the service at a time since the start.
    pub fn show(&mut self, at: Duration, service: &ServiceStatus) {
        let is_over = |scene: &Scene| at >= self.length * scene.until_percent / 100;
        let scene = SCENES.iter().take(SCENES.len() - 1).filter(|scene| is_over(scene)).count();
        match &mut self.form {
            Form::Live(bar) => {
                bar.set_prefix(heading(scene));
                bar.set_message(plain(service));
                bar.set_position(millis(at));
            }
            Form::Lines(lines) => lines.show(scene, at, service),
        }
    }

    /// Reports whether anything still reads the lines; `| head` hangs up.
    pub fn is_watched(&self) -> bool {
        !matches!(self.form, Form::Lines(Lines { unread: true, .. }))
    }

    /// Leaves the last table on the screen.
    pub fn finish(&mut self, service: &ServiceStatus) {
        match &mut self.form {
            Form::Live(bar) => {
                bar.set_message(plain(service));
                bar.abandon();
            }
            Form::Lines(lines) => lines.print(&format!("\n{}\n", plain(service))),
        }
    }
}

impl Lines {
    fn show(&mut self, scene: usize, at: Duration, service: &ServiceStatus) {
        if self.scene != Some(scene) {
            if self.scene.is_some() {
                self.print(&plain(service));
            }
            self.scene = Some(scene);
            self.print(&format!("\n{}", heading(scene)));
        }
        if at.as_secs() > self.second {
            self.second = at.as_secs();
            self.print(&format!("{:>4} s  {}", self.second, one_line(service)));
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

/// Writes the grant and the backlog of each client in one line.
fn one_line(service: &ServiceStatus) -> String {
    let clients = service.clients.iter().map(|client| {
        let waiting = match (service.decisions(client).backlog, service.enforce) {
            (0, _) => String::new(),
            (backlog, true) => format!(", {backlog} wait"),
            (backlog, false) => format!(", {backlog} would wait"),
        };
        format!("{} wants {} granted {}{waiting}", client.name, client.wants, client.granted)
    });
    let clients = clients.collect::<Vec<_>>().join("; ");
    format!("{}/{} in the window; {clients}", service.window_admitted, service.capacity)
}

fn heading(scene: usize) -> String {
    let Scene { title, hint, .. } = SCENES[scene];
    format!("{} of {}: {title}\n{hint}", scene + 1, SCENES.len())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::fetch::tests::service;

    #[test]
    fn a_line_for_a_log() {
        let mut service = service();
        service.clients.truncate(2);
        let line = "180/200 in the window; car-loan wants 35 granted 35; credit-card wants 6350 granted 72, 6334 wait";
        assert_eq!(one_line(&service), line);
        service.enforce = false;
        service.clients[1].shadow.backlog = 9;
        assert!(one_line(&service).ends_with(", 9 would wait"));
    }

    #[test]
    fn a_scene_fits_one_line_of_a_terminal() {
        assert!(SCENES.iter().all(|scene| scene.hint.len() <= 80));
        assert_eq!(SCENES[3].until_percent, 100);
    }
}
