//! One run: topics, proxies' cluster, instances, generator and oracle, and who watches over them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use serde_json::Value;

use crate::children::Role;
use crate::cluster::{Cluster, NODES};
use crate::faults::Inflicted;
use crate::flow::Flow;
use crate::instances::{Fleet, Metrics};
use crate::journal::{Journal, Recovery};
use crate::plan::{DEAD_LETTER_PARTITIONS, Plan, TARGET_MAX_BYTES, TARGET_PARTITIONS, now_ms};
use crate::proxy::Proxy;

/// Places for instances that come and go, beyond those that stay.
const GUESTS: usize = 2;
/// How long it may take until records of every partition flow again: after an outage of all brokers those that are read
/// last stand behind the backlog of all others.
const RECOVERY: Duration = Duration::from_secs(240);
/// How long it may take until a backlog is worked off, before a fault that is to be alone.
const CALM: Duration = Duration::from_secs(45);
/// Instances whose backlog and lag stay the same for so long are at rest.
const STILL: Duration = Duration::from_secs(15);
/// What was in flight when a fault began does not count as flowing again.
const IN_FLIGHT: u64 = 1_000;

/// The cluster and its proxies, which outlive a run.
pub struct Site {
    pub cluster: Cluster,
    pub proxies: Vec<Arc<Proxy>>,
}

/// One run.
pub struct World {
    pub plan: Plan,
    pub site: Arc<Site>,
    pub fleet: Fleet,
    pub oracle: Role,
    pub generator: Role,
    pub journal: Journal,
    /// What the oracle sees while the run lasts.
    pub flow: Arc<Flow>,
    /// Instances that run all the time.
    pub staff: usize,
    /// Held for writing by faults that must be alone.
    pub alone: RwLock<()>,
    pub dir: PathBuf,
    /// How long it may take until records of every partition flow again, or until nothing is left to do.
    pub patience: Duration,
    watching: AtomicBool,
}

impl Site {
    /// Starts the cluster behind its proxies.
    pub fn start(dir: &Path) -> Result<Site, String> {
        let bound = [(); NODES].map(|()| Proxy::bind());
        let (cluster, took) = Cluster::start(dir, &bound.each_ref().map(|(proxy, _)| proxy.port))?;
        let serve = |(node, (proxy, listener)): (usize, (Arc<Proxy>, _))| {
            proxy.serve(listener, cluster.ports(node).behind_proxy);
            proxy
        };
        let proxies = bound.into_iter().enumerate().map(serve).collect();
        eprintln!("the cluster is up after {:.1} s: {}", took.as_secs_f32(), cluster.bootstrap());
        Ok(Site { cluster, proxies })
    }

    /// All brokers, through the proxies.
    pub fn proxied(&self) -> String {
        let addresses = self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Everything as it should be.
    pub fn heal(&self) {
        self.proxies.iter().for_each(|proxy| *proxy.rules() = Default::default());
        self.cluster.heal();
    }
}

impl World {
    /// Creates the topics and starts everything; ready when all instances are.
    pub fn start(plan: Plan, site: Arc<Site>, dir: &Path, staff: usize, plant: Option<&str>) -> Result<World, String> {
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        // A copy: another build would replace it under our feet.
        fs::copy(env!("CARGO_BIN_EXE_watermaster"), dir.join("watermaster")).map_err(|error| error.to_string())?;
        create_topics(&plan)?;
        site.cluster.wait_known(&plan.target, Duration::from_secs(30))?;
        let file = dir.join("plan.json");
        plan.write(&file);
        let environment = plant.map(|name| ("WATERMASTER_PLANT".to_owned(), name.to_owned())).into_iter().collect();
        let flow = Arc::new(Flow::default());
        let hears = Arc::clone(&flow);
        let world = World {
            fleet: Fleet::new(&plan, dir, &site.proxied(), staff + GUESTS, environment),
            oracle: Role::start("oracle", &file, dir, move |news| hears.hear(news)),
            generator: Role::start("generate", &file, dir, |_| {}),
            journal: Journal::new(dir),
            flow,
            watching: AtomicBool::new(true),
            alone: RwLock::new(()),
            dir: dir.to_owned(),
            patience: RECOVERY,
            plan,
            site,
            staff,
        };
        world.oracle.tell(&format!("instances {staff}"));
        (0..staff).for_each(|slot| world.fleet.start(slot));
        world.wait_ready(Duration::from_secs(60))?;
        match world.wait_flow(now_ms(), Duration::from_secs(60)) {
            // With a mistake in it, that is what there is to be found out.
            Err(why) if plant.is_some() => world.journal.anomaly("silent", format!("at first: {why}")),
            Err(why) => return Err(format!("nothing flows at first: {why}")),
            Ok(_) => {}
        }
        Ok(world)
    }

    /// Waits until every instance of the staff is ready.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), String> {
        let ready = || (0..self.staff).all(|slot| self.fleet.is_ready(slot));
        self.wait(timeout, ready).then_some(()).ok_or_else(|| {
            let laggards = (0..self.staff).filter(|slot| !self.fleet.is_ready(*slot));
            let words: Vec<String> = laggards.map(|slot| self.fleet.last_words(slot, 8)).collect();
            format!("instances are not ready after {timeout:?}:\n{}", words.join("\n--\n"))
        })
    }

    /// Probes until it is true, or the time is up.
    pub fn wait(&self, timeout: Duration, mut probe: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        while !probe() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        true
    }

    /// Waits until an output of every source partition was seen after this time (ms since 1970); when that was.
    pub fn wait_flow(&self, since: u64, timeout: Duration) -> Result<u64, String> {
        let partitions = self.plan.sources.iter().map(|source| source.partitions as usize).sum();
        let mut found = Err(Vec::new());
        self.wait(timeout, || {
            found = self.flow.of_all_after(since, partitions);
            found.is_ok()
        });
        found.map_err(|silent| format!("silent: {silent:?}"))
    }

    /// Waits until everything flows after a fault, and tells for how long it was felt.
    pub fn wait_recovery(&self, fault: &Inflicted) -> Result<Recovery, String> {
        let committed = fault.began + IN_FLIGHT;
        let flows = self.wait_flow(fault.ended.max(committed), self.patience)?;
        Ok(Recovery {
            first: self.flow.first_again(fault.began, &fault.partitions).map(|at| at - fault.began),
            silence: self.flow.longest_silence(fault.began),
            after_end: flows - fault.ended,
        })
    }

    /// Waits until nothing is left of the faults before: all are ready, and hold no more than what comes within a cycle. On a
    /// machine that is too slow for the load that never comes.
    pub fn wait_calm(&self) {
        let backlog = || self.fleet.all_metrics().values().map(Metrics::backlog).sum::<f64>();
        let usual = (self.plan.rate * self.plan.cycle_ms / 1000) as f64;
        self.wait(CALM, || {
            (0..self.staff).all(|slot| self.fleet.is_ready(slot)) && backlog() <= usual && self.site.cluster.is_whole()
        });
    }

    /// Watches over the instances until told to stop: one that ends by itself is an anomaly, and is started again.
    pub fn watch(&self) {
        let mut told = 0;
        while self.watching.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            let running = self.fleet.running().len();
            if running != std::mem::replace(&mut told, running) {
                self.oracle.tell(&format!("instances {running}"));
            }
            for slot in 0..self.fleet.len() {
                if self.fleet.slot(slot).claimed {
                    continue;
                }
                if let Some(status) = self.fleet.ended(slot) {
                    let words = self.fleet.last_words(slot, 6);
                    self.journal.anomaly("died", format!("instance {slot} ended by itself ({status}):\n{words}"));
                    self.fleet.start(slot);
                }
            }
        }
    }

    /// By decision time, as each instance counts it, none may have admitted more than its capacity in a window.
    pub fn check_windows(&self) {
        for (slot, metrics) in self.fleet.all_metrics() {
            let most = metrics.sum("watermaster_window_admitted_max_units", &[]);
            if most > self.plan.capacity as f64 {
                let capacity = self.plan.capacity;
                self.journal.anomaly("promise", format!("instance {slot} admitted {most} of {capacity} in a window"));
            }
        }
    }

    /// All faults are over: waits as long as everything may take to come to rest, then until nothing is left to do.
    pub fn quiet(&self) -> Result<(), String> {
        self.site.heal();
        self.site.cluster.wait_whole(Duration::from_secs(120))?;
        self.wait_ready(self.patience).unwrap_or_else(|why| self.journal.anomaly("silent", why));
        if let Err(why) = self.wait_flow(now_ms(), self.patience) {
            self.journal.anomaly("silent", format!("in the quiet phase: {why}"));
        }
        self.generator.tell("stop");
        let sent = self.generator.last_word("done", Duration::from_secs(150))?;
        eprintln!("generator: {sent}");
        let began = Instant::now();
        std::thread::sleep(self.plan.settling());
        self.wait_rest();
        let all = self.fleet.all_metrics();
        let sum = |name: &str| all.values().map(|metrics| metrics.sum(name, &[])).sum::<f64>();
        let (delayed, decided) = (sum("watermaster_delayed_total"), sum("watermaster_records_total"));
        let seconds = began.elapsed().as_secs_f32();
        self.journal
            .line(&format!("at rest {seconds:.0}s after the last record; {delayed} delays, {decided} decisions"));
        self.check_windows();
        self.watching.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until no instance has anything left to do, or nothing moves any more: whether that is right, the oracle says.
    fn wait_rest(&self) {
        let (mut before, mut moved) = (Vec::new(), Instant::now());
        let at_rest = self.wait(2 * self.patience, || {
            let all = self.fleet.all_metrics();
            let lag = |metrics: &Metrics| metrics.sum("watermaster_consumer_lag_records", &[]);
            let left: Vec<(f64, f64)> = all.values().map(|metrics| (metrics.backlog(), lag(metrics))).collect();
            if left != before {
                moved = Instant::now();
                before.clone_from(&left);
            }
            left.iter().all(|(backlog, lag)| backlog + lag == 0.0) || moved.elapsed() > STILL
        });
        if !at_rest || before.iter().any(|(backlog, _)| *backlog > 0.0) {
            self.journal.anomaly("silent", format!("backlog and lag of the instances at the end: {before:?}"));
        }
    }

    /// Ends the instances and asks the oracle.
    pub fn judge(&self) -> Result<Value, String> {
        self.watching.store(false, Ordering::Relaxed);
        for slot in self.fleet.running() {
            let status = self.fleet.terminate(slot, Duration::from_secs(20));
            if status.and_then(|status| status.code()) != Some(0) {
                let words = self.fleet.last_words(slot, 6);
                self.journal.anomaly("died", format!("instance {slot} ended with {status:?} when asked to:\n{words}"));
            }
        }
        // What brokers acknowledged was there to be read: it must not be for the oracle's want of looking that nothing is wrong.
        let acknowledged = self.generator.number("/acknowledged") + self.generator.number("/committed_records");
        self.oracle.tell(&format!("judge {acknowledged}"));
        let news = self.oracle.last_word("verdict", Duration::from_secs(300))?;
        Ok(news["verdict"].clone())
    }

    /// Ends what [`watch`](World::watch) does.
    pub fn stop_watching(&self) {
        self.watching.store(false, Ordering::Relaxed);
    }
}

pub fn create_topics(plan: &Plan) -> Result<(), String> {
    let target_max = TARGET_MAX_BYTES.to_string();
    let any_time = ("message.timestamp.after.max.ms", "9223372036854775807");
    let large = ("max.message.bytes", "4194304");
    let (compaction_lag, latest) = (plan.compaction_lag_ms.to_string(), (2 * plan.compaction_lag_ms).to_string());
    let mut topics = Vec::new();
    for source in &plan.sources {
        let topic = NewTopic::new(&source.name, source.partitions, TopicReplication::Fixed(3))
            .set(any_time.0, any_time.1)
            .set(large.0, large.1);
        topics.push(if source.compacted {
            // Small segments that are closed soon, so that the cleaner has work.
            topic
                .set("cleanup.policy", "compact")
                .set("segment.ms", "8000")
                .set("min.cleanable.dirty.ratio", "0.05")
                .set("delete.retention.ms", "2000")
                .set("min.compaction.lag.ms", &compaction_lag)
                .set("max.compaction.lag.ms", &latest)
        } else {
            topic
        });
    }
    let target = NewTopic::new(&plan.target, TARGET_PARTITIONS, TopicReplication::Fixed(3))
        .set("max.message.bytes", &target_max);
    topics.push(if plan.append_time {
        target.set("message.timestamp.type", "LogAppendTime")
    } else {
        // Refuses null keys, but nothing is cleaned while we look.
        target.set("cleanup.policy", "compact").set("min.compaction.lag.ms", "86400000")
    });
    let dead_letter = NewTopic::new(&plan.dead_letter, DEAD_LETTER_PARTITIONS, TopicReplication::Fixed(3));
    topics.push(dead_letter.set(any_time.0, any_time.1).set(large.0, large.1));
    let admin: AdminClient<DefaultClientContext> = plan.client().create().map_err(|error| error.to_string())?;
    let results = block_on(admin.create_topics(&topics, &admin_options())).map_err(|error| error.to_string())?;
    results.into_iter().try_for_each(|result| result.map(drop).map_err(|(name, code)| format!("{name}: {code}")))
}

pub fn admin_options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(20))).request_timeout(Some(Duration::from_secs(20)))
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}
