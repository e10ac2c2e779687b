//! The group coordinator: members, generations, cooperative rebalances, committed offsets.
//!
//! A rebalance waits until every member has joined again. A member joins with the partitions that it still claims;
//! another member gets one of these only after the claiming member gave it back, was expelled or left.

use std::time::Duration;

use watermaster_core::{delivery::Committed, units::Time};

use super::{source::PARTITIONS, support::random::Random, trace::note};

/// A set of partitions.
pub type Partitions = u8;

#[derive(Debug)]
struct Member {
    id: u32,
    heard: Time,
    joined: bool,
    claims: Partitions,
    assigned: Partitions,
    unsynced: bool,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    Stable,
    /// A rebalance started: the member must join again.
    Join,
    /// The rebalance is over.
    Sync {
        generation: i32,
        assigned: Partitions,
    },
    /// The member was expelled.
    Unknown,
}

#[derive(Debug)]
pub struct Group {
    partitions: u32,
    session: Duration,
    generation: i32,
    members: Vec<Member>,
    next_id: u32,
    preparing: bool,
    pub committed: [Option<(i64, String)>; PARTITIONS],
}

impl Group {
    pub fn new(partitions: u32, session: Duration) -> Group {
        let committed = Default::default();
        Group { partitions, session, generation: 0, members: Vec::new(), next_id: 1, preparing: false, committed }
    }

    fn find(&mut self, id: u32) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// Checks member and generation of an offset commit. As in Kafka, ownership of the partitions is not checked.
    pub fn allows(&self, id: u32, generation: i32) -> Result<(), &'static str> {
        if generation < 0 && id == 0 {
            // Classic groups accept this from old clients, even if the group is not empty.
            return Ok(());
        }
        if !self.members.iter().any(|member| member.id == id) {
            return Err("UNKNOWN_MEMBER_ID");
        }
        if generation == self.generation { Ok(()) } else { Err("ILLEGAL_GENERATION") }
    }

    /// Returns whether the member owns the partition; no other member gets it before this one gives it back.
    pub fn is_owner(&self, id: u32, partition: u32) -> bool {
        self.members.iter().any(|member| member.id == id && (member.assigned | member.claims) & 1 << partition != 0)
    }

    /// Returns the committed offsets of these partitions.
    pub fn committed_of(&self, partitions: &[u32]) -> Vec<Committed> {
        let of = |&partition: &u32| {
            let known = self.committed[partition as usize].clone();
            Committed { partition, offset: known.map(|(offset, metadata)| (offset, metadata.into_bytes())) }
        };
        partitions.iter().map(of).collect()
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().map(|member| member.id)
    }

    // ## Members

    /// Adds a member and returns its id.
    pub fn join(&mut self, now: Time) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        self.members.push(Member { id, heard: now, joined: true, claims: 0, assigned: 0, unsynced: false });
        self.prepare();
        if let Some(member) = self.find(id) {
            member.joined = true;
        }
        id
    }

    /// Removes a member: it left, its session timed out, or a fault expels it.
    pub fn remove(&mut self, id: u32) {
        self.members.retain(|member| member.id != id);
        self.prepare();
    }

    /// Joins a member again with the partitions that it claims.
    pub fn rejoin(&mut self, id: u32, claims: Partitions) {
        self.prepare();
        if let Some(member) = self.find(id) {
            member.joined = true;
            member.claims = claims;
        }
    }

    pub fn heartbeat(&mut self, id: u32, now: Time) -> Beat {
        let (preparing, generation) = (self.preparing, self.generation);
        let Some(member) = self.find(id) else { return Beat::Unknown };
        member.heard = now;
        if preparing {
            return if member.joined { Beat::Stable } else { Beat::Join };
        }
        if std::mem::take(&mut member.unsynced) {
            return Beat::Sync { generation, assigned: member.assigned };
        }
        Beat::Stable
    }

    /// Expels the members with an expired session. Returns their ids.
    pub fn expire(&mut self, now: Time) -> Vec<u32> {
        let silent = |member: &&Member| member.heard + self.session < now;
        let gone: Vec<u32> = self.members.iter().filter(silent).map(|member| member.id).collect();
        for &id in &gone {
            note("group", || format!("member {id}: session expired, expelled"));
            self.remove(id);
        }
        gone
    }

    /// Restarts all sessions at `until`: members cannot send heartbeats while the coordinator is unavailable.
    pub fn restart_sessions(&mut self, until: Time) {
        for member in &mut self.members {
            member.heard = member.heard.max(until);
        }
    }

    // ## Stable => preparing => stable

    fn prepare(&mut self) {
        if !self.preparing {
            self.preparing = true;
            for member in &mut self.members {
                (member.joined, member.unsynced) = (false, false);
            }
        }
    }

    /// Ends a rebalance if all members have joined. Returns whether a new generation began.
    pub fn settle(&mut self, random: &mut Random, restless: bool) -> bool {
        if !self.preparing || self.members.is_empty() || self.members.iter().any(|member| !member.joined) {
            return false;
        }
        self.preparing = false;
        self.generation += 1;
        self.distribute(random, restless);
        let generation = self.generation;
        for member in &mut self.members {
            member.unsynced = true;
            note("group", || format!("generation {generation}: member {} gets {:#08b}", member.id, member.assigned));
        }
        true
    }

    /// Leaves each member a fair part of its claims and assigns the unclaimed partitions.
    fn distribute(&mut self, random: &mut Random, restless: bool) {
        let count = self.members.len() as u32;
        let (fair, mut extra) = (self.partitions / count, self.partitions % count);
        let mut free: Partitions = ((1u16 << self.partitions) - 1) as u8;
        for member in &mut self.members {
            free &= !member.claims;
            member.assigned = member.claims;
            let mut quota = fair;
            if member.claims.count_ones() > fair && extra > 0 {
                (quota, extra) = (fair + 1, extra - 1);
            }
            while member.assigned.count_ones() > quota {
                member.assigned &= member.assigned - 1;
            }
            // An assignor is not always sticky.
            if restless && random.once_in(6) {
                member.assigned &= !(1 << random.below(u64::from(self.partitions)));
            }
        }
        for partition in (0..self.partitions).filter(|partition| free & 1 << partition != 0) {
            let least = self.members.iter_mut().min_by_key(|member| member.assigned.count_ones());
            if let Some(member) = least {
                member.assigned |= 1 << partition;
            }
        }
    }
}
