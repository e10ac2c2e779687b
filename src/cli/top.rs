//! `watermaster top`.

use std::io::IsTerminal;
use std::path::Path;

use serde_json::json;

use super::{Output, Top, say};
use crate::exit::Exit;
use crate::top::{self, Options};

/// Shows a running instance: live on a terminal, else once.
pub fn top(args: &Top) -> Exit {
    let token = match args.token_file.as_deref().map(read_token).transpose() {
        Ok(token) => token,
        Err(why) => {
            eprintln!("{why}");
            return Exit::Config;
        }
    };
    // As https://no-color.org asks.
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let options = Options { url: args.url.clone(), token, service: args.service.clone(), colour };
    if args.once || args.output.format == Output::Json || !std::io::stdout().is_terminal() {
        return once(&options, args.output.format);
    }
    match top::watch(options) {
        Ok(()) => Exit::Done,
        Err(why) => {
            eprintln!("the terminal can't be drawn on: {why} (--once prints a plain table)");
            Exit::Stopped
        }
    }
}

fn once(options: &Options, output: Output) -> Exit {
    match (top::once(options), output) {
        (Err(why), _) => {
            eprintln!("{}: {why}", options.url);
            return Exit::Unreachable;
        }
        (Ok(services), Output::Text) => say(top::plain(&services)),
        (Ok(services), Output::Json) => say(format_args!("{:#}", json!({ "services": services }))),
    }
    Exit::Done
}

fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|why| format!("--token-file: {shown} cannot be read: {why}"))?;
    match text.trim() {
        "" => Err(format!("--token-file: {shown} holds no token")),
        token => Ok(token.to_owned()),
    }
}
