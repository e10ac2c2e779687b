//! The clients of a trace as the sources of a service see them.

use std::collections::{BTreeMap, BTreeSet};

use watermaster_core::policy::{Overflow, Policy, Scope};
use watermaster_core::throttle::Sender;
use watermaster_settings::Service;

use super::tally::SimulatedAttempt;
use crate::load::scenario::RetryPolicy;
use crate::trace_file::{ANONYMOUS, Contents, FIRST_CLIENT, OVERSIZED, named};

/// The senders of a trace as a service sees them.
#[derive(Debug)]
pub struct Senders {
    /// The names of the clients, as the service has them.
    names: Vec<String>,
    /// The ids of configured clients in place of their hashes.
    shown: Vec<String>,
    hashed: bool,
    /// For each partition, the clients that its source allows; `None` for all.
    allowed: Vec<Option<Vec<bool>>>,
    /// For each partition, the name of the client to which all its records belong.
    sole: Vec<Option<String>>,
    /// The service only counts its decisions: the offset maps of commits delay nothing.
    pub(super) shadow: bool,
    /// The retries of each client of the trace.
    retries: Vec<Option<RetryPolicy>>,
}

impl Senders {
    /// Fits the clients of a trace to the sources of a service.
    pub fn new(contents: &Contents, service: &Service) -> Senders {
        let hashed = contents.hashed_ids;
        // A client whose record names its group: GROUP/CLIENT.
        let parts = |name| str::split_once(name, '/').filter(|_| service.policy.names_groups);
        let names = contents.clients.iter().map(|name| match parts(name) {
            Some((group, _)) if service.policy.rules.may_make_group(group) => name.clone(),
            Some((group, client)) => service.policy.full_name(group, client).into_owned(),
            None => name.clone(),
        });
        let allowed = contents.partitions.iter().map(|partition| {
            let source = service.sources.iter().find(|source| source.topic == partition.topic)?;
            let listed: BTreeSet<String> =
                source.allowed_clients.as_ref()?.iter().map(|id| named(id, hashed)).collect();
            let id = |name| parts(name).map_or(name, |(_, id)| id);
            Some(contents.clients.iter().map(|name| listed.contains(id(name))).collect())
        });
        let sole = contents.partitions.iter().map(|partition| {
            let source = service.sources.iter().find(|source| source.topic == partition.topic)?;
            service.sole_client(source).map(|client| named(&client, hashed))
        });
        let configured = service.policy.clients.iter().map(|client| (named(&client.name, hashed), client.name.clone()));
        let configured: BTreeMap<String, String> = configured.collect();
        let shown = contents.clients.iter().map(|name| configured.get(name).unwrap_or(name).clone());
        Senders {
            names: names.collect(),
            shown: shown.collect(),
            hashed,
            allowed: allowed.collect(),
            sole: sole.collect(),
            shadow: !service.policy.enforce,
            retries: vec![None; FIRST_CLIENT as usize + contents.clients.len()],
        }
    }

    /// Has clients send rejected records again: all of them by one policy, or each by its own.
    pub fn with_retries(mut self, all: Option<RetryPolicy>, of: impl Fn(&str) -> Option<RetryPolicy>) -> Senders {
        let names = self.shown.iter().map(|name| all.or_else(|| of(name)));
        self.retries = [all; FIRST_CLIENT as usize].into_iter().chain(names).collect();
        self
    }

    /// Returns the client to which all records of a log belong. Each partition has a log; in shadow mode each client.
    pub(super) fn sole_client(&self, log: u32) -> Option<&str> {
        if !self.shadow {
            return self.sole.get(log as usize)?.as_deref();
        }
        let name = self.names.get(log.checked_sub(FIRST_CLIENT)? as usize)?;
        self.sole.iter().flatten().any(|sole| sole == name).then_some(name)
    }

    pub(super) fn retry_of(&self, client: u32) -> Option<RetryPolicy> {
        self.retries[client as usize]
    }

    /// Returns the policy to simulate. Shadow mode is simulated as if its decisions were carried out, and
    /// the capacity is that of one instance.
    pub(super) fn policy(&self, policy: &Policy) -> Policy {
        let mut policy = Policy { enforce: true, scope: Scope::Instance, ..policy.clone() };
        if self.shadow && policy.overflow == Overflow::Pause {
            policy.overflow = Overflow::DeadLetter;
        }
        policy.clients.iter_mut().for_each(|client| client.name = named(&client.name, self.hashed));
        policy.meet_groups_of(self.names.iter().map(String::as_str));
        policy
    }

    /// Returns the name of a client for people.
    pub(super) fn shown(&self, client: u32) -> &str {
        match client {
            ANONYMOUS => "(no id)",
            OVERSIZED => "(too many headers)",
            client => &self.shown[(client - FIRST_CLIENT) as usize],
        }
    }

    #[inline]
    pub(super) fn of(&self, attempt: &SimulatedAttempt) -> Sender<'_> {
        match attempt.client {
            ANONYMOUS => Sender::Anonymous,
            OVERSIZED => Sender::Oversized,
            client => {
                let index = (client - FIRST_CLIENT) as usize;
                match &self.allowed[attempt.partition as usize] {
                    Some(allowed) if !allowed[index] => Sender::NotAllowed(&self.names[index]),
                    _ => Sender::Client(&self.names[index]),
                }
            }
        }
    }
}
