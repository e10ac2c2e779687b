//! `watermaster completions` and `watermaster man`: both are made from the definitions of the command line.

use std::{fs, io, path::Path, path::PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use watermaster_tools::cli::{Exit, fail, print};

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  watermaster completions bash > ~/.local/share/bash-completion/completions/watermaster
  watermaster completions zsh > ~/.zfunc/_watermaster      with fpath+=~/.zfunc before compinit in ~/.zshrc
  watermaster completions fish > ~/.config/fish/completions/watermaster.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  watermaster man ~/.local/share/man/man1      then: man watermaster-run";

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// The folder, which is made if it is missing: a page for each command goes there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn completions(args: &CompletionsArgs, mut command: Command) -> Exit {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    print(String::from_utf8_lossy(&script).trim_end());
    Exit::Done
}

pub fn man(args: &ManArgs, command: Command) -> Exit {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    match fs::create_dir_all(&args.folder).and_then(|()| write_pages(&command, &args.folder)) {
        Ok(()) => Exit::Done,
        Err(error) => fail(Exit::Stopped, format_args!("{}: {error}", args.folder.display())),
    }
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).source(concat!("watermaster ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    // Examples keep their lines, so that they can be copied.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\n", ".SH EXAMPLES\n.nf\n");
    fs::write(folder.join(man.get_filename()), page)?;
    command.get_subcommands().try_for_each(|command| write_pages(command, folder))
}
