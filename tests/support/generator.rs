//! Generates records of every unusual shape that Kafka allows, from a seed.

use super::producer::Outgoing;
use super::record::{Header, Record};

/// The clients of the records; the last name has the maximal length of an id.
pub const CLIENTS: [&str; 6] = ["home-loan", "personal-loan", "car-loan", "credit-card", "кредит 🏦", LONGEST_ID];
const LONGEST_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\
                          0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The sequence of records of a seed.
#[derive(Debug, Clone)]
pub struct Generator {
    random: Random,
    topics: Vec<String>,
    partitions: i32,
    /// The timestamp of record 0. Record n has a timestamp n milliseconds later, which identifies it.
    first_timestamp: i64,
    next: i64,
}

impl Generator {
    pub fn new(seed: u64, topics: &[String], partitions: i32, first_timestamp: i64) -> Generator {
        Generator { random: Random(seed), topics: topics.to_vec(), partitions, first_timestamp, next: 0 }
    }

    fn key(&mut self) -> Option<Vec<u8>> {
        match self.random.below(100) {
            0..10 => None,
            10..14 => Some(Vec::new()),
            14..17 => Some(vec![0xc3, 0x28, self.random.below(256) as u8]),
            _ => Some(format!("account-{}", self.random.below(40)).into_bytes()),
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        match self.random.below(1000) {
            0..40 => None,
            40..80 => Some(Vec::new()),
            80 if self.next % 8 == 0 => Some(self.random.bytes(1 << 20)),
            81..200 => Some(format!("{{\"amount\":{},\"név\":\"ő\"}}", self.random.below(1_000_000)).into_bytes()),
            _ => {
                let length = self.random.below(400);
                Some(self.random.bytes(length as usize))
            }
        }
    }

    /// Returns the headers with the client's id: in most cases a single valid one.
    fn id_headers(&mut self) -> Vec<Header> {
        let client = CLIENTS[self.random.below(CLIENTS.len() as u64) as usize].as_bytes().to_vec();
        let id = |value: Option<Vec<u8>>| ("client-id".to_owned(), value);
        match self.random.below(100) {
            0..8 => vec![],
            8..10 => vec![id(None)],
            10..12 => vec![id(Some(Vec::new()))],
            12 => vec![id(Some(client.clone())), id(Some(client))],
            13 => vec![id(Some(vec![b'a', 0xff, 0xfe]))],
            14 => vec![id(Some(vec![b'x'; 129]))],
            _ => vec![id(Some(client))],
        }
    }

    fn other_headers(&mut self) -> Vec<Header> {
        let text = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        match self.random.below(100) {
            0..5 => vec![text("trace", "1"), ("trace".to_owned(), None), text("trace", ""), text("trace", "1")],
            5..8 => vec![text("név-名前", "ünïcode"), ("".to_owned(), Some(vec![0xff, 0x00, 0xfe]))],
            8 => (0..64).map(|n| (format!("h{}", n % 50), Some(self.random.bytes(n)))).collect(),
            9 => vec![text("throttle-reason", "over_allocation"), text("throttle-attempt", "3"), text("after", "x")],
            10..30 => vec![text("content-type", "application/json")],
            _ => vec![],
        }
    }
}

impl Iterator for Generator {
    type Item = Outgoing;

    fn next(&mut self) -> Option<Outgoing> {
        let mut headers = self.other_headers();
        // The client's header is not always the first one.
        let place = self.random.below(headers.len() as u64 + 1) as usize;
        headers.splice(place..place, self.id_headers());
        let outgoing = Outgoing {
            topic: self.topics[self.random.below(self.topics.len() as u64) as usize].clone(),
            partition: Some(self.random.below(self.partitions as u64) as i32),
            timestamp: Some(self.first_timestamp + self.next),
            key: self.key(),
            value: self.value(),
            headers,
        };
        self.next += 1;
        Some(outgoing)
    }
}

/// Returns the client of a generated record under `client_from = ["header:client-id", "key", "topic"]`; `None` if the
/// record is anonymous.
///
/// `topic_client` is the client of the record's source.
pub fn client_of<'a>(record: &'a Record, topic_client: &'a str) -> Option<&'a str> {
    let mut ids = record.headers_named("client-id");
    let first = ids.next().flatten().unwrap_or_default();
    if ids.next().is_some() {
        return None;
    }
    let key = record.key.as_deref().unwrap_or_default();
    let id = [first, key, topic_client.as_bytes()].into_iter().find(|id| !id.is_empty())?;
    if id.len() > 128 { None } else { std::str::from_utf8(id).ok() }
}

/// A generator of seeded random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns random bytes of this length.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}
