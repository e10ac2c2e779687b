//! `watermaster config`.

use clap::Args;
use watermaster_settings::config::SCHEMA;
use watermaster_tools::cli::{ConfigFile, Exit, OutputArg, fail, print};

const EXAMPLES: &str = "\
Examples:
  watermaster config --config watermaster.toml
  WATERMASTER_LOG__FORMAT=json watermaster config --config watermaster.toml | grep format
  watermaster config --config watermaster.toml --output json | jq '.service[0].capacity'
  watermaster config --schema > watermaster.schema.json

Values of kafka.properties that may be secret are hidden; of kafka.properties_file only the paths are shown.
The output is TOML.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    output: OutputArg,
    /// Print the JSON Schema of the configuration, for editors and checkers, and nothing else
    #[arg(long, exclusive = true)]
    schema: bool,
}

pub fn show(args: &ConfigArgs) -> Exit {
    if args.schema {
        print(format_args!("{:#}", SCHEMA.to_json_schema()));
        return Exit::Done;
    }
    let config = match args.file.load() {
        Ok(config) => config,
        Err(errors) => return fail(Exit::Config, errors),
    };
    args.output.show(&config.effective.to_json_with_origins(), || {
        format!("# hash {}\n\n{}", config.effective.hash(), config.effective.to_toml().trim_end())
    });
    Exit::Done
}
