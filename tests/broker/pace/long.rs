//! The acceptance tests of the search: minutes each.

mod faults;

use super::*;
use crate::support::producer::Load;
use crate::support::promise::Promise;

const CEILING: u64 = 2_000;
const APPLY: &str = "control = \"apply\"\nfloor = 20\nceiling = 2000\n";

/// A service that takes 400 records a second, under a demand of 1 200.
struct World {
    rig: Rig,
    watermaster: Watermaster,
    workers: Workers,
    load: Load,
    /// Records of the loads before.
    sent: u64,
    began: Instant,
}

impl World {
    fn start(capacity: u64, keys: &str) -> World {
        World::on(&Broker::of_this_run(), capacity, keys, Duration::from_secs(1))
    }

    fn on(broker: &Broker, capacity: u64, keys: &str, commit_interval: Duration) -> World {
        let rig = Rig::new(broker, "pace", 1, 4, TargetTime::Append);
        let workers = Workers::start(&rig, 2, 400, commit_interval);
        let watermaster = start(&rig, capacity, &workers, keys);
        let load = campaign(&rig, 0);
        World { rig, watermaster, workers, load, sent: 0, began: Instant::now() }
    }

    fn figure(&self, name: &str) -> f64 {
        pace(&self.watermaster)[name].as_f64().unwrap_or(0.0)
    }

    /// Waits until the means of the found capacity over three times ten seconds are all within 10 % of `truth`.
    /// Returns the time until the first of them.
    fn wait_for(&self, truth: f64, timeout: Duration) -> Duration {
        let began = Instant::now();
        let mut last = Vec::new();
        while began.elapsed() < timeout {
            thread::sleep(Duration::from_millis(500));
            last.push(self.figure("found"));
            let mut means = last.rchunks(20).take(3).map(|ten| ten.iter().sum::<f64>() / 20.0);
            if last.len() >= 60 && means.all(|mean| (mean / truth - 1.0).abs() <= 0.1) {
                return began.elapsed() - Duration::from_secs(30);
            }
            if last.len() % 20 == 0 {
                eprintln!("{:4} s: {}", self.began.elapsed().as_secs(), pace(&self.watermaster));
            }
        }
        panic!("the capacity was not found in {timeout:?}: {}", pace(&self.watermaster));
    }

    /// The largest backlog of the service in this time, in seconds of its work.
    fn most_work(&self, rate: f64, time: Duration) -> f64 {
        let began = Instant::now();
        let mut most: f64 = 0.0;
        while began.elapsed() < time {
            thread::sleep(Duration::from_millis(250));
            most = most.max(self.figure("open_offsets") / rate);
        }
        most
    }

    /// The part of `rate` that was finished in this time.
    fn used(&self, rate: f64, time: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.workers.finished());
        while began.elapsed() < time {
            thread::sleep(Duration::from_secs(10).min(time));
            eprintln!("{:4} s: {}", self.began.elapsed().as_secs(), pace(&self.watermaster));
        }
        (self.workers.finished() - before) as f64 / rate / began.elapsed().as_secs_f64()
    }

    /// Stops everything, and checks the promise and that each record arrived once.
    fn finish(mut self) {
        let sent = self.sent + self.load.stop();
        assert_eq!(self.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
        self.workers.stop();
        let (target, rejected) = (self.rig.read_target(), self.rig.read_dead_letter());
        let promise = Promise {
            capacity: CEILING,
            cycle: Duration::from_secs(1),
            commit_interval: Duration::from_millis(100),
            burst_percent: 1,
        };
        let most = promise.most_in_any_window(&target);
        eprintln!("{sent} sent, {} in the target, most in any second {most}", target.len());
        assert!(most <= promise.bound(0), "{most} records in a window");
        let mut ids: Vec<_> = target.iter().map(|record| record.value.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), target.len(), "records are repeated");
        assert!(target.len() as u64 + rejected.len() as u64 <= sent);
    }
}

/// The workers commit the offset after their last record, and so never the marker of the transaction behind it: once
/// the target is still, that must not look like an open record.
#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn a_tail_of_markers_is_no_open_record() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "pace", 1, 1, TargetTime::Append);
    Producer::to(&broker).send_all((0..100).map(|n| Outgoing::numbered(&rig.sources[0], n, "one")));
    let mut workers = Workers::start(&rig, 1, 1_000, Duration::from_millis(200));
    workers.shared.degrades.store(false, Ordering::Relaxed);
    let (code, said) = check(&config(&rig, 1_000, &workers, ""));
    assert!(code == Some(0) && said.contains("has committed nothing in it"), "{said}");
    let mut watermaster = start(&rig, 1_000, &workers, "poll = \"200ms\"\n");
    wait_until("all records to be finished", DRAIN_TIMEOUT, || workers.finished() == 100);
    wait_until("the tails to be known as empty", DRAIN_TIMEOUT, || {
        let pace = pace(&watermaster);
        pace["signal_age_seconds"].is_number() && pace["open_offsets"] == 0 && pace["state"] != "no_signal"
    });
    let committed = rig_offsets(&rig, &workers.group);
    assert!(committed.iter().any(|(end, committed)| end > committed), "no partition ends with a marker: {committed:?}");
    workers.stop();
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
}

/// Sends 1 200 records a second of three clients, with numbers from `first` on.
fn campaign(rig: &Rig, first: u64) -> Load {
    let source = rig.sources[0].clone();
    let client = |n: u64| ["one", "two", "three"][n as usize % 3];
    Load::start(&rig.broker, 1_200, move |n| Outgoing::numbered(&source, first + n, client(n)))
}

/// The check knows the records of running instances, also those behind a delayed one, and leaves them out.
#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn the_check_names_other_writers_and_rare_commits() {
    let mut world = World::start(380, APPLY);
    world.used(400.0, Duration::from_secs(20));
    let asked = || {
        let (code, said) = check(&config(&world.rig, 380, &world.workers, APPLY));
        assert_eq!(code, Some(0), "{said}");
        (said.contains("committed nothing in it for 5s while records waited"), said)
    };
    let (is_rare, said) = asked();
    assert!(!is_rare && !said.contains("other programs"), "{said}");
    let target = world.rig.target.clone();
    let foreign = Load::start(&world.rig.broker, 120, move |n| Outgoing::numbered(&target, n, "foreign"));
    const OTHERS: &str = "other programs write about ";
    // On a busy machine the load may begin after the first look, or in the midst of it.
    let seen = (0..3).map(|_| asked()).filter(|(_, said)| said.contains(OTHERS)).nth(1);
    let (is_rare, said) = seen.expect("one look in three sees the other writer from its begin to its end");
    let rate = said.split(OTHERS).nth(1).and_then(|text| text.split(' ').next());
    let rate: f64 = rate.and_then(|rate| rate.parse().ok()).unwrap_or_else(|| panic!("no rate in {said}"));
    eprintln!("{rate} records of other writers per second");
    assert!(!is_rare && (60.0..=130.0).contains(&rate), "{said}");
    foreign.stop();
    world.workers.shared.paused.store(true, Ordering::Relaxed);
    thread::sleep(Duration::from_secs(1));
    let (is_rare, said) = asked();
    assert!(is_rare, "{said}");
    world.workers.shared.paused.store(false, Ordering::Relaxed);
    world.load.stop();
    assert_eq!(world.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
    world.workers.stop();
}

/// Asserts that the capacity of 400 a second is found in time, and used from then on.
fn assert_found(name: &str, world: World, timeout: Duration) {
    let found = world.wait_for(400.0, timeout);
    let used = world.used(400.0, Duration::from_secs(300));
    eprintln!("{name}: found after {:.0} s, then {used:.3} used", found.as_secs_f64());
    assert!(used >= 0.93, "{used}");
    world.finish();
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn the_capacity_is_found_from_below() {
    assert_found("from 100", World::start(100, APPLY), Duration::from_secs(150));
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn commits_each_five_seconds_suffice() {
    let world = World::on(&Broker::of_this_run(), 100, APPLY, Duration::from_secs(5));
    assert_found("commits each 5 s", world, Duration::from_secs(150));
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn the_capacity_is_found_from_above() {
    assert_found("from 1600", World::start(1_600, APPLY), Duration::from_secs(270));
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn a_capacity_that_is_halved_and_comes_back_is_followed() {
    let world = World::start(400, APPLY);
    world.used(400.0, Duration::from_secs(60));
    let open = world.figure("open_offsets") / 200.0;
    world.workers.shared.rate.store(200, Ordering::Relaxed);
    let added = world.most_work(200.0, Duration::from_secs(15)) - open;
    let found = world.wait_for(200.0, Duration::from_secs(105));
    eprintln!("halved: {added:.1} s of work were added to {open:.1}, found after {:.0} s", found.as_secs_f64() + 15.0);
    world.workers.shared.rate.store(400, Ordering::Relaxed);
    let back = world.wait_for(400.0, Duration::from_secs(210));
    eprintln!("back: found after {:.0} s", back.as_secs_f64());
    assert!(added <= 8.0, "{added} s of work");
    world.finish();
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn a_pause_of_the_service_changes_no_estimate() {
    let world = World::start(380, APPLY);
    world.used(400.0, Duration::from_secs(60));
    let before = world.figure("found");
    world.workers.shared.paused.store(true, Ordering::Relaxed);
    let work = world.most_work(400.0, Duration::from_secs(20));
    let after = world.figure("found");
    world.workers.shared.paused.store(false, Ordering::Relaxed);
    eprintln!("paused for 20 s: {before} before, {after} after, {work:.1} s of work at most");
    assert!((after / before - 1.0).abs() <= 0.02, "{before} before, {after} after");
    assert!(work <= 15.0, "{work} s of work");
    let used = world.used(400.0, Duration::from_secs(60));
    eprintln!("then {used:.3} used");
    world.finish();
}

/// Without records nothing is learned, and the markers at the ends of the partitions are not late.
#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn two_minutes_without_records_change_no_estimate() {
    let mut world = World::start(380, APPLY);
    world.used(400.0, Duration::from_secs(60));
    let none = Load::start(&world.rig.broker, 0, |_| unreachable!("no record is due"));
    world.sent = std::mem::replace(&mut world.load, none).stop();
    wait_until("the backlog to be finished", Duration::from_secs(300), || {
        world.figure("open_offsets") == 0.0 && pace(&world.watermaster)["state"] == "no_demand"
    });
    let found = world.figure("found");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(120) {
        thread::sleep(Duration::from_millis(500));
        let pace = pace(&world.watermaster);
        assert_eq!((pace["found"].as_f64(), pace["brake"].as_f64()), (Some(found), Some(1.0)), "{pace}");
    }
    world.load = campaign(&world.rig, world.sent);
    let used = world.used(400.0, Duration::from_secs(60));
    eprintln!(
        "found {found} before and after two minutes without records, then {used:.3} used: {}",
        pace(&world.watermaster)
    );
    assert!(used >= 0.9, "{used}");
    world.finish();
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn records_of_other_writers_are_subtracted() {
    let mut world = World::start(300, APPLY);
    world.wait_for(400.0, Duration::from_secs(180));
    let target = world.rig.target.clone();
    let foreign = Load::start(&world.rig.broker, 120, move |n| Outgoing::numbered(&target, n, "foreign"));
    let found = world.wait_for(280.0, Duration::from_secs(180));
    eprintln!("beside 120 records of another writer: found after {:.0} s", found.as_secs_f64());
    foreign.stop();
    world.load.stop();
    assert_eq!(world.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
    world.workers.stop();
}

/// The first instance searches, and the second one takes over its limit; once the first one is gone, the second
/// one searches on from there.
#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn a_group_has_one_search_which_moves_with_the_instances() {
    let mut world = World::start(200, APPLY);
    let mut settings = config(&world.rig, 200, &world.workers, APPLY);
    settings.instance = "second";
    let mut second = Watermaster::start(&settings);
    let capacity = |watermaster: &Watermaster| watermaster.service("kyc")["capacity"].as_f64().unwrap_or(0.0);
    world.wait_for(400.0, Duration::from_secs(150));
    let (first, other) = (capacity(&world.watermaster), capacity(&second));
    eprintln!("the limit is {first} at the first instance, {other} at the second: {}", pace(&second));
    assert_eq!(pace(&second)["state"], "not_alone");
    assert!((other / first - 1.0).abs() <= 0.3, "{first} and {other}");
    let used = world.used(400.0, Duration::from_secs(60));
    eprintln!("{used:.3} used with two instances");
    assert!(used >= 0.8, "{used}");
    assert_eq!(world.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
    wait_until("the second instance to search", DRAIN_TIMEOUT, || pace(&second)["state"] != "not_alone");
    let found = pace(&second);
    eprintln!("the second instance searches: {found}");
    assert!(found["found"].as_f64().unwrap_or(0.0) >= 200.0, "{found}");
    std::mem::swap(&mut world.watermaster, &mut second);
    let used = world.used(400.0, Duration::from_secs(60));
    eprintln!("{used:.3} used by the second instance alone");
    assert!(used >= 0.8, "{used}");
    world.finish();
}

/// Returns what the search finds in a campaign of a minute, with more keys of the service.
fn found_after_a_campaign(keys: &str) -> f64 {
    let rig = Rig::new(&Broker::of_this_run(), "pace", 1, 4, TargetTime::Append);
    let mut workers = Workers::start(&rig, 2, 400, Duration::from_secs(1));
    // A service that degrades would show the rate to which it had fallen.
    workers.shared.degrades.store(false, Ordering::Relaxed);
    let mut config = config(&rig, 1_000, &workers, "");
    config.services[0].keys.push_str(keys);
    let mut watermaster = Watermaster::start(&config);
    let source = rig.sources[0].clone();
    let send = |rate: u64, time: Duration| {
        let source = source.clone();
        let load = Load::start(&rig.broker, rate, move |n| Outgoing::numbered(&source, n, "one"));
        thread::sleep(time);
        load.stop();
    };
    send(200, Duration::from_secs(90));
    let before = pace(&watermaster);
    assert!(before["at_least"].as_bool() == Some(true), "{before}");
    send(1_200, Duration::from_secs(60));
    let found = pace(&watermaster);
    eprintln!("{keys}: before the campaign {before}, after it {found}");
    assert_eq!(found["at_least"], false, "{found}");
    workers.stop();
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
    found["found"].as_f64().unwrap_or(0.0)
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn a_search_that_only_observes_tells_the_capacity_after_a_campaign() {
    let found = found_after_a_campaign("");
    assert!((0.9..=1.1).contains(&(found / 400.0)), "{found}");
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn shadow_mode_tells_the_capacity_after_a_campaign() {
    let found = found_after_a_campaign("\nenforce = false");
    assert!((0.9..=1.1).contains(&(found / 400.0)), "{found}");
}
