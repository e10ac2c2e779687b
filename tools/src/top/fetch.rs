//! Asks an instance for its services, and compares two answers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use watermaster_api::{ClientDetail, ClientView, DecisionsView, GroupFigures, PaceFigures, ServiceFigures};

use crate::endpoint::{Endpoint, EndpointError, percent_encoded};

/// A service, as `GET /v1/services` shows it, with its group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    #[serde(flatten)]
    pub figures: ServiceFigures,
    pub pace: Option<PaceFigures>,
    /// Sorted by name.
    pub clients: Vec<ClientStatus>,
    /// Asked for apart; `None` if the instance has the capacity for itself.
    #[serde(skip_deserializing)]
    pub group: Option<GroupFigures>,
    /// The number of further instances that are added.
    #[serde(skip)]
    pub others: usize,
}

/// A client of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientStatus {
    #[serde(flatten)]
    pub view: ClientView,
    /// Added by [`add_rates`]; `None` without an earlier answer to compare with.
    #[serde(skip_deserializing)]
    pub per_second: Option<Rates>,
}

impl ServiceStatus {
    /// Returns the decisions that were taken or, in shadow mode, would have been.
    pub fn decisions<'c>(&self, client: &'c ClientStatus) -> &'c DecisionsView {
        if self.figures.enforce { &client.view.done } else { &client.view.shadow }
    }
}

/// A client with the name of its service, which the answer does not have.
#[derive(Debug, Serialize)]
pub struct FoundClient {
    pub service: String,
    #[serde(flatten)]
    pub detail: ClientDetail,
}

#[derive(Deserialize)]
struct ServicesAnswer {
    services: Vec<ServiceStatus>,
}

/// An instance gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("this is no answer of a watermaster of this version: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("it has no service {name:?}; there is: {known}")]
    NoService { name: String, known: String },
    #[error("it knows no client {0:?} now")]
    NoClient(String),
}

/// An answer of an instance, or the reason why there is none.
#[derive(Debug)]
pub struct InstanceAnswer {
    pub at: Instant,
    pub outcome: Result<Vec<ServiceStatus>, FetchError>,
}

/// An instance that can be asked.
pub struct Instance {
    endpoint: Endpoint,
    service: Option<String>,
}

impl Instance {
    /// Prepares to ask an instance for one service or all.
    pub fn new(endpoint: Endpoint, service: Option<String>) -> Instance {
        Instance { endpoint, service }
    }

    /// Asks for the services.
    pub fn ask(&self) -> InstanceAnswer {
        InstanceAnswer { outcome: self.services(), at: Instant::now() }
    }

    /// Asks for one client of each service that knows it.
    pub fn client(&self, name: &str) -> Result<Vec<FoundClient>, FetchError> {
        let mut found = Vec::new();
        for service in self.services()? {
            let service = service.figures.name;
            match self.get(&format!("/v1/services/{service}/clients/{}", percent_encoded(name))) {
                Ok(detail) => found.push(FoundClient { service, detail }),
                Err(FetchError::Status(404)) => {}
                Err(other) => return Err(other),
            }
        }
        if found.is_empty() { Err(FetchError::NoClient(name.to_owned())) } else { Ok(found) }
    }

    fn services(&self) -> Result<Vec<ServiceStatus>, FetchError> {
        let mut services = Vec::new();
        for service in self.choose(self.get::<ServicesAnswer>("/v1/services")?.services)? {
            match self.get(&format!("/v1/services/{}/group", service.figures.name)) {
                Ok(group) => {
                    let group = Some(group).filter(|group: &GroupFigures| group.state.is_some());
                    services.push(ServiceStatus { group, ..service });
                }
                // A reload removed the service meanwhile.
                Err(FetchError::Status(404)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(services)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, FetchError> {
        match self.endpoint.get(path)? {
            (200, body) => Ok(serde_json::from_str(&body)?),
            (status, _) => Err(FetchError::Status(status)),
        }
    }

    fn choose(&self, mut services: Vec<ServiceStatus>) -> Result<Vec<ServiceStatus>, FetchError> {
        let Some(name) = &self.service else { return Ok(services) };
        let known: Vec<_> = services.iter().map(|service| service.figures.name.clone()).collect();
        services.retain(|service| service.figures.name == *name);
        if services.is_empty() {
            return Err(FetchError::NoService { name: name.clone(), known: known.join(", ") });
        }
        Ok(services)
    }
}

/// Records per second. In shadow mode, `delayed` and `rejected` are those that would have been.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    pub admitted: f64,
    pub delayed: f64,
    pub rejected: f64,
}

impl Rates {
    /// Compares counts of admitted, delayed and rejected records. Returns `None` if no time has passed, or a count went
    /// back: the instance restarted, or had forgotten the client.
    fn between(before: [u64; 3], now: [u64; 3], elapsed: Duration) -> Option<Rates> {
        let seconds = elapsed.as_secs_f64();
        let rate = |at: usize| now[at].checked_sub(before[at]).map(|growth| growth as f64 / seconds);
        let rates = Rates { admitted: rate(0)?, delayed: rate(1)?, rejected: rate(2)? };
        (seconds > 0.0).then_some(rates)
    }
}

/// Adds rates to the clients of `now`, compared with an earlier answer.
pub fn add_rates(now: &mut [ServiceStatus], before: &[ServiceStatus], elapsed: Duration) {
    for service in now {
        let Some(before) = before.iter().find(|before| before.figures.name == service.figures.name) else { continue };
        // The counts of another mode can't be compared, nor those of another process: its cycles start anew. With the
        // figures of one more instance, all that it has counted since its start would be of this moment.
        let (then, now) = (&before.figures, &service.figures);
        if then.cycle > now.cycle || then.enforce != now.enforce || before.others != service.others {
            continue;
        }
        let counts = |service: &ServiceStatus, client: &ClientStatus| {
            let decisions = service.decisions(client);
            [client.view.done.admitted, decisions.delayed, decisions.rejected_total()]
        };
        let earlier: HashMap<&str, [u64; 3]> =
            before.clients.iter().map(|client| (client.view.name.as_str(), counts(before, client))).collect();
        let rates = |client: &ClientStatus| {
            // The counts of a new client start at 0.
            let earlier = earlier.get(client.view.name.as_str()).copied().unwrap_or_default();
            Rates::between(earlier, counts(service, client), elapsed)
        };
        let rates: Vec<_> = service.clients.iter().map(rates).collect();
        service.clients.iter_mut().zip(rates).for_each(|(client, rates)| client.per_second = rates);
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Returns the status of a service in a campaign, in the API's form.
    pub fn service() -> ServiceStatus {
        let client = |name: &str, wants: u64, granted: u64, admitted: u64, delayed: u64, backlog: u64| {
            json!({
                "name": name, "wants": wants, "default_share": 50.0, "granted": granted, "admitted": admitted,
                "delayed": delayed, "rejected": {}, "backlog": backlog, "lent": 0.0, "borrowed": 0.0, "oldest_seconds": 0.0,
                "shadow": { "admitted": 0, "delayed": 0, "rejected": {}, "backlog": 0 },
            })
        };
        let service = json!({
            "name": "kyc", "mode": "shape", "enforce": true, "capacity": 200, "cycle_seconds": 1.0, "cycle": 42,
            "window_admitted": 180, "window_admitted_max": 200, "ready": true, "trouble": null,
            "clients": [
                client("car-loan", 35, 35, 944, 17, 0),
                client("credit-card", 6_350, 72, 2_266, 8_462, 6_334),
                client("home-loan", 52, 50, 512, 85, 0),
                client("personal-loan", 43, 43, 1_300, 28, 0),
            ],
        });
        serde_json::from_value(service).unwrap()
    }

    /// Returns the status of a group of three instances, of which one is silent and one has stopped.
    pub fn group() -> GroupFigures {
        let member = |instance: &str, state: &str, hold: u64, used: u64, target: u64, age: f64| {
            json!({
                "instance": instance, "life": "00000000000000a0", "state": state, "hold": hold, "used": used,
                "target": target, "ahead": 6, "capacity": 200, "configuration": "5d41402a", "state_age_seconds": age,
            })
        };
        let group = json!({
            "name": "kyc", "scope": "group", "state": "active", "capacity": 200, "hold": 120, "target": 118,
            "ahead": 6, "circulating": 200, "configurations": 1,
            "members": [
                member("wm-0", "live", 120, 97, 118, 0.4),
                member("wm-1", "silent", 80, 80, 82, 12.3),
                member("wm-2", "claimed", 0, 0, 0, 41.0),
            ],
        });
        serde_json::from_value(group).unwrap()
    }

    #[test]
    fn an_answer_is_understood() {
        let card = &service().clients[1].view;
        assert_eq!((card.name.as_str(), card.done.admitted, card.done.backlog), ("credit-card", 2_266, 6_334));
    }

    #[test]
    fn an_unknown_service_is_an_error_that_names_the_known_ones() {
        let error =
            Instance::new(Endpoint::new("http://x", None), Some("kyb".to_owned())).choose(vec![service()]).unwrap_err();
        assert_eq!(error.to_string(), "it has no service \"kyb\"; there is: kyc");
    }

    const SECOND: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn a_rate_times_the_time_is_the_growth(
            before in prop::array::uniform3(0..1_u64 << 40),
            growth in prop::array::uniform3(0..1_u64 << 40),
            ms in 1..100_000_u64,
        ) {
            let elapsed = Duration::from_millis(ms);
            let now = std::array::from_fn(|at| before[at] + growth[at]);
            let Rates { admitted, delayed, rejected } = Rates::between(before, now, elapsed).unwrap();
            for (rate, growth) in [admitted, delayed, rejected].into_iter().zip(growth) {
                prop_assert!((rate * elapsed.as_secs_f64() - growth as f64).abs() <= 1e-9 * (growth as f64 + 1.0));
            }
        }

        #[test]
        fn decreased_counts_have_no_rate(
            before in prop::array::uniform3(0..9_u64),
            now in prop::array::uniform3(0..9_u64),
            ms in 0..9_u64,
        ) {
            let grew = before.iter().zip(now).all(|(before, now)| *before <= now);
            prop_assert_eq!(Rates::between(before, now, Duration::from_millis(ms)).is_some(), grew && ms > 0);
        }
    }

    #[test]
    fn a_new_client_starts_at_0() {
        let (mut before, mut now) = (service(), [service()]);
        before.clients.remove(1);
        add_rates(&mut now, &[before], 2 * SECOND);
        let rates: Vec<_> = now[0].clients.iter().map(|client| client.per_second.unwrap().admitted).collect();
        assert_eq!(rates, [0.0, 1_133.0, 0.0, 0.0]);
    }

    #[test]
    fn after_a_restart_there_are_no_rates() {
        let (mut before, mut now) = (service(), [service()]);
        before.figures.cycle = now[0].figures.cycle + 1;
        add_rates(&mut now, &[before], SECOND);
        assert!(now[0].clients.iter().all(|client| client.per_second.is_none()));
    }

    #[test]
    fn an_instance_that_answers_again_has_no_rates_at_once() {
        let (before, mut now) = (service(), [service()]);
        now[0].others += 1;
        now[0].clients[0].view.done.admitted += 1_000_000;
        add_rates(&mut now, &[before], SECOND);
        assert!(now[0].clients.iter().all(|client| client.per_second.is_none()));
    }

    #[test]
    fn shadow_mode_counts_records_that_would_be_delayed_or_rejected() {
        let mut before = service();
        before.figures.enforce = false;
        let mut now = [before.clone()];
        let ClientView { done, shadow, .. } = &mut now[0].clients[0].view;
        done.admitted += 10;
        done.delayed += 100;
        shadow.delayed += 4;
        *shadow.rejected.entry("expired".into()).or_default() += 2;
        add_rates(&mut now, &[before], 2 * SECOND);
        let expected = Rates { admitted: 5.0, delayed: 2.0, rejected: 1.0 };
        assert_eq!(now[0].clients[0].per_second, Some(expected));
    }
}
