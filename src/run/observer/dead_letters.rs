//! Follows the open dead letters of a service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use watermaster_core::reason::Reason;
use watermaster_kafka::ask::{AskError, Asker};
use watermaster_kafka::dead_letters::{Backlog, LetterHead, Unread};
use watermaster_kafka::headers;
use watermaster_settings::Service;

use super::{ANSWER_TIMEOUT, Client};
use crate::clock;
use crate::snapshot::{NewestLetter, NewestLetters};

/// The interval between two questions that the brokers refuse, or cannot answer because the topic is missing.
const REFUSED_INTERVAL: Duration = Duration::from_secs(600);

/// The number of newest dead letters that are shown of each reason.
const SHOWN: usize = 5;
/// The number of offsets of a topic that are read for them, and the longest time for that.
const READ_OFFSETS: i64 = 400;
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The dead letters of one service, and the client that looks at them now.
#[derive(Default)]
pub(super) struct DeadLetterWatch {
    backlogs: Option<(Arc<Asker>, Vec<Backlog>)>,
    /// The ledgers were read to their ends: before, letters that are done would seem open.
    is_known: bool,
    /// The time before which a refused question is not repeated.
    refused_until: Option<Instant>,
    /// The log has a line about the refusal.
    warned: bool,
}

impl DeadLetterWatch {
    /// Looks at the dead letters; `None` while they are unknown.
    pub fn look(&mut self, client: &mut Client<'_>, service: &Service) -> Option<Unread> {
        if self.refused_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let before = self.read_to();
        match self.unread(client, service) {
            Ok(unread) => {
                (self.warned, self.is_known) = (false, true);
                Some(unread)
            }
            // A ledger that compaction has not reached yet takes longer than one look. The next one goes on there.
            Err(why) if why.is_silence() && self.read_to() > before => {
                debug!(service = service.name, "the ledger of dead letters is not read yet: {why}");
                None
            }
            Err(why) => {
                self.refuse(service, &why);
                None
            }
        }
    }

    /// Returns how far the ledgers were read.
    fn read_to(&self) -> i64 {
        self.backlogs.iter().flat_map(|(_, backlogs)| backlogs).map(Backlog::read_to).sum()
    }

    fn unread(&mut self, client: &mut Client<'_>, service: &Service) -> Result<Unread, AskError> {
        let asker = client.get(service)?;
        let topics = service.dead_letters();
        let differ = |backlogs: &[Backlog]| !backlogs.iter().map(Backlog::topic).eq(topics.iter().copied());
        self.backlogs.take_if(|(its, backlogs)| !Arc::ptr_eq(its, &asker) || differ(backlogs));
        if let Some((_, backlogs)) = &self.backlogs {
            let counts = backlogs.iter().map(|backlog| asker.partitions(backlog.topic(), ANSWER_TIMEOUT));
            let counts: Vec<i32> = counts.collect::<Result<_, _>>()?;
            // A topic may have got more partitions.
            if backlogs.iter().map(Backlog::partition_count).ne(counts) {
                self.backlogs = None;
            }
        }
        let (_, backlogs) = match &mut self.backlogs {
            Some(backlogs) => backlogs,
            none => {
                self.is_known = false;
                let open = |topic| Backlog::open(Arc::clone(&asker), client.kafka, service, topic, ANSWER_TIMEOUT);
                let backlogs = topics.iter().copied().map(open).collect::<Result<_, _>>()?;
                none.insert((asker, backlogs))
            }
        };
        let mut sum = Unread::default();
        for backlog in backlogs {
            let Unread { offsets, oldest_ms } = backlog.look(ANSWER_TIMEOUT)?;
            sum.offsets += offsets;
            sum.oldest_ms = [sum.oldest_ms, oldest_ms].into_iter().flatten().min();
        }
        Ok(sum)
    }

    /// Reads the newest dead letters of each reason; `None` while they can't be read.
    pub fn newest(&mut self, service: &Service) -> Option<NewestLetters> {
        if !self.is_known {
            return None;
        }
        let (_, backlogs) = self.backlogs.as_mut()?;
        let mut newest = NewestLetters { is_complete: true, ..NewestLetters::default() };
        for backlog in backlogs {
            let topic: Arc<str> = backlog.topic().into();
            match backlog.newest(READ_OFFSETS, READ_TIMEOUT) {
                Ok(found) => {
                    newest.is_complete &= found.is_complete;
                    newest.letters.extend(found.heads.into_iter().map(|head| letter(&topic, head)));
                    keep_newest(&mut newest.letters);
                }
                Err(why) => {
                    self.refuse(service, &why);
                    return None;
                }
            }
        }
        newest.read_ms = clock::since_epoch().as_millis() as u64;
        Some(newest)
    }

    /// Begins anew. The right to read dead letters is optional, so a refusal is told only once.
    fn refuse(&mut self, service: &Service, why: &AskError) {
        let (service, is_refused) = (&service.name, is_refusal(why));
        if is_refused && !self.warned {
            warn!(service, "the metrics of dead letters are missing: {why}");
        } else {
            debug!(service, "the brokers do not tell the dead letters: {why}");
        }
        let refused_until = is_refused.then(|| Instant::now() + REFUSED_INTERVAL);
        *self = DeadLetterWatch { refused_until, warned: self.warned || is_refused, ..DeadLetterWatch::default() };
    }
}

/// Keeps the newest letters of each reason, and sorts them by the time of the rejection: that of the record is its
/// producer's.
fn keep_newest(letters: &mut Vec<NewestLetter>) {
    letters.sort_by(|one, other| (other.rejected_at(), other.head.offset).cmp(&(one.rejected_at(), one.head.offset)));
    let mut shown: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    letters.retain(|letter| {
        let count = shown.entry(letter.reason).or_default();
        *count += 1;
        *count <= SHOWN
    });
}

fn letter(topic: &Arc<str>, head: LetterHead) -> NewestLetter {
    let name = head.header(headers::REASON);
    let reason = Reason::NAMES.iter().copied().find(|known| name == Some(*known));
    NewestLetter { topic: Arc::clone(topic), reason, head }
}

fn is_refusal(why: &AskError) -> bool {
    use AskError::{ForeignRecord, MissingTopic, RefusedGroup, RefusedTopic};
    matches!(why, RefusedGroup { .. } | RefusedTopic { .. } | MissingTopic { .. } | ForeignRecord { .. })
}

#[cfg(test)]
mod tests {
    use watermaster_kafka::dead_letters::HeaderHead;

    use super::*;

    fn head(offset: i64, headers: &[(&[u8], &str)]) -> LetterHead {
        let header = |(name, value): &(&[u8], &str)| HeaderHead {
            name: String::from_utf8_lossy(name).into_owned(),
            value: Some((*value).to_owned()),
            bytes: value.len(),
        };
        // A producer's own time says nothing about what is new.
        let timestamp_ms = i64::MAX - offset;
        let headers = headers.iter().map(header).collect();
        LetterHead { partition: 0, offset, timestamp_ms, headers, state: None }
    }

    #[test]
    fn the_newest_letters_of_each_reason_are_kept_the_newest_first() {
        let topic: Arc<str> = "dead".into();
        // A record that was rejected before has the header twice: the last one counts.
        let of = |reason: &str, second: i64| {
            let time = format!("2026-07-03T00:00:{second:02}.000Z");
            let names = [(headers::REASON, "anonymous"), (headers::REASON, reason), (headers::REJECTED_AT, &*time)];
            letter(&topic, head(second, &names))
        };
        let mut letters: Vec<_> = (0..20).map(|time| of("expired", time)).collect();
        letters.extend([of("held", 3), of("of another program", 30), letter(&topic, head(99, &[]))]);
        keep_newest(&mut letters);
        let found: Vec<_> = letters.iter().map(|letter| (letter.head.offset, letter.reason)).collect();
        let expired = (15..20).rev().map(|time| (time, Some("expired")));
        let last = [(3, Some("held")), (99, None)];
        assert_eq!(found, [(30, None)].into_iter().chain(expired).chain(last).collect::<Vec<_>>());
    }
}
