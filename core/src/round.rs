//! A round: what was decided and is not committed yet, and how it is delivered exactly once.
//!
//! - `round.rs`: the outputs of a round
//! - `round/halves.rs`: who among them is refused
//! - `round/kafka.rs`: what a round asks of Kafka
//! - `round/outcome.rs`: what its delivery says
//! - `round/transaction.rs`: the state machine that carries a round through one transaction, or through as many as it takes
//!
//! Payloads belong to the owner: here they are only carried.

mod halves;
mod kafka;
mod outcome;
mod transaction;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

pub use halves::{Halves, Sent};
pub use kafka::{
    Commit, Committed, ErrorClass, ErrorKind, Failure, Foreign, Kafka, OffsetsError, SendError, TransactionError,
};
pub use outcome::{Cause, Ending, Note, Phase, Step, Stop};
pub use transaction::{Rules, Transactions};

use crate::offset_map;
use crate::reason::Reason;
use crate::throttle::{Rejection, Throttle};
use crate::units::Time;

/// A decided record.
#[derive(Debug)]
pub struct Output<P> {
    pub payload: P,
    /// The number of its source partition, as given to [`Throttle::handle_assigned`].
    pub partition: u32,
    pub offset: i64,
    /// The registered client that it was decided for. By name: the client may be forgotten, and its index given to
    /// another one, before the round ends.
    pub client: Option<Arc<str>>,
    /// It goes to the dead-letter topic.
    pub rejected: Option<Rejected>,
    /// How much of it is sent; less than all of it only if it is rejected.
    pub form: Form,
    /// Its partition was revoked: its next owner sends it again, and commits it.
    pub orphan: bool,
    /// The dead-letter topic refuses each stub of it, too, and it is let go: committed without being sent.
    pub discarded: bool,
}

/// How much of a record is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All of it.
    Whole,
    /// A stub: the key and the headers of the rejection, which name the original.
    Stub,
    /// A stub without the key.
    KeylessStub,
}

/// What the dead-letter topic is told.
#[derive(Debug, Clone)]
pub struct Rejected {
    pub reason: Reason,
    /// When it might be admitted; zero: no meaning.
    pub retry_after: Duration,
    /// Empty for anonymous.
    pub client: Arc<str>,
}

/// What was decided since the last commit, in the order of the decisions.
#[derive(Debug)]
pub struct Round<P> {
    outputs: Vec<Output<P>>,
    /// So many of the first outputs are committed already: a round that takes too long is committed in parts.
    committed: usize,
    bytes: usize,
    /// Stubs that were committed and not taken by [`take_stubs`](Round::take_stubs) yet.
    stubs: u64,
}

/// What became of a record that its topic refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It goes to the dead-letter topic.
    DeadLettered,
    /// A stub of it goes to the dead-letter topic.
    Stubbed,
    /// The dead-letter topic refuses each stub, too.
    Again,
}

impl<P> Output<P> {
    /// Whether a stub is sent in place of the record.
    fn is_stub(&self) -> bool {
        self.form != Form::Whole && !self.discarded
    }
}

impl<P> Default for Round<P> {
    fn default() -> Round<P> {
        Round { outputs: Vec::new(), committed: 0, bytes: 0, stubs: 0 }
    }
}

impl<P> Round<P> {
    /// Adds a record, by its partition and offset, that goes to the target.
    pub fn admit(&mut self, place: (u32, i64), payload: P, bytes: usize, client: Option<Arc<str>>) {
        self.push(place, payload, bytes, client, None, Form::Whole);
    }

    /// Adds a record that goes to the dead-letter topic in this form; `name` is its client's, empty for anonymous.
    pub fn reject(
        &mut self,
        place: (u32, i64),
        (payload, form): (P, Form),
        bytes: usize,
        rejection: Rejection,
        name: Arc<str>,
    ) {
        let rejected = Rejected { reason: rejection.reason, retry_after: rejection.retry_after, client: name };
        let client = rejection.client.map(|_| Arc::clone(&rejected.client));
        self.push(place, payload, bytes, client, Some(rejected), form);
    }

    fn push(
        &mut self,
        (partition, offset): (u32, i64),
        payload: P,
        bytes: usize,
        client: Option<Arc<str>>,
        rejected: Option<Rejected>,
        form: Form,
    ) {
        self.bytes += bytes;
        let output = Output { payload, partition, offset, client, rejected, form, orphan: false, discarded: false };
        self.outputs.push(output);
    }

    /// A partition was revoked: its next owner sends the outputs of it that are not committed.
    pub fn forget(&mut self, partition: u32) {
        for output in &mut self.outputs[self.committed..] {
            output.orphan |= output.partition == partition;
        }
    }

    /// Drops the outputs of revoked partitions, none of which may have been sent for good.
    pub fn drop_orphans(&mut self, throttle: &mut Throttle) {
        self.retain_pending(|output| {
            if output.orphan {
                throttle
                    .handle_undone(output.client.as_deref(), output.rejected.as_ref().map(|rejected| rejected.reason));
            }
            !output.orphan
        });
    }

    /// Drops the outputs that turn out to be committed: those that the caller does not want, by partition and offset.
    pub fn retain(&mut self, wanted: impl Fn(u32, i64) -> bool) {
        let mut stubs = 0;
        self.retain_pending(|output| {
            let wanted = wanted(output.partition, output.offset);
            stubs += u64::from(!wanted && output.is_stub());
            wanted
        });
        self.stubs += stubs;
    }

    fn retain_pending(&mut self, mut wanted: impl FnMut(&Output<P>) -> bool) {
        let mut committed = self.committed;
        self.outputs.retain(|output| {
            if committed > 0 {
                committed -= 1;
                return true;
            }
            wanted(output)
        });
    }

    /// The tags of the first `most` outputs that are not committed.
    fn next_tags(&self, most: usize) -> Vec<usize> {
        (self.committed..self.outputs.len()).take(most).collect()
    }

    /// The first `count` outputs that were not committed are.
    fn commit(&mut self, count: usize) {
        self.committed += count;
    }

    /// The outputs from this tag on.
    fn outputs_from(&self, tag: usize) -> &[Output<P>] {
        &self.outputs[tag..]
    }

    /// The topic of this output refuses it for good. An admitted record becomes `undeliverable`, a rejected one a stub,
    /// and a stub loses its key.
    pub fn refuse(&mut self, tag: usize, throttle: &mut Throttle) -> Refused {
        let output = &mut self.outputs[tag];
        if output.rejected.is_some() {
            output.form = match output.form {
                Form::Whole => Form::Stub,
                Form::Stub => Form::KeylessStub,
                Form::KeylessStub => return Refused::Again,
            };
            return Refused::Stubbed;
        }
        let client = output.client.clone().unwrap_or_else(|| Arc::from(""));
        output.rejected = Some(Rejected { reason: Reason::Undeliverable, retry_after: Duration::ZERO, client });
        throttle.handle_undeliverable(output.client.as_deref());
        Refused::DeadLettered
    }

    /// Lets go of an output whose stubs are refused, too: it is committed without being sent.
    pub fn discard(&mut self, tag: usize) {
        self.outputs[tag].discarded = true;
    }

    /// The outputs; an output's place is its *tag* until some are dropped.
    pub fn outputs(&self) -> &[Output<P>] {
        &self.outputs
    }

    /// One of them, by its tag.
    pub fn output_mut(&mut self, tag: usize) -> &mut Output<P> {
        &mut self.outputs[tag]
    }

    /// Lets go of everything: all of it is committed.
    pub fn clear(&mut self) {
        self.stubs += self.outputs.iter().filter(|output| output.is_stub()).count() as u64;
        self.outputs.clear();
        (self.committed, self.bytes) = (0, 0);
    }

    /// Returns the number of stubs that were committed since the last call.
    pub fn take_stubs(&mut self) -> u64 {
        mem::take(&mut self.stubs)
    }

    /// How many outputs there are.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Whether there is no output. There may be something to commit all the same.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The memory cost of all outputs, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The offset and the map of every partition in which a record completed.
///
/// # Errors
/// A map outgrew its budget: a defect, for the core completes nothing that does not fit.
pub fn commits(throttle: &mut Throttle, now: Time) -> Result<Vec<Commit>, offset_map::TooLarge> {
    commits_without(throttle, now, &BTreeMap::new())
}

/// The same as if some offsets, by partition, were not completed yet.
///
/// # Errors
/// The map of such a partition does not fit in its budget.
fn commits_without(
    throttle: &mut Throttle,
    now: Time,
    without: &BTreeMap<u32, Vec<i64>>,
) -> Result<Vec<Commit>, offset_map::TooLarge> {
    let touched: Vec<u32> = throttle.touched().collect();
    let commit = |partition| {
        let (offset, metadata) = match without.get(&partition) {
            Some(offsets) => throttle.commit_without(now, partition, offsets)?,
            None => throttle.commit_of(now, partition)?,
        };
        Ok(Commit { partition, offset, metadata })
    };
    touched.into_iter().map(commit).collect()
}

/// The offsets of some outputs, by partition.
fn offsets_of<P>(outputs: &[Output<P>]) -> BTreeMap<u32, Vec<i64>> {
    let mut offsets: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    for output in outputs {
        offsets.entry(output.partition).or_default().push(output.offset);
    }
    offsets
}
