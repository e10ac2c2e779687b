//! One look at each service in a second, for the pages that follow it and for those that come later.
//!
//! The text of an event is made once, however many pages there are. The samples of the last 15 minutes are kept as text
//! too, in a bounded number of bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use watermaster_api::{DeadLettersView, DecisionsView, DemandView, LoanView, SampleView, ServiceNow, WaitView};

use crate::admin::view;
use crate::snapshot::ClientSnapshot;
use crate::{clock, reload::Configuration, services::ServiceHandle, shared::Shared};

/// The most pages that follow the events of a service, of all services together.
pub(in crate::admin) const MAX_PAGES: usize = 32;
/// The number of samples that are kept of a service: 15 minutes.
const KEPT_SAMPLES: usize = 900;
/// The most bytes of them. Only very long client ids need more.
const MAX_KEPT_BYTES: usize = 1 << 20;
/// The most events that a page may be behind before it is dropped.
const MAX_BEHIND: usize = 8;
/// The number of clients in each list.
const LISTED: usize = 8;

/// The recordings of all services.
pub(in crate::admin) struct Recorder {
    interval: Duration,
    services: Shared<BTreeMap<String, Recording>>,
    /// The room for pages.
    pub pages: Arc<Semaphore>,
}

/// The recording of one service.
#[derive(Default)]
struct Recording {
    samples: VecDeque<Sample>,
    sample_bytes: usize,
    /// The last look; `None` before the first one.
    last: Option<Look>,
    /// The fields of the present state.
    now: Map<String, Value>,
    pages: Vec<mpsc::Sender<Bytes>>,
}

/// A sample as JSON, and its time in milliseconds since 1970.
#[derive(Clone)]
pub(in crate::admin) struct Sample {
    pub at_ms: u64,
    pub text: Bytes,
}

/// The news for a new page.
pub(in crate::admin) struct Subscription {
    /// The fields of the present state.
    pub now: Bytes,
    /// The samples that it lacks.
    pub samples: Vec<Sample>,
    /// The events from now on. They end when the page is too far behind.
    pub events: mpsc::Receiver<Bytes>,
    /// Makes room for another page when it is dropped.
    pub room: OwnedSemaphorePermit,
}

impl Recorder {
    /// Makes a recorder that looks at this interval.
    pub fn new(interval: Duration) -> Recorder {
        Recorder { interval, services: Shared::default(), pages: Arc::new(Semaphore::new(MAX_PAGES)) }
    }

    /// Looks at all services again and again.
    pub async fn run(self: &Arc<Self>, configuration: &Arc<Configuration>) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            ticks.tick().await;
            let (recorder, configuration) = (Arc::clone(self), Arc::clone(configuration));
            // With very many clients a look takes milliseconds, for which no probe waits.
            let work = move || recorder.look(&configuration, clock::since_epoch());
            if tokio::task::spawn_blocking(work).await.is_err() {
                tracing::warn!("the console stands still: a look at the services failed");
                return self.close();
            }
        }
    }

    /// Looks at all services at a time since 1970, and tells the pages what changed.
    pub fn look(&self, configuration: &Configuration, at: Duration) {
        let handles = configuration.services.get();
        let looks: Vec<Look> = handles.iter().map(Look::at).collect();
        let mut services = self.services.lock();
        services.retain(|name, _| handles.iter().any(|handle| handle.name == *name));
        for (handle, look) in handles.into_iter().zip(looks) {
            services.entry(handle.name).or_default().add(look, at);
        }
    }

    /// Adds a page to those that follow a service; `None` if there is no room for it. The page has the samples until
    /// `has_ms` already.
    pub fn subscribe(&self, service: &str, has_ms: Option<u64>) -> Option<Subscription> {
        let room = Arc::clone(&self.pages).try_acquire_owned().ok()?;
        let mut services = self.services.lock();
        let recording = services.entry(service.to_owned()).or_default();
        let (page, events) = mpsc::channel(MAX_BEHIND);
        recording.pages.push(page);
        let lacks = |sample: &&Sample| has_ms.is_none_or(|has_ms| sample.at_ms > has_ms);
        let samples = recording.samples.iter().filter(lacks).cloned().collect();
        Some(Subscription { now: text(&recording.now).into(), samples, events, room })
    }

    /// Returns the last sample and the present state of each service, as JSON.
    pub fn newest(&self) -> String {
        let services = self.services.lock();
        let known = services.values().filter(|one| !one.samples.is_empty());
        let services = known.map(|one| data(one.samples.back(), &text(&one.now)));
        format!("{{\"services\":[{}]}}", services.collect::<Vec<_>>().join(","))
    }

    /// Ends the events of all pages.
    pub fn close(&self) {
        self.services.lock().clear();
    }
}

fn text(fields: &Map<String, Value>) -> String {
    serde_json::to_string(fields).expect("a map of JSON is JSON")
}

/// Writes an event. Its id is the time of its last sample, by which a reader that comes back says what it has.
pub(super) fn event(samples: &[Sample], now: &str) -> Bytes {
    let id = samples.last().map(|sample| format!("id: {}\n", sample.at_ms)).unwrap_or_default();
    format!("{id}data: {}\n\n", data(samples, now)).into()
}

fn data<'a>(samples: impl IntoIterator<Item = &'a Sample>, now: &str) -> String {
    let samples = samples.into_iter().map(|sample| std::str::from_utf8(&sample.text).expect("JSON is UTF-8"));
    format!("{{\"samples\":[{}],\"now\":{now}}}", samples.collect::<Vec<_>>().join(","))
}

impl Recording {
    fn add(&mut self, look: Look, at: Duration) {
        let sample = look.sample(at, self.last.as_ref().unwrap_or(&look));
        let text_of_sample = Bytes::from(serde_json::to_string(&sample).expect("its keys are strings"));
        let sample = Sample { at_ms: sample.at_ms, text: text_of_sample };
        let now = serde_json::to_value(&look.now).expect("its keys are strings");
        let Value::Object(now) = now else { unreachable!("a struct is an object") };
        let is_new = |(name, value): &(&String, &Value)| self.now.get(*name) != Some(value);
        let changed = now.iter().filter(is_new).map(|(name, value)| (name.clone(), value.clone())).collect();
        let event = event(std::slice::from_ref(&sample), &text(&changed));
        (self.now, self.last) = (now, Some(look));
        self.sample_bytes += sample.text.len();
        self.samples.push_back(sample);
        while self.samples.len() > KEPT_SAMPLES || self.sample_bytes > MAX_KEPT_BYTES {
            self.sample_bytes -= self.samples.pop_front().map_or(0, |sample| sample.text.len());
        }
        // A page that has left, or is too far behind, gets no more.
        self.pages.retain(|page| page.try_send(event.clone()).is_ok());
    }
}

/// A service at one moment.
struct Look {
    now: ServiceNow,
    wants: u64,
    granted: u64,
    /// The clients that were admitted most.
    busiest: Vec<ClientSnapshot>,
}

/// The largest of many, each with its figure.
#[derive(Default)]
struct Largest<'s>(Vec<(f64, &'s ClientSnapshot)>);

impl<'s> Largest<'s> {
    fn offer(&mut self, figure: f64, client: &'s ClientSnapshot) {
        let at = self.0.partition_point(|(other, _)| *other >= figure);
        if figure > 0.0 && at < LISTED {
            self.0.insert(at, (figure, client));
            self.0.truncate(LISTED);
        }
    }

    fn loans(&self) -> Vec<LoanView> {
        let loan = |(records, client): &(f64, &ClientSnapshot)| LoanView {
            client: client.name.to_string(),
            records: *records,
        };
        self.0.iter().map(loan).collect()
    }

    fn longest_wait(&self) -> Option<WaitView> {
        self.0.first().map(|(seconds, client)| WaitView { client: client.name.to_string(), seconds: *seconds })
    }
}

fn demand(client: &ClientSnapshot) -> DemandView {
    let levels = &client.levels;
    DemandView { client: client.name.to_string(), wants: levels.wants, default_share: levels.default_share }
}

impl Look {
    fn at(handle: &ServiceHandle) -> Look {
        let (snapshot, observed) = (handle.cell.get(), handle.cell.observed.get());
        let totals = &snapshot.throttle.totals;
        let (mut counts, mut shadow) = (totals.unregistered, totals.unregistered_shadow);
        let (mut wants, mut granted, mut backlog, mut shadow_backlog) = (0, 0, 0, 0);
        let (mut held_clients, mut within_share) = (0, 0);
        let (mut lent, mut borrowed) = (0.0, 0.0);
        let [mut busiest, mut demands, mut held, mut lenders, mut borrowers, mut waits, mut waits_within_share] =
            std::array::from_fn(|_| Largest::default());
        let forgotten = snapshot.clients.for_each(|client| {
            let levels = &client.levels;
            counts.merge(&client.counts);
            shadow.merge(&client.shadow);
            wants += levels.wants;
            granted += levels.granted;
            backlog += levels.backlog;
            shadow_backlog += levels.shadow_backlog;
            lent += levels.lent();
            borrowed += levels.borrowed();
            busiest.offer(levels.admitted_lately().max(levels.backlog) as f64, client);
            demands.offer(levels.wants as f64 - levels.default_share, client);
            lenders.offer(levels.lent(), client);
            borrowers.offer(levels.borrowed(), client);
            waits.offer(levels.oldest_seconds, client);
            // A client that is held wants nothing.
            if levels.is_held() {
                held_clients += 1;
                held.offer(1.0 + levels.backlog as f64, client);
            } else if levels.wants as f64 <= levels.default_share {
                within_share += 1;
                waits_within_share.offer(levels.oldest_seconds, client);
            }
        });
        counts.merge(&forgotten.counts);
        shadow.merge(&forgotten.shadow);
        let busiest = busiest.0.iter().map(|(_, client)| (*client).clone()).collect();
        let now = ServiceNow {
            figures: snapshot.figures.clone(),
            pace: handle.cell.pace.get().as_deref().map(view::pace_figures),
            group: snapshot.group.figures.clone(),
            groups: snapshot.throttle.groups.clone(),
            known_clients: snapshot.clients.known(),
            done: view::decisions(&counts, backlog),
            shadow: view::decisions(&shadow, shadow_backlog),
            lent,
            borrowed,
            lenders: lenders.loans(),
            borrowers: borrowers.loans(),
            demands: demands.0.iter().map(|(_, client)| demand(client)).collect(),
            held: held.0.iter().map(|(_, client)| client.name.to_string()).collect(),
            held_clients,
            within_share,
            waits_within_share: waits_within_share.longest_wait(),
            longest_wait: waits.longest_wait(),
            target_lag: observed.target_lag.as_ref().map(|(_, lag)| *lag),
            dead_letters: observed
                .unread
                .map(|unread| DeadLettersView { offsets: unread.offsets, oldest_ms: unread.oldest_ms }),
        };
        Look { now, wants, granted, busiest }
    }

    fn decided(&self, enforce: bool) -> &DecisionsView {
        if enforce { &self.now.done } else { &self.now.shadow }
    }

    /// Returns the admissions of a client before those that are new since this look.
    fn admitted_before(&self, client: &ClientSnapshot) -> u64 {
        let admitted = client.counts.admitted;
        match self.busiest.iter().find(|known| known.name == client.name) {
            Some(known) => known.counts.admitted,
            // The client was not among the busiest, so its new records count with those of all others.
            None if self.busiest.len() >= LISTED => admitted,
            None => admitted.saturating_sub(client.levels.admitted_lately()),
        }
    }

    /// Returns the sample, with the counts that rose since the look before.
    fn sample(&self, at: Duration, before: &Look) -> SampleView {
        // Shadow mode may have begun or ended between the looks: both are asked for the same counts.
        let enforce = self.now.figures.enforce;
        let (decided, decided_before) = (self.decided(enforce), before.decided(enforce));
        let client = |client: &ClientSnapshot| {
            let (levels, before) = (&client.levels, before.admitted_before(client));
            let backlog = levels.backlog.max(levels.shadow_backlog);
            (client.name.to_string(), [client.counts.admitted.saturating_sub(before), levels.granted, backlog])
        };
        SampleView {
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            capacity: self.now.figures.capacity,
            admitted: self.now.done.admitted.saturating_sub(before.now.done.admitted),
            delayed: decided.delayed.saturating_sub(decided_before.delayed),
            rejected: decided.rejected_total().saturating_sub(decided_before.rejected_total()),
            wants: self.wants,
            granted: self.granted,
            backlog: decided.backlog,
            clients: self.busiest.iter().map(client).collect(),
        }
    }
}
