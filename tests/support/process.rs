//! A child process that never outlives its test.
//!
//! The child's pid is the name of a file in `$WATERMASTER_TEST_DIR/pids` while it runs, so that `scripts/test` can stop
//! the child if the test itself was killed.

use std::process::{Child, Command, ExitStatus};
use std::{os::unix::process::CommandExt, path::PathBuf, time::Duration};

use super::wait::wait_for;

/// A signal for a process.
#[derive(Debug, Clone, Copy)]
pub enum Signal {
    HangUp,
    Term,
    Kill,
    Stop,
    Continue,
}

/// A running child, in a process group of its own.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid_file: Option<PathBuf>,
}

impl Process {
    /// Starts the command.
    pub fn start(command: &mut Command) -> Process {
        let child = command.process_group(0).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pid_file = std::env::var_os("WATERMASTER_TEST_DIR").map(|dir| PathBuf::from(dir).join("pids"));
        let pid_file = pid_file.map(|dir| {
            std::fs::create_dir_all(&dir).expect("the run's directory can be written");
            let file = dir.join(child.id().to_string());
            std::fs::write(&file, "").expect("the run's directory can be written");
            file
        });
        Process { child, pid_file }
    }

    /// Returns the child itself; a test may take its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Signals the child, unless it has already ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.try_wait().is_some() {
            return;
        }
        let name = match signal {
            Signal::HangUp => "-HUP",
            Signal::Term => "-TERM",
            Signal::Kill => "-KILL",
            Signal::Stop => "-STOP",
            Signal::Continue => "-CONT",
        };
        let status = Command::new("kill").args([name, &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success() || self.try_wait().is_some(), "kill {name} {} failed", self.pid());
    }

    /// Returns the exit status if the child has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be waited for")
    }

    /// Waits until the child ends.
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        wait_for(&format!("process {} to end", self.child.id()), timeout, || self.try_wait())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(file) = &self.pid_file {
            let _ = std::fs::remove_file(file);
        }
    }
}
