//! The description of `/v1` in OpenAPI 3.1. It is made from the routes that the server has and from the types of their
//! answers, so it can't miss a path or a field.

use std::sync::Arc;

use axum::routing::MethodRouter;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::{EVENTS, RULE, Served};
use watermaster_api::{RuleDryRun, RuleView};
use watermaster_settings::config::RULE_SCHEMA;

/// Parameters after the question mark, with their type and meaning.
pub(super) type Parameters = &'static [(&'static str, &'static str, &'static str)];
/// Statuses of refusals, with their meaning.
pub(super) type Refusals = &'static [(u16, &'static str)];

/// A path of `/v1`, for the server and for its description.
pub(super) struct Route {
    /// The path below `/v1`; a name in braces is a parameter.
    pub path: &'static str,
    pub method: &'static str,
    pub summary: &'static str,
    pub query: Parameters,
    /// The refusals beside those that every path has.
    pub refusals: Refusals,
    /// The schema of the answer, or of the data of each event.
    pub answer: fn(&mut SchemaGenerator) -> Schema,
    pub handler: MethodRouter<Arc<Served>>,
}

/// The refusals that every path has.
const REFUSALS: Refusals = &[
    (401, "The request needs a token of admin.token_file or admin.token."),
    (421, "On loopback, the Host header must name this machine."),
    (503, "Too many requests wait, or too many answers are unread."),
];

const IF_MATCH: (&str, &str, &str) = ("If-Match", "string", "The version in force, in quotes, or * for any.");
const IF_NONE_MATCH: (&str, &str, &str) = ("If-None-Match", "string", "* to put a rule that is not in force yet.");
const KNOWN_VERSION: (&str, &str, &str) = ("If-None-Match", "string", "The version that is known, in quotes.");

/// Returns the schema of a type of answers.
pub(super) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Returns the schema of this description.
pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "object" })
}

/// Returns the schema of what a `PUT` of a rule answers: the rule, or what a dry run tells.
pub(super) fn rule_or_dry_run(generator: &mut SchemaGenerator) -> Schema {
    let either = [schema::<RuleView>(generator), schema::<RuleDryRun>(generator)];
    schemars::json_schema!({ "anyOf": either })
}

/// Describes the routes.
pub(super) fn describe(routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in routes {
        let answer = (route.answer)(&mut generator).to_value();
        let path = paths.entry(format!("/v1{}", route.path)).or_insert_with(|| json!({}));
        path[route.method] = operation(route, answer);
    }
    let mut schemas = generator.take_definitions(true);
    let text = json!({ "type": "string", "description": "The reason, for people." });
    let field = json!({ "type": "string", "description": "The key that is wrong." });
    let properties = json!({ "error": text.clone(), "message": text, "field": field });
    let refusal = json!({ "type": "object", "required": ["error"], "properties": properties });
    schemas.insert("Refusal".to_owned(), refusal);
    schemas.insert("Rule".to_owned(), RULE_SCHEMA.to_request_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Watermaster",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The present figures of one instance. Fields may be added; none changes its meaning.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        // On loopback, reading needs no token.
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, answer: Value) -> Value {
    let json_of = |schema: Value| json!({ "application/json": { "schema": schema } });
    let mut responses = Map::new();
    let content_type = if route.path == EVENTS { "text/event-stream" } else { "application/json" };
    let content = json!({ content_type: { "schema": answer } });
    responses.insert("200".to_owned(), json!({ "description": "The answer.", "content": content }));
    let headers: Parameters = match route.method {
        _ if route.path != RULE => &[],
        "put" => {
            responses.insert("201".to_owned(), json!({ "description": "The rule is new.", "content": content }));
            &[IF_MATCH, IF_NONE_MATCH]
        }
        "delete" => {
            responses.insert("204".to_owned(), json!({ "description": "The rule is deleted." }));
            &[IF_MATCH]
        }
        _ => {
            responses.insert("304".to_owned(), json!({ "description": "The known version is in force." }));
            &[KNOWN_VERSION]
        }
    };
    if route.path == RULE {
        let why = "The version of the rule, in quotes; a dry run has none.";
        let version = json!({ "ETag": { "description": why, "schema": { "type": "string" } } });
        responses.values_mut().for_each(|answer| answer["headers"] = version.clone());
    }
    for (status, why) in REFUSALS.iter().chain(route.refusals) {
        let schema = json!({ "$ref": "#/components/schemas/Refusal" });
        responses.insert(status.to_string(), json!({ "description": why, "content": json_of(schema) }));
    }
    let in_path = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let optional = |place: &'static str| {
        move |(name, of_type, meaning): &(&str, &str, &str)| {
            let schema = json!({ "type": of_type });
            json!({ "name": name, "in": place, "required": false, "description": meaning, "schema": schema })
        }
    };
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters = names.map(in_path).chain(route.query.iter().map(optional("query")));
    let parameters: Vec<Value> = parameters.chain(headers.iter().map(optional("header"))).collect();
    let mut operation = json!({ "summary": route.summary, "parameters": parameters, "responses": responses });
    if route.method == "put" {
        let content = json_of(json!({ "$ref": "#/components/schemas/Rule" }));
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}
