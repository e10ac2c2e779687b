//! Ctrl-c and SIGTERM as messages.

use std::sync::mpsc::{self, Receiver};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Failure;

/// Receives one message for each ctrl-c or SIGTERM.
pub type Interrupts = Receiver<()>;

/// Listens on a thread of its own, for as long as the process lives.
pub fn listen() -> Result<Interrupts, Failure> {
    let failed = |error: std::io::Error| Failure::stopped(format_args!("can't listen for signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let (sender, interrupts) = mpsc::channel();
    let forward = move || signals.forever().take_while(|_| sender.send(()).is_ok()).for_each(drop);
    thread::Builder::new().name("signals".to_owned()).spawn(forward).map_err(failed)?;
    Ok(interrupts)
}
