//! `watermaster load`: sends a scenario to a running Watermaster's source topics and accounts for what came out.
//!
//! Open loop: when what is sent is fixed in advance by the seed (`schedule`). One thread sends (`send`), one reads target and
//! dead-letter topic (`watch`), and this one keeps the books (`account`) from what both tell it. At the end a `report`.

mod account;
mod lost;
mod plan;
mod profile;
mod progress;
pub mod report;
pub mod scenario;
mod schedule;
mod send;
mod series;
mod stamp;
mod watch;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::trial::signals::Interrupts;
use account::{Account, Again, Event};
use plan::Plan;
use progress::Progress;
use report::{Ended, Facts, Report};
use scenario::{Scenario, ScenarioErrors};
use send::{Player, Start};
use watch::Watch;
use watermaster_kafka::load::{LoadProducer, OpenError, find_topics};
use watermaster_settings::{Kafka, Service};

/// How long the brokers may take to answer at the start.
const REACH: Duration = Duration::from_secs(10);
/// So long nothing may come out until it is given up, or three cycles if they are longer: longer than a crashed instance can hold
/// back a `read_committed` reader.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether target and dead-letter topic are read.
    pub read_back: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The scenario does not fit the service.
    #[error(transparent)]
    Scenario(#[from] ScenarioErrors),
    /// Topics are missing, or no broker answers.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The machine refuses something.
    #[error("{0}")]
    Machine(String),
}

/// Plays a scenario at a service and tells what came of it. An interrupt ends sending, a second one the reading too.
///
/// # Errors
/// When it can't begin.
pub fn run(
    kafka: &Kafka,
    service: &Service,
    scenario: &Scenario,
    options: Options,
    interrupts: &Interrupts,
) -> Result<Report, Failure> {
    let plan = Plan::new(scenario, service)?;
    let sources: Vec<&str> = plan.clients.iter().map(|client| plan.topics[client.topic].as_str()).collect();
    find_topics(kafka, &sources, REACH)?;
    let watcher = if options.read_back { Some(watch::open(kafka, service, REACH)?) } else { None };

    let (events, told) = mpsc::channel();
    let delivered = events.clone();
    let producer = LoadProducer::new(kafka, move |delivery| {
        // Whoever keeps the books may have closed them.
        let _ = delivered.send(account_of(delivery));
    })
    .map_err(OpenError::from)?;
    let start = now().map_err(Failure::Machine)?;
    let run = format!("{:x}", start.epoch_us);
    let watch = watcher.map(|watcher| Watch::start(watcher, &run, start, events.clone()));
    let watch = watch.transpose().map_err(Failure::Machine)?;

    let mut books = Books::new(plan.clone(), service, options, start);
    let (order, orders) = mpsc::channel();
    let ended = std::thread::scope(|scope| {
        let player = Player::new(&plan, &run, start, producer, events);
        let player =
            std::thread::Builder::new().name("load".to_owned()).spawn_scoped(scope, move || player.play(&orders));
        let player = player.map_err(|error| Failure::Machine(format!("can't start a thread: {error}")))?;
        let ended = books.keep(&told, order, interrupts);
        if player.join().is_err() {
            return Err(Failure::Machine("the sending thread panicked".to_owned()));
        }
        Ok(ended)
    })?;
    if let Some(watch) = watch {
        watch.stop();
    }
    told.try_iter().for_each(|event| _ = books.account.apply(event));
    let mut account = books.account;
    let unknown = if options.read_back { lost::find(kafka, service, &mut account) } else { None };
    let facts = Facts {
        run,
        started_us: start.epoch_us,
        ended,
        sending: books.sending,
        total: start.instant.elapsed(),
        unknown,
    };
    Ok(Report::new(&account, kafka, service, facts))
}

fn account_of(delivery: watermaster_kafka::load::Delivery) -> Event {
    let number = delivery.number;
    match delivery.position {
        Ok(place) => Event::Delivered { number, place },
        Err(error) => Event::Undelivered { number, why: error.to_string() },
    }
}

fn now() -> Result<Start, String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| "the clock says it is before 1970")?;
    let epoch_us = u64::try_from(since_1970.as_micros()).map_err(|_| "the clock is far in the future")?;
    Ok(Start { instant: Instant::now(), epoch_us })
}

/// The books while the run goes on.
struct Books {
    account: Account,
    start: Start,
    read_back: bool,
    patience: Duration,
    progress: Progress,
    /// How long was sent.
    sending: Duration,
}

impl Books {
    fn new(plan: Plan, service: &Service, options: Options, start: Start) -> Books {
        let patience = PATIENCE.max(service.policy.cycle * 3);
        let progress = Progress::new(plan.length, options.read_back);
        let account = Account::new(plan);
        Books { account, start, read_back: options.read_back, patience, progress, sending: Duration::ZERO }
    }

    /// Enters what is told until all is accounted for, or it is given up. Dropping `order` stops the player.
    fn keep(&mut self, told: &Receiver<Event>, order: Sender<Again>, interrupts: &Interrupts) -> Ended {
        let mut order = Some(order);
        let mut due = 0_u64;
        let mut last_progress = Instant::now();
        let mut interrupted = false;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(event) => {
                    if !matches!(event, Event::Foreign { .. }) {
                        last_progress = Instant::now();
                    }
                    due -= u64::from(matches!(&event, Event::Sent(sent) if sent.attempt > 1));
                    if let (Some(again), Some(order)) = (self.account.apply(event), &order) {
                        due += u64::from(order.send(again).is_ok());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Nobody is left to tell anything.
                Err(RecvTimeoutError::Disconnected) => {
                    return Ended::of(interrupted, self.read_back, self.account.open());
                }
            }
            let now = self.start.instant.elapsed();
            self.progress.tell(now, &self.account);
            if order.is_some() && !self.account.is_played() {
                self.sending = now;
            }
            if interrupts.try_recv().is_ok() {
                if interrupted || !self.read_back {
                    return Ended::Interrupted;
                }
                eprintln!("interrupted: nothing more is sent; once more to stop reading too");
                (interrupted, order, due) = (true, None, 0);
            }
            let over = interrupted || (self.account.is_played() && due == 0);
            if over && (self.account.open() == 0 || !self.read_back) {
                return Ended::of(interrupted, self.read_back, 0);
            }
            if over && last_progress.elapsed() > self.patience {
                return Ended::of(interrupted, self.read_back, self.account.open());
            }
        }
    }
}

impl Ended {
    fn of(interrupted: bool, read_back: bool, open: u64) -> Ended {
        match (interrupted, read_back, open) {
            (true, ..) => Ended::Interrupted,
            (false, false, _) => Ended::NotReadBack,
            (false, true, 0) => Ended::AccountedFor,
            (false, true, _) => Ended::NoProgress,
        }
    }
}
