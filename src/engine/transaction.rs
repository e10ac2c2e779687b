//! A round under `exactly_once`: outputs, offsets and maps in one transaction, or none of them.
//!
//! `Idle => Open => Committing => Idle`; from `Open` or `Committing`, whatever goes wrong leads through `Aborting` or
//! `Replacing` and `Resyncing` back to `Idle`, where the round is tried again with what is left of it. ARCHITECTURE.md has the table.
//!
//! No transaction is open while the group is served, so a rebalance never meets one. What the core counts as completed is
//! always what is committed together with the outputs of the round: they are kept until the commit was acknowledged.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::map::{self, Map};

use super::late::{Lateness, STEP};
use super::round::{How, Offered, Outcome};
use super::{Engine, Stopped};
use crate::kafka::consumer::{CommitError, Committed, Offsets, SourcePartition};
use crate::kafka::producer::{ErrorClass, TransactionError};
use crate::settings::OnForeignOffset;

/// One call that can be gone on with; the heart beats between two of them.
const CALL: Duration = Duration::from_millis(500);
/// The longest wait for the offsets of a transaction to be taken; far below the heartbeat's limit.
const SEND_OFFSETS: Duration = Duration::from_secs(5);
/// After this a commit or an abort that is still unanswered is given up, and the producer with it.
const WATCHDOG: Duration = Duration::from_secs(15);
/// The longest wait to get rid of a transaction that is given up; the next producer of this id, or the coordinator, aborts it too.
const ABANDON: Duration = Duration::from_secs(2);
/// One attempt to learn what is committed.
const COMMITTED: Duration = Duration::from_secs(3);

const TAINTED: &str = "a connection broke: a late commit could end the next transaction";

/// How a transaction ended.
enum End {
    Committed,
    /// Records were refused.
    Refused,
    /// Nothing of it may stay.
    Abort(String),
    /// The producer is of no use any more.
    Broken(TransactionError),
    /// It may be committed or not.
    Unknown(TransactionError),
    /// A drain took too long.
    GaveUp,
}

impl Engine<'_> {
    /// Before the first record: aborts at once what a dead predecessor left open. False: gave up.
    pub(super) fn prepare_transactions(&mut self) -> Result<bool, Stopped> {
        let mut late = Lateness::new();
        let began = Instant::now();
        let ready = self.ready_producer(&mut late)?;
        self.end_lateness(&late, began.elapsed());
        Ok(ready)
    }

    /// Sends and commits the round, in as many attempts as it takes. False: gave up.
    pub(super) fn transact(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        let ended = self.attempts(late);
        // Gave up or stopped in the middle of one.
        let until = Instant::now() + ABANDON;
        while self.producer.in_transaction() && Instant::now() < until {
            match self.producer.abort(CALL) {
                Err(error) if error.class != ErrorClass::Retriable => break,
                _ => {}
            }
        }
        ended
    }

    fn attempts(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        loop {
            if !self.ready_producer(late)? {
                return Ok(false);
            }
            self.drop_orphans();
            let commits = self.commits()?;
            if commits.is_empty() {
                debug_assert!(self.round_is_empty(), "a partition with outputs has completed something");
                return Ok(true);
            }
            let offsets = match self.consumer.transaction_offsets(&commits) {
                Ok(offsets) => offsets,
                Err(CommitError::Fatal(why)) => return Err(self.stopped(&why)),
                Err(CommitError::Lost(why) | CommitError::Retriable(why)) => {
                    info!(service = self.job.service.name, "not sent yet, the group changes: {why}");
                    self.serve_group(STEP)?;
                    if !self.keep_going(late)? {
                        return Ok(false);
                    }
                    continue;
                }
            };
            crate::failpoint::reach("before_begin");
            let end = match self.producer.begin() {
                Ok(()) => self.transaction(&offsets, late)?,
                Err(error) => End::Broken(error),
            };
            match end {
                End::Committed => {
                    let touched: Vec<u32> = self.throttle.touched().collect();
                    touched.into_iter().for_each(|number| self.throttle.handle_committed(number));
                    return Ok(true);
                }
                End::GaveUp => return Ok(false),
                other => {
                    if !self.recover(other, late)? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    // ## Open => (Committing => Idle | Aborting | Replacing)

    fn transaction(&mut self, offsets: &Offsets, late: &mut Lateness) -> Result<End, Stopped> {
        crate::failpoint::reach("after_begin");
        let all: Vec<usize> = (0..self.round_len()).collect();
        let Some(filled) = self.fill(&all, late)? else { return Ok(End::GaveUp) };
        crate::failpoint::reach("after_send");
        if !filled.outcome.refused.is_empty() {
            return Ok(End::Refused);
        }
        if !filled.landed && !self.producer.failing() {
            return Ok(End::Abort("what was sent did not arrive in time".to_owned()));
        }
        crate::failpoint::reach("before_offsets");
        // Also asked where it can only fail: it says why.
        if let Err(error) = self.producer.send_offsets(offsets, SEND_OFFSETS) {
            return self.sort_error(error);
        }
        crate::failpoint::reach("after_offsets");
        if !filled.landed || !filled.outcome.again.is_empty() {
            return Ok(End::Abort("something that was sent did not arrive".to_owned()));
        }
        self.commit_transaction(late)
    }

    fn sort_error(&mut self, error: TransactionError) -> Result<End, Stopped> {
        if let Some(stopped) = self.denied(&error) {
            return Err(stopped);
        }
        Ok(match error.class {
            ErrorClass::Fatal => End::Broken(error),
            // What can't be gone on with is tried again as a whole.
            ErrorClass::Abortable | ErrorClass::Retriable => End::Abort(error.to_string()),
        })
    }

    fn commit_transaction(&mut self, late: &mut Lateness) -> Result<End, Stopped> {
        let began = Instant::now();
        crate::failpoint::reach("before_commit");
        loop {
            match self.producer.commit(CALL) {
                Ok(()) => {
                    crate::failpoint::reach("after_commit");
                    return Ok(End::Committed);
                }
                Err(error) => match error.class {
                    ErrorClass::Retriable if began.elapsed() < WATCHDOG => {}
                    ErrorClass::Retriable | ErrorClass::Fatal => return Ok(End::Unknown(error)),
                    ErrorClass::Abortable => return self.sort_error(error),
                },
            }
            if !self.keep_going(late)? {
                return Ok(End::GaveUp);
            }
        }
    }

    /// Hands outputs to the producer and waits until they have landed, or one has failed, or the time is up. `None`: gave up.
    fn fill(&mut self, tags: &[usize], late: &mut Lateness) -> Result<Option<Filled>, Stopped> {
        let deadline = Instant::now() + self.producer.transaction_timeout() * 8 / 10;
        let mut outcome = Outcome::default();
        for (index, &tag) in tags.iter().enumerate() {
            match self.offer(tag, late)? {
                Offered::Taken => {}
                Offered::Refused(why) => outcome.refused.push((tag, why)),
                Offered::Broken(_) => {
                    outcome.again.extend(&tags[index..]);
                    break;
                }
                Offered::GaveUp => return Ok(None),
            }
            if index % 1024 == 1023 && Instant::now() > deadline {
                outcome.again.extend(&tags[index + 1..]);
                break;
            }
        }
        let landed = loop {
            if self.producer.flush(STEP) {
                break true;
            }
            // Once something failed, the rest stays where it is until the abort.
            if self.producer.failing() || Instant::now() > deadline {
                break false;
            }
            if !self.keep_going(late)? {
                return Ok(None);
            }
        };
        self.sort_failures(&mut outcome)?;
        Ok(Some(Filled { outcome, landed }))
    }

    // ## (Aborting | Replacing) => Resyncing => Idle

    /// Makes sure that nothing of the transaction can still happen, then learns what did. False: gave up.
    fn recover(&mut self, end: End, late: &mut Lateness) -> Result<bool, Stopped> {
        let refused = matches!(end, End::Refused);
        let outcome = if matches!(end, End::Unknown(_)) { "unknown" } else { "aborted" };
        self.report.round(outcome, Duration::ZERO);
        match end {
            End::Committed | End::GaveUp => return Ok(true),
            End::Broken(error) | End::Unknown(error) => self.replace_after(&error)?,
            End::Refused => self.abort(late)?,
            End::Abort(why) => {
                warn!(service = self.job.service.name, "a round is aborted: {why}");
                self.abort(late)?;
            }
        }
        self.publish_flags();
        if refused {
            let all = (0..self.round_len()).collect();
            return self.settle(all, How::Probe, late);
        }
        // Before this, a commit of the old producer may still be under way.
        Ok(self.ready_producer(late)? && self.resync(late)? && self.breathe(late)?)
    }

    /// Aborts; a producer that can't is replaced, whose successor does.
    fn abort(&mut self, late: &mut Lateness) -> Result<(), Stopped> {
        if self.producer.tainted() {
            // It has to go anyway, and brokers that were away may not know the transaction any more.
            return self.replace_producer("disconnect", TAINTED);
        }
        let began = Instant::now();
        loop {
            match self.producer.abort(CALL) {
                Ok(()) => return Ok(()),
                Err(error) if error.class == ErrorClass::Retriable && began.elapsed() < WATCHDOG => {}
                Err(error) => return self.replace_after(&error),
            }
            // What remains open on the way out is given up there.
            if !self.keep_going(late)? {
                return Ok(());
            }
        }
    }

    /// Drops from the round what is recorded as done. False: gave up.
    fn resync(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        let mut told = false;
        loop {
            self.drop_orphans();
            let places: BTreeSet<SourcePartition> = self.round_places().collect();
            let places: Vec<SourcePartition> = places.into_iter().collect();
            if places.is_empty() {
                return Ok(true);
            }
            match self.consumer.committed(&places, COMMITTED) {
                Ok(committed) => {
                    self.drop_recorded(committed)?;
                    return Ok(true);
                }
                Err(why) if !std::mem::replace(&mut told, true) => {
                    warn!(service = self.job.service.name, "can't learn what is committed yet: {why}");
                }
                Err(_) => {}
            }
            if !self.breathe(late)? {
                return Ok(false);
            }
        }
    }

    fn drop_recorded(&mut self, committed: Vec<(SourcePartition, Committed)>) -> Result<(), Stopped> {
        let mut recorded = HashMap::new();
        for (place, committed) in committed {
            if let Committed::At { offset, metadata } = committed {
                recorded.insert(place, (offset, self.map_of(place, offset, &metadata)?));
            }
        }
        let before = self.round_len();
        self.retain_outputs(|place, offset| {
            recorded
                .get(&place)
                .is_none_or(|(base, map)| offset >= *base && !map.completed.iter().any(|run| run.contains(&offset)))
        });
        let (done, left) = (before - self.round_len(), self.round_len());
        info!(service = self.job.service.name, done, left, "compared the round with what is committed");
        for (place, (base, _)) in recorded {
            let ours = self.numbers.get(&place).and_then(|&number| self.throttle.partition(number));
            if let Some((known, ..)) = ours
                && base > known
            {
                let topic = &self.job.service.sources[place.0.index()].topic;
                warn!(
                    service = self.job.service.name,
                    topic,
                    partition = place.1,
                    "committed up to {base}, known up to {known}: somebody else commits"
                );
            }
        }
        Ok(())
    }

    /// The map beside a committed offset; another's offset is treated as where a partition starts.
    fn map_of(&self, (source, partition): SourcePartition, offset: i64, metadata: &[u8]) -> Result<Map, Stopped> {
        let replay = self.job.accept_foreign_offsets || self.job.kafka.on_foreign_offset == OnForeignOffset::Replay;
        match map::decode(offset, metadata) {
            Ok(map) => Ok(map),
            Err(_) if replay => Ok(Map::default()),
            Err(why) => {
                let topic = &self.job.service.sources[source.index()].topic;
                Err(self.stopped(&format!("somebody else committed offset {offset} of {topic}/{partition}: {why}")))
            }
        }
    }

    // ## Poison

    /// As sending, in a transaction that is always aborted: tells what is refused. `None`: gave up.
    pub(super) fn probe(&mut self, tags: &[usize], late: &mut Lateness) -> Result<Option<Outcome>, Stopped> {
        if !self.ready_producer(late)? {
            return Ok(None);
        }
        if let Err(error) = self.producer.begin() {
            self.replace_after(&error)?;
            return Ok(Some(Outcome { again: tags.to_vec(), ..Outcome::default() }));
        }
        let Some(Filled { mut outcome, landed }) = self.fill(tags, late)? else { return Ok(None) };
        self.abort(late)?;
        if !landed {
            // What the abort gave up is reported too, unless the producer went.
            self.producer.flush(STEP);
            self.sort_failures(&mut outcome)?;
            let refused: BTreeSet<usize> = outcome.refused.iter().map(|(tag, _)| *tag).collect();
            // Whatever was not refused is looked at once more: it may just not have been reached.
            outcome.again = tags.iter().copied().filter(|tag| !refused.contains(tag)).collect();
        }
        outcome.again.sort_unstable();
        outcome.again.dedup();
        outcome.refused.sort_unstable();
        Ok(Some(outcome))
    }

    // ## The producer

    /// Sees to it that transactions can begin. No transaction is open. False: gave up.
    fn ready_producer(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        loop {
            if let Some(why) = self.producer.fatal() {
                self.replace_producer("fatal", &why)?;
            } else if self.producer.in_transaction() {
                self.replace_producer("timeout", "an abort was not answered")?;
            } else if self.producer.is_initialised() && self.producer.tainted() {
                self.replace_producer("disconnect", TAINTED)?;
            }
            if self.producer.is_initialised() {
                return Ok(true);
            }
            match self.producer.init(CALL) {
                Ok(()) => return Ok(true),
                Err(error) if error.class == ErrorClass::Retriable => {}
                Err(error) => {
                    if let Some(stopped) = self.denied(&error) {
                        return Err(stopped);
                    }
                    self.replace_after(&error)?;
                    if !self.breathe(late)? {
                        return Ok(false);
                    }
                }
            }
            if !self.keep_going(late)? {
                return Ok(false);
            }
        }
    }

    fn replace_after(&mut self, error: &TransactionError) -> Result<(), Stopped> {
        let cause = match error.class {
            ErrorClass::Retriable => "timeout",
            // librdkafka can't tell a transaction that the coordinator ended for its age from one that another instance ended.
            _ if error.is_fencing() && self.producer.has_outlived_its_transaction() => "timeout",
            _ if error.is_fencing() => "fenced",
            // A broker that was away, not a producer that fails by itself.
            _ if self.producer.tainted() => "disconnect",
            _ => "fatal",
        };
        self.replace_producer(cause, &error.to_string())
    }

    /// An error that only people can mend.
    fn denied(&mut self, error: &TransactionError) -> Option<Stopped> {
        if error.is_about_the_group() {
            return Some(self.stopped(&format!("committing failed: {error}")));
        }
        error.is_denied().then(|| self.target_refuses(&error.to_string()))
    }
}

/// What became of outputs that were handed over.
struct Filled {
    outcome: Outcome,
    /// Nothing is on its way.
    landed: bool,
}
