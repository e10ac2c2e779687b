//! Offsets on their way into a transaction.
//!
//! librdkafka comes back when the group's coordinator has answered, which may be behind records that go to the same broker and
//! are not stored yet, or when nobody can say: it waits for a connection without looking at the clock. So it is called in a thread
//! of its own, which keeps the client alive for as long as it is stuck in it.

use std::cell::RefCell;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use watermaster_core::delivery::{ErrorClass, TransactionError};

type Answer = Result<(), TransactionError>;

/// The call that is under way, if one is.
#[derive(Default)]
pub(super) struct OffsetsCall(RefCell<Option<Receiver<Answer>>>);

impl OffsetsCall {
    /// Begins a call if none is under way, and waits for its answer. False: it takes longer.
    pub(super) fn go_on(
        &self,
        wait: Duration,
        call: impl FnOnce() -> Answer + Send + 'static,
    ) -> Result<bool, TransactionError> {
        let mut under_way = self.0.borrow_mut();
        let answer = match under_way.take() {
            Some(answer) => answer,
            None => begin(call).map_err(|error| unanswered(&error.to_string()))?,
        };
        match answer.recv_timeout(wait) {
            Ok(answer) => answer.map(|()| true),
            Err(RecvTimeoutError::Timeout) => {
                *under_way = Some(answer);
                Ok(false)
            }
            Err(RecvTimeoutError::Disconnected) => Err(unanswered("its thread ended")),
        }
    }

    /// Whether none is under way any more: librdkafka refuses other calls of the transaction until then.
    pub(super) fn end(&self, wait: Duration) -> Result<(), TransactionError> {
        let mut under_way = self.0.borrow_mut();
        if let Some(answer) = &*under_way
            && let Err(RecvTimeoutError::Timeout) = answer.recv_timeout(wait)
        {
            return Err(unanswered("still under way"));
        }
        *under_way = None;
        Ok(())
    }
}

fn begin(call: impl FnOnce() -> Answer + Send + 'static) -> std::io::Result<Receiver<Answer>> {
    let (answer, answered) = mpsc::sync_channel(1);
    thread::Builder::new().name("kafka-offsets".to_owned()).spawn(move || {
        let _ = answer.send(call());
    })?;
    Ok(answered)
}

/// That another producer is needed follows from it.
fn unanswered(why: &str) -> TransactionError {
    TransactionError::other(ErrorClass::Retriable, format!("sending offsets to the transaction: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_call_that_takes_long_is_gone_on_with() {
        let (let_go, held) = mpsc::channel();
        let call = OffsetsCall::default();
        let once = move || held.recv().map_err(|_| unanswered("let go of"));
        assert_eq!(call.go_on(Duration::ZERO, once), Ok(false));
        assert!(call.end(Duration::ZERO).is_err(), "another call would be refused");
        assert_eq!(call.go_on(Duration::ZERO, || panic!("a second call")), Ok(false));
        let_go.send(()).expect("the call waits for it");
        assert_eq!(call.go_on(LONG, || panic!("a second call")), Ok(true));
        assert_eq!(call.end(Duration::ZERO), Ok(()));
    }

    #[test]
    fn its_error_is_told_once_and_the_next_call_is_another_one() {
        let call = OffsetsCall::default();
        assert_eq!(call.go_on(LONG, || Err(unanswered("refused"))), Err(unanswered("refused")));
        assert_eq!(call.go_on(LONG, || Ok(())), Ok(true));
    }

    #[test]
    fn one_that_is_given_up_is_waited_for() {
        let (let_go, held) = mpsc::channel();
        let call = OffsetsCall::default();
        assert_eq!(call.go_on(Duration::ZERO, move || held.recv().map_err(|_| unanswered("let go of"))), Ok(false));
        let_go.send(()).expect("the call waits for it");
        assert_eq!(call.end(LONG), Ok(()));
    }
}
