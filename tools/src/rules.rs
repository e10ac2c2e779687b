//! `watermaster rules`: the rules of clients, groups and the service.

mod explain;

use clap::{Args, Subcommand};

use crate::cli::Exit;
use explain::ExplainArgs;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// Tell what holds for a client or a group, and which rule gave each value
    Explain(ExplainArgs),
}

/// Carries out a command on rules.
pub fn run(args: &RulesArgs) -> Exit {
    match &args.command {
        RulesCommand::Explain(args) => explain::run(args),
    }
}
