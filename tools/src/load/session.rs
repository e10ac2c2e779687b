//! A run in progress: one thread sends, one reads back, and the owner of the session keeps the account.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{io, thread::JoinHandle};

use watermaster_kafka::load::{Delivery, LoadProducer, OpenError, Watcher, find_topics};
use watermaster_settings::{Kafka, Service};

use super::account::{Account, Attempt, Event};
use super::send::{Player, Start};
use super::{plan::Plan, watch::Watch};

/// The time that the brokers may take to answer at the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time from the creation of the producer to the first record. A producer needs up to a second to connect, which
/// would count as a delay.
const LEAD: Duration = Duration::from_secs(1);

/// A run can't begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("can't start a thread")]
    Thread(#[from] io::Error),
    #[error("the clock is before 1970 or in the far future")]
    Clock,
    #[error("the sending thread panicked")]
    Panicked,
}

/// A run in progress.
pub struct Session {
    pub account: Account,
    /// The name of the run.
    pub run: String,
    pub start: Start,
    events: Receiver<Event>,
    /// The channel for retries; `None` once nothing more is to be sent.
    orders: Option<Sender<Attempt>>,
    /// Retries that were ordered and not sent yet.
    ordered: u64,
    player: JoinHandle<()>,
    watch: Option<Watch>,
}

impl Session {
    /// Starts to send a plan and, with `read_back`, to read the target and the dead-letter topic of the service.
    pub fn start(kafka: &Kafka, service: &Service, plan: Plan, read_back: bool) -> Result<Session, SessionError> {
        let sources: Vec<&str> = plan.clients.iter().map(|client| plan.topics[client.topic].as_str()).collect();
        find_topics(kafka, &sources, CONNECT_TIMEOUT)?;
        let outputs = [service.target.as_str(), &service.dead_letter];
        let watcher = read_back.then(|| Watcher::open(kafka, &outputs, CONNECT_TIMEOUT)).transpose()?;

        let (sender, events) = mpsc::channel();
        let delivered = sender.clone();
        let on_delivery = move |delivery| {
            // The account may be closed already.
            let _ = delivered.send(event_of(delivery));
        };
        let producer = LoadProducer::new(kafka, on_delivery).map_err(OpenError::from)?;
        let start = soon()?;
        let run = format!("{:x}", start.epoch_us);
        let watch = watcher.map(|watcher| Watch::start(watcher, run.clone(), start, sender.clone())).transpose()?;
        let (orders, ordered) = mpsc::channel();
        let (of_player, name) = (plan.clone(), run.clone());
        let play = move || Player::new(&of_player, &name, start, producer, sender).play(&ordered);
        let player = std::thread::Builder::new().name("load".to_owned()).spawn(play)?;
        let account = Account::new(plan);
        Ok(Session { account, run, start, events, orders: Some(orders), ordered: 0, player, watch })
    }

    /// Waits for an event, applies it to the account and orders the retry that follows from it.
    pub fn next_event(&mut self, limit: Duration) -> Result<Event, RecvTimeoutError> {
        let event = self.events.recv_timeout(limit)?;
        self.ordered -= u64::from(matches!(&event, Event::Sent(sent) if sent.attempt.number > 1));
        if let (Some(retry), Some(orders)) = (self.account.apply(&event), &self.orders) {
            self.ordered += u64::from(orders.send(retry).is_ok());
        }
        Ok(event)
    }

    /// Stops the sending at once.
    pub fn stop_sending(&mut self) {
        (self.orders, self.ordered) = (None, 0);
    }

    /// Reports whether records may still be sent.
    pub fn is_sending(&self) -> bool {
        self.orders.is_some() && (!self.account.played || self.ordered > 0)
    }

    /// Stops both threads and returns the account.
    pub fn finish(mut self) -> Result<Account, SessionError> {
        self.stop_sending();
        self.player.join().map_err(|_| SessionError::Panicked)?;
        if let Some(watch) = self.watch {
            watch.stop();
        }
        self.events.try_iter().for_each(|event| _ = self.account.apply(&event));
        Ok(self.account)
    }
}

fn event_of(Delivery { number, position }: Delivery) -> Event {
    match position {
        Ok(place) => Event::Delivered { number, place },
        Err(reason) => Event::Undelivered { number, reason: reason.to_string() },
    }
}

fn soon() -> Result<Start, SessionError> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| SessionError::Clock)?;
    let epoch_us = u64::try_from((since_1970 + LEAD).as_micros()).map_err(|_| SessionError::Clock)?;
    Ok(Start { instant: Instant::now() + LEAD, epoch_us })
}
