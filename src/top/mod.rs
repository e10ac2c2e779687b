//! `watermaster top`: a running instance, live, asked over its HTTP API once a second.
//!
//! - `fetch`: what is asked, and what comes back
//! - `rates`: how fast counts grew between two answers
//! - `app`: what was chosen by key, whether the instance answers
//! - `table`: the columns, as many as fit
//! - `view`: the screen
//!
//! One thread asks, the other one draws and listens to keys, so that an instance that is slow to answer holds up nobody.

mod app;
mod fetch;
mod rates;
mod table;
mod view;

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

pub use fetch::{Client, Service, Shadow, url};
pub use rates::{Rates, Row};

use app::{App, Flow};
use fetch::{Answer, Source};

/// Between two questions. Snapshots are renewed at least twice as often.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the answers while no key is pressed.
const LOOK: Duration = Duration::from_millis(100);

/// What to look at, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the instance listens, `http://127.0.0.1:9464`; with a path if it has one behind its ingress.
    pub url: String,
    /// For `/v1` beyond loopback.
    pub token: Option<String>,
    /// The service to look at; else all of them, the first one first.
    pub service: Option<String>,
    /// Whether clients are told apart by colour, or only by letters.
    pub colour: bool,
}

/// Shows the instance on the terminal until somebody quits, whether it answers or not.
///
/// # Errors
/// When the terminal can't be drawn on.
pub fn watch(options: Options) -> io::Result<()> {
    let answers = ask_again_and_again(Source::new(&options));
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, App::new(options), &answers);
    ratatui::restore();
    ended
}

fn show(terminal: &mut DefaultTerminal, mut app: App, answers: &Receiver<Answer>) -> io::Result<()> {
    loop {
        while let Ok(answer) = answers.try_recv() {
            app.receive(answer);
        }
        terminal.draw(|frame| view::draw(frame, &app, Instant::now()))?;
        if event::poll(LOOK)?
            && let Event::Key(key) = event::read()?
            && key.is_press()
            && app.handle_key(key) == Flow::Quit
        {
            return Ok(());
        }
    }
}

/// Asks until nobody wants to know any more.
fn ask_again_and_again(source: Source) -> Receiver<Answer> {
    let (tell, answers) = mpsc::channel();
    thread::spawn(move || {
        while tell.send(source.ask()).is_ok() {
            thread::sleep(EVERY);
        }
    });
    answers
}

/// Asks twice, a second apart: how the services stand, and how fast their counts grow.
///
/// # Errors
/// When the instance does not answer, or has no such service; in words.
pub fn once(options: &Options) -> Result<Vec<Service<Row>>, String> {
    let source = Source::new(options);
    let first = source.ask();
    let before = first.outcome?;
    thread::sleep(EVERY);
    let second = source.ask();
    Ok(rates::since(Some((&before, second.at - first.at)), second.outcome?))
}

/// The services as plain text, a table for each.
pub fn plain(services: &[Service<Row>]) -> String {
    let of = |service: &Service<Row>| {
        let table = table::fitted(service, &table::rows(service, app::Sort::Name), usize::MAX);
        format!("{}\n{}", view::headline(service).join("; "), table.join("\n"))
    };
    services.iter().map(of).collect::<Vec<_>>().join("\n\n")
}
