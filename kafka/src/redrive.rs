//! The header by which `run` knows a record that `dlq redrive` sent.
//!
//! Its value is text, with semicolons between the fields:
//!
//! 1. `v1`;
//! 2. the SHA-256 of the source topic, the key, the value and the headers before this one, in hexadecimal digits;
//! 3. the record's timestamp;
//! 4. the job, the topic, the partition and the offset of the dead letter, for people;
//! 5. the client that the record counts for;
//! 6. the HMAC-SHA256 of all that with the service's key, in hexadecimal digits.
//!
//! So only a program with the key can make one, and a copy is worth nothing on any other record. The code is checked
//! before the record is looked at: a forged header costs one HMAC of [`MAX_BYTES`] at most, whatever its record's size.

use openssl::{memcmp, sha::Sha256};
use watermaster_settings::token::{SharedToken, Token};
use watermaster_settings::{Service, Source};

use crate::dead_letters::{Header, Outgoing};
use crate::ffi::RawHeader;
use crate::headers::REDRIVE;
use crate::mac::{hex, hmac};
use crate::record::{Contents, Origin};

/// The longest value. The client has at most 128 bytes, the job 100, a topic 249.
pub const MAX_BYTES: usize = 1024;
/// The number of fields before the code; the client, which may have semicolons, is the last of them.
const FIELDS: usize = 8;
const VERSION: &str = "v1";

/// The dead letter from which a record is made, the job that sends it, and the client that it counts for.
#[derive(Debug, Clone, Copy)]
pub struct Ticket<'t> {
    pub job: &'t str,
    pub topic: &'t str,
    pub partition: i32,
    pub offset: i64,
    pub client: &'t str,
}

impl Ticket<'_> {
    /// Returns the last header of a record that is otherwise complete.
    pub fn seal(&self, key: &Token, record: &Outgoing) -> Header {
        let Ticket { job, topic, partition, offset, client } = self;
        let headers = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref()));
        let digest = digest(&record.topic, record.key.as_deref(), record.value.as_deref(), headers);
        let timestamp = record.timestamp_ms;
        let text = format!("{VERSION};{digest};{timestamp};{job};{topic};{partition};{offset};{client}");
        let code = hmac(key.bytes(), text.as_bytes()).expect("OpenSSL has HMAC-SHA256");
        (REDRIVE.to_vec(), Some(format!("{text};{}", hex(&code)).into_bytes()))
    }
}

/// Returns whether `dlq redrive` sent a record, which was read from `source`. It then counts for the service's
/// `redrive_client`, and goes on [`without its last header`](crate::record::Record::without_last_header), which says
/// so.
#[inline]
pub fn is_redriven(contents: &Contents<'_>, origin: Origin, service: &Service, source: &Source) -> bool {
    match contents.headers.last_one() {
        Some((REDRIVE, Some(seal))) => is_sealed(seal, contents, origin, service, source),
        _ => false,
    }
}

/// Returns whether this value of the last header was made for this record, with the key of the service.
#[cold]
fn is_sealed(seal: &[u8], contents: &Contents<'_>, origin: Origin, service: &Service, source: &Source) -> bool {
    let key = service.redrive_key.as_ref().filter(|_| seal.len() <= MAX_BYTES);
    let Some(key) = key.map(SharedToken::get) else { return false };
    let Some((text, code)) = std::str::from_utf8(seal).ok().and_then(|seal| seal.rsplit_once(';')) else {
        return false;
    };
    let fields: Vec<&str> = text.splitn(FIELDS, ';').collect();
    let [VERSION, sealed, timestamp, _, _, _, _, client] = fields[..] else { return false };
    if client != service.redrive_client || !hmac(key.bytes(), text.as_bytes()).is_ok_and(|right| is_code(code, &right))
    {
        return false;
    }
    is_time(timestamp, origin)
        && sealed == digest(&source.topic, contents.key, contents.value, contents.first_headers())
}

fn is_code(text: &str, right: &[u8]) -> bool {
    let right = hex(right);
    text.len() == right.len() && memcmp::eq(text.as_bytes(), right.as_bytes())
}

/// Returns whether a record that was sent with this timestamp has that of `origin`. The topic may set its own, and
/// librdkafka sends the present time for 0 and -1.
fn is_time(sent: &str, origin: Origin) -> bool {
    sent.parse::<i64>().is_ok_and(|sent| origin.append_time || sent <= 0 || sent == origin.timestamp_ms)
}

/// Returns the SHA-256 of all parts, each behind its length: no other record has the same.
fn digest<'r>(
    topic: &str, key: Option<&[u8]>, value: Option<&[u8]>, headers: impl Iterator<Item = RawHeader<'r>>,
) -> String {
    let mut sha = Sha256::new();
    let mut add = |part: Option<&[u8]>| {
        // No part has the length that stands for null.
        sha.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
        sha.update(part.unwrap_or_default());
    };
    [Some(topic.as_bytes()), key, value].into_iter().for_each(&mut add);
    for (name, value) in headers {
        add(Some(name));
        add(value);
    }
    hex(&sha.finish())
}

#[cfg(test)]
mod tests;
