//! Ctrl-c and SIGTERM as messages.

use std::sync::mpsc::{self, Receiver, Sender};

/// One message for each ctrl-c or SIGTERM.
pub type Interrupts = Receiver<()>;

/// Passes each ctrl-c and SIGTERM on, until nobody listens.
pub async fn forward(interrupts: Sender<()>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the signals end the process, as they do anyway.
        return std::future::pending().await;
    };
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if interrupts.send(()).is_err() {
            return;
        }
    }
}

/// Listens on a thread of its own, for as long as the process lives.
///
/// # Errors
/// In words, when the thread can't be had.
pub fn listen() -> Result<Interrupts, String> {
    let cannot = |error: std::io::Error| format!("can't listen for signals: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (interrupts, interrupted) = mpsc::channel();
    let listen = move || runtime.block_on(forward(interrupts));
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(cannot)?;
    Ok(interrupted)
}
