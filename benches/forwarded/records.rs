//! The records that wait in the source.

use std::{error::Error, time::Duration};

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

/// Number of records: one full round.
pub const RECORDS: u64 = 10_000;
pub const SOURCE: &str = "source";
pub const PARTITIONS: i32 = 4;
/// Number of clients. A record has its client's id in a header and in the value.
const CLIENTS: u64 = 16;
/// Bytes of a value.
const VALUE_BYTES: usize = 256;

/// Sends all records to the source.
pub fn fill(broker: &str) -> Result<(), Box<dyn Error>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker).set("linger.ms", "20").set("compression.type", "lz4");
    // A fixed batch size gives the same batches in each run, each no larger than the engine's librdkafka would make it.
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
    let filler = (0..VALUE_BYTES - start.len() - 2).map(|n| char::from(b'a' + (n * 7 % 25) as u8));
    start.chars().chain(filler).chain("\"}".chars()).collect()
}
