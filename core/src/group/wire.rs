//! The control log's records as Kafka keys and values.
//!
//! A key is `s/<seat>` for a state and `l/<seat>` for loads: compaction keeps the last of each. A value is one byte for
//! the version of this format, then the record in postcard's format. A tombstone has no value.

use std::sync::Arc;

use super::state::{Load, SeatLoads, SeatRecord, State};

pub const VERSION: u8 = 1;

/// A record that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the key is not s/<seat> or l/<seat>")]
    Key,
    /// The record is a post of version 0.2, or a bound.
    #[error("version 0.2 wrote this record: name another topic in control_topic")]
    FormerVersion,
    #[error("format {found} is not known here (this program reads format {VERSION}); all instances need one version")]
    Version { found: u8 },
    /// The value is damaged, or is about another seat than the key.
    #[error("the value is damaged")]
    Value,
}

/// The key and the value of a record; no value for a tombstone.
///
/// # Panics
/// Never: memory takes any record.
pub fn encode(record: &SeatRecord) -> (String, Option<Vec<u8>>) {
    let (kind, seat, value) = match record {
        SeatRecord::State(state) => ('s', &state.seat, Some(postcard::to_extend(state, vec![VERSION]))),
        SeatRecord::Loads(loads) => ('l', &loads.seat, Some(postcard::to_extend(loads, vec![VERSION]))),
        SeatRecord::Tombstone(seat) => ('s', seat, None),
        SeatRecord::LoadsTombstone(seat) => ('l', seat, None),
    };
    (format!("{kind}/{seat}"), value.map(|value| value.expect("a vector takes any record")))
}

/// The bytes of a client's load in a record.
pub(super) fn load_bytes(name: &str, load: Load) -> usize {
    let number = |number: u64| (u64::BITS - number.leading_zeros()).div_ceil(7).max(1) as usize;
    name.len() + number(name.len() as u64) + number(load.demand) + number(load.wants)
}

/// Reads a record.
///
/// # Errors
/// The record is none of this format.
pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<SeatRecord, WireError> {
    let (kind, seat) = std::str::from_utf8(key).ok().and_then(|key| key.split_once('/')).ok_or(WireError::Key)?;
    let of_state = match kind {
        "s" => true,
        "l" => false,
        "p" | "b" => return Err(WireError::FormerVersion),
        _ => return Err(WireError::Key),
    };
    let seat: Arc<str> = Arc::from(seat);
    let Some(value) = value else {
        return Ok(if of_state { SeatRecord::Tombstone(seat) } else { SeatRecord::LoadsTombstone(seat) });
    };
    let rest = match value.split_first() {
        Some((&VERSION, rest)) => rest,
        Some((&found, _)) => return Err(WireError::Version { found }),
        None => return Err(WireError::Value),
    };
    let (about, record) = if of_state {
        let state: State = postcard::from_bytes(rest).map_err(|_| WireError::Value)?;
        (Arc::clone(&state.seat), SeatRecord::State(state))
    } else {
        let loads = loads(rest).map_err(|_| WireError::Value)?;
        (Arc::clone(&loads.seat), SeatRecord::Loads(loads))
    };
    if about == seat { Ok(record) } else { Err(WireError::Value) }
}

/// Reads loads. A build from before members told their rules ends them with the progress.
fn loads(bytes: &[u8]) -> Result<SeatLoads, postcard::Error> {
    let ((seat, loads, progress), rest) = postcard::take_from_bytes(bytes)?;
    let rules = if rest.is_empty() { 0 } else { postcard::from_bytes(rest)? };
    Ok(SeatLoads { seat, loads, progress, rules })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::state::{Move, Slice, StateKind, Terms};
    use crate::policy::Mode;

    fn state() -> State {
        let slices = vec![Slice { age_ms: -30_000, count: 5 }, Slice { age_ms: 150, count: 12 }];
        State {
            seat: "kyc/1".into(),
            issue: 0xA0,
            author: 0xB0,
            kind: StateKind::Own,
            seq: 3,
            hold: 100,
            slices: slices.clone(),
            ahead: 40,
            ahead_time_ms: 30_000,
            out: vec![Move { to: "kyc/2".into(), id: 1 << 16, hold: 7, slices }],
            next: (1 << 16) + 1,
            seen: [("".into(), 1)].into(),
            terms: Terms { capacity: 400, cycle_ms: 10_000, mode: Mode::Reject, digest: 7 },
        }
    }

    fn loads() -> SeatLoads {
        let loads = vec![("car".into(), Load { demand: 40, wants: 35 })];
        SeatLoads { seat: "kyc/1".into(), loads, progress: None, rules: 0 }
    }

    #[test]
    fn records_come_back_from_their_keys_and_values() {
        // Without the last byte, loads are those of a member that tells no rules.
        for (record, last) in [(SeatRecord::State(state()), 0), (SeatRecord::Loads(loads()), 1)] {
            let (key, value) = encode(&record);
            let value = value.expect("a value");
            assert_eq!(decode(key.as_bytes(), Some(&value)), Ok(record.clone()), "{key}");
            for length in 0..value.len() - last {
                assert!(decode(key.as_bytes(), Some(&value[..length])).is_err(), "{length} bytes of {key}");
            }
            let tombstone = match record {
                SeatRecord::State(_) => SeatRecord::Tombstone("kyc/1".into()),
                _ => SeatRecord::LoadsTombstone("kyc/1".into()),
            };
            assert_eq!(decode(key.as_bytes(), None), Ok(tombstone.clone()));
            assert_eq!(encode(&tombstone), (key, None));
        }
        assert_eq!(encode(&SeatRecord::State(state())).0, "s/kyc/1");
    }

    #[test]
    fn loads_of_a_build_from_before_members_told_their_rules_are_read() {
        let (key, value) = encode(&SeatRecord::Loads(SeatLoads { rules: 7, ..loads() }));
        let value = value.expect("a value");
        let read = decode(key.as_bytes(), Some(&value[..value.len() - 1]));
        assert_eq!(read, Ok(SeatRecord::Loads(loads())));
    }

    #[test]
    fn the_bytes_of_a_load_are_those_that_a_record_takes() {
        let bytes = |loads| encode(&SeatRecord::Loads(SeatLoads { loads, ..self::loads() })).1.expect("a value").len();
        for (length, demand, wants) in [(0, 0, 1), (1, 127, 128), (128, 1 << 40, u64::MAX), (127, 16_383, 16_384)] {
            let (name, load) = ("x".repeat(length), Load { demand, wants });
            let loads = vec![(name.as_str().into(), load)];
            assert_eq!(bytes(loads) - bytes(vec![]), load_bytes(&name, load), "{length} {load:?}");
        }
    }

    #[test]
    fn the_form_of_a_state_does_not_change() {
        let (_, value) = encode(&SeatRecord::State(state()));
        let expected = "01056b79632f31a001b00100036402dfd40305ac020c28b0ea0101056b79632f328080040702dfd40305ac020c\
             8180040100019003904e0107";
        assert_eq!(value.iter().flatten().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn a_record_of_another_version_is_named() {
        let (key, value) = encode(&SeatRecord::State(state()));
        let mut value = value.expect("a value");
        value[0] = 2;
        assert_eq!(decode(key.as_bytes(), Some(&value)), Err(WireError::Version { found: 2 }));
        assert_eq!(decode(b"q/kyc/1", Some(&value)), Err(WireError::Key));
        assert_eq!(decode(b"p/kyc/1", Some(&value)), Err(WireError::FormerVersion));
        value[0] = VERSION;
        assert_eq!(decode(b"s/kyc/2", Some(&value)), Err(WireError::Value));
    }
}
