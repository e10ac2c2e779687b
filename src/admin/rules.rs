//! The rules of a service: those in force, and changes of the rules of run time.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest as _, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use watermaster_api::{
    ClientEffect, ExplainView, FieldView, RuleChangesView, RuleDryRun, RuleView, RulesView, TakenOver, rfc3339,
};
use watermaster_core::pattern::ClientPattern;
use watermaster_core::policy::Policy;
use watermaster_core::rules::log::record::{MAX_RULE_BYTES, RuleVersion};
use watermaster_core::rules::log::{Precondition, WriteOutcome, WriteRefusal, WriteRequest};
use watermaster_core::rules::{Rule, RuleTarget};
use watermaster_core::scheduler::grants;
use watermaster_settings::config::{MAX_DELAYS, instant, rule_of_json};
use watermaster_settings::reader::similar;
use watermaster_settings::{Role, Service};

use super::pool::json_answer;
use super::{Caller, HttpRefusal, Served, find, refusal};
use crate::clock;
use crate::rules::{KnownRule, KnownRules, LogState, RULE_STATES, RulesOrder, with_run_time};
use crate::services::ServiceHandle;
use crate::snapshot::ClientSnapshot;

/// The most rules on a page, and the most clients of a dry run.
const MAX_RULES: usize = 1_000;
const MAX_CLIENTS: usize = 100;
/// The most unknown clients that a warning names, and the most known ones that each is compared with.
const MAX_WARNINGS: usize = 3;
const MAX_COMPARED_CLIENTS: usize = 1_000;
/// The longest wait for a change, beyond the time that the thread gives it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// The longest wait for the other instances, and the time between two looks.
const MAX_WAIT: Duration = Duration::from_secs(10);
const WAIT_INTERVAL: Duration = Duration::from_millis(20);
/// The longest wait for the body of a request, and the most bytes of one.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const MAX_BODY_BYTES: usize = MAX_RULE_BYTES;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesQuery {
    origin: Option<String>,
    state: Option<String>,
    client: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeQuery {
    #[serde(default)]
    dry_run: bool,
    at: Option<String>,
    wait: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    client: Option<String>,
    group: Option<String>,
    at: Option<String>,
}

/// A refusal: a word for programs, and a sentence for people.
fn refused(status: StatusCode, code: &str, message: impl Into<String>) -> HttpRefusal {
    refusal(status, json!({ "error": code, "message": message.into() }))
}

fn not_this_service() -> HttpRefusal {
    refused(StatusCode::FORBIDDEN, "forbidden", "the token may not change rules of this service")
}

fn bad_question(message: &str) -> HttpRefusal {
    refused(StatusCode::BAD_REQUEST, "bad_request", message)
}

fn no_utf8(_: PathRejection) -> HttpRefusal {
    bad_question("the path is not UTF-8")
}

/// The service with this name and its handle.
pub(super) fn service_of(served: &Served, name: &str) -> Result<(Service, ServiceHandle), HttpRefusal> {
    let handle = find(&served.state, name)?;
    let running = served.state.configuration.running();
    let found = running.into_iter().find(|(service, _)| service.name == name);
    let (service, _) = found.ok_or_else(|| refused(StatusCode::NOT_FOUND, "not_found", "no such service"))?;
    Ok((service, handle))
}

/// Answers with the rules, in the order of their names.
pub(super) async fn list(
    State(served): State<Arc<Served>>, path: Result<Path<String>, PathRejection>,
    query: Result<Query<RulesQuery>, QueryRejection>,
) -> Result<Response, HttpRefusal> {
    let (Ok(Path(name)), Ok(Query(query))) = (path, query) else {
        return Err(bad_question("allowed: origin, state, client, after, limit"));
    };
    let limit = query.limit.unwrap_or(MAX_RULES);
    if !(1..=MAX_RULES).contains(&limit) {
        return Err(bad_question(&format!("limit is 1 to {MAX_RULES}")));
    }
    let is_one_of = |word: &Option<String>, words: &[&str]| word.as_deref().is_none_or(|word| words.contains(&word));
    if !is_one_of(&query.origin, &["file", "run_time"]) || !is_one_of(&query.state, &RULE_STATES) {
        return Err(bad_question(&format!("origin is file or run_time, state is {}", RULE_STATES.join(" or "))));
    }
    let (service, handle) = service_of(&served, &name)?;
    served.views.answer(move || json_answer(&page(&service, &handle, &query, limit))).await
}

/// A page of the rules of the file and of those of run time, in the order of their names. It ends with a name: a rule
/// of the file that one of run time replaces is on one page with it.
fn page(service: &Service, handle: &ServiceHandle, query: &RulesQuery, limit: usize) -> RulesView {
    let now = clock::wall_ms();
    let (client, after) = (query.client.as_deref(), query.after.as_deref().unwrap_or_default());
    let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
    let names_client =
        |rule: Option<&Rule>| client.is_none_or(|client| rule.is_some_and(|rule| rule.target.names_client(client)));
    let age_seconds = service.rules_topic.as_ref().map(|_| handle.rules.silence().as_secs_f64());
    let known = handle.rules.known();
    let of_file = of_file(service).filter(|rule| *rule.name > *after && is(&query.origin, "file"));
    let of_file = of_file.filter(|rule| names_client(Some(rule)) && is(&query.state, known.state_in_file(rule, now)));
    let of_run_time = known.rules.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
    let of_run_time = of_run_time.filter(|(_, known)| {
        let wanted = is(&query.origin, "run_time") && is(&query.state, known.state(now));
        wanted && names_client(known.rule.as_ref().ok())
    });
    let mut found: Vec<(&str, Result<&Rule, &KnownRule>)> = of_file.map(|rule| (&*rule.name, Ok(rule))).collect();
    found.extend(of_run_time.map(|(name, known)| (&**name, Err(known))));
    // The sort is stable, so that a rule of the file stands before that of run time with its name.
    found.sort_by_key(|(name, _)| *name);
    let mut end = found.len().min(limit);
    while end < found.len() && found[end].0 == found[end - 1].0 {
        end += 1;
    }
    let next = (end < found.len()).then(|| found[end - 1].0.to_owned());
    let views = found[..end].iter().map(|(name, rule)| match rule {
        Ok(rule) => file_view(rule, &known, now),
        Err(of_run_time) => run_time_view(name, of_run_time, now),
    });
    let rules = views.collect();
    RulesView { service: service.name.clone(), age_seconds, rules, next }
}

fn of_file(service: &Service) -> impl Iterator<Item = &Rule> {
    service.policy.rules.iter().filter(|rule| !rule.is_table())
}

fn file_view(rule: &Rule, known: &KnownRules, now: i64) -> RuleView {
    RuleView {
        name: rule.name.to_string(),
        origin: "file".into(),
        state: known.state_in_file(rule, now).into(),
        etag: "file".to_owned(),
        by: None,
        at: None,
        rule: watermaster_settings::config::rule_to_json(rule),
        warnings: Vec::new(),
        instances: None,
    }
}

fn run_time_view(name: &str, known: &KnownRule, now: i64) -> RuleView {
    let state = known.state(now);
    RuleView {
        name: name.to_owned(),
        origin: "run_time".into(),
        state: state.into(),
        etag: known.version.to_string(),
        by: Some(known.by.to_string()),
        at: Some(rfc3339(known.at_ms)),
        rule: serde_json::from_str(&known.body).unwrap_or_default(),
        warnings: known.doubt().into_iter().collect(),
        instances: None,
    }
}

/// Answers with one rule: that of run time, if there is one.
pub(super) async fn one(
    State(served): State<Arc<Served>>, path: Result<Path<(String, String)>, PathRejection>, headers: HeaderMap,
) -> Result<Response, HttpRefusal> {
    let Path((service, name)) = path.map_err(no_utf8)?;
    let (service, handle) = service_of(&served, &service)?;
    let now = clock::wall_ms();
    let found = {
        let known = handle.rules.known();
        let run_time = known.rules.get(&*name).map(|rule| run_time_view(&name, rule, now));
        let in_file = || of_file(&service).find(|rule| *rule.name == *name);
        run_time.or_else(|| in_file().map(|rule| file_view(rule, &known, now)))
    };
    let rule = found.ok_or_else(|| refused(StatusCode::NOT_FOUND, "not_found", format!("no rule {name:?}")))?;
    let etag = format!("\"{}\"", rule.etag);
    if headers.get(header::IF_NONE_MATCH).is_some_and(|stated| *stated == *etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    Ok(([(header::ETAG, etag)], Json(rule)).into_response())
}

/// Answers with the last changes.
pub(super) async fn changes(
    State(served): State<Arc<Served>>, path: Result<Path<String>, PathRejection>,
) -> Result<Response, HttpRefusal> {
    let Path(name) = path.map_err(no_utf8)?;
    let changes = find(&served.state, &name)?.rules.known().changes.iter().cloned().collect();
    Ok(Json(RuleChangesView { changes }).into_response())
}

/// Answers which rule decides each field of a client, a group or the service.
pub(super) async fn explain(
    State(served): State<Arc<Served>>, path: Result<Path<String>, PathRejection>,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> Result<Response, HttpRefusal> {
    let (Ok(Path(name)), Ok(Query(query))) = (path, query) else {
        return Err(bad_question("allowed: client, group, at"));
    };
    let at = at(query.at.as_deref())?;
    let (service, handle) = service_of(&served, &name)?;
    let ExplainQuery { client, group, .. } = query;
    let explain = move || json_answer(&explanation(&service, &handle, client.as_deref(), group.as_deref(), at));
    served.views.answer(explain).await
}

/// Explains what holds for a client or a group at a time, and which rules decide.
pub(super) fn explanation(
    service: &Service, handle: &ServiceHandle, client: Option<&str>, group: Option<&str>, at: i64,
) -> ExplainView {
    ExplainView::of(&policy_at(service, handle, &handle.rules.rules(), client, at), client, group)
}

/// The policy of a service at a time, with rules of run time and with the groups of its known clients and of one more.
fn policy_at(service: &Service, handle: &ServiceHandle, rules: &[Rule], client: Option<&str>, at: i64) -> Policy {
    let mut policy = with_run_time(&service.policy, rules);
    policy.meet_groups_of(handle.cell.get().clients.iter().map(|known| &*known.name).chain(client));
    let mut policy = policy.at(at);
    policy.take_found(handle.pace.lock().limit);
    policy
}

fn at(text: Option<&str>) -> Result<i64, HttpRefusal> {
    let no_time = "at is a date and a time with an offset, such as 2026-07-03T00:00:00Z";
    text.map_or(Ok(clock::wall_ms()), |text| instant(text).map_err(|_| bad_question(no_time)))
}

fn wait_of(text: &str) -> Result<Duration, HttpRefusal> {
    let time = humantime::parse_duration(text).ok().filter(|time| *time <= MAX_WAIT);
    time.ok_or_else(|| bad_question("wait is a time of at most 10s, such as 2s"))
}

/// Waits until all live instances have the rules that are known here.
async fn taken_over(handle: &ServiceHandle, wait: Duration) -> TakenOver {
    let until = Instant::now() + wait;
    loop {
        let checksum = handle.rules.known().checksum();
        let snapshot = handle.cell.get();
        let live = snapshot.group.figures.members.iter().filter(|member| member.state == "live");
        let has_same: Vec<bool> = live.map(|member| member.rules_checksum == checksum).collect();
        let same_rules = has_same.iter().filter(|has_same| **has_same).count();
        // With scope instance there are no others to know.
        let alone = usize::from(has_same.is_empty());
        let taken = TakenOver { live: has_same.len() + alone, same_rules: same_rules + alone };
        if taken.same_rules == taken.live || Instant::now() >= until {
            return taken;
        }
        sleep(WAIT_INTERVAL).await;
    }
}

/// The versions that a request states. A rule of the file has the version "file" until one of run time replaces it.
fn precondition(headers: &HeaderMap, in_file: bool) -> Result<Precondition, HttpRefusal> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let version = |text: &str| RuleVersion::parse(text.strip_prefix('"')?.strip_suffix('"')?);
    let stated = match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (Some("*"), None) => Some(Precondition::Present),
        (Some("\"file\""), None) if in_file => Some(Precondition::Absent),
        (Some(stated), None) => version(stated).map(Precondition::Version),
        (None, Some("*")) => Some(Precondition::Absent),
        _ => None,
    };
    let is_any = [header::IF_MATCH, header::IF_NONE_MATCH].iter().any(|name| headers.contains_key(name));
    stated.ok_or_else(|| {
        let message = "state If-Match: \"VERSION\" or *, or If-None-Match: *";
        match is_any {
            true => bad_question(message),
            false => refused(StatusCode::PRECONDITION_REQUIRED, "precondition_required", message),
        }
    })
}

/// Puts or deletes a rule, or tells what that would change.
pub(super) async fn change(
    State(served): State<Arc<Served>>, Extension(caller): Extension<Caller>,
    path: Result<Path<(String, String)>, PathRejection>, query: Result<Query<ChangeQuery>, QueryRejection>,
    method: Method, headers: HeaderMap, request: Request,
) -> Result<Response, HttpRefusal> {
    let (Ok(Path((service, name))), Ok(Query(query))) = (path, query) else {
        return Err(bad_question("allowed: dry_run, at, wait"));
    };
    // While a request is answered, nothing else ends a connection on which its body does not come.
    let Ok(body) = timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await else {
        return Err(refused(StatusCode::REQUEST_TIMEOUT, "timeout", "the body does not come in time"));
    };
    let (verb, dry_run) = (if method == Method::DELETE { "delete" } else { "put" }, query.dry_run);
    let answer = change_rule(&served, &caller, &service, name.clone(), query, &method, &headers, body).await;
    let status = answer.as_ref().map_or_else(|HttpRefusal(response)| response.status(), Response::status);
    let (result, by) = (status.as_u16(), &caller.name);
    match status.is_success() {
        _ if dry_run => {}
        true => info!(service, rule = name, verb, result, by, "a change of a rule"),
        false => warn!(service, rule = name, verb, result, by, "a change of a rule is refused"),
    }
    answer
}

#[expect(clippy::too_many_arguments, reason = "the parts of one request")]
async fn change_rule(
    served: &Served, caller: &Caller, service_name: &str, name: String, query: ChangeQuery, method: &Method,
    headers: &HeaderMap, body: Result<Bytes, BytesRejection>,
) -> Result<Response, HttpRefusal> {
    let now = at(query.at.as_deref())?;
    let wait = query.wait.as_deref().map(wait_of).transpose()?;
    let (service, handle) = service_of(served, service_name)?;
    if service.rules_topic.is_none() && !query.dry_run {
        let message = format!("service {service_name:?} has no rules_topic: its rules are those of the file");
        return Err(refused(StatusCode::CONFLICT, "rules_off", message));
    }
    if !caller.changes(service_name) {
        return Err(not_this_service());
    }
    let rule = match (*method == Method::DELETE, body) {
        (true, _) => None,
        (false, Ok(body)) => Some(parsed(&name, headers, &body, &service)?),
        (false, Err(error)) => return Err(refused(error.status(), "too_large", error.body_text())),
    };
    let in_file = service.policy.rules.iter().find(|rule| *rule.name == *name).cloned();
    let known = handle.rules.known().rules.get(&*name).map(|known| (known.version, known.rule.clone()));
    let (version, existed) = (known.as_ref().map(|(version, _)| *version), known.is_some());
    // A rule that is not understood here may be one for the service.
    let is_opaque = matches!(known, Some((_, Err(_))));
    let of_run_time = known.and_then(|(_, rule)| rule.ok());
    let of_service = |rule: &Option<Rule>| rule.as_ref().is_some_and(|rule| rule.target == RuleTarget::Service);
    let parsed_rule = rule.as_ref().map(|(rule, _)| rule.clone());
    let is_for_service = [&parsed_rule, &of_run_time, &in_file].into_iter().any(of_service) || is_opaque;
    if is_for_service && caller.role < Role::Operate && !query.dry_run {
        let message = "a rule for the service takes a token with the role operate";
        return Err(refused(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let mut unknown = Vec::new();
    if let Some(rule) = &parsed_rule {
        check_delays(rule, &service, &handle)?;
        unknown = unknown_names(&handle, &rule.target);
    }
    if query.dry_run {
        // A rule that begins later changes nothing now.
        let begins =
            parsed_rule.as_ref().and_then(|rule| rule.from_ms).filter(|from| query.at.is_none() && *from > now);
        let at = begins.unwrap_or(now);
        let compare = move || {
            let mut rules = handle.rules.rules();
            let before = policy_at(&service, &handle, &rules, None, at);
            rules.retain(|known| *known.name != *name);
            rules.extend(parsed_rule);
            let after = policy_at(&service, &handle, &rules, None, at);
            let mut effects = dry_run(&handle, &before, &after);
            effects.warnings.extend(unknown);
            if let Some(begins) = begins {
                effects.warnings.push(format!("this holds from {} on", rfc3339(begins.unsigned_abs())));
            }
            json_answer(&effects)
        };
        return served.views.answer(compare).await;
    }
    if parsed_rule.as_ref().is_some_and(|rule| rule.until_ms.is_some_and(|until| until <= clock::wall_ms())) {
        return Err(invalid("until", "until is over: the rule would have no effect"));
    }
    let mut precondition = precondition(headers, in_file.is_some())?;
    if rule.is_none() && !existed && in_file.is_some() {
        let message = "the rule is one of the file: put it with \"disabled\": true";
        return Err(refused(StatusCode::CONFLICT, "in_file", message));
    }
    // Meanwhile it may become, or already be at another instance, a rule for the service, which takes another role. So
    // only the version that was looked at may be replaced.
    if caller.role < Role::Operate {
        precondition = match (precondition, version) {
            (Precondition::Absent, _) => Precondition::Absent,
            (Precondition::Present, Some(version)) => Precondition::Version(version),
            (Precondition::Version(stated), Some(version)) if stated == version => Precondition::Version(version),
            _ => {
                let changed = WriteRefusal::Changed { in_force: version };
                return Err(not_in_force(&handle, &name, Err(changed)));
            }
        };
    }
    let (answer, outcome) = oneshot::channel();
    let (by, at_ms) = (Box::from(caller.name.as_str()), clock::since_epoch().as_millis() as u64);
    let write = WriteRequest {
        name: name.as_str().into(),
        precondition,
        rule: rule.as_ref().map(|(_, text)| text.clone()),
        by: Box::clone(&by),
        at: at_ms,
    };
    let is_taken = handle.rules.order(RulesOrder::Write { write, answer });
    let outcome = match timeout(ANSWER_TIMEOUT, outcome).await {
        _ if !is_taken => Err(WriteRefusal::Busy),
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Ok(WriteOutcome::NotSent),
        Err(_) => Ok(WriteOutcome::Unknown),
    };
    let Ok(WriteOutcome::InForce(version)) = outcome else { return Err(not_in_force(&handle, &name, outcome)) };
    let instances = match wait {
        Some(wait) => Some(taken_over(&handle, wait).await),
        None => None,
    };
    let Some((rule, body)) = rule else { return Ok((StatusCode::NO_CONTENT, etag(version)).into_response()) };
    let put = KnownRule { version, by, at_ms, body, rule: Ok(rule), forbidden_capacity: None };
    Ok(in_force(&handle, &name, &put, existed, instances, unknown))
}

/// Refuses one field of a rule.
fn invalid(field: &str, message: impl Into<String>) -> HttpRefusal {
    let body = json!({ "error": "invalid", "message": message.into(), "field": field });
    refusal(StatusCode::UNPROCESSABLE_ENTITY, body)
}

/// Refuses a rule with one value of `max_delay` too many: the backlog has a list for each.
fn check_delays(rule: &Rule, service: &Service, handle: &ServiceHandle) -> Result<(), HttpRefusal> {
    let Some(delay) = rule.effects.max_delay else { return Ok(()) };
    let known = handle.rules.known();
    let of_run_time = known.rules.values().filter_map(|known| known.rule.as_ref().ok());
    let others = service.policy.rules.iter().chain(of_run_time);
    let others = others.filter(|other| other.name != rule.name).filter_map(|other| other.effects.max_delay);
    let delays: HashSet<Duration> = others.collect();
    if delays.len() < MAX_DELAYS || delays.contains(&delay) {
        return Ok(());
    }
    let message =
        format!("max_delay: the rules have {} different values, and at most {MAX_DELAYS} are allowed", delays.len());
    Err(invalid("max_delay", message))
}

/// Warns of clients and groups that a rule names and that this instance does not know: it may be a typing error, or the
/// service has no groups.
fn unknown_names(handle: &ServiceHandle, target: &RuleTarget) -> Vec<String> {
    let snapshot = handle.cell.get();
    let patterns = match target {
        RuleTarget::Clients { patterns, .. } => patterns,
        RuleTarget::Groups(patterns) => {
            let filled = snapshot.throttle.groups.iter().filter(|group| group.clients > 0);
            let filled: Vec<&str> = filled.map(|group| &*group.name).collect();
            let is_known = filled.iter().any(|name| patterns.iter().any(|pattern| pattern.matches(name)));
            let warning = "no client of these groups is known here yet".to_owned();
            return if is_known { Vec::new() } else { vec![warning] };
        }
        RuleTarget::Service => return Vec::new(),
    };
    let ids = patterns.iter().filter_map(ClientPattern::id).filter(|id| snapshot.clients.find(id).is_none());
    let warning = |id: &str| {
        let known = snapshot.clients.iter().take(MAX_COMPARED_CLIENTS).map(|client| &*client.name);
        let like = similar(id, known).map(|like| format!(": did you mean {like:?}?")).unwrap_or_default();
        format!("no client {id:?} is known here yet{like}")
    };
    let (ids, unknown): (Vec<_>, usize) = (ids.clone().take(MAX_WARNINGS).collect(), ids.count());
    let more = (unknown > ids.len()).then(|| format!("{} more clients are not known here yet", unknown - ids.len()));
    ids.into_iter().map(warning).chain(more).collect()
}

/// Reads the rule in a body, and its text.
fn parsed(name: &str, headers: &HeaderMap, body: &[u8], service: &Service) -> Result<(Rule, Box<str>), HttpRefusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    if !is_json {
        let message = "the body is a rule in JSON: Content-Type: application/json";
        return Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", message));
    }
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        refused(StatusCode::BAD_REQUEST, "not_json", format!("the body is no object of JSON: {error}"))
    })?;
    if object.get("name").is_some_and(|own| own != name) {
        return Err(invalid("name", "name is not the name in the path"));
    }
    let rule = rule_of_json(name, &object, service.rules_max_capacity).map_err(|errors| {
        let errors = errors.to_json();
        let body = json!({
            "error": "invalid", "message": "the rule is refused",
            "field": errors[0]["key"], "errors": errors,
        });
        refusal(StatusCode::UNPROCESSABLE_ENTITY, body)
    })?;
    let text = serde_json::to_string(&object).unwrap_or_default();
    Ok((rule, text.into()))
}

fn etag(version: RuleVersion) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{version}\""))]
}

/// Answers a rule that came in force with its own version, also if a later change has replaced it by now.
fn in_force(
    handle: &ServiceHandle, name: &str, put: &KnownRule, existed: bool, instances: Option<TakenOver>,
    mut warnings: Vec<String>,
) -> Response {
    let (version, etag) = (put.version, etag(put.version));
    let now = handle.rules.known().rules.get(name).map(|known| known.version);
    match now {
        Some(now) if now == version => {}
        Some(now) => warnings.insert(0, format!("version {now} has replaced this one")),
        None => warnings.insert(0, "the rule has been deleted since".to_owned()),
    }
    let view = RuleView { instances, warnings, ..run_time_view(name, put, clock::wall_ms()) };
    if existed { (etag, Json(view)).into_response() } else { (StatusCode::CREATED, etag, Json(view)).into_response() }
}

/// Answers with the reason for which a change is not known to be in force.
fn not_in_force(handle: &ServiceHandle, name: &str, outcome: Result<WriteOutcome, WriteRefusal>) -> HttpRefusal {
    let why = match outcome {
        Ok(WriteOutcome::Refused(why)) | Err(why) => why,
        Ok(WriteOutcome::InForce(_) | WriteOutcome::Unknown) => {
            let message = "the outcome is unknown: the change may be in force, or come in force; ask again";
            return refused(StatusCode::GATEWAY_TIMEOUT, "unknown", message);
        }
        Ok(WriteOutcome::NotSent) => {
            let message = "the topic of the rules takes no record";
            return refused(StatusCode::SERVICE_UNAVAILABLE, "not_sent", message);
        }
    };
    let message = why.to_string();
    match why {
        WriteRefusal::Changed { .. } | WriteRefusal::Missing => {
            let known = handle.rules.known();
            let view = known.rules.get(name).map(|rule| run_time_view(name, rule, clock::wall_ms()));
            let body = json!({ "error": "changed", "message": message, "in_force": view });
            refusal(StatusCode::PRECONDITION_FAILED, body)
        }
        WriteRefusal::Busy => {
            let again = [(header::RETRY_AFTER, "1")];
            (again, refused(StatusCode::TOO_MANY_REQUESTS, "busy", message)).into_response().into()
        }
        WriteRefusal::Lost => {
            let message =
                "records of the topic of the rules are gone; `watermaster rules accept-loss` goes on without them";
            refused(StatusCode::CONFLICT, "log_lost", message)
        }
        WriteRefusal::TooMany(_) => refused(StatusCode::CONFLICT, "too_many_rules", message),
        WriteRefusal::Unwritable(_) => refused(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message),
        WriteRefusal::Reading => refused(StatusCode::SERVICE_UNAVAILABLE, "reading", message),
    }
}

/// Goes on with what the topic of the rules has.
pub(super) async fn accept_loss(
    State(served): State<Arc<Served>>, Extension(caller): Extension<Caller>, path: Result<Path<String>, PathRejection>,
) -> Result<Response, HttpRefusal> {
    let Path(name) = path.map_err(no_utf8)?;
    if !caller.changes(&name) {
        return Err(not_this_service());
    }
    let (service, handle) = service_of(&served, &name)?;
    if service.rules_topic.is_none() || handle.rules.known().state != LogState::Lost {
        return Err(refused(StatusCode::CONFLICT, "nothing_lost", "no records of a topic of rules are gone"));
    }
    if !handle.rules.order(RulesOrder::AcceptLoss) {
        return Err(not_in_force(&handle, "", Err(WriteRefusal::Busy)));
    }
    // Until the topic is read anew, the former rules would look as if it held them, and would not be put again.
    let until = Instant::now() + ANSWER_TIMEOUT;
    while handle.rules.known().state == LogState::Lost {
        if Instant::now() >= until {
            return Err(not_in_force(&handle, "", Ok(WriteOutcome::Unknown)));
        }
        sleep(WAIT_INTERVAL).await;
    }
    Ok(Json(json!({ "accepted": true })).into_response())
}

/// Compares what holds for the known clients before and after a change. The grants are of the part of the capacity that
/// this instance holds, for the wants of its clients.
pub(super) fn dry_run(handle: &ServiceHandle, before: &Policy, after: &Policy) -> RuleDryRun {
    let snapshot = handle.cell.get();
    let mut known: Vec<_> = snapshot.clients.iter().collect();
    // A client that is held wants nothing, but its delayed records do once it is released.
    let wants = |client: &ClientSnapshot| client.levels.wants.max(client.levels.backlog);
    known.sort_by(|one, other| (wants(other), &one.name).cmp(&(wants(one), &other.name)));
    let clients: Vec<(Arc<str>, u64)> = known.iter().map(|client| (Arc::clone(&client.name), wants(client))).collect();
    let (hold, whole) = (snapshot.group.figures.hold, snapshot.group.figures.capacity);
    let is_part = hold < whole;
    let held_of = |capacity: u64| match is_part {
        true => (u128::from(capacity) * u128::from(hold) / u128::from(whole)) as u64,
        false => capacity,
    };
    let grants = [before, after].map(|policy| grants(policy, held_of(policy.capacity), &clients));
    let limits = [before, after].map(Policy::limits_in_cycle);
    let fields = |policy, name: &str| ExplainView::of(policy, Some(name), None).fields;
    let differ = |one: &[FieldView], other: &[FieldView]| -> Vec<FieldView> {
        one.iter().filter(|field| !other.contains(field)).cloned().collect()
    };
    let is_other = |name: &str| {
        let [one, other] = [before, after].map(|policy| policy.effects_on(name));
        // Where no rule is, there are no effects, and those of the tables hold: the values tell whether they differ.
        let has_other_effects = one != other
            && (one.is_some() && other.is_some() || !differ(&fields(before, name), &fields(after, name)).is_empty());
        has_other_effects
            || before.group_of(name).map(|group| &before.groups[group])
                != after.group_of(name).map(|group| &after.groups[group])
    };
    let mut changed = 0;
    let mut shown = Vec::new();
    for (place, (name, wants)) in clients.iter().enumerate() {
        let [granted_before, granted_after] = [grants[0][place], grants[1][place]];
        if !is_other(name) && granted_before == granted_after {
            continue;
        }
        changed += 1;
        if shown.len() < MAX_CLIENTS {
            let [limit_before, limit_after] = limits.each_ref().map(|limit_of| limit_of(name));
            let [before, after] = [fields(before, name), fields(after, name)];
            shown.push(ClientEffect {
                name: name.to_string(),
                before: differ(&before, &after),
                after: differ(&after, &before),
                wants: *wants,
                backlog: known[place].levels.backlog,
                granted_before,
                granted_after,
                limit_before,
                limit_after,
            });
        }
    }
    let mut warnings = Vec::new();
    if is_part {
        warnings.push(format!("this instance grants {hold} of {whole} records in a cycle now"));
    }
    let enforcement = match (before.enforce, after.enforce) {
        (true, false) => Some("in shadow mode every record is admitted at once, also above the capacity"),
        (false, true) => Some("shadow mode ends: records above the capacity are delayed or rejected"),
        _ => None,
    };
    warnings.extend(enforcement.map(str::to_owned));
    RuleDryRun { dry_run: true, changed, clients: shown, warnings }
}
