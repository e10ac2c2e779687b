//! Sends offsets to a transaction from a thread of its own.
//!
//! librdkafka returns when the group's coordinator has answered. The answer may wait behind records for the same broker
//! that are not stored yet, and without a connection librdkafka waits for one without a timeout. The thread keeps the
//! client alive for that long.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::{cell::RefCell, thread, time::Duration};

use watermaster_core::delivery::{ErrorClass, TransactionError};

type Answer = Result<(), TransactionError>;

#[derive(Default)]
pub(super) struct OffsetsCall(RefCell<Option<Receiver<Answer>>>);

impl OffsetsCall {
    /// Starts a call if none is running, and waits for its answer. Returns false if it takes longer.
    pub(super) fn poll(
        &self, wait: Duration, call: impl FnOnce() -> Answer + Send + 'static,
    ) -> Result<bool, TransactionError> {
        let mut running = self.0.borrow_mut();
        let answer = match running.take() {
            Some(answer) => answer,
            None => start(call).map_err(unanswered)?,
        };
        match answer.recv_timeout(wait) {
            Ok(answer) => answer.map(|()| true),
            Err(RecvTimeoutError::Timeout) => {
                *running = Some(answer);
                Ok(false)
            }
            Err(RecvTimeoutError::Disconnected) => Err(unanswered("its thread ended")),
        }
    }

    /// Waits until no call is running: librdkafka refuses other calls of the transaction until then.
    pub(super) fn finish(&self, wait: Duration) -> Result<(), TransactionError> {
        let mut running = self.0.borrow_mut();
        if let Some(answer) = &*running
            && let Err(RecvTimeoutError::Timeout) = answer.recv_timeout(wait)
        {
            return Err(unanswered("still running"));
        }
        *running = None;
        Ok(())
    }
}

fn start(call: impl FnOnce() -> Answer + Send + 'static) -> std::io::Result<Receiver<Answer>> {
    let (answer, answered) = mpsc::sync_channel(1);
    thread::Builder::new().name("kafka-offsets".to_owned()).spawn(move || {
        let _ = answer.send(call());
    })?;
    Ok(answered)
}

/// Returns a retriable error; the caller replaces the producer if it lasts.
fn unanswered(why: impl std::fmt::Display) -> TransactionError {
    TransactionError::other(ErrorClass::Retriable, format!("sending offsets to the transaction: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_long_call_is_continued() {
        let (release, held) = mpsc::channel();
        let call = OffsetsCall::default();
        let once = move || held.recv().map_err(|_| unanswered("released"));
        assert_eq!(call.poll(Duration::ZERO, once), Ok(false));
        assert!(call.finish(Duration::ZERO).is_err(), "the call has not finished");
        assert_eq!(call.poll(Duration::ZERO, || panic!("a second call")), Ok(false));
        release.send(()).expect("the call waits for the release");
        assert_eq!(call.poll(LONG, || panic!("a second call")), Ok(true));
        assert_eq!(call.finish(Duration::ZERO), Ok(()));
    }

    #[test]
    fn an_error_is_returned_once_and_then_a_new_call_starts() {
        let call = OffsetsCall::default();
        assert_eq!(call.poll(LONG, || Err(unanswered("refused"))), Err(unanswered("refused")));
        assert_eq!(call.poll(LONG, || Ok(())), Ok(true));
    }

    #[test]
    fn finish_waits_for_an_abandoned_call() {
        let (release, held) = mpsc::channel();
        let call = OffsetsCall::default();
        assert_eq!(call.poll(Duration::ZERO, move || held.recv().map_err(|_| unanswered("released"))), Ok(false));
        release.send(()).expect("the call waits for the release");
        assert_eq!(call.finish(LONG), Ok(()));
    }
}
