//! `watermaster config`.

use super::{Output, Show, refuse};
use crate::exit::Exit;

/// Prints the configuration that takes effect.
pub fn show(args: &Show) -> Exit {
    let config = match args.file.load() {
        Ok(config) => config,
        Err(errors) => return refuse(&errors),
    };
    match args.output.format {
        Output::Text => print!(
            "# hash {}\n\n{}",
            config.effective.hash(),
            config.effective.to_toml()
        ),
        Output::Json => println!("{:#}", config.effective.to_json_with_origins()),
    }
    Exit::Done
}
