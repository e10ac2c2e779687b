//! The HTTP side: probes, metrics, the present figures of the services, and the console, which shows these in browsers.
//!
//! Probes are open, and so is `/metrics` unless it needs a token. `/v1` needs one beyond loopback: of any role to read
//! and to try a rule, of role `write` to change one, of role `operate` for the rest. Tokens and certificates are those
//! of the configuration in force.
//! Handlers read the snapshots of the engines and ask neither Kafka nor an engine. Slow answers are
//! made in an [`AnswerPool`], so that the probes never wait for one.

mod clients;
mod console;
mod host;
mod openapi;
mod pool;
mod rules;
mod server;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{future::Future, net::SocketAddr, pin::pin, time::Duration, time::Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::clock;
use crate::metrics::{self, Publisher, RulesFigures};
use crate::{reload::Configuration, services::ServiceHandle, shared::Shared};
use console::{Recorder, events, now};
use openapi::{Parameters, Refusals, Route, schema};
use pool::{AnswerPool, UnreadBudget, json_answer};
use server::ConnectionLimits;
use watermaster_api::{
    ChangesView, ClientDetail, ClientsView, ConfigView, ExplainView, GroupView, NewestLettersView, NowView, ReloadView,
    RuleChangesView, RuleDryRun, RuleView, RulesView, ServiceView, ServicesView,
};
use watermaster_settings::{AdminToken, Role};

/// The parts of the program that the HTTP side shows. It reads no file and no environment itself.
#[derive(Debug)]
pub struct AdminState {
    pub publisher: Shared<Publisher>,
    pub configuration: Arc<Configuration>,
    /// Set when the program begins to stop, which `/readyz` reports.
    pub draining: Arc<AtomicBool>,
}

impl AdminState {
    fn services(&self) -> Vec<ServiceHandle> {
        self.configuration.services.get()
    }
}

/// Serves on a bound listener until `shutdown` is done and open requests are answered or have timed out.
///
/// # Errors
/// Fails when the listener's address can't be read.
pub async fn serve(
    listener: TcpListener, state: Arc<AdminState>, shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let recorder = Arc::new(Recorder::new(LOOK_INTERVAL));
    serve_within(ConnectionLimits::DEFAULT, listener, state, recorder, shutdown).await
}

async fn serve_within(
    limits: ConnectionLimits, listener: TcpListener, state: Arc<AdminState>, recorder: Arc<Recorder>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let configuration = Arc::clone(&state.configuration);
    let app = router(state, Arc::clone(&recorder), listener.local_addr()?);
    let shutdown = async {
        shutdown.await;
        // Otherwise the events of open pages would take all the time that is left for requests.
        recorder.close();
    };
    let mut serving = pin!(server::serve(listener, app, limits, || configuration.admin().tls, shutdown));
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = recorder.run(&configuration), if configuration.admin().console => {}
    }
    serving.await;
    Ok(())
}

/// The interval at which the console looks at the services.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

struct Served {
    state: Arc<AdminState>,
    recorder: Arc<Recorder>,
    /// Answers of `/metrics`, one at a time, because there is one publisher.
    metrics: AnswerPool,
    /// Answers of `/v1`.
    views: AnswerPool,
    /// The description of `/v1`.
    description: Value,
}

impl Served {
    /// Answers with the JSON of a view.
    async fn view<T: Serialize>(
        &self, make: impl FnOnce(&AdminState) -> T + Send + 'static,
    ) -> Result<Response, HttpRefusal> {
        let state = Arc::clone(&self.state);
        self.views.answer(move || json_answer(&make(&state))).await
    }
}

/// Returns all routes of a server that listens at `local`.
fn router(state: Arc<AdminState>, recorder: Arc<Recorder>, local: SocketAddr) -> Router {
    let on_loopback = local.ip().to_canonical().is_loopback();
    let shows_console = state.configuration.admin().console;
    let guard = (Arc::clone(&state), on_loopback);
    let metrics_guard = middleware::from_fn_with_state(Arc::clone(&state), require_metrics_token);
    let unread = UnreadBudget::new();
    let mut routes = routes();
    routes.retain(|route| shows_console || ![NOW, EVENTS].contains(&route.path));
    let served = Arc::new(Served {
        state,
        recorder,
        metrics: AnswerPool::new(1, &unread),
        views: AnswerPool::new(2, &unread),
        description: openapi::describe(&routes),
    });
    let v1 = routes.into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler));
    let v1 = v1
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(rules::MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(guard, require_token));
    let files = if shows_console { console::files() } else { Router::new() };
    files
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text).layer(metrics_guard))
        .nest("/v1", v1)
        .fallback(not_found)
        .with_state(served)
        .layer(middleware::from_fn_with_state(on_loopback, host::check))
}

const NOW: &str = "/now";
const EVENTS: &str = "/services/{name}/events";
const RULE: &str = "/services/{name}/rules/{rule}";
const NO_SERVICE: Refusals = &[(404, "There is no such service.")];
const NO_CLIENT: Refusals = &[(400, "The path is not UTF-8."), (404, "There is no such service or client.")];
const NO_RULE: Refusals = &[(400, "The path is not UTF-8."), (404, "There is no such service or rule.")];
const NO_DRY_RUN: &str = "dry_run is \"true\" or \"false\"";
const ORIGINS_QUERY: Parameters = &[("origins", "boolean", "true to see each value as its value and its origin.")];
const RELOAD_QUERY: Parameters =
    &[("dry_run", "boolean", "true to see the changes without taking them over; false if it is missing.")];
const CLIENTS_QUERY: Parameters = &[
    ("top", "integer", "The number of clients to show, 1 to 1000; 10 if it is missing."),
    ("from", "integer", "The number of clients before these; 0 if it is missing."),
    ("sort", "string", clients::SORT_KEYS),
    ("order", "string", "asc or desc; desc if it is missing."),
    ("find", "string", "A text that the ids contain, in large or small letters."),
];
const RULES_QUERY: Parameters = &[
    ("origin", "string", "Only rules of \"file\" or \"run_time\"."),
    ("state", "string", "Only rules with this state."),
    ("client", "string", "Only rules that match this client."),
    ("after", "string", "Only rules with names that follow this one."),
    ("limit", "integer", "The number of rules to show, 1 to 1000; 1000 if it is missing."),
];
const EXPLAIN_QUERY: Parameters = &[
    ("client", "string", "The client to explain, known or not."),
    ("group", "string", "A group in place of a client."),
    ("at", "string", "A time (RFC 3339) in place of now."),
];
const BAD_QUERY: Refusals = &[(400, "The question is not as described.")];
const NOTHING_LOST: Refusals = &[
    (403, NOT_ALLOWED),
    (404, "There is no such service."),
    (409, "No records of the topic are gone."),
    (429, TOO_MANY_CHANGES),
];
const BAD_TOP: Refusals = &[(400, "The question is not as described."), (404, "There is no such service.")];
const NO_RELOAD: Refusals = &[
    (400, "The question is not as described."),
    (403, "The role of the token is not operate."),
    (409, "There is no file to reload."),
    (422, "The new configuration is refused; `errors` lists why."),
];

const CHANGE_QUERY: Parameters = &[
    ("dry_run", "boolean", "true to see the effect without writing anything; false if it is missing."),
    ("at", "string", "With dry_run: a time (RFC 3339) in place of now."),
    ("wait", "string", "The longest wait until all live instances have the change, at most 10s; PUT counts them."),
];
const NOT_ALLOWED: &str = "The role of the token, or its services, do not allow this.";
const TOO_MANY_CHANGES: &str = "Too many changes of this instance are on their way.";
const BAD_CHANGE: Refusals = &[
    (400, "The question or the body is not as described."),
    (403, NOT_ALLOWED),
    (404, "There is no such service."),
    (408, "The body does not come in time."),
    (409, "The service has no rules_topic or too many rules, its topic lost records, or the rule is one of the file."),
    (412, "Another version is in force; `in_force` shows it."),
    (413, "The body is larger than 64 KiB."),
    (415, "The body is no JSON."),
    (422, "The rule is refused; `errors` lists why."),
    (428, "The request states no version."),
    (429, TOO_MANY_CHANGES),
    (503, "The topic of the rules takes no record or is being read, or too many requests wait."),
    (504, "The outcome is unknown."),
];

macro_rules! routes {
    ($($method:ident $path:expr => $handler:path, $answer:expr, $query:expr, $refusals:expr, $summary:literal;)*) => {
        /// Returns every route of `/v1`, from which the router and its description are made.
        fn routes() -> Vec<Route> {
            vec![$(Route {
                path: $path,
                method: stringify!($method),
                summary: $summary,
                query: $query,
                refusals: $refusals,
                answer: $answer,
                handler: $method($handler),
            }),*]
        }
    };
}

routes! {
    get "/openapi.json" => description, openapi::any_object, &[], &[], "Describes these paths.";
    get "/config" => config, schema::<ConfigView>, ORIGINS_QUERY, BAD_QUERY,
        "Shows the configuration in force, without secrets.";
    get "/changes" => changes, schema::<ChangesView>, &[], &[],
        "Shows the last ten changes of the configuration since the instance started.";
    post "/reload" => reload, schema::<ReloadView>, RELOAD_QUERY, NO_RELOAD, "Reads the configuration again.";
    get "/services" => services, schema::<ServicesView>, &[], &[], "Shows all services with all their clients.";
    get "/services/{name}" => service, schema::<ServiceView>, &[], NO_SERVICE,
        "Shows one service with all its clients.";
    get "/services/{name}/group" => group, schema::<GroupView>, &[], NO_SERVICE,
        "Shows the group that shares the capacity of a service.";
    get NOW => now, schema::<NowView>, &[], &[], "Shows the last second of each service, in short.";
    get EVENTS => events, console::event_schema, &[], NO_SERVICE,
        "Follows a service: an event each second, with JSON.";
    get "/services/{name}/clients" => clients::top, schema::<ClientsView>, CLIENTS_QUERY, BAD_TOP,
        "Shows some clients of a service, those that want most first.";
    get "/services/{name}/dead-letters" => letters, schema::<NewestLettersView>, &[], NO_SERVICE,
        "Shows the newest dead letters of a service, without their keys and values.";
    get "/services/{name}/rules" => rules::list, schema::<RulesView>, RULES_QUERY, BAD_TOP,
        "Shows the rules of a service.";
    get "/services/{name}/rules/changes" => rules::changes, schema::<RuleChangesView>, &[], BAD_TOP,
        "Shows the last changes of rules of run time that this instance saw.";
    post "/services/{name}/rules/accept-loss" => rules::accept_loss, openapi::any_object, &[], NOTHING_LOST,
        "Goes on with what the topic of the rules has, after records of it were lost.";
    get RULE => rules::one, schema::<RuleView>, &[], NO_RULE,
        "Shows one rule.";
    put RULE => rules::change, openapi::rule_or_dry_run, CHANGE_QUERY, BAD_CHANGE,
        "Puts a rule of run time. It states If-Match or If-None-Match.";
    delete RULE => rules::change, schema::<RuleDryRun>, CHANGE_QUERY, BAD_CHANGE,
        "Deletes a rule of run time. It states If-Match.";
    get "/services/{name}/explain" => rules::explain, schema::<ExplainView>, EXPLAIN_QUERY, BAD_TOP,
        "Shows which rule decides each field of a client, its group and the service.";
    get "/services/{name}/clients/{client}" => clients::client, schema::<ClientDetail>, &[], NO_CLIENT,
        "Shows one client of a service; its id is percent-encoded.";
}

async fn description(State(served): State<Arc<Served>>) -> Response {
    Json(&served.description).into_response()
}

/// The owner of the token that a request carries.
#[derive(Clone)]
struct Caller {
    name: String,
    role: Role,
    /// The services of which it may change rules; empty for all.
    services: Vec<String>,
}

impl Caller {
    /// Returns whether the token may change rules of a service.
    fn changes(&self, service: &str) -> bool {
        self.services.is_empty() || self.services.iter().any(|known| known == service)
    }
}

async fn require_token(
    State((state, on_loopback)): State<(Arc<AdminState>, bool)>, mut request: Request, next: Next,
) -> Response {
    let only_reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let changes_rule = path.contains("/rules/") && matches!(*request.method(), Method::PUT | Method::DELETE);
    let needed = match changes_rule {
        _ if only_reads => Role::Read,
        true if query.split('&').any(|part| part == "dry_run=true") => Role::Read,
        true => Role::Write,
        false => Role::Operate,
    };
    let most = if state.configuration.admin().open_on_loopback { Role::Operate } else { Role::Read };
    if on_loopback && needed <= most {
        // A token is not asked for here, but one that is sent shows what its role may see.
        let role = token_of(&state, &request).map_or(most, |token| token.role.max(most));
        let caller = Caller { name: "loopback".to_owned(), role, services: Vec::new() };
        request.extensions_mut().insert(caller);
        return next.run(request).await;
    }
    authorized(&state, needed, request, next).await
}

async fn require_metrics_token(State(state): State<Arc<AdminState>>, request: Request, next: Next) -> Response {
    let is_open = !state.configuration.admin().metrics_token;
    if is_open { next.run(request).await } else { authorized(&state, Role::Read, request, next).await }
}

/// Returns the token that a request carries, if it is known.
fn token_of(state: &AdminState, request: &Request) -> Option<AdminToken> {
    let offered = request.headers().get(header::AUTHORIZATION)?;
    state.configuration.admin().tokens.into_iter().find(|known| known.token.matches(offered.as_bytes()))
}

/// Goes on with a request that carries a token of a role that allows it.
async fn authorized(state: &AdminState, needed: Role, mut request: Request, next: Next) -> Response {
    match token_of(state, &request) {
        Some(AdminToken { name, role, .. }) if role < needed => {
            let error = format!("this request needs a token with the role {needed}, and {name:?} has the role {role}");
            refusal(StatusCode::FORBIDDEN, json!({ "error": error })).into_response()
        }
        Some(AdminToken { name, role, services, .. }) => {
            request.extensions_mut().insert(Caller { name, role, services });
            next.run(request).await
        }
        None => {
            let error = "this request needs \"Authorization: Bearer\" and a token of admin.token_file or \
                         [[admin.token]]";
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, Json(json!({ "error": error }))).into_response()
        }
    }
}

async fn not_found() -> HttpRefusal {
    refusal(StatusCode::NOT_FOUND, json!({ "error": "no such path" }))
}

async fn method_not_allowed() -> HttpRefusal {
    refusal(StatusCode::METHOD_NOT_ALLOWED, json!({ "error": "this path does not take this method" }))
}

/// Answers 200 while every engine's heartbeat is in time.
async fn livez(State(served): State<Arc<Served>>) -> Response {
    probe("alive", services_with(&served.state, silence))
}

/// Returns how long the engine of a service has been silent, if that is too long.
fn silence(service: &ServiceHandle) -> Option<String> {
    let now = Instant::now();
    let seconds = service.heartbeat.silence(now).unwrap_or_default().as_secs();
    (!service.heartbeat.is_alive(now)).then(|| format!("silent for {seconds} s"))
}

/// Answers 200 while every service has joined its group and can produce, no engine hangs, and the program is not
/// stopping.
async fn readyz(State(served): State<Arc<Served>>) -> Response {
    let state = &served.state;
    let draining = state.draining.load(Ordering::Relaxed);
    let reason = |service: &ServiceHandle| {
        let snapshot = service.cell.get();
        match &snapshot.figures.trouble {
            _ if draining => Some("draining".to_owned()),
            // The last snapshot of an engine that hangs says that it is ready.
            _ if snapshot.figures.ready => silence(service),
            Some(trouble) => Some(trouble.clone()),
            None => Some("joining the group".to_owned()),
        }
    };
    let mut waiting = services_with(state, reason);
    if draining && waiting.is_empty() {
        waiting.push(json!({ "reason": "draining" }));
    }
    probe("ready", waiting)
}

/// Returns the services for which a probe fails, each with its reason.
fn services_with(state: &AdminState, reason: impl Fn(&ServiceHandle) -> Option<String>) -> Vec<Value> {
    let services = state.services();
    services.iter().filter_map(|service| Some(json!({ "name": service.name, "reason": reason(service)? }))).collect()
}

/// Answers `{"<word>": bool, "services": [the services for which it is false, with the reason]}`.
fn probe(word: &str, not: Vec<Value>) -> Response {
    let status = if not.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ word: not.is_empty(), "services": not }))).into_response()
}

/// The answer to a request that is refused, which a handler returns by `?`.
struct HttpRefusal(Box<Response>);

impl From<Response> for HttpRefusal {
    fn from(response: Response) -> HttpRefusal {
        HttpRefusal(Box::new(response))
    }
}

impl IntoResponse for HttpRefusal {
    fn into_response(self) -> Response {
        *self.0
    }
}

fn refusal(status: StatusCode, body: Value) -> HttpRefusal {
    (status, Json(body)).into_response().into()
}

async fn metrics_text(State(served): State<Arc<Served>>) -> Result<Response, HttpRefusal> {
    let state = Arc::clone(&served.state);
    served.metrics.answer(move || (metrics::CONTENT_TYPE, render_metrics(&state).into_bytes())).await
}

fn render_metrics(state: &AdminState) -> String {
    let mut publisher = state.publisher.lock();
    let configuration = &state.configuration;
    let (services, now) = (configuration.running(), clock::wall_ms());
    publisher.keep_only(|name, cell| services.iter().any(|(_, handle)| handle.name == name && handle.cell.is(cell)));
    for (service, handle) in &services {
        let metrics = publisher.publish(&handle.name, &handle.cell, silence(handle).is_none());
        let open = handle.open.get();
        metrics.open = [open.max, open.counted];
        metrics.rules = RulesFigures::of(service, &handle.rules, now);
    }
    publisher.publish_reload(configuration.last(), configuration.hash(), configuration.past_changes());
    publisher.render()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigQuery {
    #[serde(default)]
    origins: bool,
}

async fn config(
    State(served): State<Arc<Served>>, query: Result<Query<ConfigQuery>, QueryRejection>,
) -> Result<Response, HttpRefusal> {
    let Ok(Query(ConfigQuery { origins })) = query else {
        return Err(refusal(StatusCode::BAD_REQUEST, json!({ "error": "origins is \"true\" or \"false\"" })));
    };
    let make = move |state: &AdminState| {
        let (config, hash) = state.configuration.shown(origins);
        ConfigView { hash, config }
    };
    served.view(make).await
}

async fn changes(State(served): State<Arc<Served>>) -> Result<Response, HttpRefusal> {
    served.view(|state| ChangesView { changes: state.configuration.past_changes() }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadQuestion {
    #[serde(default)]
    dry_run: bool,
}

async fn reload(
    State(served): State<Arc<Served>>, Extension(Caller { name, .. }): Extension<Caller>,
    question: Result<Query<ReloadQuestion>, QueryRejection>,
) -> Result<Response, HttpRefusal> {
    let Ok(Query(ReloadQuestion { dry_run })) = question else {
        return Err(refusal(StatusCode::BAD_REQUEST, json!({ "error": NO_DRY_RUN })));
    };
    let configuration = Arc::clone(&served.state.configuration);
    let work = move || match dry_run {
        true => configuration.dry_run(),
        false => configuration.reload(&format!("token {name}")),
    };
    match served.views.run(work).await? {
        Some(Ok(reloaded)) => Ok(Json(reloaded).into_response()),
        None => Err(refusal(StatusCode::CONFLICT, json!({ "error": "there is no configuration file to reload" }))),
        Some(Err(errors)) => {
            let error = "the new configuration is refused, the one in force stays";
            Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, json!({ "error": error, "errors": errors.to_json() })))
        }
    }
}

async fn services(State(served): State<Arc<Served>>) -> Result<Response, HttpRefusal> {
    served.view(|state| view::services(&state.services())).await
}

async fn service(State(served): State<Arc<Served>>, Path(name): Path<String>) -> Result<Response, HttpRefusal> {
    show(&served, &name, view::service).await
}

async fn group(State(served): State<Arc<Served>>, Path(name): Path<String>) -> Result<Response, HttpRefusal> {
    show(&served, &name, view::group).await
}

async fn letters(
    State(served): State<Arc<Served>>, Extension(caller): Extension<Caller>, Path(name): Path<String>,
) -> Result<Response, HttpRefusal> {
    show(&served, &name, move |service| view::letters(service, caller.role == Role::Operate)).await
}

/// Answers with a view of the service with this name.
async fn show<T: Serialize>(
    served: &Served, name: &str, view: impl FnOnce(&ServiceHandle) -> T + Send + 'static,
) -> Result<Response, HttpRefusal> {
    let service = find(&served.state, name)?;
    served.view(move |_| view(&service)).await
}

/// Returns the service with this name, or the answer that there is none.
fn find(state: &AdminState, name: &str) -> Result<ServiceHandle, HttpRefusal> {
    let services = state.services();
    let found = services.iter().find(|service| service.name == name);
    found.cloned().ok_or_else(|| {
        let known: Vec<_> = services.iter().map(|service| &service.name).collect();
        let error = json!({ "error": format!("no service {name:?}"), "services": known });
        refusal(StatusCode::NOT_FOUND, error)
    })
}

#[cfg(test)]
mod tests;
