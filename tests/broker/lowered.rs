//! A reload lowers a bound of the backlog far below the backlog, while a broker's quota slows the producer.

/// Takes minutes: 900 000 records are delayed, then rejected at 10 MB a second.
mod long {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use crate::rig::{Rig, TargetTime};
    use crate::support::producer::{Load, Outgoing, Producer};
    use crate::{
        support::config::Config, support::own_broker::OwnBroker, support::reader::read_each, support::record::Identity,
        support::wait::let_the_fault_last, support::watermaster::Watermaster,
    };

    const TOKEN: &str = "token-of-the-lowered-bound";
    const DELAYED: u64 = 900_000;
    const LOWERED: u64 = 1_000;
    const CAPACITY: u64 = 50;
    /// The broker's quota for the producer, in bytes per second.
    const QUOTA: &str = "producer_byte_rate=10000000";
    /// The rate of a second client, which stays within its share: 10 of 25 records a second.
    const QUIET_PER_SECOND: u64 = 10;
    /// The first record number of the second client.
    const QUIET: u64 = 10_000_000;
    /// A generous limit for reading the records, and for rejecting them.
    const TIMEOUT: Duration = Duration::from_secs(300);
    const READY_INTERVAL: Duration = Duration::from_millis(100);
    const MAX_NOT_READY: Duration = Duration::from_secs(5);

    fn config(rig: &Rig, queue_capacity: u64, token: &std::path::Path) -> Config {
        let shape =
            format!("[service.shape]\nqueue_capacity = {queue_capacity}\nqueue_bytes = \"2GiB\"\nmax_delay = \"1h\"\n");
        let mut config = rig.config(rig.service(CAPACITY, "1s", "client_from = [\"header:client-id\"]", &shape));
        // Without compression, the quota counts a record's real bytes.
        config.kafka = "delivery = \"exactly_once\"\n[kafka.properties]\n\"compression.type\" = \"none\"".to_owned();
        config.admin = format!("token_file = {:?}", token.display().to_string());
        config
    }

    /// Polls `/readyz` until `stop` is set; returns the longest time without a 200.
    fn longest_not_ready(watermaster: &Watermaster, stop: &AtomicBool) -> Duration {
        let (mut last_ready, mut longest) = (Instant::now(), Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            if watermaster.is_ready() {
                last_ready = Instant::now();
            } else {
                longest = longest.max(last_ready.elapsed());
            }
            let_the_fault_last(READY_INTERVAL);
        }
        longest
    }

    /// Returns the counter of admitted records of the clients with this label.
    fn admitted(watermaster: &Watermaster, client: &str) -> u64 {
        watermaster.metric("watermaster_records_total", &["decision=\"admitted\"", client]).unwrap_or(0.0) as u64
    }

    fn queue_full(watermaster: &Watermaster) -> u64 {
        watermaster.metric("watermaster_rejected_total", &["reason=\"queue_full\""]).unwrap_or(0.0) as u64
    }

    fn backlog(watermaster: &Watermaster) -> u64 {
        watermaster.metric("watermaster_backlog_records", &["client=\"one\""]).unwrap_or(0.0) as u64
    }

    fn resident_mib(watermaster: &Watermaster) -> u64 {
        watermaster.resident_kib() / 1024
    }

    /// The admissions while the excess is rejected.
    struct Drain {
        took: Duration,
        admitted: u64,
        /// The longest time without a new admission.
        longest_pause: Duration,
    }

    /// Probes until `probe` returns true; returns false after `timeout`.
    fn reaches(timeout: Duration, mut probe: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        while !probe() {
            if Instant::now() >= deadline {
                return false;
            }
            let_the_fault_last(Duration::from_millis(20));
        }
        true
    }

    /// Waits until all records are delayed or admitted; returns the number of delayed records.
    fn delay_all(watermaster: &Watermaster) -> u64 {
        let began = Instant::now();
        reaches(TIMEOUT, || backlog(watermaster) + admitted(watermaster, "client=\"one\"") >= DELAYED);
        let delayed = backlog(watermaster);
        eprintln!(
            "{delayed} records delayed after {:.1} s, {} MiB",
            began.elapsed().as_secs_f32(),
            resident_mib(watermaster)
        );
        delayed
    }

    /// Waits until as many records are rejected as the lower bound demands.
    fn drain(watermaster: &Watermaster) -> Drain {
        let (began, admitted_before) = (Instant::now(), admitted(watermaster, ""));
        let (mut last, mut last_rise, mut longest_pause) = (admitted_before, began, Duration::ZERO);
        reaches(TIMEOUT, || {
            let now = admitted(watermaster, "");
            if now > last {
                (last, last_rise) = (now, Instant::now());
            }
            longest_pause = longest_pause.max(last_rise.elapsed());
            queue_full(watermaster) + admitted(watermaster, "client=\"one\"") + LOWERED >= DELAYED
        });
        Drain { took: began.elapsed(), admitted: last - admitted_before, longest_pause }
    }

    #[test]
    #[ignore = "takes minutes and a Kafka of its own: scripts/test --long"]
    fn a_lowered_queue_capacity_rejects_the_excess_while_records_are_admitted() {
        let broker = OwnBroker::start();
        let rig = Rig::new(&broker, "lowered", 2, 4, TargetTime::Append);
        let client_id = format!("{}.only", rig.name);
        let quota = ["--alter", "--entity-type", "clients", "--entity-name", &client_id, "--add-config", QUOTA];
        broker.tool("kafka.admin.ConfigCommand", &quota);
        let token = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(token.path(), TOKEN).expect("the token is written");
        Producer::to(&broker).send_all((0..DELAYED).map(|n| Outgoing::numbered(&rig.sources[0], n, "one")));
        let mut watermaster = Watermaster::start(&config(&rig, 1_000_000, token.path()));
        let stop = AtomicBool::new(false);
        let (delayed, drain, quiet_sent, not_ready) = std::thread::scope(|scope| {
            let not_ready = scope.spawn(|| longest_not_ready(&watermaster, &stop));
            let delayed = delay_all(&watermaster);
            let source = rig.sources[1].clone();
            let quiet =
                Load::start(&broker, QUIET_PER_SECOND, move |n| Outgoing::numbered(&source, QUIET + n, "quiet"));
            let (status, body) = watermaster.reload(&config(&rig, LOWERED, token.path()).to_toml(), TOKEN);
            let drain = (status == 200).then(|| drain(&watermaster)).ok_or(body);
            let quiet_sent = quiet.stop();
            // The second client's records were delayed while rounds were; the two clients share the capacity.
            let caught_up = reaches(TIMEOUT, || admitted(&watermaster, "client=\"quiet\"") >= quiet_sent);
            // `stop` is set before any assertion: after a panic, this scope would wait for the other thread for ever.
            stop.store(true, Ordering::Relaxed);
            assert!(caught_up, "the second client's records are not admitted");
            let not_ready = not_ready.join().expect("the polling thread does not panic");
            (delayed, drain.expect("the reload is accepted"), quiet_sent, not_ready)
        });
        let rejected = queue_full(&watermaster);
        let Drain { took, admitted: meanwhile, longest_pause } = drain;
        let per_second = meanwhile as f32 / took.as_secs_f32();
        eprintln!(
            "{rejected} rejected in {took:.1?}; {meanwhile} admitted meanwhile ({per_second:.1}/s), none for \
             {longest_pause:.1?} at most; not ready for {not_ready:.1?} at most; {} MiB",
            resident_mib(&watermaster)
        );
        for line in watermaster.log().lines().filter(|line| line.contains("WARN") || line.contains("ERROR")) {
            eprintln!("{line}");
        }
        for outcome in ["committed", "aborted", "failed", "unknown"] {
            let rounds = watermaster.metric("watermaster_rounds_total", &[&format!("outcome=\"{outcome}\"")]);
            eprintln!("rounds {outcome}: {}", rounds.unwrap_or(0.0));
        }
        assert!(
            watermaster.log().contains("a quota of the broker delays its answers"),
            "the log does not tell of the quota"
        );
        assert_eq!(watermaster.terminate(Duration::from_secs(30)).code(), Some(0), "{}", watermaster.log());

        let mut target = std::collections::HashSet::new();
        read_each(&broker, &rig.target, |record| {
            let number = Identity::Value.of(&record).expect("a record of this test");
            assert!(target.insert(number), "record {number} was admitted twice");
        });
        let mut is_rejected = vec![false; DELAYED as usize];
        let mut count = 0;
        read_each(&broker, &rig.dead_letter, |record| {
            let number = Identity::Value.of(&record).expect("a record of this test");
            assert_eq!(record.header("throttle-reason"), Some("queue_full"));
            assert_eq!(record.header("throttle-client"), Some("one"));
            assert!(!std::mem::replace(&mut is_rejected[number as usize], true), "record {number} came twice");
            assert!(!target.contains(&number), "record {number} was admitted, too");
            count += 1;
        });
        let (of_one, of_quiet) = target.iter().partition::<Vec<u64>, _>(|number| **number < QUIET);
        eprintln!("{count} in the dead-letter topic, {} and {} in the target", of_one.len(), of_quiet.len());
        assert_eq!(of_quiet.len() as u64, quiet_sent);
        assert!(delayed >= DELAYED - DELAYED / 100, "only {delayed} records were delayed");
        // All records but the last ones are in one of the two topics.
        assert!(count + of_one.len() as u64 + LOWERED >= DELAYED, "{count} rejected");
        assert!(count <= delayed - LOWERED, "{count} rejected, more than the bound demands");
        assert!(not_ready <= MAX_NOT_READY, "not ready for {not_ready:?}");
        assert!(meanwhile > 0, "no record was admitted in {took:?}");
    }
}
