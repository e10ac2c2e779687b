//! Pausing partitions, and resuming them.

use strum::{IntoStaticStr, VariantNames};

use super::{Ledger, Partition, wall_ms};
use crate::{offset_map::MAX_SPAN, policy::Overflow, units::Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum PauseReason {
    /// A client's backlog reached `queue_capacity`.
    #[strum(serialize = "queue_capacity")]
    Queue { client: u32 },
    /// The backlogs reached `queue_bytes`.
    #[strum(serialize = "queue_bytes")]
    Bytes,
    /// The partition's offset map is nearly as large as it may be.
    Map,
    /// All records of the partition belong to one client, which reached `queue_capacity` or takes too much of
    /// `queue_bytes`. No other client waits.
    OneClient { client: u32 },
}

/// The records of a partition that waited unread in their topic. Their waits begin at their timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// No records: the partition is read as fast as it is written.
    No,
    /// The records that were written before this time, in milliseconds since the Unix epoch: the partition is paused,
    /// or was until then.
    WrittenBefore(i64),
    /// The records below offset `end`: they were there when the partition was taken over, after at most `unowned_ms`
    /// without an owner.
    Below { end: i64, unowned_ms: u32 },
}

/// The time for which a record waited unread in its topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicWait {
    pub age_ms: u32,
    /// The part of it in which the partition can have been without an owner.
    pub unowned_ms: u32,
}

/// A change in the reading of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Pause(u32),
    Resume(u32),
}

impl Ledger {
    /// Pauses an assigned partition, unless it is paused. Of several clients with a full backlog, the partition waits
    /// for the one that got a record last: else records on their way would pile up for another one at each pause.
    pub fn pause(&mut self, number: u32, reason: PauseReason) {
        let partition = &mut self.partitions[number as usize];
        if let (Some(former @ PauseReason::Queue { .. }), PauseReason::Queue { .. }) = (&mut partition.paused, reason) {
            *former = reason;
        } else if partition.assigned && partition.paused.is_none() {
            partition.paused = Some(reason);
            partition.behind = Behind::WrittenBefore(i64::MAX);
            self.paused += 1;
            self.readings.push_back(Reading::Pause(number));
        }
    }

    /// Returns whether a partition is paused at a bound. If not, records are evicted.
    #[inline]
    pub fn pauses(&self, number: u32) -> bool {
        match self.overflow {
            Overflow::Auto => self.partitions[number as usize].sole_client.is_some(),
            Overflow::Pause => true,
            Overflow::DeadLetter => false,
        }
    }

    /// Notes that the unread records of a partition that was just assigned have waited for a former owner, or for the
    /// restart of this one. The former owner was there at its last admission, if that was in the last cycle.
    pub fn note_takeover(&mut self, now: Time, number: u32) {
        let partition = &mut self.partitions[number as usize];
        if partition.tracker.next() < partition.catch_up_until {
            let last = partition.recent_admissions.slices(now).last();
            let unowned = last.map(|(end, _)| now.since(end).as_millis());
            let unowned_ms = unowned.and_then(|ms| u32::try_from(ms).ok()).unwrap_or(u32::MAX);
            partition.behind = Behind::Below { end: partition.catch_up_until, unowned_ms };
        }
    }

    /// The time for which a record that was just read waited in its topic, because its partition was paused, or had no
    /// owner. It begins at the record's timestamp; a record without one counts as new.
    #[inline]
    pub fn waited_in_topic(&mut self, now: Time, number: u32, offset: i64, written_ms: Option<i64>) -> TopicWait {
        if matches!(self.partitions[number as usize].behind, Behind::No) {
            return TopicWait::default();
        }
        self.find_topic_wait(now, number, offset, written_ms)
    }

    #[cold]
    fn find_topic_wait(&mut self, now: Time, number: u32, offset: i64, written_ms: Option<i64>) -> TopicWait {
        let behind = &mut self.partitions[number as usize].behind;
        let (waited, written, unowned_ms) = match (*behind, written_ms) {
            (Behind::Below { end, unowned_ms }, written) => (offset < end, written, unowned_ms),
            (Behind::WrittenBefore(end), Some(written)) => (written < end, Some(written), 0),
            _ => return TopicWait::default(),
        };
        if !waited {
            *behind = Behind::No;
            return TopicWait::default();
        }
        let age = written.map_or(0, |written| wall_ms(now, self.wall_ahead_ms).saturating_sub(written).max(0));
        let age_ms = u32::try_from(age).unwrap_or(u32::MAX);
        TopicWait { age_ms, unowned_ms: unowned_ms.min(age_ms) }
    }

    pub fn pause_all(&mut self, reason: PauseReason) {
        (0..self.partitions.len() as u32).for_each(|number| self.pause(number, reason));
    }

    /// Pauses a partition that pauses at bounds at three quarters of its offset map's room: records in the backlog can
    /// then still complete around each other.
    #[inline(never)]
    pub fn pause_if_map_is_nearly_full(&mut self, number: u32) {
        if self.pauses(number) && self.partitions[number as usize].map_is_nearly_full(self.map_room.set_bits) {
            self.pause(number, PauseReason::Map);
        }
    }

    /// Resumes partitions at half of the bound that paused them: a pause discards what librdkafka has prefetched, so
    /// it must not toggle. `is_free` tells whether a backlog's bound allows it.
    pub fn resume(&mut self, now: Time, is_free: impl Fn(PauseReason) -> bool) {
        if self.paused == 0 {
            return;
        }
        for number in 0..self.partitions.len() as u32 {
            let free = match self.partitions[number as usize].paused {
                None => false,
                Some(PauseReason::Map) => self.may_resume(number),
                Some(reason) => is_free(reason),
            };
            if free {
                let now_ms = wall_ms(now, self.wall_ahead_ms);
                let partition = &mut self.partitions[number as usize];
                (partition.paused, partition.behind) = (None, Behind::WrittenBefore(now_ms));
                self.paused -= 1;
                self.readings.push_back(Reading::Resume(number));
            }
        }
    }

    /// Returns whether the next records fit, too. They always do if no record of the partition is held: then only
    /// unread records hold its committable offset back, as after a restart with a full map.
    fn may_resume(&self, number: u32) -> bool {
        let Partition { tracker, held, .. } = &self.partitions[number as usize];
        let is_half_empty = || tracker.bits_bound() <= self.map_room.set_bits / 2 && tracker.span() <= MAX_SPAN / 2;
        held.is_empty() || is_half_empty() && self.has_room(number, tracker.next())
    }
}
