//! Child processes that the kernel ends when this process ends.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{error::Error, ffi::OsStr, fs::File, path::Path};

use serde_json::Value;

use crate::support::process::{Process, Signal};

type Order = (Command, Sender<Process>);

/// Starts a command from a thread that lives as long as this process: the kernel ends a child with the *thread* that
/// started it.
pub fn start(command: Command) -> Process {
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(Process::start(&mut command));
            }
        });
        Mutex::new(orders)
    });
    let (reply, started) = channel();
    spawner.lock().expect("no holder panics").send((command, reply)).expect("the spawner runs");
    started.recv().expect("the command can be started")
}

/// Returns a command that the kernel kills when this process dies, where `setpriv` exists.
pub fn guarded(program: impl AsRef<OsStr>) -> Command {
    if !Path::new("/usr/bin/setpriv").exists() {
        return Command::new(program);
    }
    let mut command = Command::new("/usr/bin/setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Another role of this executable, in a process of its own. It takes commands on standard input, one on a line, and
/// reports its state on standard output as lines of JSON.
pub struct Role {
    process: Mutex<Process>,
    stdin: Mutex<Option<ChildStdin>>,
    news: Arc<Mutex<Value>>,
    log: std::path::PathBuf,
}

impl Role {
    /// Starts the role on a plan; its stderr goes to `<dir>/<role>.log`. Calls `on_news` with each report, in order.
    pub fn start(role: &str, plan: &Path, dir: &Path, on_news: impl Fn(&Value) + Send + 'static) -> Role {
        let mut command = guarded(std::env::current_exe().expect("this executable has a path"));
        let log = dir.join(format!("{role}.log"));
        command.arg(role).arg(plan).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(&log).expect("the run's directory can be written"));
        let mut process = start(command);
        let stdin = process.child().stdin.take();
        let stdout = process.child().stdout.take().expect("stdout is piped");
        let news = Arc::new(Mutex::new(Value::Null));
        let latest = Arc::clone(&news);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(value) = serde_json::from_str(&line) {
                    on_news(&value);
                    *latest.lock().expect("no holder panics") = value;
                }
            }
        });
        Role { process: Mutex::new(process), stdin: Mutex::new(stdin), news, log }
    }

    /// Returns the latest report.
    pub fn news(&self) -> Value {
        self.news.lock().expect("no holder panics").clone()
    }

    /// Returns a number from the latest report; 0 if it is missing.
    pub fn number(&self, pointer: &str) -> u64 {
        self.news().pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Sends a command.
    pub fn send(&self, command: &str) {
        if let Some(stdin) = self.stdin.lock().expect("no holder panics").as_mut() {
            // If the process is dead, the wait for its final report fails.
            let _ = writeln!(stdin, "{command}");
        }
    }

    /// Waits for the final report, which has this field.
    pub fn wait_for_final(&self, field: &str, timeout: Duration) -> Result<Value, Box<dyn Error>> {
        let deadline = Instant::now() + timeout;
        loop {
            let news = self.news();
            if news.get(field).is_some() {
                return Ok(news);
            }
            let ended = self.process.lock().expect("no holder panics").try_wait();
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(12).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                let log = self.log.display();
                return Err(format!("{log}: no {field:?} ({ended:?}): {}", tail.join("\n")).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).signal(Signal::Kill);
    }
}

/// Reads the commands of the main process from standard input, in a thread of its own. Once the main process is gone,
/// `at_end` counts as its last command.
pub fn commands(at_end: Option<&'static str>) -> Receiver<String> {
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        let lines = stdin().lock().lines().map_while(Result::ok);
        for line in lines.chain(at_end.map(str::to_owned)) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    commands
}
