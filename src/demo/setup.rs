//! What the demo throttles: one service, four products, a source topic each, as `config/demo.toml` says.

use std::path::Path;
use std::time::Duration;

use watermaster_core::policy::Mode;

use watermaster_settings::config::Config;
use watermaster_settings::{Kafka, Service};

/// The products, in the order of the tables.
pub const PRODUCTS: [&str; 4] = ["home-loan", "personal-loan", "car-loan", "credit-card"];
/// The product with the campaign: it alone sends far more than its share.
pub const CAMPAIGN: &str = "credit-card";
/// Records per cycle: 50 for each product.
pub const CAPACITY: u64 = 200;
/// The default share of each product: their weights are equal.
pub const SHARE: u64 = CAPACITY / PRODUCTS.len() as u64;
/// Short enough that half a minute shows many of them.
pub const CYCLE: Duration = Duration::from_secs(1);
/// Partitions of each topic.
pub const PARTITIONS: i32 = 2;
/// The header that names the client.
pub const CLIENT_HEADER: &str = "client-id";

/// The source topic of a product.
pub fn source_topic(product: &str) -> String {
    format!("{product}.kyc")
}

/// The demo's configuration; nothing in the environment changes it.
pub fn config() -> Config {
    let parsed = Config::parse(
        include_str!("../../config/demo.toml"),
        Path::new("config/demo.toml"),
        [],
        watermaster_kafka::PROPERTY_RULES,
    );
    parsed.unwrap_or_else(|errors| panic!("the demo's configuration is tested: {errors}"))
}

/// The service that is protected.
pub fn service(mode: Mode, enforce: bool) -> Service {
    let mut service = config().settings.services.remove(0);
    (service.policy.mode, service.policy.enforce) = (mode, enforce);
    service
}

/// How to reach the embedded broker.
pub fn kafka(bootstrap_servers: &str) -> Kafka {
    Kafka { bootstrap_servers: bootstrap_servers.to_owned(), ..config().settings.kafka }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenario_and_the_configuration_speak_of_the_same_service() {
        let service = service(Mode::Shape, true);
        assert_eq!((service.policy.capacity, service.policy.cycle), (CAPACITY, CYCLE));
        let topics: Vec<_> = service.sources.iter().map(|source| source.topic.clone()).collect();
        assert_eq!(topics, PRODUCTS.map(source_topic));
        let clients: Vec<_> = service.policy.clients.iter().map(|client| client.name.as_str()).collect();
        assert!(PRODUCTS.iter().all(|product| clients.contains(product)));
        assert!(service.policy.clients.windows(2).all(|pair| pair[0].weight == pair[1].weight));
    }
}
