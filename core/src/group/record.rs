//! The records of the control log.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::policy::Mode;

/// The name of one life of an instance in the group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The instance id.
    pub instance: Arc<str>,
    /// A random number that no other life of the instance has.
    pub incarnation: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:016x}", self.instance, self.incarnation)
    }
}

/// The configuration of a member, as far as other members must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Terms {
    /// The capacity in records per cycle.
    pub capacity: u64,
    /// The length of the cycle in milliseconds. Members with different ones can't share a capacity.
    pub cycle_ms: u64,
    /// The mode. Members in different modes can't share a capacity.
    pub mode: Mode,
    /// A digest of the other settings in which the members must agree: lending, weights, limits, the lease.
    pub digest: u64,
}

impl Terms {
    /// Returns whether members with these terms and others can share a capacity.
    pub fn agree_with(&self, other: &Terms) -> bool {
        (self.cycle_ms, self.mode) == (other.cycle_ms, other.mode)
    }

    /// Names the settings in which these terms differ from others.
    pub fn differences(self, other: Terms) -> impl Iterator<Item = &'static str> {
        let settings = [
            ("capacity", self.capacity != other.capacity),
            ("cycle", self.cycle_ms != other.cycle_ms),
            ("mode", self.mode != other.mode),
            ("other settings", self.digest != other.digest),
        ];
        settings.into_iter().filter_map(|(name, differs)| differs.then_some(name))
    }
}

/// The load of one client at one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Load {
    /// The records that the member could send in the next cycle, arrivals and backlog.
    pub demand: u64,
    /// The client's wants of the member's last full cycle.
    pub wants: u64,
}

/// The loads of clients, with their ids, each once. The empty id names all clients together whose loads are too small
/// to be named.
pub type Loads = Vec<(Arc<str>, Load)>;

/// A member's statement about itself: how much it keeps, and how much it would take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Post {
    /// The member.
    pub key: Key,
    /// The member's configuration.
    pub terms: Terms,
    /// The number of this post among the posts of the member, from 1.
    pub seq: u64,
    /// The number of records of the log that the member has replayed: the offset after the last of them.
    pub seen: u64,
    /// A promise: from now on the member's limit is at most this.
    pub have: u64,
    /// A request: the hold rises to this as far as there is room. At least `have`.
    pub want: u64,
    /// The largest pace of the member's last cycle, in records per cycle.
    pub pace: u64,
    /// A promise: the member admits nothing later than this after the post was sent, unless it reads a later one back.
    pub lease: Duration,
    /// The member admits nothing more under this key.
    pub left: bool,
    /// True if `loads` names all clients of the member, false if it names those that changed.
    pub complete: bool,
    /// The loads of the member's clients.
    pub loads: Loads,
    /// The member's admissions. It stands behind the other fields, where versions that do not know it read no further.
    #[serde(skip)]
    pub progress: Option<Progress>,
}

/// The admissions of one member, for the search for the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The records that the member has admitted since its process started.
    pub admitted: u64,
    /// Records wait for admission at the member.
    pub waits: bool,
}

/// A statement about a member that stopped: its window holds at most so much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The member that stopped.
    pub target: Key,
    /// The number of its last post, as its author knows it: one number, or several if a compacted log left it in doubt
    /// which of them was the last one before the member was put out. A bound on any other post is void.
    pub seqs: Vec<u64>,
    /// The most that its window holds.
    pub x: u64,
    /// The member stopped at least this long ago, on any clock of the group.
    pub stopped_for: Duration,
}

/// A record of the control log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A member's statement about itself.
    Post(Post),
    /// A statement about a member that stopped.
    Bound(Bound),
    /// Removes the last post or the last bound of a member that is gone from the log.
    Tombstone(Tombstone),
}

/// The removal of a record that no reader needs any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// The member that is gone.
    pub subject: Key,
    /// Removes the last post if true, and the last bound if false.
    pub of_post: bool,
}

impl Record {
    /// The member that the record is about. Compaction keeps the last post and the last bound of each.
    pub fn subject(&self) -> &Key {
        match self {
            Record::Post(post) => &post.key,
            Record::Bound(bound) => &bound.target,
            Record::Tombstone(tombstone) => &tombstone.subject,
        }
    }

    /// Returns whether compaction counts the record among the posts, and not among the bounds.
    pub fn is_of_post(&self) -> bool {
        matches!(self, Record::Post(_) | Record::Tombstone(Tombstone { of_post: true, .. }))
    }
}
