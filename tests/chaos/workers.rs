//! The protected service of a run with `--pace`: a consumer group that reads the target, and stops now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::plan::Plan;

/// The rate of the service in percent of the average load: enough for all that the instances may admit.
const RATE_PERCENT: u64 = 200;
const COMMIT_INTERVAL_MS: &str = "1000";
/// The service stands still for the first part of each period, so that pace has something to react to.
const PERIOD: Duration = Duration::from_secs(90);
const STANDSTILL: Duration = Duration::from_secs(6);
/// A service that was away catches up at most this much at once.
const MOST_CATCH_UP: Duration = Duration::from_millis(500);

/// The service; it ends when dropped.
pub struct Workers {
    stop: Arc<AtomicBool>,
    finished: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    pub fn start(plan: &Plan) -> Workers {
        let (stop, finished) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut config = plan.client();
        config.set("group.id", plan.workers()).set("auto.offset.reset", "earliest");
        config.set("isolation.level", "read_committed").set("auto.commit.interval.ms", COMMIT_INTERVAL_MS);
        let consumer: BaseConsumer = config.create().expect("the consumer configuration is valid");
        consumer.subscribe(&[&plan.target]).expect("the name of the target is valid");
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&finished));
        let pause = Duration::from_secs_f64(100.0 / (plan.rate * RATE_PERCENT) as f64);
        let thread = std::thread::spawn(move || work(&consumer, &stopped, &done, pause));
        Workers { stop, finished, thread: Some(thread) }
    }

    pub fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the thread was printed, and the count of finished records shows it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(consumer: &BaseConsumer, stop: &AtomicBool, finished: &AtomicU64, pause: Duration) {
    let (began, mut next) = (Instant::now(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let passed = began.elapsed();
        if passed > PERIOD && passed.as_millis() % PERIOD.as_millis() < STANDSTILL.as_millis() {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let Some(Ok(_)) = consumer.poll(Duration::from_millis(100)) else { continue };
        finished.fetch_add(1, Ordering::Relaxed);
        next = next.max(Instant::now().checked_sub(MOST_CATCH_UP).unwrap_or(next)) + pause;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
