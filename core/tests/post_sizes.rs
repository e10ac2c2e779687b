//! The sizes of posts to the control topic, from which `docs/scaling.md` computes the traffic of a group.

use std::{sync::Arc, time::Duration};

use watermaster_core::group::GroupParams;
use watermaster_core::group::record::{Key, Load, Loads, Post, Record};
use watermaster_core::group::wire::encode;
use watermaster_core::policy::Policy;

/// The bytes that Kafka's log adds to a single record: the header of its batch (61), and the record's own fields.
const LOG_OVERHEAD: usize = 61 + 10;

/// Returns the bytes of a post in the log, if it names this many clients with ids of 16 characters.
fn post_size(clients: u64) -> usize {
    let params = GroupParams::new(&Policy::new(20_000, Duration::from_secs(10)), Duration::from_secs(10));
    let load = |n: u64| Load { demand: 200 + n % 800, wants: 200 + n % 700 };
    let loads: Loads = (0..clients).map(|n| (Arc::from(format!("client-{n:09}")), load(n))).collect();
    let post = Post {
        key: Key { instance: "watermaster-0".into(), incarnation: u64::MAX / 3 },
        terms: params.terms(),
        seq: 100_000,
        seen: 10_000_000,
        have: 10_000,
        want: 10_000,
        pace: 10_000,
        lease: params.lease,
        left: false,
        complete: false,
        loads,
        progress: None,
    };
    let (key, value) = encode(&Record::Post(post));
    LOG_OVERHEAD + key.len() + value.expect("a post has a value").len()
}

#[test]
fn posts_have_the_sizes_that_the_documents_name() {
    let sizes = [0, 10, 1_000, 10_000, 23_500].map(post_size);
    assert_eq!(sizes, [156, 366, 21_157, 210_157, 493_658]);
}
