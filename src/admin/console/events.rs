//! The events of a service, for the pages that follow it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State, rejection::PathRejection};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use schemars::{Schema, generate::SchemaGenerator};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use watermaster_api::ServiceEvent;

use super::recorder::{MAX_PAGES, Recorder, Sample, Subscription, event};
use crate::admin::openapi::schema;
use crate::admin::pool::busy;
use crate::admin::server::LongAnswer;
use crate::admin::{HttpRefusal, Served, find, refusal};

/// The number of bytes at which an event with earlier samples ends, so that a page costs little memory.
const HISTORY_EVENT_BYTES: usize = 32 << 10;

/// The number of news after which an answer ends. The reader comes back at once with the id of the last event, in the
/// header `Last-Event-ID`, as browsers do. So a reader that has stopped is gone after some seconds, though the buffers
/// of its machine would take news for hours; and one that goes on shows its token again.
const MAX_NEWS: usize = 8;

/// Returns the schema of the data of an event.
pub(in crate::admin) fn event_schema(generator: &mut SchemaGenerator) -> Schema {
    schema::<ServiceEvent>(generator)
}

/// Answers with the news of a service, for as long as the page reads them.
pub(in crate::admin) async fn events(
    State(served): State<Arc<Served>>, Extension(connection): Extension<LongAnswer>,
    path: Result<Path<String>, PathRejection>, headers: HeaderMap,
) -> Result<Response, HttpRefusal> {
    let Ok(Path(name)) = path else {
        return Err(refusal(StatusCode::BAD_REQUEST, json!({ "error": "the path is not UTF-8" })));
    };
    let has_ms = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    follow(&served.recorder, &find(&served.state, &name)?.name, has_ms, connection)
}

/// Answers with the last second of each service.
pub(in crate::admin) async fn now(State(served): State<Arc<Served>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], served.recorder.newest()).into_response()
}

fn follow(
    recorder: &Recorder, service: &str, has_ms: Option<u64>, connection: LongAnswer,
) -> Result<Response, HttpRefusal> {
    let Some(Subscription { now, samples, events, room }) = recorder.subscribe(service, has_ms) else {
        return Err(busy(&format!("{MAX_PAGES} pages of the console are open, and no more are allowed")));
    };
    let samples = samples.into_iter();
    let stream = EventStream { now: Some(now), samples, events, news_left: MAX_NEWS, connection, _room: room };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // nginx would keep events back to fill its buffer.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::new(stream)).into_response())
}

/// An answer that goes on: first the present state and the earlier samples, then the news, as they come.
struct EventStream {
    now: Option<Bytes>,
    samples: std::vec::IntoIter<Sample>,
    events: tokio::sync::mpsc::Receiver<Bytes>,
    news_left: usize,
    connection: LongAnswer,
    _room: OwnedSemaphorePermit,
}

impl EventStream {
    /// Returns the next event of those that were due when the page came.
    fn earlier(&mut self) -> Option<Bytes> {
        let now = self.now.take();
        let mut bytes = 0;
        let mut fits = |sample: &Sample| {
            bytes += sample.text.len();
            bytes <= HISTORY_EVENT_BYTES
        };
        // Each event has one sample at least.
        let count = self.samples.as_slice().iter().take_while(|sample| fits(sample)).count().max(1);
        let samples: Vec<Sample> = self.samples.by_ref().take(count).collect();
        (now.is_some() || !samples.is_empty()).then(|| {
            let now = now.as_deref().map_or("{}", |now| std::str::from_utf8(now).expect("JSON is UTF-8"));
            event(&samples, now)
        })
    }
}

impl hyper::body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let stream = self.get_mut();
        let next = match stream.earlier() {
            Some(event) => Poll::Ready(Some(event)),
            None if stream.news_left == 0 => Poll::Ready(None),
            None => {
                let news = stream.events.poll_recv(context);
                stream.news_left -= usize::from(news.is_ready());
                news
            }
        };
        stream.connection.set_waiting(next.is_pending());
        next.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
