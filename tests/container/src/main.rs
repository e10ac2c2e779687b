//! Runs one Kafka broker in a container. The program writes the broker's address into the file given as its argument,
//! and removes the container when stdin ends.

use std::io::Read;

use testcontainers_modules::kafka::apache::{KAFKA_PORT, Kafka};
use testcontainers_modules::{testcontainers::ImageExt, testcontainers::runners::AsyncRunner};

/// Kafka's version, equal to that of the jars (`scripts/kafka-jars`).
const VERSION: &str = "4.1.0";
const PROPERTIES: [(&str, &str); 11] = [
    ("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false"),
    ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
    ("KAFKA_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS", "6000"),
    ("KAFKA_GROUP_CONSUMER_SESSION_TIMEOUT_MS", "6000"),
    ("KAFKA_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS", "1000"),
    ("KAFKA_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS", "1000"),
    ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "4"),
    ("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1"),
    ("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1"),
    ("KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS", "4"),
    ("KAFKA_LOG_SEGMENT_BYTES", "104857600"),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address_file = std::env::args().nth(1).ok_or("usage: kafka_container ADDRESS_FILE")?;
    let image = Kafka::default().with_jvm_image().with_tag(VERSION);
    let image = PROPERTIES.iter().fold(image, |image, (name, value)| image.with_env_var(*name, *value));
    let container = image.start().await?;
    let port = container.get_host_port_ipv4(KAFKA_PORT).await?;
    std::fs::write(address_file, format!("127.0.0.1:{port}\n"))?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    container.rm().await?;
    Ok(())
}
