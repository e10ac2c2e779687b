//! `watermaster rules`: the rules of clients, groups and the service.

mod changes;
mod explain;
mod instance;

use clap::{Args, Subcommand};

use crate::cli::{Exit, Failure};
use changes::{DiffArgs, ExportRulesArgs, GetArgs, ListArgs, PutArgs, RemoveArgs};
use explain::ExplainArgs;
use instance::InstanceArgs;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = include_str!("help/rules.txt").trim_end())]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// List the rules of a running instance, those of its file included
    Ls(ListArgs),
    /// Print one rule with its version
    Get(GetArgs),
    /// Put a rule of run time, or all of a file
    Put(PutArgs),
    /// Delete a rule of run time
    Rm(RemoveArgs),
    /// Tell what holds for a client or a group, and which rule gave each value
    Explain(ExplainArgs),
    /// Print the rules of run time as [[service.rule]], so that Git can become the truth
    Export(ExportRulesArgs),
    /// Compare a file with the rules of run time; exits with 1 if they differ
    Diff(DiffArgs),
    /// Go on with what the topic of the rules has, after records of it were lost
    AcceptLoss(InstanceArgs),
}

/// Carries out a command on rules.
pub fn run(args: &RulesArgs) -> Result<Exit, Failure> {
    let done = match &args.command {
        RulesCommand::Ls(args) => changes::list(args),
        RulesCommand::Get(args) => changes::get(args),
        RulesCommand::Put(args) => changes::put(args),
        RulesCommand::Rm(args) => changes::remove(args),
        RulesCommand::Explain(args) => explain::run(args),
        RulesCommand::Export(args) => changes::export(args),
        RulesCommand::Diff(args) => changes::diff(args),
        RulesCommand::AcceptLoss(args) => changes::accept_loss(args),
    };
    done.map_err(|error| Failure::new(error.exit(), error))
}

/// Returns the words for the origin of a rule.
fn shown_origin(origin: &str) -> &'static str {
    if origin == "file" { "file" } else { "run time" }
}
