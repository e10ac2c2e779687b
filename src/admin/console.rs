//! The console: a page for browsers, and the events that keep it up to date.
//!
//! The page is a few files without figures, so anyone who reaches the address may load it. Its figures come from `/v1`
//! by the rules that hold there. One look at each service in a second serves all pages: [`recorder`] writes the event,
//! [`events`] hands it to the pages.

mod events;
mod files;
mod recorder;

pub(super) use events::{event_schema, events, now};
pub(super) use files::files;
pub(super) use recorder::Recorder;
#[cfg(test)]
pub(super) use {files::FILES, recorder::MAX_PAGES};
