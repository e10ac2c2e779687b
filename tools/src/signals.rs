//! Ctrl-c and SIGTERM as messages.

use std::io;
use std::sync::mpsc::{self, Receiver};

/// Receives one message for each ctrl-c or SIGTERM.
pub type Interrupts = Receiver<()>;

/// The process can't listen for signals.
#[derive(Debug, thiserror::Error)]
#[error("can't listen for signals")]
pub struct SignalError(#[from] io::Error);

/// Listens on a thread of its own, for as long as the process lives.
pub fn listen() -> Result<Interrupts, SignalError> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let (sender, interrupts) = mpsc::channel();
    let forward = async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send(()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(forward))?;
    Ok(interrupts)
}
