//! `watermaster config`.

use super::{Output, Show, refuse, say};
use crate::exit::Exit;

/// Prints the effective configuration.
pub fn show(args: &Show) -> Exit {
    let config = match args.file.load() {
        Ok(config) => config,
        Err(errors) => return refuse(&errors),
    };
    match args.output.format {
        Output::Text => {
            say(format_args!("# hash {}\n\n{}", config.effective.hash(), config.effective.to_toml().trim_end()))
        }
        Output::Json => say(format_args!("{:#}", config.effective.to_json_with_origins())),
    }
    Exit::Done
}
