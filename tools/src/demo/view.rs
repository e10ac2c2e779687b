//! The screen while the demo runs: a table redrawn in place on a terminal, otherwise plain lines.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{cli::Output, top::fetch::ServiceStatus, top::plain};

/// The scenes: the end in percent of the whole, a title and a hint.
const SCENES: [(u32, &str, &str); 4] = [
    (20, "an ordinary day", "home-loan is nearly idle and lends; personal-loan borrows a little of it."),
    (60, "the credit-card campaign", "credit-card sends 8 times its share and gets what the others leave."),
    (90, "the lender wants its share back", "home-loan needs its share; credit-card gives back what it borrowed."),
    (100, "after the campaign", "credit-card goes quiet; if it has a backlog, that takes what the others leave."),
];

/// Shows the demo while it runs.
pub struct View {
    length: Duration,
    /// On a terminal, the scene, the table and a bar are redrawn in place on stderr. Elsewhere there is a block for
    /// each scene and a line for each second.
    bar: Option<ProgressBar>,
    /// Lines go to stdout, unless that is reserved for JSON.
    to_stdout: bool,
    /// The reader of stdout has hung up.
    unread: bool,
    scene: Option<usize>,
    second: u64,
}

impl View {
    /// Shows the demo live if stderr is a terminal.
    pub fn new(length: Duration, output: Output) -> View {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix}\n\n{msg}\n\n{bar:60} {elapsed}")
                .expect("the template is well formed");
            ProgressBar::with_draw_target(Some(length.as_millis() as u64), ProgressDrawTarget::stderr())
                .with_style(style.progress_chars("━╸─"))
        });
        View { length, bar, to_stdout: output == Output::Text, unread: false, scene: None, second: 0 }
    }

    /// Shows the service at a time since the start.
    pub fn show(&mut self, at: Duration, service: &ServiceStatus) {
        let scenes = SCENES[..SCENES.len() - 1].iter();
        let scene = scenes.filter(|(until, ..)| at >= self.length * *until / 100).count();
        if let Some(bar) = &self.bar {
            bar.set_prefix(heading(scene));
            bar.set_message(plain(service));
            bar.set_position(at.as_millis() as u64);
            return;
        }
        if self.scene != Some(scene) {
            if self.scene.replace(scene).is_some() {
                self.print(&plain(service));
            }
            self.print(&format!("\n{}", heading(scene)));
        }
        if at.as_secs() > self.second {
            self.second = at.as_secs();
            self.print(&format!("{:>4} s  {}", self.second, one_line(service)));
        }
    }

    /// Reports whether anything still reads the lines; `| head` hangs up.
    pub fn is_watched(&self) -> bool {
        !self.unread
    }

    /// Leaves the last table on the screen.
    pub fn finish(&mut self, service: &ServiceStatus) {
        if let Some(bar) = &self.bar {
            bar.abandon_with_message(plain(service));
        } else {
            self.print(&format!("\n{}\n", plain(service)));
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
    let wait = if service.figures.enforce { "wait" } else { "would wait" };
    let clients = service.clients.iter().map(|client| {
        let waiting = match service.decisions(client).backlog {
            0 => String::new(),
            backlog => format!(", {backlog} {wait}"),
        };
        format!("{} wants {} granted {}{waiting}", client.view.name, client.view.wants, client.view.granted)
    });
    let clients = clients.collect::<Vec<_>>().join("; ");
    format!("{}/{} in the window; {clients}", service.figures.window_admitted, service.figures.capacity)
}

fn heading(scene: usize) -> String {
    let (_, title, hint) = SCENES[scene];
    format!("{} of {}: {title}\n{hint}", scene + 1, SCENES.len())
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
        service.figures.enforce = false;
        service.clients[1].view.shadow.backlog = 9;
        assert!(one_line(&service).ends_with(", 9 would wait"));
    }

    #[test]
    fn a_scene_fits_one_line_of_a_terminal() {
        assert!(SCENES.iter().all(|(.., hint)| hint.len() <= 80));
        assert_eq!(SCENES[3].0, 100);
    }
}
