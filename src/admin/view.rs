//! The JSON of `GET /v1/services/{name}`. Names and order are fixed, because scripts rely on them.

use std::collections::BTreeMap;

use serde::Serialize;
use watermaster_core::reason::ReasonCounts;

use crate::snapshot::{ClientSnapshot, ServiceSnapshot};

/// One service. Counts are since start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceView {
    pub name: String,
    pub mode: &'static str,
    pub enforce: bool,
    pub capacity: u64,
    pub cycle_seconds: f64,
    pub cycle: u64,
    /// Records admitted in the last window of one cycle; `window_admitted_max`: the most in any window since start.
    pub window_admitted: u64,
    pub window_admitted_max: u64,
    pub ready: bool,
    /// The reason why the service is not ready, or stopped.
    pub trouble: Option<String>,
    pub clients: Vec<ClientView>,
}

/// One client of a service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientView {
    pub name: String,
    pub wants: u64,
    pub default_share: f64,
    pub granted: u64,
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: BTreeMap<&'static str, u64>,
    pub backlog: u64,
    pub lent: f64,
    pub borrowed: f64,
    pub shadow: ShadowView,
}

/// The decisions of shadow mode on a client's records; all 0 while decisions are enforced.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowView {
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: BTreeMap<&'static str, u64>,
    pub backlog: u64,
}

impl ServiceView {
    /// Makes the view of a snapshot; the name is passed apart, since the first snapshot has none.
    pub fn new(name: &str, snapshot: &ServiceSnapshot) -> ServiceView {
        ServiceView {
            name: name.to_owned(),
            mode: snapshot.mode.into_str(),
            enforce: snapshot.enforce,
            capacity: snapshot.capacity,
            cycle_seconds: snapshot.cycle_seconds,
            cycle: snapshot.cycle,
            window_admitted: snapshot.window_admitted,
            window_admitted_max: snapshot.window_admitted_max,
            ready: snapshot.ready,
            trouble: snapshot.trouble.clone(),
            clients: snapshot.clients.iter().map(ClientView::new).collect(),
        }
    }
}

impl ClientView {
    fn new(client: &ClientSnapshot) -> ClientView {
        let granted = client.granted as f64;
        ClientView {
            name: client.name.to_string(),
            wants: client.wants,
            default_share: client.default_share,
            granted: client.granted,
            admitted: client.counts.admitted,
            delayed: client.counts.delayed,
            rejected: rejections(&client.counts.rejected),
            backlog: client.backlog,
            lent: (client.default_share - granted).max(0.0),
            borrowed: (granted - client.default_share).max(0.0),
            shadow: ShadowView {
                admitted: client.shadow.admitted,
                delayed: client.shadow.delayed,
                rejected: rejections(&client.shadow.rejected),
                backlog: client.shadow_backlog,
            },
        }
    }
}

/// Returns every reason with its count, 0 included, so that scripts find each reason.
pub fn rejections(counts: &ReasonCounts) -> BTreeMap<&'static str, u64> {
    counts.iter().map(|(reason, count)| (reason.into_str(), count)).collect()
}
