//! What the demo throttles: one service, four products, a source topic each.

use std::collections::BTreeMap;
use std::time::Duration;

use watermaster_core::map::MapBudget;
use watermaster_core::policy::{CatchUp, ClientPolicy, Lending, Mode, Overflow, Policy, Window};
use watermaster_core::units::{Ratio, Weight};

use crate::settings::{
    ClientFrom, Delivery, Kafka, OnDataLoss, OnForeignOffset, OnUndeliverable, Service, Source, StartFrom,
};

/// The products, in the order of the tables.
pub const PRODUCTS: [&str; 4] = ["home-loan", "personal-loan", "car-loan", "credit-card"];
/// Records per cycle: 50 for each product.
pub const CAPACITY: u64 = 200;
/// Short enough that half a minute shows many of them.
pub const CYCLE: Duration = Duration::from_secs(1);
/// Partitions of each topic.
pub const PARTITIONS: i32 = 2;
/// The header that names the client.
pub const CLIENT_HEADER: &str = "client-id";

const COMMIT_INTERVAL: Duration = Duration::from_millis(100);

/// The source topic of a product.
pub fn source_topic(product: &str) -> String {
    format!("{product}.kyc")
}

/// The service that is protected.
pub fn service(mode: Mode, enforce: bool) -> Service {
    let sources = PRODUCTS.iter().map(|product| Source {
        topic: source_topic(product),
        client: None,
        allowed_clients: Some(vec![(*product).to_owned()]),
    });
    Service {
        name: "kyc".to_owned(),
        target: "kyc.requests".to_owned(),
        dead_letter: "kyc.dead-letter".to_owned(),
        on_undeliverable: OnUndeliverable::Stop,
        client_from: vec![ClientFrom::Header(CLIENT_HEADER.to_owned())],
        sources: sources.collect(),
        policy: policy(mode, enforce),
    }
}

fn policy(mode: Mode, enforce: bool) -> Policy {
    let client = |name: &&str| ClientPolicy { name: (*name).to_owned(), weight: Weight::ONE, limit: None };
    Policy {
        capacity: CAPACITY,
        cycle: CYCLE,
        reservation: Ratio::from_millionths(100_000).expect("0.1 is a ratio"),
        lending: Lending::Proportional,
        mode,
        enforce,
        window: Window::Sliding,
        catch_up: CatchUp::Delay,
        max_clients: 1_000,
        unlisted_weight: Weight::ONE,
        client_idle_timeout: Duration::from_secs(600),
        clients: PRODUCTS.iter().map(client).collect(),
        queue_capacity: 10_000,
        queue_bytes: 256 << 20,
        max_delay: Duration::from_secs(60),
        overflow: Overflow::DeadLetter,
        burst: Ratio::from_millionths(10_000).expect("0.01 is a ratio"),
        commit_interval: COMMIT_INTERVAL,
        map_budget: MapBudget::Chars(4_096),
    }
}

/// How to reach the embedded broker. At least once: its transactions can't be relied on.
pub fn kafka(bootstrap_servers: &str) -> Kafka {
    Kafka {
        bootstrap_servers: bootstrap_servers.to_owned(),
        group_id: "watermaster".to_owned(),
        instance_id: "demo".to_owned(),
        delivery: Delivery::AtLeastOnce,
        commit_interval: COMMIT_INTERVAL,
        start_from: StartFrom::Earliest,
        on_foreign_offset: OnForeignOffset::Stop,
        on_data_loss: OnDataLoss::Stop,
        properties: BTreeMap::new(),
    }
}
