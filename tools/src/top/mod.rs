//! `watermaster top`: shows a running instance, live, over its HTTP API.
//!
//! - `fetch`: the request and its answer, and how fast counts grew between two
//! - `instances`: several instances as one
//! - `client`: one client in detail
//! - `table`: the columns, as many as fit
//! - `app`: the choices made by key, and whether the instance answers
//! - `view`: the screen
//!
//! One thread asks, another one draws and handles keys, so that a slow answer delays neither.

mod app;
mod client;
pub(crate) mod fetch;
mod instances;
mod table;
mod view;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use serde_json::json;

use crate::cli::{Exit, Failure, Output, OutputArg};
use crate::endpoint::{TokenArg, UrlArg, url};
pub(crate) use app::App;
use fetch::{FetchError, Instance, InstanceAnswer, ServiceStatus, add_rates};
use instances::InstanceSet;

/// The interval between two requests. Snapshots are renewed at least twice as often.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two checks for an answer while no key is pressed.
const KEY_TIMEOUT: Duration = Duration::from_millis(100);

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/top.txt").trim_end())]
pub struct TopArgs {
    #[command(flatten)]
    instance: UrlArg,
    /// Another instance of the group, whose figures are added (repeatable)
    #[arg(long = "and", value_name = "URL", value_parser = url)]
    others: Vec<String>,
    /// Show only this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Print this client in detail and exit
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    #[command(flatten)]
    token: TokenArg,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: OutputArg,
}

/// Shows the instance: live on a terminal, otherwise once.
pub fn run(args: &TopArgs) -> Result<Exit, Failure> {
    let (url, token) = (&args.instance.url, args.token.read()?);
    let mut instances = InstanceSet(Vec::new());
    for url in [url].into_iter().chain(&args.others) {
        let endpoint = args.instance.endpoint_at(url, token.as_deref())?;
        instances.0.push((url.clone(), Instance::new(endpoint, args.service.clone())));
    }
    let failed = |error: FetchError| {
        let exit = match &error {
            FetchError::Endpoint(error) => error.exit(),
            FetchError::NoService { .. } => Exit::Usage,
            FetchError::NoClient(_) => Exit::No,
            _ => Exit::Unreachable,
        };
        Failure::new(exit, format_args!("{url}: {error}"))
    };
    if let Some(client) = &args.client {
        let found = instances.client(client).map_err(failed)?;
        let text = || found.iter().map(client::plain).collect::<Vec<_>>().join("\n\n");
        args.output.show(&json!({ "clients": found }), text);
        return Ok(Exit::Done);
    }
    if args.once || args.output.format == Output::Json || !io::stdout().is_terminal() {
        let services = once(&instances).map_err(failed)?;
        let text = || services.iter().map(plain).collect::<Vec<_>>().join("\n\n");
        args.output.show(&json!({ "services": services }), text);
        return Ok(Exit::Done);
    }
    // https://no-color.org
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let answers = ask_repeatedly(instances);
    let ended = ratatui::try_init().and_then(|mut terminal| {
        let ended = live(&mut terminal, App::new(url.clone(), colour), &answers);
        ratatui::restore();
        ended
    });
    ended.map(|()| Exit::Done).map_err(|error| {
        let advice = "--once prints a plain table";
        Failure::new(Exit::Stopped, format_args!("the terminal can't be drawn on: {error} ({advice})"))
    })
}

fn live(terminal: &mut DefaultTerminal, mut app: App, answers: &Receiver<InstanceAnswer>) -> io::Result<()> {
    loop {
        while let Ok(answer) = answers.try_recv() {
            app.receive(answer);
        }
        terminal.draw(|frame| view::draw(frame, &app, Instant::now()))?;
        if event::poll(KEY_TIMEOUT)?
            && let Event::Key(key) = event::read()?
            && key.is_press()
            && app.handle_key(key).is_break()
        {
            return Ok(());
        }
    }
}

/// Asks once per [`ASK_INTERVAL`] until the receiver is dropped.
fn ask_repeatedly(instances: InstanceSet) -> Receiver<InstanceAnswer> {
    let (sender, answers) = mpsc::channel();
    thread::spawn(move || {
        while sender.send(instances.ask()).is_ok() {
            thread::sleep(ASK_INTERVAL);
        }
    });
    answers
}

/// Asks twice, so that there are rates.
fn once(instances: &InstanceSet) -> Result<Vec<ServiceStatus>, FetchError> {
    let first = instances.ask();
    let before = first.outcome?;
    thread::sleep(ASK_INTERVAL);
    let second = instances.ask();
    let mut services = second.outcome?;
    add_rates(&mut services, &before, second.at - first.at);
    Ok(services)
}

/// Writes a service as plain text.
pub(crate) fn plain(service: &ServiceStatus) -> String {
    let table = table::fitted(service, &table::rows(service, table::Sort::default()), usize::MAX);
    let group = service.group.as_ref().map(|group| table::group(group, usize::MAX));
    let tables: Vec<String> = [Some(table), group].into_iter().flatten().map(|lines| lines.join("\n")).collect();
    format!("{}\n{}", view::headline(service).join("; "), tables.join("\n\n"))
}
