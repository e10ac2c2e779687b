//! The parts of one run: topics, cluster, proxies, instances, generator, oracle, and the watch over the instances.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use std::{error::Error, fs};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use serde_json::Value;

use crate::cluster::{Cluster, NODES};
use crate::instances::{Fleet, Metrics};
use crate::journal::{Journal, Recovery};
use crate::plan::{DEAD_LETTER_PARTITIONS, Plan, TARGET_MAX_BYTES, TARGET_PARTITIONS, now_ms};
use crate::rules::{self, Author};
use crate::{children::Role, flow::Flow, outcome::Outcome, proxy::Proxy, workers::Workers};

/// Slots for temporary instances, in addition to the permanent ones.
const EXTRA_SLOTS: usize = 2;
/// Time after a fault by which records of every partition must flow again. After an outage of all brokers, the
/// partitions read last wait behind the backlog of all others.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(240);
/// Interval between two sums over the windows of all instances, and the age that an answer of an instance may have.
const SUM_INTERVAL: Duration = Duration::from_secs(1);
const MAX_SNAPSHOT_AGE_MS: u64 = 1_000;
/// Time for the backlog to drain before a fault, with `--one-at-a-time`.
const CALM_TIMEOUT: Duration = Duration::from_secs(45);
/// The instances count as idle when backlog and lag have not changed for this long.
const IDLE_TIME: Duration = Duration::from_secs(15);
/// Outputs within this time after the start of a fault may have been in flight, and do not count as recovery. In ms.
const IN_FLIGHT_MS: u64 = 1_000;

/// The cluster and its proxies, which are shared by all runs.
pub struct Site {
    pub cluster: Cluster,
    pub proxies: Vec<Arc<Proxy>>,
}

/// The parts of one run.
pub struct World {
    pub plan: Plan,
    pub site: Arc<Site>,
    pub fleet: Fleet,
    pub oracle: Role,
    pub generator: Role,
    /// The consumer group behind the target; only with `--pace`.
    workers: Option<Workers>,
    /// The author of rules; only with `--rules`.
    author: Option<Author>,
    pub journal: Journal,
    /// Output times that the oracle reports during the run.
    pub flow: Arc<Flow>,
    /// Number of instances that run all the time.
    pub permanent: usize,
    /// Locked for writing by faults that must not overlap with others.
    pub alone: RwLock<()>,
    pub dir: PathBuf,
    /// Time for records of every partition to flow again, and for the instances to become idle.
    pub recovery_timeout: Duration,
    watching: AtomicBool,
}

impl Site {
    /// Starts the cluster behind its proxies.
    pub fn start(dir: &Path) -> Result<Site, Box<dyn Error>> {
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

    /// Returns the addresses of all brokers, through the proxies.
    pub fn proxied(&self) -> String {
        let addresses = self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Removes all rules of the proxies, and starts and thaws all nodes.
    pub fn heal(&self) {
        self.proxies.iter().for_each(|proxy| *proxy.rules() = Default::default());
        self.cluster.heal();
    }
}

impl World {
    /// Creates the topics, starts all processes, and waits until all permanent instances are ready.
    pub fn start(
        plan: Plan, site: Arc<Site>, dir: &Path, permanent: usize, planted: Option<&str>,
    ) -> Result<World, Box<dyn Error>> {
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        // A copy, because a build during the run would replace the original.
        fs::copy(env!("CARGO_BIN_EXE_watermaster"), dir.join("watermaster"))?;
        create_topics(&plan)?;
        site.cluster.wait_known(&plan.target, Duration::from_secs(30))?;
        let file = dir.join("plan.json");
        plan.write(&file);
        fs::write(dir.join(rules::TOKEN_FILE), rules::TOKEN)?;
        let environment = planted.map(|name| ("WATERMASTER_PLANT".to_owned(), name.to_owned())).into_iter().collect();
        let flow = Arc::new(Flow::default());
        let listener = Arc::clone(&flow);
        let world = World {
            fleet: Fleet::new(&plan, dir, &site.proxied(), permanent + EXTRA_SLOTS, environment),
            oracle: Role::start("oracle", &file, dir, move |news| listener.add(news)),
            generator: Role::start("generate", &file, dir, |_| {}),
            workers: plan.pace.then(|| Workers::start(&plan)),
            author: plan.rules.then(Author::default),
            journal: Journal::new(dir),
            flow,
            watching: AtomicBool::new(true),
            alone: RwLock::new(()),
            dir: dir.to_owned(),
            recovery_timeout: RECOVERY_TIMEOUT,
            plan,
            site,
            permanent,
        };
        world.oracle.send(&format!("instances {permanent}"));
        (0..permanent).for_each(|slot| world.fleet.start(slot));
        world.wait_ready(Duration::from_secs(60))?;
        match world.wait_flow(now_ms(), Duration::from_secs(60)) {
            // With a planted fault this is an anomaly for the oracle's check, not a failure of the run.
            Err(why) if planted.is_some() => world.journal.anomaly("silent", format!("at the start: {why}")),
            Err(why) => return Err(format!("no flow at the start: {why}").into()),
            Ok(_) => {}
        }
        Ok(world)
    }

    /// Waits until every permanent instance is ready.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), Box<dyn Error>> {
        let ready = || (0..self.permanent).all(|slot| self.fleet.is_ready(slot));
        self.wait(timeout, ready).then_some(()).ok_or_else(|| {
            let laggards = (0..self.permanent).filter(|slot| !self.fleet.is_ready(*slot));
            let logs: Vec<String> = laggards.map(|slot| self.fleet.log_tail(slot, 8)).collect();
            format!("instances are not ready after {timeout:?}:\n{}", logs.join("\n--\n")).into()
        })
    }

    /// Probes until `probe` returns true; returns false after the timeout.
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

    /// Waits until an output of every source partition was seen after `since`; returns the time of the last of these
    /// first outputs. Times are in ms since 1970.
    pub fn wait_flow(&self, since: u64, timeout: Duration) -> Result<u64, Box<dyn Error>> {
        let partitions = self.plan.sources.iter().map(|source| source.partitions as usize).sum();
        let mut flowing = Err(Vec::new());
        self.wait(timeout, || {
            flowing = self.flow.of_all_after(since, partitions);
            flowing.is_ok()
        });
        flowing.map_err(|silent| format!("no output of partitions {silent:?}").into())
    }

    /// Waits until all partitions flow after a fault; returns how long the fault had an effect.
    pub fn wait_recovery(&self, fault: &Outcome) -> Result<Recovery, Box<dyn Error>> {
        let committed = fault.began + IN_FLIGHT_MS;
        let flows = self.wait_flow(fault.ended.max(committed), self.recovery_timeout)?;
        Ok(Recovery {
            first: self.flow.first_again(fault.began, &fault.partitions).map(|at| at - fault.began),
            silence: self.flow.longest_silence(fault.began),
            after_end: flows - fault.ended,
        })
    }

    /// Waits until the effects of earlier faults are over: all instances are ready, the cluster is whole, and the
    /// backlog is at most the load of a cycle. A machine that is too slow for the load never gets there, so the wait
    /// has a timeout.
    pub fn wait_calm(&self) {
        let backlog = || self.fleet.all_metrics().values().map(Metrics::backlog).sum::<f64>();
        let usual = (self.plan.rate * self.plan.cycle_ms / 1000) as f64;
        self.wait(CALM_TIMEOUT, || {
            (0..self.permanent).all(|slot| self.fleet.is_ready(slot))
                && backlog() <= usual
                && self.site.cluster.is_whole()
        });
    }

    /// Runs `work` while a thread watches over the instances.
    pub fn watched<T>(&self, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| self.watch());
            if let Some(author) = &self.author {
                scope.spawn(|| author.write(self));
            }
            // The guard also ends the watch if `work` panics: the scope waits for the thread.
            let _stop = StopWatching(self);
            work()
        })
    }

    /// Watches over the instances until the watch is stopped: an instance that ends by itself is an anomaly, and is
    /// restarted.
    fn watch(&self) {
        let mut reported = 0;
        let mut summed = Instant::now();
        while self.watching.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            if summed.elapsed() > SUM_INTERVAL && self.plan.grouped {
                self.check_sum_of_windows();
                self.check_circulating();
                summed = Instant::now();
            }
            let running = self.fleet.running().len();
            if running != std::mem::replace(&mut reported, running) {
                self.oracle.send(&format!("instances {running}"));
            }
            for slot in 0..self.fleet.len() {
                if self.fleet.slot(slot).claimed {
                    continue;
                }
                if let Some(status) = self.fleet.ended(slot) {
                    self.note_death(slot, status);
                    self.fleet.start(slot);
                }
            }
        }
    }

    /// Notes the anomaly of an instance that ended by itself.
    pub fn note_death(&self, slot: usize, status: ExitStatus) {
        let log = self.fleet.log_tail(slot, 6);
        self.journal.anomaly("died", format!("instance {slot} ended by itself ({status}):\n{log}"));
    }

    /// Checks by decision times that the windows of all instances together hold at most the capacity.
    ///
    /// The instances are asked one after the other, and each answers with a state that may be a second old. So a part
    /// of the capacity that moves meanwhile is seen twice: all of it, when instances that had left together come back
    /// and claim each other's seats (5 100 records were 2 550 twice). Records above the capacity stay in the windows
    /// for a cycle, so a second look tells. A window counts up to the hold, without which a member admits nothing.
    fn check_sum_of_windows(&self) {
        if self.excess_in_windows().is_some() {
            std::thread::sleep(Duration::from_millis(MAX_SNAPSHOT_AGE_MS));
            if let Some(excess) = self.excess_in_windows() {
                self.journal.anomaly("promise", excess);
            }
        }
    }

    /// Returns the sum of the windows and its parts if it is more than the capacity, and than what moved since then.
    fn excess_in_windows(&self) -> Option<String> {
        let asked = Instant::now();
        let metrics = self.fleet.current_metrics();
        let of = |metrics: &Metrics| {
            ["window_admitted", "group_hold"].map(|name| metrics.sum(&format!("watermaster_{name}_units"), &[]))
        };
        let parts: Vec<(usize, [f64; 2])> = metrics.iter().map(|(slot, metrics)| (*slot, of(metrics))).collect();
        let sum: f64 = parts.iter().map(|(_, [window, hold])| window.min(*hold)).sum();
        let moved = (asked.elapsed().as_millis() as u64 + MAX_SNAPSHOT_AGE_MS) as f64 / self.plan.cycle_ms as f64;
        let allowed = self.plan.capacity as f64 * (1.0 + moved);
        let text = || format!("{sum} records in all windows, {allowed} allowed; (instance, [window, hold]): {parts:?}");
        (sum > allowed).then(text)
    }

    /// Checks that no instance ever knows of more than the capacity: all holds, and all moves on their way.
    fn check_circulating(&self) {
        let path = format!("/v1/services/{}/group", self.plan.service);
        for slot in self.fleet.running() {
            let metrics = self.fleet.metrics(slot).sum("watermaster_group_circulating_units", &[]);
            let group = self.fleet.get(slot, &path).and_then(|(_, text)| serde_json::from_str::<Value>(&text).ok());
            let told = group.and_then(|group| group["circulating"].as_f64()).unwrap_or(0.0);
            if metrics.max(told) > self.plan.capacity as f64 {
                let text = format!("instance {slot}: {metrics} by its metrics, {told} by its page of the group");
                self.journal.anomaly("circulating", format!("{text}, the capacity is {}", self.plan.capacity));
            }
        }
    }

    /// Checks that no instance admitted more than its capacity in a window, by its own metrics of decision times.
    pub fn check_windows(&self) {
        for (slot, metrics) in self.fleet.all_metrics() {
            let max = metrics.sum("watermaster_window_admitted_max_units", &[]);
            if max > self.plan.capacity as f64 {
                let capacity = self.plan.capacity;
                self.journal.anomaly("promise", format!("instance {slot} admitted {max} of {capacity} in a window"));
            }
        }
    }

    /// Checks that pace has raised the limit, and that the service has worked.
    fn check_pace(&self) {
        let Some(workers) = &self.workers else { return };
        let all = self.fleet.all_metrics();
        let most = |name: &str| all.values().map(|metrics| metrics.sum(name, &[])).fold(0.0, f64::max);
        let (found, changes) = (most("watermaster_capacity_found_units"), most("watermaster_capacity_changes_total"));
        let text = format!("pace found {found} in {changes} changes; {} records finished", workers.finished());
        self.journal.line(&text);
        if found <= self.plan.start_capacity() as f64 || workers.finished() == 0 {
            self.journal
                .anomaly("pace", format!("the search did not rise from {}: {text}", self.plan.start_capacity()));
        }
    }

    /// Ends all faults, stops the generator, and waits until sessions and transactions have settled and no work is
    /// left.
    pub fn quiet(&self) -> Result<(), Box<dyn Error>> {
        self.site.heal();
        self.site.cluster.wait_whole(Duration::from_secs(120))?;
        self.wait_ready(self.recovery_timeout).unwrap_or_else(|why| self.journal.anomaly("silent", why.to_string()));
        self.author.iter().for_each(|author| author.end(self));
        if let Err(why) = self.wait_flow(now_ms(), self.recovery_timeout) {
            self.journal.anomaly("silent", format!("in the quiet phase: {why}"));
        }
        self.generator.send("stop");
        let sent = self.generator.wait_for_final("done", Duration::from_secs(150))?;
        eprintln!("generator: {sent}");
        let began = Instant::now();
        std::thread::sleep(self.plan.settling());
        self.wait_idle();
        let all = self.fleet.all_metrics();
        let sum = |name: &str| all.values().map(|metrics| metrics.sum(name, &[])).sum::<f64>();
        let (delayed, decided) = (sum("watermaster_delayed_total"), sum("watermaster_records_total"));
        let seconds = began.elapsed().as_secs_f32();
        self.journal.line(&format!("idle {seconds:.0}s after the last record; {delayed} delays, {decided} decisions"));
        self.check_windows();
        self.check_pace();
        self.watching.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until no instance has backlog or lag, or until these no longer change. The oracle judges the result.
    fn wait_idle(&self) {
        let (mut before, mut changed) = (Vec::new(), Instant::now());
        let idle = self.wait(2 * self.recovery_timeout, || {
            let all = self.fleet.all_metrics();
            let lag = |metrics: &Metrics| metrics.sum("watermaster_consumer_lag_records", &[]);
            let left: Vec<(f64, f64)> = all.values().map(|metrics| (metrics.backlog(), lag(metrics))).collect();
            if left != before {
                changed = Instant::now();
                before.clone_from(&left);
            }
            left.iter().all(|(backlog, lag)| backlog + lag == 0.0) || changed.elapsed() > IDLE_TIME
        });
        if !idle || before.iter().any(|(backlog, _)| *backlog > 0.0) {
            self.journal.anomaly("silent", format!("backlog and lag of the instances at the end: {before:?}"));
        }
    }

    /// Ends the instances and returns the oracle's verdict.
    pub fn judge(&self) -> Result<Value, Box<dyn Error>> {
        self.watching.store(false, Ordering::Relaxed);
        for slot in self.fleet.running() {
            let status = self.fleet.terminate(slot, Duration::from_secs(20));
            if status.and_then(|status| status.code()) != Some(0) {
                let log = self.fleet.log_tail(slot, 6);
                self.journal.anomaly("died", format!("instance {slot} ended with {status:?} after SIGTERM:\n{log}"));
            }
        }
        // The brokers acknowledged these records, so the oracle must have read them; otherwise its verdict could be
        // good only because it missed records.
        let acknowledged = self.generator.number("/acknowledged") + self.generator.number("/committed_records");
        self.oracle.send(&format!("judge {acknowledged}"));
        let news = self.oracle.wait_for_final("verdict", Duration::from_secs(300))?;
        Ok(news["verdict"].clone())
    }
}

/// Ends the watch when dropped.
struct StopWatching<'w>(&'w World);

impl Drop for StopWatching<'_> {
    fn drop(&mut self) {
        self.0.watching.store(false, Ordering::Relaxed);
        self.0.author.iter().for_each(Author::stop);
    }
}

pub fn create_topics(plan: &Plan) -> Result<(), Box<dyn Error>> {
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
            // Small segments that are closed soon give the cleaner work.
            topic
                .set("cleanup.policy", "compact")
                .set("segment.ms", "8000")
                .set("min.cleanable.dirty.ratio", "0.05")
                // Each replica deletes tombstones by itself. With 2 s, a leader that still had one followed a leader
                // that had none: the record appeared behind later ones of its client, which no consumer can prevent.
                .set("delete.retention.ms", "300000")
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
        // A compacted target refuses null keys; the lag keeps the cleaner away from records that the oracle reads.
        target.set("cleanup.policy", "compact").set("min.compaction.lag.ms", "86400000")
    });
    let dead_letter = NewTopic::new(&plan.dead_letter, DEAD_LETTER_PARTITIONS, TopicReplication::Fixed(3));
    topics.push(dead_letter.set(any_time.0, any_time.1).set(large.0, large.1));
    let admin: AdminClient<DefaultClientContext> = plan.client().create()?;
    let results = block_on(admin.create_topics(&topics, &admin_options()))?;
    results.into_iter().try_for_each(|result| result.map(drop).map_err(|(name, code)| format!("{name}: {code}").into()))
}

pub fn admin_options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(20))).request_timeout(Some(Duration::from_secs(20)))
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be started")
        .block_on(future)
}
