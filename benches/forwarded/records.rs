//! What waits in the source.

use std::error::Error;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

use crate::engine::RECORDS;

pub const SOURCE: &str = "source";
pub const PARTITIONS: i32 = 4;
/// Who sends; their ids stand in a header and in the value.
const CLIENTS: u64 = 16;
/// Bytes of a value.
const BYTES: usize = 256;

/// Fills the source.
pub fn fill(broker: &str) -> Result<(), Box<dyn Error>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker).set("linger.ms", "20").set("compression.type", "lz4");
    // Batches of the same records in each run: no more than the librdkafka of the engine would make of them.
    config.set("batch.num.messages", "1000").set("queue.buffering.max.messages", RECORDS.to_string());
    let producer: ThreadedProducer<DefaultProducerContext> = config.create()?;
    for n in 0..RECORDS {
        let (key, client) = (n.to_string(), format!("client-{}", n % CLIENTS));
        let value = value(n, &client);
        let headers = OwnedHeaders::new().insert(Header { key: "client-id", value: Some(&client) });
        let partition = (n % PARTITIONS as u64) as i32;
        let record = BaseRecord::to(SOURCE).partition(partition).key(&key).payload(&value).headers(headers);
        producer.send(record).map_err(|(error, _)| error)?;
    }
    Ok(producer.flush(Duration::from_secs(60))?)
}

fn value(n: u64, client: &str) -> String {
    let start = format!(
        "{{\"amount\":{},\"currency\":\"EUR\",\"applicant\":{{\"name\":\"Ada Example\",\"city\":\"Köln\"}},\
         \"client\":{{\"id\":\"{client}\"}},\"note\":\"",
        n % 10_000
    );
    let filler = (0..BYTES - start.len() - 2).map(|n| char::from(b'a' + (n * 7 % 25) as u8));
    start.chars().chain(filler).chain("\"}".chars()).collect()
}
