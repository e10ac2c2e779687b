//! Threads that follow the targets of services: one for each purpose, with a client of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use tracing::warn;
use watermaster_settings::{Kafka, Service};

use super::{open, pace, rules};
use crate::services::{Change, ServiceHandle};

/// The threads, each by its name.
#[derive(Default)]
pub(super) struct Followers(BTreeMap<String, JoinHandle<()>>);

/// The work of a thread.
type Follow = fn(&Kafka, &Service, &ServiceHandle, &AtomicBool);

impl Followers {
    /// Starts a thread for each service whose capacity is to be found, and for each whose open records are bounded.
    /// Each ends when that is no longer so, when its service ends, or when the program stops.
    pub(super) fn follow(&mut self, kafka: &Kafka, services: &[(Service, ServiceHandle)], stop: &Arc<AtomicBool>) {
        self.0.retain(|_, thread| !thread.is_finished());
        for (service, handle) in services {
            if service.rules_topic.is_some() {
                self.start("rules", rules::follow, kafka, service, handle, stop);
            }
            if handle.pace.settings().is_some() {
                self.start("pace", pace::search, kafka, service, handle, stop);
            }
            if handle.open.get().max.is_some() && !self.start("open", open::bound, kafka, service, handle, stop) {
                handle.inbox.leave(Change { open_room: Some(None), ..Change::default() });
            }
        }
    }

    /// Starts a thread unless it is running. Returns false if there is none.
    fn start(
        &mut self, purpose: &str, work: Follow, kafka: &Kafka, service: &Service, handle: &ServiceHandle,
        stop: &Arc<AtomicBool>,
    ) -> bool {
        let name = format!("{purpose}-{}", service.name);
        if self.0.contains_key(&name) {
            return true;
        }
        let (kafka, service, handle, stop) = (kafka.clone(), service.clone(), handle.clone(), Arc::clone(stop));
        let thread = thread::Builder::new().name(name.clone());
        match thread.spawn(move || work(&kafka, &service, &handle, &stop)) {
            Ok(thread) => _ = self.0.insert(name.clone(), thread),
            Err(why) => warn!("no thread {name} follows the target: {why}"),
        }
        self.0.contains_key(&name)
    }
}
