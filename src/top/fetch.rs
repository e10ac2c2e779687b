//! What an instance is asked, and what comes back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use super::Options;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest answer that is read: that of some hundred thousand clients.
const LONGEST: u64 = 128 << 20;

/// A service, as `GET /v1/services` shows it, or with rows instead of clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service<C = Client> {
    pub name: String,
    pub mode: String,
    pub enforce: bool,
    pub capacity: u64,
    pub cycle_seconds: f64,
    pub cycle: u64,
    pub window_admitted: u64,
    pub ready: bool,
    pub trouble: Option<String>,
    pub clients: Vec<C>,
}

/// One of its clients. Counts are since start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Client {
    pub name: String,
    pub wants: u64,
    pub default_share: f64,
    pub granted: u64,
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: BTreeMap<String, u64>,
    pub backlog: u64,
    pub shadow: Shadow,
}

/// What would have become of a client's records.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Shadow {
    pub delayed: u64,
    pub rejected: BTreeMap<String, u64>,
    pub backlog: u64,
}

#[derive(Deserialize)]
struct Services {
    services: Vec<Service>,
}

impl<C> Service<C> {
    /// The same service with something else for each client.
    pub fn map_clients<D>(self, map: impl FnMut(C) -> D) -> Service<D> {
        let Service { name, mode, enforce, capacity, cycle_seconds, cycle, window_admitted, ready, trouble, clients } =
            self;
        let clients = clients.into_iter().map(map).collect();
        Service { name, mode, enforce, capacity, cycle_seconds, cycle, window_admitted, ready, trouble, clients }
    }
}

/// What came back, or why nothing did, in words.
#[derive(Debug)]
pub struct Answer {
    pub at: Instant,
    pub outcome: Result<Vec<Service>, String>,
}

/// An instance that can be asked.
pub struct Source {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
    service: Option<String>,
}

impl Source {
    pub fn new(options: &Options) -> Source {
        let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .tls_config(tls.build())
            .proxy(None);
        Source {
            agent: config.build().into(),
            url: format!("{}/v1/services", options.url.trim_end_matches('/')),
            authorization: options.token.as_ref().map(|token| format!("Bearer {token}")),
            service: options.service.clone(),
        }
    }

    /// Asks for all services, or the chosen one. Takes up to [`PATIENCE`].
    pub fn ask(&self) -> Answer {
        let outcome = self.services().and_then(|services| self.chosen(services));
        Answer { at: Instant::now(), outcome }
    }

    fn services(&self) -> Result<Vec<Service>, String> {
        let mut request = self.agent.get(&self.url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let mut response = request.call().map_err(|why| why.to_string())?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(LONGEST).read_to_string();
        let body = body.map_err(|why| format!("the answer broke off: {why}"))?;
        match status {
            200 => read(&body),
            401 if self.authorization.is_none() => Err("it asks for a token: --token-file".to_owned()),
            401 => Err("it does not accept this token".to_owned()),
            status => Err(format!("{} answers with status {status}", self.url)),
        }
    }

    fn chosen(&self, mut services: Vec<Service>) -> Result<Vec<Service>, String> {
        let Some(name) = &self.service else { return Ok(services) };
        let known: Vec<_> = services.iter().map(|service| service.name.clone()).collect();
        services.retain(|service| service.name == *name);
        if services.is_empty() {
            return Err(format!("it has no service {name:?}; there is: {}", known.join(", ")));
        }
        Ok(services)
    }
}

/// Where an instance is asked: `http://` is added where nothing of the kind is written.
///
/// # Errors
/// What is allowed, in words.
pub fn url(text: &str) -> Result<String, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let parsed: Result<ureq::http::Uri, _> = url.parse();
    let fine = |uri: ureq::http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none();
    if parsed.is_ok_and(fine) {
        Ok(url)
    } else {
        Err("allowed: http://HOST:PORT or https://HOST, with a path".to_owned())
    }
}

fn read(body: &str) -> Result<Vec<Service>, String> {
    let services: Result<Services, _> = serde_json::from_str(body);
    Ok(services.map_err(|why| format!("this is no answer of a watermaster of this version: {why}"))?.services)
}

#[cfg(test)]
pub(super) mod tests {
    use watermaster_core::policy::Mode;

    use super::*;
    use crate::admin::ServiceView;
    use crate::snapshot::{ClientSnapshot, Counts, ServiceSnapshot};

    /// A moment in a campaign.
    pub fn snapshot() -> ServiceSnapshot {
        let client = |name: &str, wants, granted, counts: [u64; 2], backlog| ClientSnapshot {
            name: name.into(),
            wants,
            default_share: 50.0,
            granted,
            backlog,
            counts: Counts { admitted: counts[0], delayed: counts[1], ..Default::default() },
            ..Default::default()
        };
        ServiceSnapshot {
            name: "kyc".to_owned(),
            mode: Mode::Shape,
            enforce: true,
            capacity: 200,
            cycle_seconds: 1.0,
            cycle: 42,
            window_admitted: 180,
            clients: vec![
                client("car-loan", 35, 35, [944, 17], 0),
                client("credit-card", 6_350, 72, [2_266, 8_462], 6_334),
                client("home-loan", 52, 50, [512, 85], 0),
                client("personal-loan", 43, 43, [1_300, 28], 0),
            ]
            .into(),
            ready: true,
            up: true,
            ..Default::default()
        }
    }

    /// The same, as it comes back.
    pub fn service() -> Service {
        let view = ServiceView::new("kyc", &snapshot());
        read(&serde_json::json!({ "services": [view] }).to_string()).unwrap().remove(0)
    }

    #[test]
    fn what_the_api_shows_is_understood() {
        let service = service();
        assert_eq!((service.mode.as_str(), service.window_admitted, service.ready), ("shape", 180, true));
        let card = &service.clients[1];
        assert_eq!((card.name.as_str(), card.admitted, card.backlog), ("credit-card", 2_266, 6_334));
    }

    #[test]
    fn what_is_no_answer_of_ours_is_said_to_be_none() {
        assert!(read("<html>").unwrap_err().starts_with("this is no answer of a watermaster"));
        assert!(read("{\"services\":[{\"name\":\"kyc\"}]}").unwrap_err().contains("mode"));
    }

    #[test]
    fn a_url_may_lack_its_scheme() {
        assert_eq!(url("127.0.0.1:9464").as_deref(), Ok("http://127.0.0.1:9464"));
        assert_eq!(url("https://ops.example/watermaster/").as_deref(), Ok("https://ops.example/watermaster/"));
        for wrong in ["", "ftp://x", "http://", "http://x?y", "a b"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_asks_for_a_service_that_is_not_there_is_told_which_are() {
        let options =
            Options { url: "http://x".to_owned(), token: None, service: Some("kyb".to_owned()), colour: false };
        let why = Source::new(&options).chosen(vec![service()]).unwrap_err();
        assert_eq!(why, "it has no service \"kyb\"; there is: kyc");
    }
}
