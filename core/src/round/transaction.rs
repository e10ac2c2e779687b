//! A round under `exactly_once`: outputs, offsets and maps in one transaction, or none of them.
//!
//! `Fencing => Filling => Offsets => Landing => Committing => done`; whatever goes wrong leads through `Aborting`, or through
//! another producer, and `Resyncing` back to `Fencing`, where the round is tried again with what is left of it. Refused
//! records are found in between, in transactions that are always aborted (`Probing`). ARCHITECTURE.md has the table.
//!
//! One [`step`](Transactions::step) makes about one call of [`Kafka`] and never waits by itself, so that its owner can beat,
//! serve the group and be shut down in between. The group must be served only while no transaction is open: a rebalance
//! never meets one. What the core counts as completed is always what is committed together with the outputs of the
//! round, for they are kept until the commit was acknowledged.

mod probe;
mod producers;
mod resync;

use std::mem;
use std::time::Duration;

use super::halves::{Halves, Sent};
use super::kafka::{Commit, ErrorClass, Failure, Kafka, OffsetsError, SendError};
use super::outcome::{Cause, Ending, Note, Phase, Step, Stop};
use super::{Round, TransactionError, commits, commits_without, offsets_of};
use crate::throttle::Throttle;
use crate::units::Time;
use producers::deny;

/// After this a commit or an abort that is still unanswered is given up, and the producer with it.
const WATCHDOG: Duration = Duration::from_secs(15);
/// Outputs handed over in one step.
const CHUNK: usize = 1024;

const TAINTED: &str = "a connection broke: a late commit could end the next transaction";
const UNANSWERED_OFFSETS: &str = "the offsets of a transaction were not answered in time";
const IN_DOUBT: &str = "records were given up that may have arrived: others could be taken for them";

/// What the owner wants.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// `transaction.timeout.ms`: how long the coordinator leaves a transaction open.
    pub timeout: Duration,
    /// Take an offset that somebody else committed for a partition's start; otherwise stop.
    pub replay_foreign: bool,
    /// Let go of a record whose stubs the dead-letter topic refuses, too; otherwise stop.
    pub discard_undeliverable: bool,
}

/// Carries rounds through transactions, one at a time.
#[derive(Debug)]
pub struct Transactions<O> {
    rules: Rules,
    state: State<O>,
    /// When the last transaction began.
    began: Option<Time>,
    /// Since when the producer has been asking for its epoch.
    preparing: Option<Time>,
    /// The most outputs of the next attempt: a round that ran out of time is committed in parts.
    most: usize,
    /// When producers were replaced because they failed.
    replaced: Vec<Time>,
    /// When one was last fenced.
    fenced: Option<Time>,
    /// This producer gave up records that may have arrived. It counts the next ones as if they had not, and a broker that
    /// has them takes as many others for the same ones: it says that they arrived, and drops them.
    in_doubt: bool,
    notes: Vec<Note>,
}

#[derive(Debug)]
enum State<O> {
    Fencing,
    /// `next` is the first tag that was not handed over.
    Filling {
        attempt: Attempt<O>,
        next: usize,
        emptied: bool,
    },
    Offsets(Attempt<O>),
    Landing(Attempt<O>),
    Committing {
        since: Time,
        /// How many outputs are in the transaction.
        outputs: usize,
    },
    Aborting {
        since: Time,
        then: Then<O>,
    },
    /// Whether it was told that what is committed can't be learnt.
    Resyncing {
        told: bool,
    },
    Probing(Halves),
}

/// What follows when nothing of a transaction can happen any more.
#[derive(Debug)]
enum Then<O> {
    Resync,
    /// Records were refused: find out which.
    Probe,
    /// A probe is over.
    Judge(Attempt<O>),
}

/// Outputs in a transaction.
#[derive(Debug)]
struct Attempt<O> {
    tags: Vec<usize>,
    purpose: Purpose<O>,
    deadline: Time,
    sent: Sent,
    /// The offsets can't be part of this transaction.
    unplaced: Option<TransactionError>,
    /// Nothing is on its way.
    landed: bool,
    /// The time was up before all outputs had landed.
    late: bool,
}

#[derive(Debug)]
enum Purpose<O> {
    Commit(O),
    Probe(Halves),
}

/// What a step works with.
struct Desk<'a, P, K> {
    round: &'a mut Round<P>,
    throttle: &'a mut Throttle,
    kafka: &'a mut K,
    now: Time,
}

impl<O> Transactions<O> {
    /// None so far.
    pub fn new(rules: Rules) -> Transactions<O> {
        Transactions {
            rules,
            state: State::Fencing,
            began: None,
            preparing: None,
            most: usize::MAX,
            replaced: Vec::new(),
            fenced: None,
            in_doubt: false,
            notes: Vec::new(),
        }
    }

    /// Before the first record: aborts at once what a dead predecessor left open. Until it is done.
    pub fn prepare<P, K: Kafka<P, Offsets = O>>(&mut self, kafka: &mut K, now: Time) -> Result<Step, Stop> {
        Ok(self.ready(kafka, now)?.unwrap_or(Step::Done))
    }

    /// The next step of a round, until it is done. No output may be added meanwhile. A round that is given up stays open:
    /// its owner aborts it, or leaves it to the next producer of this id.
    pub fn step<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        round: &mut Round<P>,
        throttle: &mut Throttle,
        kafka: &mut K,
        now: Time,
    ) -> Result<Step, Stop> {
        let desk = Desk { round, throttle, kafka, now };
        match mem::replace(&mut self.state, State::Fencing) {
            State::Fencing => self.fence(desk),
            State::Filling { attempt, next, emptied } => self.fill(desk, attempt, next, emptied),
            State::Offsets(attempt) => self.send_offsets(desk, attempt),
            State::Landing(attempt) => self.land(desk, attempt),
            State::Committing { since, outputs } => self.commit(desk, since, outputs),
            State::Aborting { since, then } => self.abort(desk, since, then),
            State::Resyncing { told } => self.resync(desk, told),
            State::Probing(halves) => self.probe(desk, halves),
        }
    }

    /// Where it is.
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Fencing | State::Probing(_) => Phase::Begin,
            State::Filling { .. } | State::Landing(_) => Phase::Send,
            State::Offsets(_) => Phase::Offsets,
            State::Committing { .. } => Phase::Commit,
            State::Aborting { .. } => Phase::Abort,
            State::Resyncing { .. } => Phase::Resync,
        }
    }

    /// What happened since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        mem::take(&mut self.notes)
    }

    // ## Fencing => Filling

    fn fence<P, K: Kafka<P, Offsets = O>>(&mut self, desk: Desk<'_, P, K>) -> Result<Step, Stop> {
        let Desk { round, throttle, kafka, now } = desk;
        // Probes may go on with it: they commit nothing.
        if self.in_doubt {
            self.replace(kafka, Cause::Timeout, IN_DOUBT.to_owned(), now)?;
        }
        if let Some(step) = self.ready(kafka, now)? {
            return Ok(step);
        }
        round.drop_orphans(throttle);
        let (tags, commits) = self.next_part(round, throttle, now)?;
        if commits.is_empty() {
            debug_assert!(tags.is_empty(), "a partition with outputs has completed something");
            return Ok(Step::Done);
        }
        let offsets = match kafka.offsets(&commits) {
            Ok(offsets) => offsets,
            Err(OffsetsError::Never(why)) => return Err(Stop::Commit(why)),
            Err(OffsetsError::Moved(why)) => {
                self.notes.push(Note::GroupMoves(why));
                return Ok(Step::ServeGroup);
            }
        };
        self.begin(Desk { round, throttle, kafka, now }, tags, Purpose::Commit(offsets))
    }

    /// The outputs of the next attempt, with what commits exactly them: all of the round, or as many of its first
    /// decisions as may be sent in time.
    fn next_part<P>(
        &self,
        round: &Round<P>,
        throttle: &mut Throttle,
        now: Time,
    ) -> Result<(Vec<usize>, Vec<Commit>), Stop> {
        let tags = round.next_tags(self.most);
        let rest = offsets_of(round.outputs_from(tags.last().map_or(round.len(), |last| last + 1)));
        if let Ok(commits) = commits_without(throttle, now, &rest) {
            return Ok((tags, commits));
        }
        // Holes behind the rest make the map of a part larger than that of the whole round, which fits.
        let commits = commits(throttle, now).map_err(|error| Stop::Map(error.to_string()))?;
        Ok((round.next_tags(usize::MAX), commits))
    }

    /// How long outputs and offsets of a transaction may take, so that time is left for the commit.
    fn time_to_send(&self) -> Duration {
        self.rules.timeout * 8 / 10
    }

    /// The age of the last transaction.
    fn age(&self, now: Time) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }

    /// An attempt with so many outputs took too long: the next one has half as many.
    fn send_less(&mut self, outputs: usize) {
        if outputs > 1 {
            self.most = outputs / 2;
            self.notes.push(Note::Divided { outputs, next: self.most });
        }
    }

    fn begin<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        tags: Vec<usize>,
        purpose: Purpose<O>,
    ) -> Result<Step, Stop> {
        let Desk { kafka, now, .. } = desk;
        match kafka.begin() {
            Ok(()) => {
                self.began = Some(now);
                let deadline = now + self.time_to_send();
                let attempt = Attempt {
                    tags,
                    purpose,
                    deadline,
                    sent: Sent::default(),
                    unplaced: None,
                    landed: false,
                    late: false,
                };
                self.state = State::Filling { attempt, next: 0, emptied: false };
                Ok(Step::Again)
            }
            Err(error) => match purpose {
                Purpose::Commit(_) => self.broken(kafka, Phase::Begin, &error, Ending::Aborted, now),
                Purpose::Probe(mut halves) => {
                    self.failed(Phase::Begin, &error);
                    self.replace_after(kafka, &error, now)?;
                    let sent = tags.len();
                    halves.sort_out(sent, Sent { again: tags, ..Sent::default() });
                    self.state = State::Probing(halves);
                    Ok(Step::Breathe)
                }
            },
        }
    }

    // ## Filling => Offsets => Landing => Committing

    fn fill<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        mut attempt: Attempt<O>,
        mut next: usize,
        mut emptied: bool,
    ) -> Result<Step, Stop> {
        let Desk { round, kafka, now, .. } = desk;
        let until = (next + CHUNK).min(attempt.tags.len());
        if now >= attempt.deadline {
            attempt.sent.again.extend(&attempt.tags[next..]);
            next = attempt.tags.len();
        }
        while next < until {
            let tag = attempt.tags[next];
            let output = &mut round.outputs[tag];
            // Of a revoked one its next owner may have sent what comes after it already.
            let wanted = !output.orphan && !output.discarded;
            match if wanted { kafka.send(output, tag) } else { Ok(()) } {
                Ok(()) => {}
                Err(SendError::QueueFull) if emptied => {
                    attempt.sent.refused.push((tag, "larger than queue.buffering.max.kbytes".to_owned()));
                }
                Err(SendError::QueueFull) => {
                    emptied = kafka.flush();
                    self.state = State::Filling { attempt, next, emptied };
                    return Ok(Step::Again);
                }
                Err(SendError::Refused(why)) => attempt.sent.refused.push((tag, why)),
                Err(SendError::Denied(why)) => return Err(Stop::Denied(why)),
                Err(SendError::Fatal(_)) => {
                    attempt.sent.again.extend(&attempt.tags[next..]);
                    next = attempt.tags.len();
                    break;
                }
            }
            (next, emptied) = (next + 1, false);
        }
        self.state = if next < attempt.tags.len() {
            State::Filling { attempt, next, emptied }
        } else if matches!(attempt.purpose, Purpose::Commit(_)) && attempt.sent.is_empty() {
            State::Offsets(attempt)
        } else {
            State::Landing(attempt)
        };
        Ok(Step::Again)
    }

    /// Makes the offsets part of the transaction while its records are on their way: a fifth of a round's time, else.
    fn send_offsets<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        mut attempt: Attempt<O>,
    ) -> Result<Step, Stop> {
        let Desk { kafka, now, .. } = desk;
        let Purpose::Commit(offsets) = &attempt.purpose else { unreachable!("a probe is aborted without offsets") };
        self.state = match kafka.send_offsets(offsets) {
            Ok(true) => State::Landing(attempt),
            // On a connection to a broker they wait behind records that are not stored yet.
            Ok(false) if now < attempt.deadline => State::Offsets(attempt),
            Ok(false) => {
                self.send_less(attempt.tags.len());
                let error = TransactionError::other(ErrorClass::Retriable, UNANSWERED_OFFSETS);
                return self.sort_error(kafka, Phase::Offsets, &error, now);
            }
            Err(error) if error.class == ErrorClass::Abortable => {
                // Perhaps because a record is refused: which of them, is known when all have landed or failed.
                attempt.unplaced = Some(error);
                State::Landing(attempt)
            }
            Err(error) => return self.sort_error(kafka, Phase::Offsets, &error, now),
        };
        Ok(Step::Again)
    }

    /// Waits until all have landed, or one has failed, or the time is up.
    fn land<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        mut attempt: Attempt<O>,
    ) -> Result<Step, Stop> {
        let Desk { kafka, now, .. } = desk;
        attempt.landed = kafka.flush();
        // Once something failed, the rest stays where it is until the abort.
        let failing = attempt.unplaced.is_some() || kafka.failing();
        if !attempt.landed && !failing && now < attempt.deadline {
            self.state = State::Landing(attempt);
            return Ok(Step::Again);
        }
        sort_failures(kafka.failures(), &mut attempt.sent)?;
        self.in_doubt |= !attempt.landed || !attempt.sent.again.is_empty();
        let commits = matches!(attempt.purpose, Purpose::Commit(_));
        attempt.late = !failing && now >= attempt.deadline && (!attempt.landed || !attempt.sent.again.is_empty());
        if commits && attempt.late {
            self.send_less(attempt.tags.len());
        }
        if !commits {
            self.state = State::Aborting { since: now, then: Then::Judge(attempt) };
        } else if !attempt.sent.refused.is_empty() {
            let outcome = Ending::Aborted;
            self.notes.push(Note::Ended { outcome, why: "a record is refused".to_owned() });
            self.state = State::Aborting { since: now, then: Then::Probe };
        } else if let Some(error) = &attempt.unplaced {
            return self.sort_error(kafka, Phase::Offsets, error, now);
        } else if !attempt.landed && !failing {
            self.give_up("what was sent did not arrive in time".to_owned(), now);
        } else if !attempt.landed || !attempt.sent.again.is_empty() {
            // The abort says why, if it can't be done either.
            self.give_up("something that was sent did not arrive".to_owned(), now);
        } else {
            self.state = State::Committing { since: now, outputs: attempt.tags.len() };
        }
        Ok(Step::Again)
    }

    fn commit<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        since: Time,
        outputs: usize,
    ) -> Result<Step, Stop> {
        let Desk { round, throttle, kafka, now } = desk;
        let Err(error) = kafka.commit() else {
            return Ok(self.committed(round, throttle, outputs, now));
        };
        if error.class == ErrorClass::Retriable && now.since(since) < WATCHDOG {
            self.failed(Phase::Commit, &error);
            self.state = State::Committing { since, outputs };
            return Ok(Step::Again);
        }
        // The coordinator may have ended the transaction for its age.
        if self.age(now) >= self.time_to_send() {
            self.send_less(outputs);
        }
        match error.class {
            ErrorClass::Retriable | ErrorClass::Fatal => {
                self.broken(kafka, Phase::Commit, &error, Ending::Unknown, now)
            }
            ErrorClass::Abortable => self.sort_error(kafka, Phase::Commit, &error, now),
        }
    }

    fn committed<P>(&mut self, round: &mut Round<P>, throttle: &mut Throttle, outputs: usize, now: Time) -> Step {
        round.commit(outputs);
        let rest = offsets_of(round.outputs_from(round.committed));
        let touched: Vec<u32> = throttle.touched().filter(|number| !rest.contains_key(number)).collect();
        touched.into_iter().for_each(|number| throttle.handle_committed(number));
        if self.age(now) < self.time_to_send() / 2 {
            self.most = self.most.saturating_mul(2);
        }
        // The next part, if there is one. The group may be served before it begins.
        if rest.is_empty() { Step::Done } else { Step::Again }
    }

    // ## Aborting, or another producer

    fn give_up(&mut self, why: String, now: Time) {
        self.notes.push(Note::Ended { outcome: Ending::Aborted, why });
        self.state = State::Aborting { since: now, then: Then::Resync };
    }

    fn sort_error<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        kafka: &mut K,
        phase: Phase,
        error: &TransactionError,
        now: Time,
    ) -> Result<Step, Stop> {
        deny(error)?;
        match error.class {
            // What was not answered may still arrive, and would join the next transaction of this epoch.
            ErrorClass::Fatal | ErrorClass::Retriable => self.broken(kafka, phase, error, Ending::Aborted, now),
            // What can't be gone on with is tried again as a whole.
            ErrorClass::Abortable => {
                self.failed(phase, error);
                self.give_up(error.to_string(), now);
                Ok(Step::Again)
            }
        }
    }

    /// The producer is of no use any more; its successor ends what it left open.
    fn broken<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        kafka: &mut K,
        phase: Phase,
        error: &TransactionError,
        outcome: Ending,
        now: Time,
    ) -> Result<Step, Stop> {
        self.failed(phase, error);
        self.notes.push(Note::Ended { outcome, why: error.to_string() });
        self.replace_after(kafka, error, now)?;
        self.state = State::Resyncing { told: false };
        Ok(Step::Again)
    }

    fn abort<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        desk: Desk<'_, P, K>,
        since: Time,
        then: Then<O>,
    ) -> Result<Step, Stop> {
        let Desk { round, throttle, kafka, now } = desk;
        let mut replaced = true;
        if kafka.tainted() {
            // It has to go anyway, and brokers that were away may not know the transaction any more.
            self.replace(kafka, Cause::Disconnect, TAINTED.to_owned(), now)?;
        } else if let Err(error) = kafka.abort() {
            self.failed(Phase::Abort, &error);
            if error.class == ErrorClass::Retriable && now.since(since) < WATCHDOG {
                self.state = State::Aborting { since, then };
                return Ok(Step::Again);
            }
            self.replace_after(kafka, &error, now)?;
        } else {
            replaced = false;
        }
        match then {
            Then::Resync => self.state = State::Resyncing { told: false },
            Then::Probe => self.state = State::Probing(Halves::of(round.next_tags(self.most))),
            Then::Judge(mut attempt) => {
                if replaced && attempt.tags.len() > 1 {
                    // What else was refused went with the old producer: one that is known so far may be a neighbour.
                    attempt.sent = Sent::default();
                    attempt.landed = false;
                    attempt.late |= self.age(now) >= self.time_to_send();
                }
                return self.judge(Desk { round, throttle, kafka, now }, attempt);
            }
        }
        Ok(Step::Again)
    }
}

fn sort_failures(failures: Vec<(usize, Failure)>, sent: &mut Sent) -> Result<(), Stop> {
    for (tag, failure) in failures {
        match failure {
            Failure::Refused(why) => sent.refused.push((tag, why)),
            Failure::Denied(why) => return Err(Stop::Denied(why)),
            Failure::Unknown(_) | Failure::Fatal(_) => sent.again.push(tag),
        }
    }
    Ok(())
}
