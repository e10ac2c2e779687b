//! The clients of a service, one by one, or some of them in an order.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use watermaster_api::{ClientDetail, ClientsView};

use super::rules::{explanation, service_of};
use super::{HttpRefusal, Served, find, refusal, view};
use crate::clock;
use crate::snapshot::{ClientSnapshot, ServiceSnapshot};

/// The number of clients that are shown if the request names none, and the most that it may name.
const TOP: usize = 10;
const MAX_TOP: usize = 1_000;

/// The question for some clients.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopQuery {
    top: Option<usize>,
    /// The number of clients before the first that is shown.
    #[serde(default)]
    from: usize,
    #[serde(default)]
    sort: SortKey,
    #[serde(default)]
    order: SortOrder,
    /// A part of the ids, in large or small letters.
    #[serde(default)]
    find: String,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum SortOrder {
    Asc,
    #[default]
    Desc,
}

pub(super) const SORT_KEYS: &str = "name, wants, default_share, granted, lent, borrowed, admitted_in_last_cycle, \
    admitted, rejected, backlog or oldest_seconds; wants if it is missing.";

/// The figure by which clients are sorted.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum SortKey {
    Name,
    #[default]
    Wants,
    DefaultShare,
    Granted,
    Lent,
    Borrowed,
    AdmittedInLastCycle,
    Admitted,
    Rejected,
    Backlog,
    OldestSeconds,
}

impl SortKey {
    fn of(self, client: &ClientSnapshot, enforce: bool) -> f64 {
        let (levels, rejected) = (&client.levels, if enforce { &client.counts } else { &client.shadow }.rejected);
        match self {
            SortKey::Name => 0.0,
            SortKey::Wants => levels.wants as f64,
            SortKey::DefaultShare => levels.default_share,
            SortKey::Granted => levels.granted as f64,
            SortKey::Lent => levels.lent(),
            SortKey::Borrowed => levels.borrowed(),
            SortKey::AdmittedInLastCycle => levels.admitted_last as f64,
            SortKey::Admitted => client.counts.admitted as f64,
            SortKey::Rejected => rejected.total() as f64,
            SortKey::Backlog => levels.backlog.max(levels.shadow_backlog) as f64,
            SortKey::OldestSeconds => levels.oldest_seconds,
        }
    }
}

impl TopQuery {
    fn answer(&self, service: String, snapshot: &ServiceSnapshot) -> ClientsView {
        let find = self.find.as_bytes();
        let has_text = |client: &&ClientSnapshot| {
            find.is_empty() || client.name.as_bytes().windows(find.len()).any(|part| part.eq_ignore_ascii_case(find))
        };
        let with_key = |client| (self.sort.of(client, snapshot.figures.enforce), client);
        let mut clients: Vec<(f64, &ClientSnapshot)> = snapshot.clients.iter().filter(has_text).map(with_key).collect();
        match (self.sort, self.order) {
            (SortKey::Name, SortOrder::Asc) => {}
            (SortKey::Name, SortOrder::Desc) => clients.reverse(),
            // The sort is stable, so clients with equal figures stay in the order of their names.
            (_, SortOrder::Asc) => clients.sort_by(|(a, _), (b, _)| a.total_cmp(b)),
            (_, SortOrder::Desc) => clients.sort_by(|(a, _), (b, _)| b.total_cmp(a)),
        }
        let shown = clients.iter().skip(self.from).take(self.top.unwrap_or(TOP));
        ClientsView {
            service,
            known: snapshot.clients.known(),
            matching: clients.len(),
            clients: shown.map(|(_, client)| view::detail(snapshot, client)).collect(),
        }
    }
}

/// Answers with some clients, those that have the highest wants unless the request says otherwise.
pub(super) async fn top(
    State(served): State<Arc<Served>>, path: Result<Path<String>, PathRejection>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Response, HttpRefusal> {
    let query = query.map(|Query(query)| query);
    let query = query.ok().filter(|query| query.top.is_none_or(|top| (1..=MAX_TOP).contains(&top)));
    let (Ok(Path(name)), Some(query)) = (path, query) else {
        let error = format!(
            "allowed: ?top=N with N from 1 to {MAX_TOP}, from=N, sort=FIELD, order=asc or desc, find=TEXT, and names \
             in UTF-8"
        );
        return Err(refusal(StatusCode::BAD_REQUEST, json!({ "error": error })));
    };
    let service = find(&served.state, &name)?;
    served.view(move |_| query.answer(service.name, &service.cell.get())).await
}

/// Answers with one client.
pub(super) async fn client(
    State(served): State<Arc<Served>>, path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, HttpRefusal> {
    let Ok(Path((service, name))) = path else {
        return Err(refusal(StatusCode::BAD_REQUEST, json!({ "error": "the path is not UTF-8" })));
    };
    let handle = find(&served.state, &service)?;
    // A reload may have removed the service meanwhile.
    let running = service_of(&served, &service).ok();
    let find_client = move || {
        let snapshot = handle.cell.get();
        let detail = snapshot.clients.find(&name).map(|client| {
            let explain =
                running.map(|(service, handle)| explanation(&service, &handle, Some(&name), None, clock::wall_ms()));
            ClientDetail { explain, ..view::detail(&snapshot, client) }
        });
        detail.ok_or_else(|| {
            let error = format!("service {:?} knows no client {name:?} now", handle.name);
            refusal(StatusCode::NOT_FOUND, json!({ "error": error, "known": snapshot.clients.known() }))
        })
    };
    Ok(Json(served.views.run(find_client).await??).into_response())
}
