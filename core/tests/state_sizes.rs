//! The sizes of states and loads in the control topic, from which `docs/scaling.md` computes the traffic of a group.

use std::{sync::Arc, time::Duration};

use watermaster_core::group::GroupParams;
use watermaster_core::group::state::{Load, Move, SeatLoads, SeatRecord, Slice, State, StateKind};
use watermaster_core::group::wire::encode;
use watermaster_core::policy::Policy;

const CYCLE: Duration = Duration::from_secs(10);
/// The slices of a window that is evenly filled.
const SLICES: u64 = 64;
/// The bytes that Kafka's log adds to a transaction: the headers of its two batches (61 each), one of which is the
/// marker with its record (17).
const TRANSACTION: usize = 61 + 61 + 17;
/// The bytes of a record's own fields in a batch.
const FIELDS: usize = 10;

fn params() -> GroupParams {
    GroupParams::new(&Policy::new(20_000, CYCLE), Duration::from_secs(30), Duration::from_secs(6))
}

fn slices(count: u64) -> Vec<Slice> {
    let age_ms = |slice: u64| (slice * CYCLE.as_millis() as u64 / SLICES) as i64;
    (0..count).map(|slice| Slice { age_ms: age_ms(slice), count: 100 }).collect()
}

fn bytes(record: &SeatRecord) -> usize {
    let (key, value) = encode(record);
    FIELDS + key.len() + value.expect("no tombstone").len()
}

/// The bytes of a state in the log, in a transaction of its own, with this many slices and open moves.
fn state(own_slices: u64, moves: u64) -> usize {
    let open = |id| Move { to: "watermaster-1".into(), id: (1 << 32) + id, hold: 500, slices: Vec::new() };
    let state = State {
        seat: "watermaster-0".into(),
        issue: u64::MAX / 3,
        author: u64::MAX / 5,
        kind: StateKind::Own,
        seq: 100_000,
        hold: 10_000,
        slices: slices(own_slices),
        ahead: 500,
        ahead_time_ms: 30_000,
        out: (0..moves).map(open).collect(),
        next: (1 << 32) + moves,
        seen: Default::default(),
        terms: params().terms(),
    };
    TRANSACTION + bytes(&SeatRecord::State(state))
}

/// The bytes that loads of this many clients with ids of 16 characters add to a transaction.
fn loads(clients: u64) -> usize {
    let load = |n: u64| Load { demand: 200 + n % 800, wants: 200 + n % 700 };
    let loads = (0..clients).map(|n| (Arc::from(format!("client-{n:09}")), load(n))).collect();
    bytes(&SeatRecord::Loads(SeatLoads { seat: "watermaster-0".into(), loads, progress: None, rules: 0 }))
}

#[test]
fn states_and_loads_have_the_sizes_that_the_documents_name() {
    assert_eq!([state(0, 0), state(SLICES, 0), state(SLICES, 1)], [227, 429, 451]);
    assert_eq!([0, 10, 1_000, 10_000].map(loads), [43, 253, 21_044, 210_044]);
}
