//! The stage with an engine that admits everything: what is sent is read, counted and accounted for.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::demo::setup::{CAPACITY, PARTITIONS, PRODUCTS};
use crate::snapshot::{ClientSnapshot, Counts};
use watermaster_kafka::probe::{TargetReader, TestProducer};

/// Reads the sources, hands each record on to the target and counts it.
fn admit_everything(start: EngineStart) -> Result<StopEngine, String> {
    let cell = start.cell;
    let counts: Arc<Mutex<BTreeMap<&str, u64>>> = Arc::default();
    let show = move |admitted: &BTreeMap<&str, u64>| {
        let client = |name: &str, admitted: u64| ClientSnapshot {
            name: name.into(),
            counts: Counts { admitted, ..Default::default() },
            ..Default::default()
        };
        cell.set(ServiceSnapshot {
            name: "kyc".to_owned(),
            capacity: CAPACITY,
            cycle_seconds: 1.0,
            ready: true,
            up: true,
            clients: admitted.iter().map(|(name, count)| client(name, *count)).collect(),
            ..Default::default()
        });
    };
    show(&BTreeMap::new());
    let show = Arc::new(show);
    let servers = start.kafka.bootstrap_servers;
    let producer = Arc::new(TestProducer::new(&servers).map_err(|error| error.to_string())?);
    let mut readers = Vec::new();
    for product in PRODUCTS {
        let (counts, show, producer) = (Arc::clone(&counts), Arc::clone(&show), Arc::clone(&producer));
        let on_arrival = move |_| {
            producer.send("kyc.requests", ("client-id", product), b"{}").unwrap();
            let mut counts = counts.lock().unwrap();
            *counts.entry(product).or_default() += 1;
            show(&counts);
        };
        let topic = setup::source_topic(product);
        readers.push(TargetReader::start(&servers, &topic, PARTITIONS, on_arrival).map_err(|e| e.to_string())?);
    }
    Ok(Box::new(move || {
        drop(readers);
        Ok(())
    }))
}

#[test]
fn everything_sent_is_read_and_accounted_for() {
    let service = setup::service(Mode::Shape, false);
    let broker = stage::broker(&service).unwrap();
    let servers = broker.bootstrap_servers();
    let cell = SnapshotCell::default();
    let reader = Reader::start(&servers, &service.target).unwrap();
    let stop = admit_everything(EngineStart {
        kafka: setup::kafka(&servers),
        service,
        cell: cell.clone(),
        heartbeat: Arc::new(Heartbeat::new(Instant::now(), READY_LIMIT)),
    });
    let options = Options { mode: Mode::Shape, observe: true, length: Duration::from_secs(2), output: Output::Json };
    let (_alive, interrupted) = mpsc::channel();
    let ending = tell(&options, &servers, &cell, &reader, &interrupted).unwrap();
    stop.unwrap()().unwrap();

    assert!(ending.settled);
    let clients = &ending.summary.services[0].clients;
    let expected = Scenario::new(options.length).schedule(SEED).count() as u64;
    assert_eq!(clients.iter().map(|client| client.sent).sum::<u64>(), expected);
    assert!(clients.iter().all(|client| client.sent == client.admitted && client.sent > 0));
    assert_eq!(reader.total(), expected);
}

#[test]
fn an_engine_that_can_not_start_is_an_error_in_words() {
    let cell = SnapshotCell::default();
    cell.set(ServiceSnapshot { trouble: Some("no such luck".to_owned()), ..Default::default() });
    let options = Options { mode: Mode::Shape, observe: false, length: Duration::from_secs(1), output: Output::Json };
    let broker = stage::broker(&setup::service(Mode::Shape, true)).unwrap();
    let servers = broker.bootstrap_servers();
    let reader = Reader::start(&servers, "kyc.requests").unwrap();
    let (_alive, interrupted) = mpsc::channel();
    let told = tell(&options, &servers, &cell, &reader, &interrupted);
    assert_eq!(told.err().as_deref(), Some("no such luck"));
}

#[test]
fn waiting_ends_when_it_is_so_or_somebody_interrupts() {
    let (interrupt, interrupted) = mpsc::channel();
    let looks = AtomicUsize::new(0);
    assert!(wait_for(READY_LIMIT, &interrupted, || looks.fetch_add(1, Ordering::Relaxed) == 2));
    assert!(!wait_for(Duration::ZERO, &interrupted, || false));
    interrupt.send(()).unwrap();
    assert!(!wait_for(READY_LIMIT, &interrupted, || false));
}
