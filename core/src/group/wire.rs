//! The control log's records as Kafka keys and values.
//!
//! A key is `p/<instance>/<incarnation>` for a post and `b/<instance>/<incarnation>` for a bound, with the incarnation
//! as 16 hexadecimal digits: compaction keeps the last of each. A value is one byte for the version of this format,
//! then the record in postcard's format. A tombstone has no value.

use super::record::{Bound, Key, Load, Post, Progress, Record, Tombstone};

/// The version of the format.
pub const VERSION: u8 = 1;

/// A record that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The key has another form.
    #[error("the key is not p/<instance>/<incarnation> or b/<instance>/<incarnation>")]
    Key,
    /// The record was written by another version of the program.
    #[error("format {found} is not known here (this program reads format {VERSION}); all instances need one version")]
    Version {
        /// The version of the record.
        found: u8,
    },
    /// The value is damaged, or is about another member than the key.
    #[error("the value is damaged")]
    Value,
}

/// The key and the value of a record; no value for a tombstone.
///
/// # Panics
/// Never: memory takes any record.
pub fn encode(record: &Record) -> (String, Option<Vec<u8>>) {
    let value = match record {
        Record::Post(post) => Some(encode_post(post)),
        Record::Bound(bound) => Some(postcard::to_extend(bound, vec![VERSION])),
        Record::Tombstone(_) => None,
    };
    let kind = if record.is_of_post() { 'p' } else { 'b' };
    (format!("{kind}/{}", record.subject()), value.map(|value| value.expect("a vector takes any record")))
}

fn encode_post(post: &Post) -> postcard::Result<Vec<u8>> {
    let value = postcard::to_extend(post, vec![VERSION])?;
    match &post.progress {
        Some(progress) => postcard::to_extend(progress, value),
        None => Ok(value),
    }
}

/// The bytes of a client's load in a post.
pub fn load_bytes(name: &str, load: Load) -> usize {
    let number = |number: u64| (u64::BITS - number.leading_zeros()).div_ceil(7).max(1) as usize;
    name.len() + number(name.len() as u64) + number(load.demand) + number(load.wants)
}

/// Reads a post, and what follows it.
fn decode_post(value: &[u8]) -> postcard::Result<Post> {
    let (post, rest) = postcard::take_from_bytes::<Post>(value)?;
    let progress = if rest.is_empty() { None } else { Some(postcard::from_bytes::<Progress>(rest)?) };
    Ok(Post { progress, ..post })
}

/// Reads a record.
///
/// # Errors
/// The record is none of this format.
pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Record, WireError> {
    let (of_post, subject) = decode_key(key).ok_or(WireError::Key)?;
    let Some(value) = value else { return Ok(Record::Tombstone(Tombstone { subject, of_post })) };
    let rest = match value.split_first() {
        Some((&VERSION, rest)) => rest,
        Some((&found, _)) => return Err(WireError::Version { found }),
        None => return Err(WireError::Value),
    };
    let record = if of_post {
        Record::Post(decode_post(rest).map_err(|_| WireError::Value)?)
    } else {
        Record::Bound(postcard::from_bytes::<Bound>(rest).map_err(|_| WireError::Value)?)
    };
    if *record.subject() == subject { Ok(record) } else { Err(WireError::Value) }
}

fn decode_key(key: &[u8]) -> Option<(bool, Key)> {
    let (kind, member) = std::str::from_utf8(key).ok()?.split_once('/')?;
    let (instance, incarnation) = member.rsplit_once('/')?;
    let incarnation = u64::from_str_radix(incarnation, 16).ok()?;
    let is_post = match kind {
        "p" => true,
        "b" => false,
        _ => return None,
    };
    Some((is_post, Key { instance: instance.into(), incarnation }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::group::record::Terms;
    use crate::policy::Mode;

    fn post() -> Post {
        let loads = vec![("car".into(), Load { demand: 40, wants: 35 })];
        Post {
            key: Key { instance: "kyc/1".into(), incarnation: 0xA0 },
            terms: Terms { capacity: 400, cycle_ms: 10_000, mode: Mode::Reject, digest: 7 },
            seq: 3,
            seen: 1 << 40,
            have: 100,
            want: 150,
            pace: 181,
            lease: Duration::from_secs(10),
            left: false,
            complete: true,
            loads,
            progress: None,
        }
    }

    #[test]
    fn progress_follows_the_post_that_older_versions_read() {
        let progress = Some(Progress { admitted: 1 << 40, waits: true });
        let (key, value) = encode(&Record::Post(Post { progress, ..post() }));
        let (value, without) = (value.expect("a value"), encode(&Record::Post(post())).1.expect("a value"));
        assert_eq!(decode(key.as_bytes(), Some(&value)), Ok(Record::Post(Post { progress, ..post() })));
        assert!(value.starts_with(&without));
        assert_eq!(postcard::from_bytes(&value[1..]), Ok(post()), "an older version");
        assert_eq!(decode(key.as_bytes(), Some(&value[..value.len() - 1])), Err(WireError::Value));
    }

    #[test]
    fn the_bytes_of_a_load_are_those_that_a_post_takes() {
        let bytes = |loads| encode(&Record::Post(Post { loads, ..post() })).1.expect("a value").len();
        for (length, demand, wants) in [(0, 0, 1), (1, 127, 128), (128, 1 << 40, u64::MAX), (127, 16_383, 16_384)] {
            let (name, load) = ("x".repeat(length), Load { demand, wants });
            let loads = vec![(name.as_str().into(), load)];
            assert_eq!(bytes(loads) - bytes(vec![]), load_bytes(&name, load), "{length} {load:?}");
        }
    }

    #[test]
    fn records_come_back_from_their_keys_and_values() {
        let seqs = vec![3, 5];
        let bound = Bound { target: post().key, seqs, x: 12, stopped_for: Duration::from_millis(1_500) };
        for record in [Record::Post(post()), Record::Bound(bound)] {
            let (key, value) = encode(&record);
            let value = value.expect("a value");
            assert_eq!(decode(key.as_bytes(), Some(&value)), Ok(record.clone()), "{key}");
            let (subject, of_post) = (post().key, record.is_of_post());
            let tombstone = Record::Tombstone(Tombstone { subject, of_post });
            assert_eq!(decode(key.as_bytes(), None), Ok(tombstone.clone()));
            assert_eq!(encode(&tombstone), (key.clone(), None));
            for length in 0..value.len() {
                assert!(decode(key.as_bytes(), Some(&value[..length])).is_err(), "{length} bytes of {key}");
            }
        }
        assert_eq!(encode(&Record::Post(post())).0, "p/kyc/1/00000000000000a0");
    }

    #[test]
    fn the_form_of_a_post_does_not_change() {
        let (_, value) = encode(&Record::Post(post()));
        let expected = "01056b79632f31a0019003904e010703808080808020649601b5010a00000101036361722823";
        assert_eq!(value.iter().flatten().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn a_record_of_another_version_is_named() {
        let (key, value) = encode(&Record::Post(post()));
        let mut value = value.expect("a value");
        value[0] = 2;
        assert_eq!(decode(key.as_bytes(), Some(&value)), Err(WireError::Version { found: 2 }));
        assert_eq!(decode(b"q/kyc/1", Some(&value)), Err(WireError::Key));
        value[0] = VERSION;
        assert_eq!(decode(b"p/kyc/2/00000000000000a0", Some(&value)), Err(WireError::Value));
    }
}
