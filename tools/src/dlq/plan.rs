//! The fate of each dead letter in a redrive: sent again, or parked with a reason.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use watermaster_kafka::dead_letters::{Header, Letter, Outgoing};
use watermaster_kafka::{headers, redrive::Ticket};
use watermaster_settings::{Service, token::Token};

use super::origin::{Origin, Writer};

/// The reason for which a dead letter is parked instead of being sent again. `throttle-parked` states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Parked {
    /// The record was rejected `--max-attempts` times.
    MaxAttempts,
    /// No header names the origin.
    NoOrigin,
    /// The origin is no source of the service.
    UnknownSource,
    /// The source topic does not keep the original of a stub any more.
    OriginalGone,
    /// The topic to which it would go refuses it for good.
    Refused,
}

/// The topics to which dead letters go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// The topic it came from: it is throttled like any other record
    Source,
    /// The target of its source, past the throttler
    Target,
}

/// The rules of a redrive.
pub struct FateRules<'s> {
    pub service: &'s Service,
    /// The other services with the same dead-letter topic.
    pub others: Vec<&'s str>,
    pub to: Destination,
    /// `None` if there is no such limit.
    pub max_attempts: Option<u64>,
    /// The key of the header by which records count for the redrive's client; `None` if it is left out.
    pub key: Option<Token>,
    /// The job, and the topic of its dead letters, which that header names.
    pub job: &'s str,
    pub topic: &'s str,
    /// The topic for dead letters that are not sent again.
    pub parked: String,
    /// The names of the headers that the service writes beside its own.
    pub beside: &'static [&'static [u8]],
}

/// The fate of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Send(Outgoing),
    Park(Parked),
    /// To be decided when the original has been read.
    NeedsOriginal,
}

impl FateRules<'_> {
    /// Decides on a dead letter. `original` is the answer to [`Fate::NeedsOriginal`].
    pub fn fate(&self, letter: &Letter, origin: Option<&Origin>, original: Option<Option<&Letter>>) -> Fate {
        let Some(origin) = origin else { return Fate::Park(Parked::NoOrigin) };
        if self.max_attempts.is_some_and(|max| origin.attempt >= max) {
            return Fate::Park(Parked::MaxAttempts);
        }
        let topic = self.destination(origin).filter(|_| !self.is_of_other(letter));
        let Some(topic) = topic else { return Fate::Park(Parked::UnknownSource) };
        if !origin.is_stub {
            let timestamp_ms = origin.timestamp_ms.unwrap_or(letter.timestamp_ms);
            let first = origin.first_headers(letter, self.beside);
            return self.send(letter, origin, topic, (letter, first, timestamp_ms));
        }
        match original {
            None => Fate::NeedsOriginal,
            Some(Some(original)) if is_original(original, letter, origin) => {
                let own = |name: &[u8]| headers::ALL.contains(&name);
                let first = original.headers.iter().filter(|(name, _)| !own(name)).cloned().collect();
                self.send(letter, origin, topic, (original, first, original.timestamp_ms))
            }
            Some(_) => Fate::Park(Parked::OriginalGone),
        }
    }

    /// Returns the topic to which the record goes; `None` if that depends on a source that the service does not have.
    fn destination(&self, origin: &Origin) -> Option<&str> {
        let source = self.service.sources.iter().find(|source| source.topic == origin.topic);
        match (self.to, &self.service.targets()[..]) {
            (Destination::Source, _) => source.map(|source| &*source.topic),
            (Destination::Target, [only]) => Some(*only),
            (Destination::Target, _) => source.map(|source| &*source.target),
        }
    }

    /// Returns whether another service rejected the record: the target of this one is not for it.
    fn is_of_other(&self, letter: &Letter) -> bool {
        let service = letter.headers.iter().rev().find(|(name, _)| name == headers::SERVICE);
        let name = service.and_then(|(_, value)| value.as_deref());
        self.others.iter().any(|other| name == Some(other.as_bytes()))
    }

    /// Sends the record of a dead letter with its first headers and time.
    fn send(
        &self, letter: &Letter, origin: &Origin, topic: &str,
        (record, mut headers, timestamp_ms): (&Letter, Vec<Header>, i64),
    ) -> Fate {
        headers.push((headers::ATTEMPT.to_vec(), Some(origin.attempt.to_string().into_bytes())));
        let (key, value) = (record.key.clone(), record.value.clone());
        let mut outgoing = Outgoing { topic: topic.to_owned(), key, value, headers, timestamp_ms };
        if let Some(key) = &self.key {
            let Letter { partition, offset, .. } = *letter;
            let Service { redrive_client: client, .. } = self.service;
            let ticket = Ticket { job: self.job, topic: self.topic, partition, offset, client };
            // The throttler looks for it at the end.
            let seal = ticket.seal(key, &outgoing);
            outgoing.headers.push(seal);
        }
        Fate::Send(outgoing)
    }

    /// Returns the record for the parking topic.
    pub fn park(&self, letter: &Letter, why: Parked) -> Outgoing {
        let mut headers: Vec<Header> =
            letter.headers.iter().filter(|(name, _)| name != headers::PARKED).cloned().collect();
        headers.push((headers::PARKED.to_vec(), Some(<&str>::from(why).as_bytes().to_vec())));
        let Letter { key, value, timestamp_ms, .. } = letter.clone();
        Outgoing { topic: self.parked.clone(), key, value, headers, timestamp_ms }
    }
}

/// Returns whether the record at the origin is the one that the stub stands for. A topic that was deleted and made anew
/// has other records at the same offsets.
fn is_original(original: &Letter, stub: &Letter, origin: &Origin) -> bool {
    let same_time = origin.timestamp_ms.is_none_or(|time| time == original.timestamp_ms);
    let same_key = stub.key.is_none() || origin.writer != Writer::Watermaster || stub.key == original.key;
    same_time && same_key
}

#[cfg(test)]
mod tests;
