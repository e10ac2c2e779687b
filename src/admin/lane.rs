//! Slow answers, made on threads that no probe waits for.
//!
//! To render `/metrics` or to sort 100 000 clients takes long. A [`Lane`] does that on tokio's blocking threads, a
//! bounded number at once; further requests wait without a thread, and beyond a bound they are turned away. So neither
//! threads nor memory grow with the number of requests, and `/livez` and `/readyz` stay with the asynchronous threads,
//! which are free.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most requests of one lane that are worked on or wait for that.
const MAX_WAITING: usize = 16;
/// The most KiB of pages that were made and are not read yet, of all lanes: a client may read slowly.
const MAX_UNREAD_KIB: u32 = 64 << 10;

/// A page as it is made on a blocking thread.
pub(super) struct Page {
    content_type: &'static str,
    text: Vec<u8>,
}

impl Page {
    pub(super) fn new(content_type: &'static str, text: String) -> Page {
        Page { content_type, text: text.into_bytes() }
    }

    pub(super) fn json(value: &impl Serialize) -> Page {
        let text = serde_json::to_vec(value).expect("views have no keys but strings");
        Page { content_type: "application/json", text }
    }
}

/// The memory of the pages that were made and are not read yet.
#[derive(Clone)]
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    pub(super) fn new() -> Room {
        Room(Arc::new(Semaphore::new(MAX_UNREAD_KIB as usize)))
    }

    /// Takes room for `bytes` bytes; a page that is larger than the bound takes all of it.
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).min(MAX_UNREAD_KIB);
        Arc::clone(&self.0).try_acquire_many_owned(kib).ok()
    }
}

/// A page that gives its room back once it was handed to the connection, or the connection is gone.
struct Unread {
    text: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// One kind of slow answers.
pub(super) struct Lane {
    waiting: Arc<Semaphore>,
    working: Arc<Semaphore>,
    room: Room,
}

impl Lane {
    /// A lane that works on `at_once` requests at a time.
    pub(super) fn new(at_once: usize, room: &Room) -> Lane {
        Lane {
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            working: Arc::new(Semaphore::new(at_once)),
            room: room.clone(),
        }
    }

    /// Answers with the page that `make` makes; 503 when too many requests wait, or too many pages are unread.
    pub(super) async fn answer(&self, make: impl FnOnce() -> Page + Send + 'static) -> Response {
        let page = match self.run(make).await {
            Ok(page) => page,
            Err(refusal) => return *refusal,
        };
        let Some(room) = self.room.take(page.text.len()) else {
            return busy("too many answers are not read yet");
        };
        let body = Body::from(Bytes::from_owner(Unread { text: page.text, _room: room }));
        ([(header::CONTENT_TYPE, page.content_type)], body).into_response()
    }

    /// Runs `work` on a blocking thread.
    ///
    /// # Errors
    /// The response to give instead: 503 when too many requests wait, 500 when the work panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Box<Response>> {
        let closed = "a lane's semaphores are never closed";
        let Ok(waiting) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return Err(Box::new(busy("too many requests wait for an answer")));
        };
        let working = Arc::clone(&self.working).acquire_owned().await.expect(closed);
        // The work goes on when its client hangs up, so it holds the permits, not this future.
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop((waiting, working));
            done
        });
        done.await.map_err(|why| {
            let error = json!({ "error": format!("making this answer failed: {why}") });
            Box::new((StatusCode::INTERNAL_SERVER_ERROR, Json(error)).into_response())
        })
    }
}

fn busy(error: &str) -> Response {
    let again = [(header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, again, Json(json!({ "error": error }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_when_a_page_was_read() {
        let room = Room::new();
        let half = MAX_UNREAD_KIB as usize / 2 * 1024;
        let (first, second) = (room.take(half), room.take(half));
        assert!(first.is_some() && second.is_some() && room.take(1).is_none());
        drop(first);
        assert!(room.take(half + 1).is_none() && room.take(half).is_some());
        drop(second);
        assert!(room.take(usize::MAX).is_some(), "a page above the bound, alone");
    }
}
