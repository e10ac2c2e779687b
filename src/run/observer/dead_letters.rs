//! Follows the open dead letters of a service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use watermaster_kafka::ask::{AskError, Asker};
use watermaster_kafka::dead_letters::{Backlog, Unread};
use watermaster_settings::Service;

use super::{ANSWER_TIMEOUT, Client};

/// The interval between two questions that the brokers refuse, or cannot answer because the topic is missing.
const REFUSED_INTERVAL: Duration = Duration::from_secs(600);

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

fn is_refusal(why: &AskError) -> bool {
    use AskError::{ForeignRecord, MissingTopic, RefusedGroup, RefusedTopic};
    matches!(why, RefusedGroup { .. } | RefusedTopic { .. } | MissingTopic { .. } | ForeignRecord { .. })
}
