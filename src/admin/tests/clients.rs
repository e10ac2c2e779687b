use super::*;
use crate::snapshot::OwnLimit;

/// Serves a service with a client that waits, one with its own limit, and one that is used to strange names.
fn server() -> Server {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let mut waiting = ClientSnapshot { name: "credit-card".into(), configured: true, ..Default::default() };
    waiting.levels = Levels {
        wants: 900,
        granted: 40,
        backlog: 800,
        backlog_bytes: 80_000,
        oldest_seconds: 4.2,
        admitted_last: 50,
        admitted_now: 7,
        ..Levels::default()
    };
    for millis in [300, 4_200] {
        waiting.counts.delays.record(Duration::from_millis(millis));
    }
    let limit = Some(OwnLimit { most: 30, pace: 20.0 });
    let levels = Levels { wants: 30, backlog: 10, granted: 40, limit, ..Levels::default() };
    let limited = ClientSnapshot { name: "a/b %?é".into(), levels, ..Default::default() };
    let idle = ClientSnapshot { name: "idle".into(), ..Default::default() };
    let clients = [idle, limited, waiting].into_iter().collect();
    let mut shown = ServiceSnapshot { clients, ..snapshot() };
    shown.figures.mode = "shape".into();
    server.show(shown);
    server
}

const CLIENTS: &str = "/v1/services/kyc/clients";

#[test]
fn a_client_is_shown_with_its_waits_and_an_estimate() {
    let (status, client) = server().json(&format!("{CLIENTS}/credit-card"));
    assert_eq!(status, 200, "{client}");
    let expected = json!({
        "name": "credit-card", "configured": true, "wants": 900, "granted": 40, "backlog": 800, "backlog_bytes": 80_000,
        "oldest_seconds": 4.2, "admitted_in_cycle": 7, "admitted_in_last_cycle": 50, "used_ratio": 0.5, "limit": null,
        // 800 records at 50 in 10 s.
        "next_admission_seconds": 160.0,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(client[key], *value, "{key}: {client}");
    }
    let delays = &client["delays"];
    assert_eq!((&delays["records"], &delays["longest_seconds"]), (&json!(2), &json!(4.2)), "{client}");
    assert!(delays["p99_seconds"].as_f64().is_some_and(|p99| (2.5..=4.2).contains(&p99)), "{client}");
    assert_eq!(
        client["shadow_delays"],
        json!({ "records": 0, "p50_seconds": null, "p99_seconds": null, "longest_seconds": 0.0 })
    );
}

/// `top` and scripts could not tell why a client got nothing.
#[test]
fn a_client_is_shown_with_the_rules_that_decide() {
    let (_, client) = server().json(&format!("{CLIENTS}/credit-card"));
    let fields = client["explain"]["fields"].as_array().unwrap();
    let weight = fields.iter().find(|field| field["field"] == "weight").unwrap();
    assert_eq!((&client["explain"]["client"], &weight["value"]), (&json!("credit-card"), &json!("1")), "{client}");
    assert_eq!(server().json(CLIENTS).1["clients"][0].get("explain"), None, "a list stays short");
}

#[test]
fn a_name_is_decoded_and_its_limit_bounds_the_estimate() {
    let (status, client) = server().json(&format!("{CLIENTS}/a%2Fb%20%25%3F%C3%A9"));
    assert_eq!((status, &client["name"]), (200, &json!("a/b %?é")));
    // 10 records at 20 in 10 s, though the grant is 40.
    assert_eq!((&client["limit"], &client["next_admission_seconds"]), (&json!(30), &json!(5.0)));
    assert_eq!(server().json(&format!("{CLIENTS}/idle")).1["next_admission_seconds"], 0.0);
}

#[test]
fn nothing_is_estimated_where_nothing_is_known() {
    let server = server();
    let estimate = |change: &dyn Fn(&mut ServiceSnapshot)| {
        let mut shown = (*server.state.services()[0].cell.get()).clone();
        change(&mut shown);
        server.show(shown);
        server.json(&format!("{CLIENTS}/credit-card")).1["next_admission_seconds"].clone()
    };
    assert_eq!(estimate(&|service| service.figures.ready = false), Value::Null);
    assert_eq!(
        estimate(&|service| (service.figures.ready, service.figures.mode) = (true, "reject".into())),
        Value::Null
    );
    assert_eq!(estimate(&|service| service.figures.enforce = false), json!(0.0), "shadow mode admits every record");
}

#[test]
fn an_unknown_client_is_404_and_a_bad_question_400() {
    let server = server();
    let error = "service \"kyc\" knows no client \"nope\" now";
    assert_eq!(server.json(&format!("{CLIENTS}/nope")), (404, json!({ "error": error, "known": 3 })));
    assert_eq!(server.json("/v1/services/nope/clients/idle").0, 404);
    assert_eq!(server.json(&format!("{CLIENTS}/%FF")).0, 400);
    for wrong in ["top=0", "top=1001", "top=ten", "first=1", "sort=nothing", "order=up", "from=-1"] {
        let (status, body) = server.json(&format!("{CLIENTS}?{wrong}"));
        assert_eq!((status, body["error"].is_string()), (400, true), "{wrong}: {body}");
    }
}

#[test]
fn the_clients_with_the_highest_wants_come_first_whether_they_have_a_label_or_not() {
    let server = server();
    let names = |query: &str| {
        let (status, body) = server.json(&format!("{CLIENTS}{query}"));
        assert_eq!((status, &body["service"]), (200, &json!("kyc")), "{body}");
        let clients = body["clients"].as_array().unwrap();
        clients.iter().map(|client| client["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(""), ["credit-card", "a/b %?é", "idle"]);
    assert_eq!(names("?top=2"), ["credit-card", "a/b %?é"]);
    let all = "?sort=name&order=";
    assert_eq!(names(&format!("{all}asc")), ["a/b %?é", "credit-card", "idle"]);
    assert_eq!(names(&format!("{all}desc&from=1")), ["credit-card", "a/b %?é"]);
    assert_eq!(names("?sort=backlog&order=asc"), ["idle", "a/b %?é", "credit-card"]);
    assert_eq!(names("?sort=oldest_seconds&top=1&from=2"), ["idle"], "equal clients stay in the order of their names");
    assert_eq!(names("?find=CARD"), ["credit-card"]);
    assert_eq!(names("?find=%3F%C3%A9"), ["a/b %?é"]);
    let counts = server.json(&format!("{CLIENTS}?find=d&top=1&from=1")).1;
    assert_eq!((&counts["known"], &counts["matching"]), (&json!(3), &json!(2)));
    let many = |id: u64| ClientSnapshot {
        name: format!("client-{id:02}").into(),
        levels: Levels { wants: id / 2, ..Levels::default() },
        ..Default::default()
    };
    server.show(ServiceSnapshot { clients: (0..30).map(many).collect(), ..snapshot() });
    let ten = names("");
    assert_eq!((ten.len(), &*ten[0], &*ten[1], &*ten[9]), (10, "client-28", "client-29", "client-21"));
}
