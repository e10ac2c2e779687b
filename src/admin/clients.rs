//! The clients of a service, one by one or those with the highest demand.

use std::{cmp::Reverse, sync::Arc};

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use watermaster_api::ClientsView;

use super::{Served, find, refusal, view};
use crate::snapshot::ClientSnapshot;

/// The number of clients that are shown if the request names none, and the most that it may name.
const TOP: usize = 10;
const MAX_TOP: usize = 1_000;

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
        let clients = clients.into_iter().take(top).map(|client| view::detail(&snapshot, client)).collect();
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
        let detail = snapshot.clients.find(&name).map(|client| view::detail(&snapshot, client));
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
