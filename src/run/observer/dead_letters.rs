//! Follows the open dead letters of a service.

use std::cmp::Reverse;
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
/// The number of offsets of a topic that are read for them.
const READ_OFFSETS: i64 = 400;
/// The most headers that are kept of one, and the most bytes of each value.
const MAX_KEPT_HEADERS: usize = 64;
const MAX_KEPT_BYTES: usize = 500;

/// The dead letters of one service, and the client that looks at them now.
#[derive(Default)]
pub(super) struct DeadLetterWatch {
    backlogs: Option<(Arc<Asker>, Vec<Backlog>)>,
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
        match self.unread(client, service) {
            Ok(unread) => {
                self.warned = false;
                Some(unread)
            }
            Err(why) => {
                self.refuse(service, &why);
                None
            }
        }
    }

    fn unread(&mut self, client: &mut Client<'_>, service: &Service) -> Result<Unread, AskError> {
        let asker = client.get(service)?;
        let topics = service.dead_letters();
        let differ = |backlogs: &[Backlog]| !backlogs.iter().map(Backlog::topic).eq(topics.iter().copied());
        self.backlogs.take_if(|(its, backlogs)| !Arc::ptr_eq(its, &asker) || differ(backlogs));
        let (_, backlogs) = match &mut self.backlogs {
            Some(backlogs) => backlogs,
            none => {
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
        let (_, backlogs) = self.backlogs.as_mut()?;
        let mut letters: Vec<NewestLetter> = Vec::new();
        for backlog in backlogs {
            let topic: Arc<str> = backlog.topic().into();
            match backlog.newest(READ_OFFSETS, ANSWER_TIMEOUT) {
                Ok(heads) => letters.extend(heads.into_iter().map(|head| letter(&topic, head))),
                Err(why) => {
                    self.refuse(service, &why);
                    return None;
                }
            }
        }
        keep_newest(&mut letters);
        Some(NewestLetters { read_ms: clock::since_epoch().as_millis() as u64, letters })
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
        *self = DeadLetterWatch { backlogs: None, refused_until, warned: self.warned || is_refused };
    }
}

/// Keeps the newest letters of each reason, and sorts them.
fn keep_newest(letters: &mut Vec<NewestLetter>) {
    letters.sort_by_key(|letter| Reverse((letter.head.timestamp_ms, letter.head.offset)));
    let mut shown: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    letters.retain(|letter| {
        let count = shown.entry(letter.reason).or_default();
        *count += 1;
        *count <= SHOWN
    });
}

fn letter(topic: &Arc<str>, mut head: LetterHead) -> NewestLetter {
    let mut named = head.headers.iter().filter(|(name, _)| name == headers::REASON);
    let name = named.next_back().and_then(|(_, value)| value.clone());
    let reason = Reason::NAMES.iter().copied().find(|known| name.as_deref() == Some(known.as_bytes()));
    head.headers.truncate(MAX_KEPT_HEADERS);
    head.headers.iter_mut().filter_map(|(_, value)| value.as_mut()).for_each(|value| value.truncate(MAX_KEPT_BYTES));
    NewestLetter { topic: Arc::clone(topic), reason, head }
}

fn is_refusal(why: &AskError) -> bool {
    use AskError::{ForeignRecord, MissingTopic, RefusedGroup, RefusedTopic};
    matches!(why, RefusedGroup { .. } | RefusedTopic { .. } | MissingTopic { .. } | ForeignRecord { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(timestamp_ms: i64, headers: &[(&[u8], &[u8])]) -> LetterHead {
        let headers = headers.iter().map(|(name, value)| (name.to_vec(), Some(value.to_vec()))).collect();
        LetterHead { partition: 0, offset: timestamp_ms, timestamp_ms, headers, state: None }
    }

    #[test]
    fn the_newest_letters_of_each_reason_are_kept_the_newest_first() {
        let topic: Arc<str> = "dead".into();
        // A record that was rejected before has the header twice: the last one counts.
        let of = |reason: &[u8], time| {
            letter(&topic, head(time, &[(headers::REASON, b"anonymous"), (headers::REASON, reason)]))
        };
        let mut letters: Vec<_> = (0..20).map(|time| of(b"expired", time)).collect();
        letters.extend([of(b"held", 3), of(b"of another program", 30), letter(&topic, head(31, &[]))]);
        keep_newest(&mut letters);
        let found: Vec<_> = letters.iter().map(|letter| (letter.head.timestamp_ms, letter.reason)).collect();
        let expired = (15..20).rev().map(|time| (time, Some("expired")));
        let expected = [(31, None), (30, None)].into_iter().chain(expired).chain([(3, Some("held"))]);
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_letter_keeps_few_headers_and_few_bytes_of_each() {
        let long = [b'x'; 100_000];
        let many: Vec<(&[u8], &[u8])> = vec![(b"name", &long); 1_000];
        let kept = letter(&"dead".into(), head(0, &many)).head.headers;
        let bytes: usize = kept.iter().map(|(_, value)| value.as_ref().map_or(0, Vec::len)).sum();
        assert_eq!((kept.len(), bytes), (64, 64 * 500));
    }
}
