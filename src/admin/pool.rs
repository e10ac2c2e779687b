//! Slow answers, made on threads that no probe waits for.
//!
//! Rendering `/metrics` or sorting 100 000 clients takes long. An [`AnswerPool`] does it on tokio's blocking threads,
//! a bounded number at once. Further requests wait without a thread, and beyond a bound they are refused. So neither
//! threads nor memory grow with the number of requests, and the asynchronous threads stay free for `/livez` and
//! `/readyz`.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{HttpRefusal, refusal};

/// The most requests of one pool that run or wait.
const MAX_WAITING: usize = 16;
/// The most KiB of answers that their clients have not read yet, of all pools together: a client may read slowly.
const MAX_UNREAD_KIB: u32 = 64 << 10;

/// The body of an answer, after its content type.
pub(super) type Answer = (&'static str, Vec<u8>);

pub(super) fn json_answer(value: &impl Serialize) -> Answer {
    ("application/json", serde_json::to_vec(value).expect("views have no keys but strings"))
}

/// The memory that answers may use until their clients have read them.
#[derive(Clone)]
pub(super) struct UnreadBudget(Arc<Semaphore>);

impl UnreadBudget {
    pub(super) fn new() -> UnreadBudget {
        UnreadBudget(Arc::new(Semaphore::new(MAX_UNREAD_KIB as usize)))
    }

    /// Reserves `bytes` bytes; an answer larger than the budget takes all of it.
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).min(MAX_UNREAD_KIB);
        Arc::clone(&self.0).try_acquire_many_owned(kib).ok()
    }
}

/// A body that releases its memory once it was handed to the connection, or the connection is gone.
struct UnreadAnswer {
    text: Vec<u8>,
    _memory: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for UnreadAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Bounds the slow answers of one kind.
pub(super) struct AnswerPool {
    waiting: Arc<Semaphore>,
    working: Arc<Semaphore>,
    unread: UnreadBudget,
}

impl AnswerPool {
    /// Makes a pool that runs `at_once` requests at a time.
    pub(super) fn new(at_once: usize, unread: &UnreadBudget) -> AnswerPool {
        AnswerPool {
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            working: Arc::new(Semaphore::new(at_once)),
            unread: unread.clone(),
        }
    }

    /// Answers with the result of `make`; 503 when too many requests wait or too many answers are unread.
    pub(super) async fn answer(&self, make: impl FnOnce() -> Answer + Send + 'static) -> Result<Response, HttpRefusal> {
        let (content_type, text) = self.run(make).await?;
        let memory = self.unread.take(text.len()).ok_or_else(|| busy("too many answers have not been read yet"))?;
        let body = Body::from(Bytes::from_owner(UnreadAnswer { text, _memory: memory }));
        Ok(([(header::CONTENT_TYPE, content_type)], body).into_response())
    }

    /// Runs `work` on a blocking thread.
    ///
    /// # Errors
    /// The response for the client: 503 when too many requests wait, 500 when the work panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self, work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HttpRefusal> {
        let closed = "the semaphores are never closed";
        let waiting = Arc::clone(&self.waiting).try_acquire_owned();
        let waiting = waiting.map_err(|_| busy("too many requests are waiting"))?;
        let working = Arc::clone(&self.working).acquire_owned().await.expect(closed);
        // The work continues when its client hangs up, so the work holds the permits, not this future.
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop((waiting, working));
            done
        });
        done.await.map_err(|why| {
            let error = json!({ "error": format!("the answer could not be made: {why}") });
            refusal(StatusCode::INTERNAL_SERVER_ERROR, error)
        })
    }
}

pub(super) fn busy(error: &str) -> HttpRefusal {
    let again = [(header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, again, Json(json!({ "error": error }))).into_response().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_when_an_answer_was_read() {
        let budget = UnreadBudget::new();
        let half = MAX_UNREAD_KIB as usize / 2 * 1024;
        let (first, second) = (budget.take(half), budget.take(half));
        assert!(first.is_some() && second.is_some() && budget.take(1).is_none());
        drop(first);
        assert!(budget.take(half + 1).is_none() && budget.take(half).is_some());
        drop(second);
        assert!(budget.take(usize::MAX).is_some(), "a single answer may exceed the bound");
    }
}
