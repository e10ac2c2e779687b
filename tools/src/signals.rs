//! Ctrl-c and SIGTERM as messages.

use std::sync::mpsc::{self, Receiver};
use std::{io, thread};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Receives one message for each ctrl-c or SIGTERM.
pub type Interrupts = Receiver<()>;

/// Listens on a thread of its own, for as long as the process lives.
pub fn listen() -> io::Result<Interrupts> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (sender, interrupts) = mpsc::channel();
    let forward = move || signals.forever().take_while(|_| sender.send(()).is_ok()).for_each(drop);
    thread::Builder::new().name("signals".to_owned()).spawn(forward)?;
    Ok(interrupts)
}
