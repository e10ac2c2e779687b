//! The outputs that were decided since the last commit.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use super::kafka::Commit;
use crate::reason::{Grounds, Reason};
use crate::throttle::{Rejection, Throttle};
use crate::{offset_map, units::Time};

/// A decided record.
#[derive(Debug)]
pub struct Output<P> {
    pub payload: P,
    /// The number of its source partition, as given to [`Throttle::handle_assigned`].
    pub partition: u32,
    pub offset: i64,
    /// The memory that the record takes.
    bytes: usize,
    /// The registered client that the decision was taken for. By name: before the round ends, the client may be evicted
    /// and its index given to another one.
    pub client: Option<Arc<str>>,
    /// Set if the record goes to the dead-letter topic.
    pub rejected: Option<Box<Rejected>>,
    /// The part of the record that is sent; less than the whole only if it is rejected.
    pub form: Form,
    /// The partition was revoked: its next owner sends the record again, and commits it.
    pub orphan: bool,
    /// The dead-letter topic refuses each stub, too: the record is committed without being sent.
    pub discarded: bool,
}

/// The part of a record that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Whole,
    /// A stub: the key and the headers of the rejection, which name the original.
    Stub,
    KeylessStub,
}

/// The facts that a dead letter states about its rejection.
#[derive(Debug, Clone)]
pub struct Rejected {
    pub reason: Reason,
    /// The time after which the record might be admitted; zero if there is none.
    pub retry_after: Duration,
    /// The client's name; empty for anonymous.
    pub client: Arc<str>,
    /// The broker's words, if it refused the record.
    pub words: Option<Arc<str>>,
    pub grounds: Grounds,
}

/// The outputs that were decided since the last commit, in the order of the decisions. The index of an output is its
/// *tag* until outputs are dropped.
#[derive(Debug)]
pub struct Round<P> {
    pub(super) outputs: Vec<Output<P>>,
    /// The number of outputs, from the first one on, that are committed: a round that takes too long is committed in
    /// parts.
    pub(super) committed: usize,
    bytes: usize,
    /// Stubs that were committed and not taken by [`take_stubs`](Round::take_stubs) yet.
    stubs: u64,
}

impl<P> Output<P> {
    /// Returns whether a stub is sent in place of the record.
    fn is_stub(&self) -> bool {
        self.form != Form::Whole && !self.discarded
    }

    /// Returns whether the output is sent. The next owner of an orphan's partition may already have sent later records.
    pub(super) fn is_wanted(&self) -> bool {
        !self.orphan && !self.discarded
    }
}

impl<P> Default for Round<P> {
    fn default() -> Round<P> {
        Round { outputs: Vec::new(), committed: 0, bytes: 0, stubs: 0 }
    }
}

impl<P> Round<P> {
    /// Adds a record, named by its partition and offset, that goes to the target.
    pub fn admit(&mut self, place: (u32, i64), payload: P, bytes: usize, client: Option<Arc<str>>) {
        self.push(place, (payload, Form::Whole), bytes, client, None);
    }

    /// Adds a record that goes to the dead-letter topic in this form. `name` is its client's name, empty for anonymous.
    pub fn reject(
        &mut self, place: (u32, i64), payload: (P, Form), bytes: usize, (rejection, grounds): (Rejection, Grounds),
        name: Arc<str>,
    ) {
        let client = rejection.client.map(|_| Arc::clone(&name));
        let Rejection { reason, retry_after, .. } = rejection;
        let rejected = Rejected { reason, retry_after, client: name, words: None, grounds };
        self.push(place, payload, bytes, client, Some(Box::new(rejected)));
    }

    fn push(
        &mut self, (partition, offset): (u32, i64), (payload, form): (P, Form), bytes: usize, client: Option<Arc<str>>,
        rejected: Option<Box<Rejected>>,
    ) {
        self.bytes += bytes;
        let (orphan, discarded) = (false, false);
        self.outputs.push(Output { payload, partition, offset, bytes, client, rejected, form, orphan, discarded });
    }

    /// Marks the outputs of a revoked partition that are not committed: its next owner sends them.
    pub fn forget(&mut self, partition: u32) {
        for output in &mut self.outputs[self.committed..] {
            output.orphan |= output.partition == partition;
        }
    }

    /// Drops the outputs of revoked partitions, none of which may have been sent for good.
    pub fn drop_orphans(&mut self, throttle: &mut Throttle) {
        self.retain_pending(|output| {
            if output.orphan {
                let reason = output.rejected.as_ref().map(|rejected| rejected.reason);
                throttle.handle_undone(output.client.as_deref(), reason);
            }
            !output.orphan
        });
    }

    /// Drops the outputs that turn out to be committed. `wanted` takes partition and offset, and returns false for
    /// these.
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
        let (mut committed, bytes) = (self.committed, &mut self.bytes);
        self.outputs.retain(|output| {
            if committed > 0 {
                committed -= 1;
                return true;
            }
            let wanted = wanted(output);
            *bytes -= if wanted { 0 } else { output.bytes };
            wanted
        });
    }

    /// Returns the tags of the first `most` outputs that are not committed.
    pub(super) fn next_tags(&self, most: usize) -> Vec<usize> {
        (self.committed..self.outputs.len()).take(most).collect()
    }

    /// Returns the outputs, in the order of their tags.
    pub fn outputs(&self) -> &[Output<P>] {
        &self.outputs
    }

    /// Drops all outputs, which are committed.
    pub fn clear(&mut self) {
        self.stubs += self.outputs.iter().filter(|output| output.is_stub()).count() as u64;
        self.outputs.clear();
        (self.committed, self.bytes) = (0, 0);
    }

    /// Returns the number of stubs that were committed since the last call.
    pub fn take_stubs(&mut self) -> u64 {
        mem::take(&mut self.stubs)
    }

    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Returns whether there is no output. Offsets may still have to be committed.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Returns the memory that all outputs take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns the offset and the map to commit for every partition in which a record completed, as if the records of
/// `without` were not completed yet.
///
/// # Errors
/// A map outgrew its budget. For an empty `without` this is a defect: the core completes no record that does not fit.
pub(super) fn commits_without<P>(
    throttle: &mut Throttle, now: Time, without: &[Output<P>],
) -> Result<Vec<Commit>, offset_map::TooLarge> {
    let without = offsets_of(without);
    let touched: Vec<u32> = throttle.touched().collect();
    let commit = |partition| {
        let offsets = without.get(&partition).map_or(&[][..], Vec::as_slice);
        let (offset, metadata) = throttle.commit_without(now, partition, offsets)?;
        Ok(Commit { partition, offset, metadata })
    };
    touched.into_iter().map(commit).collect()
}

/// Groups the offsets of some outputs by partition.
pub(super) fn offsets_of<P>(outputs: &[Output<P>]) -> BTreeMap<u32, Vec<i64>> {
    let mut offsets: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    for output in outputs {
        offsets.entry(output.partition).or_default().push(output.offset);
    }
    offsets
}
