use super::*;

#[path = "../../../tests/support/json_schema.rs"]
mod json_schema;

pub(super) use json_schema::problems;

/// Returns the schema of an answer.
pub(super) fn answer<'d>(document: &'d Value, path: &str, method: &str, status: &str) -> &'d Value {
    let answer = &document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"];
    assert!(answer.is_object(), "{method} {path} {status} is described");
    answer
}

/// Returns a path with a value for each parameter.
fn filled(path: &str) -> String {
    path.replace("{name}", "kyc").replace("{client}", "car-loan").replace("{rule}", "none")
}

#[test]
fn every_answer_is_as_described() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let mut shown = snapshot();
    shown.group.figures = group();
    server.show(shown);
    server.look(1);
    let (status, document) = server.json("/v1/openapi.json");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let mut found = Vec::new();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 8, "{paths:?}");
    for (path, methods) in paths {
        // These answers go on; console.rs has their tests.
        for method in methods.as_object().unwrap().keys().filter(|_| !path.ends_with("/events")) {
            let (status, body) = server.request(&method.to_uppercase(), &filled(path), Some(TOKEN));
            // The server of this test has no file to reload, and its service has no rules of run time.
            let expected = match (method.as_str(), path.as_str()) {
                (_, "/v1/reload" | "/v1/services/{name}/rules/accept-loss") | ("put" | "delete", _) => 409,
                ("get", "/v1/services/{name}/rules/{rule}") => 404,
                _ => 200,
            };
            assert_eq!(status, expected, "{method} {path}: {body}");
            let body = serde_json::from_str(&body).unwrap();
            found.extend(problems(&document, answer(&document, path, method, &status.to_string()), &body, path));
        }
    }
    let schema = &document["paths"]["/v1/services/{name}/events"]["get"]["responses"]["200"]["content"];
    let schema = &schema["text/event-stream"]["schema"];
    let event = server.page("").next().expect("a page begins with an event");
    found.extend(problems(&document, schema, &event, "event"));
    let (status, body) = server.json("/v1/services/kyc/clients/nope");
    let missing = answer(&document, "/v1/services/{name}/clients/{client}", "get", &status.to_string());
    assert_eq!(missing["$ref"], "#/components/schemas/Refusal", "{body}");
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_difference_is_seen() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    server.show(snapshot());
    let document = server.json("/v1/openapi.json").1;
    let of = |change: &dyn Fn(&mut Value)| {
        let mut service = server.json("/v1/services/kyc").1;
        change(&mut service);
        let schema = answer(&document, "/v1/services/{name}", "get", "200");
        problems(&document, schema, &service, "service").len()
    };
    assert_eq!(of(&|_| {}), 0);
    assert_eq!(of(&|service| service["capacity"] = json!("100")), 1);
    assert_eq!(of(&|service| service["clients"][0]["rejected"]["expired"] = json!(1.5)), 1);
    assert_eq!(of(&|service| service["clients"][1]["extra"] = json!(1)), 1);
    assert_eq!(of(&|service| _ = service.as_object_mut().unwrap().remove("ready")), 1);
}

/// A client that is made from the description can change a rule.
#[test]
fn a_change_of_a_rule_is_described() {
    let document = Server::start(Ipv4Addr::LOCALHOST).json("/v1/openapi.json").1;
    let rule = &document["paths"]["/v1/services/{name}/rules/{rule}"];
    let headers = |method: &str| {
        let parameters = rule[method]["parameters"].as_array().unwrap().iter();
        let in_header = parameters.filter(|parameter| parameter["in"] == "header");
        in_header.map(|parameter| parameter["name"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        ["get", "put", "delete"].map(headers),
        [vec!["If-None-Match"], vec!["If-Match", "If-None-Match"], vec!["If-Match"],]
    );
    for (method, status) in [("get", "200"), ("get", "304"), ("put", "200"), ("put", "201"), ("delete", "204")] {
        assert!(rule[method]["responses"][status]["headers"]["ETag"].is_object(), "{method} {status}");
    }
    let body = &rule["put"]["requestBody"]["content"]["application/json"]["schema"];
    let differs = |rule: Value| problems(&document, body, &rule, "rule").len();
    let limit = json!({ "rate": 20, "per": "1s" });
    assert_eq!(differs(json!({ "clients": ["a*"], "limit": limit, "hold": true, "from": "2026-07-03T00:00:00Z" })), 0);
    assert_eq!(differs(json!({ "service": true, "capacity": "${MANY}", "colour": "red" })), 2);
}

/// The parameters can be filled in: each name in a path has one, and some paths take a query.
#[test]
fn parameters_are_described() {
    let document = Server::start(Ipv4Addr::LOCALHOST).json("/v1/openapi.json").1;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            let parameters = operation["parameters"].as_array().unwrap();
            let of = |place: &str| {
                let of_place = parameters.iter().filter(|parameter| parameter["in"] == place);
                of_place.map(|parameter| parameter["name"].as_str().unwrap()).collect::<Vec<_>>()
            };
            let names: Vec<_> = path.split(['{', '}']).skip(1).step_by(2).collect();
            assert_eq!(of("path"), names, "{path}");
            let query: &[&str] = match path {
                path if path.ends_with("/rules") => &["origin", "state", "client", "after", "limit"],
                path if path.ends_with("/explain") => &["client", "group", "at"],
                path if path.ends_with("/{rule}") && !of("query").is_empty() => &["dry_run", "at", "wait"],
                path if path.ends_with("/clients") => &["top", "from", "sort", "order", "find"],
                path if path.ends_with("/config") => &["origins"],
                path if path.ends_with("/reload") => &["dry_run"],
                _ => &[],
            };
            assert_eq!(of("query"), query, "{path}");
            assert!(operation["summary"].as_str().is_some_and(|summary| summary.ends_with('.')), "{path}");
        }
    }
}
