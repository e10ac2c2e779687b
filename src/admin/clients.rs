//! The clients of a service, one by one or those with the highest demand.

use std::{cmp::Reverse, sync::Arc};

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::view::ClientView;
use super::{Served, find};
use crate::snapshot::{ClientSnapshot, ServiceSnapshot};
use watermaster_core::delays::ClientDelays;

/// The number of clients that are shown if the request names none, and the most that it may name.
const TOP: usize = 10;
const MAX_TOP: usize = 1_000;

/// Some clients of a service, those with the highest wants first.
#[derive(Serialize, JsonSchema)]
pub(super) struct ClientsView {
    service: String,
    /// The number of known clients.
    known: usize,
    clients: Vec<ClientDetail>,
}

/// One client of a service, with its figures at this instance.
#[derive(Serialize, JsonSchema)]
pub(super) struct ClientDetail {
    #[serde(flatten)]
    client: ClientView,
    configured: bool,
    /// Admissions in the running cycle so far, and in the last full one.
    admitted_in_cycle: u64,
    admitted_in_last_cycle: u64,
    /// The part of the capacity that the admissions in the last full cycle took.
    used_ratio: f64,
    /// The most records that the client's own limit allows in one cycle; null without a limit.
    limit: Option<u64>,
    /// The memory that the delayed records cost.
    backlog_bytes: u64,
    /// An estimate: the seconds after which a record that is sent now would be admitted. It is the backlog divided by
    /// the client's rate, which is the larger of its admissions in the last full cycle and of its grant, but at most
    /// its own limit. 0 without a backlog and in shadow mode; null in mode reject and while the service is not ready.
    next_admission_seconds: Option<f64>,
    /// Delays of one commit interval or more, since start.
    delays: DelaysView,
    /// The delays that enforcing would have given, in shadow mode.
    shadow_delays: DelaysView,
}

/// Delays of admitted records. Quantiles are estimates from buckets; null without delays.
#[derive(Serialize, JsonSchema)]
struct DelaysView {
    records: u64,
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
    longest_seconds: f64,
}

impl ClientDetail {
    fn new(service: &ServiceSnapshot, client: &ClientSnapshot) -> ClientDetail {
        let levels = &client.levels;
        ClientDetail {
            client: ClientView::new(client),
            configured: client.configured,
            admitted_in_cycle: levels.admitted_now,
            admitted_in_last_cycle: levels.admitted_last,
            used_ratio: levels.used_ratio(service.capacity),
            limit: levels.limit,
            backlog_bytes: levels.backlog_bytes,
            next_admission_seconds: client.next_admission_seconds(service),
            delays: DelaysView::new(&client.counts.delays),
            shadow_delays: DelaysView::new(&client.shadow.delays),
        }
    }
}

impl DelaysView {
    fn new(delays: &ClientDelays) -> DelaysView {
        DelaysView {
            records: delays.counts.iter().sum(),
            p50_seconds: delays.quantile(0.5),
            p99_seconds: delays.quantile(0.99),
            longest_seconds: delays.longest as f64 / 1e6,
        }
    }
}

/// The question for some clients.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopQuery {
    top: Option<usize>,
}

/// Answers with the clients that have the highest wants.
pub(super) async fn top(
    State(served): State<Arc<Served>>, path: Result<Path<String>, PathRejection>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Response {
    let top = query.ok().map(|Query(query)| query.top.unwrap_or(TOP)).filter(|top| (1..=MAX_TOP).contains(top));
    let (Ok(Path(name)), Some(top)) = (path, top) else {
        let error = format!("allowed: ?top=N with N from 1 to {MAX_TOP}, and names in UTF-8");
        return refusal(StatusCode::BAD_REQUEST, json!({ "error": error }));
    };
    let service = match find(&served.state, &name) {
        Ok(service) => service,
        Err(unknown) => return *unknown,
    };
    let make = move || {
        let snapshot = service.cell.get();
        let mut clients: Vec<&ClientSnapshot> = snapshot.clients.iter().collect();
        // The sort is stable, so clients with equal wants stay in the order of their names.
        clients.sort_by_key(|client| Reverse(client.levels.wants));
        let clients = clients.into_iter().take(top).map(|client| ClientDetail::new(&snapshot, client)).collect();
        ClientsView { service: name, known: snapshot.clients.known(), clients }
    };
    served.view(move |_| make()).await
}

/// Answers with one client.
pub(super) async fn client(
    State(served): State<Arc<Served>>, path: Result<Path<(String, String)>, PathRejection>,
) -> Response {
    let Ok(Path((service, name))) = path else {
        return refusal(StatusCode::BAD_REQUEST, json!({ "error": "the path is not UTF-8" }));
    };
    let handle = match find(&served.state, &service) {
        Ok(handle) => handle,
        Err(unknown) => return *unknown,
    };
    let find_client = move || {
        let snapshot = handle.cell.get();
        let detail = snapshot.clients.find(&name).map(|client| ClientDetail::new(&snapshot, client));
        detail.ok_or_else(|| {
            let error = format!("service {:?} knows no client {name:?} now", handle.name);
            json!({ "error": error, "known": snapshot.clients.known() })
        })
    };
    match served.views.run(find_client).await {
        Ok(Ok(detail)) => Json(detail).into_response(),
        Ok(Err(unknown)) => refusal(StatusCode::NOT_FOUND, unknown),
        Err(busy) => *busy,
    }
}

fn refusal(status: StatusCode, body: Value) -> Response {
    (status, Json(body)).into_response()
}
