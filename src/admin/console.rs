//! The console: a page for browsers, and the events that keep it up to date.
//!
//! The page is a few files without figures, so anyone who reaches the address may load it. Its figures come from `/v1`
//! by the rules that hold there. One look at each service in a second serves all pages: [`recorder`] writes the event,
//! [`events`] hands it to the pages.

mod events;
mod files;
mod recorder;

use std::sync::Arc;

use tokio::sync::Semaphore;

pub(super) use events::{event_schema, events, now};
#[cfg(test)]
pub(super) use files::FILES;
pub(super) use files::files;
pub(super) use recorder::Recorder;

/// The most pages that follow the events of a service, of all services together.
pub(super) const MAX_PAGES: usize = 32;

/// The parts of the console that its pages share.
pub(super) struct Console {
    pub recorder: Arc<Recorder>,
    pub pages: Arc<Semaphore>,
}

impl Console {
    pub(super) fn new(recorder: Recorder) -> Console {
        Console { recorder: Arc::new(recorder), pages: Arc::new(Semaphore::new(MAX_PAGES)) }
    }
}
