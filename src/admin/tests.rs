mod bytes;
mod clients;
mod console;
mod openapi;
mod rules;
mod tls;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use watermaster_core::policy::Mode;
use watermaster_core::reason::{Reason, ReasonCounts};

use super::*;
use crate::heartbeat::Heartbeat;
use crate::snapshot::{ClientSnapshot, Counts, Levels, NewestLetter, NewestLetters, ServiceSnapshot, SnapshotCell};
use watermaster_api::{GroupFigures, MemberView, ServiceFigures};
use watermaster_kafka::dead_letters::{DoneState, HeaderHead, LetterHead};
use watermaster_settings::config::Config;
use watermaster_settings::token::Token;

const TOKEN: &str = "s3cret-s3cret-s3cret";
/// A token that only reads.
const READ_TOKEN: &str = "reader-reader-reader";
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(60);

/// A served [`AdminState`]; dropping it stops the server.
struct Server {
    address: SocketAddr,
    state: Arc<AdminState>,
    /// Looks at the services only when a test tells it to.
    recorder: Arc<Recorder>,
    runtime: tokio::runtime::Runtime,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    task: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

impl Server {
    fn start(listen: Ipv4Addr) -> Server {
        Server::with(listen, Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT))
    }

    fn with(listen: Ipv4Addr, heartbeat: Heartbeat) -> Server {
        Server::within(ConnectionLimits::DEFAULT, listen, heartbeat)
    }

    fn within(limits: ConnectionLimits, listen: Ipv4Addr, heartbeat: Heartbeat) -> Server {
        Server::of(Configuration::new(None, config_with_tokens()), limits, listen, heartbeat)
    }

    fn of(configuration: Configuration, limits: ConnectionLimits, listen: Ipv4Addr, heartbeat: Heartbeat) -> Server {
        let handle = ServiceHandle::new(&crate::tests::service(Mode::Shape, true));
        let heartbeat = Arc::new(heartbeat);
        configuration.services.set(vec![ServiceHandle { cell: SnapshotCell::default(), heartbeat, ..handle }]);
        let state = Arc::new(AdminState {
            publisher: Shared::new(Publisher::new("2.12.1", 10)),
            configuration: Arc::new(configuration),
            draining: Arc::new(AtomicBool::new(false)),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind((listen, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let recorder = Arc::new(Recorder::new(NEVER));
        let served =
            serve_within(limits, listener, Arc::clone(&state), Arc::clone(&recorder), async { drop(stopped.await) });
        let task = Some(runtime.spawn(served));
        Server { address: (Ipv4Addr::LOCALHOST, port).into(), state, recorder, runtime, stop: Some(stop), task }
    }

    /// Opens a connection and sends `text`.
    fn connect(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// Returns the status of the answer to a request with these lines after the first one.
    fn status(&self, path: &str, version: &str, lines: &str) -> u16 {
        let mut stream = self.connect(&format!("GET {path} HTTP/{version}\r\n{lines}Connection: close\r\n\r\n"));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
    }

    fn show(&self, snapshot: ServiceSnapshot) {
        self.state.services()[0].cell.set(snapshot);
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path, None)
    }

    fn json(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.get(path);
        (status, serde_json::from_str(&body).unwrap())
    }

    fn request(&self, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .proxy(None);
        let agent: ureq::Agent = config.build().into();
        let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = agent.run(request.body(()).unwrap()).unwrap();
        // An answer with many clients is longer than ureq's own limit.
        let body = response.body_mut().with_config().limit(u64::MAX).read_to_string();
        (response.status().as_u16(), body.unwrap())
    }
}

/// Returns the configuration of the demo with a token of each role.
fn config_with_tokens() -> Config {
    let mut config = crate::tests::config(Mode::Shape, true);
    let token = |name: &str, role, text: &str| AdminToken {
        name: name.to_owned(),
        role,
        services: Vec::new(),
        token: Token::new(text).unwrap(),
    };
    config.settings.admin.tokens = vec![token("token", Role::Operate, TOKEN), token("board", Role::Read, READ_TOKEN)];
    config
}

fn snapshot() -> ServiceSnapshot {
    let mut rejected = ReasonCounts::default();
    rejected.add(Reason::OverAllocation);
    let client = |name: &str, granted| ClientSnapshot {
        name: name.into(),
        levels: Levels { wants: 7, default_share: 50.0, granted, backlog: 3, shadow_backlog: 1, ..Levels::default() },
        counts: Counts { admitted: 11, delayed: 4, rejected, ..Counts::default() },
        shadow: Counts { admitted: 5, delayed: 2, ..Default::default() },
        ..Default::default()
    };
    let figures = ServiceFigures {
        name: "kyc".to_owned(),
        mode: "reject".into(),
        enforce: true,
        capacity: 100,
        cycle_seconds: 10.0,
        cycle: 42,
        window_admitted: 90,
        window_admitted_max: 99,
        ready: true,
        trouble: None,
    };
    let clients = [client("car-loan", 30), client("home-loan", 70)].into_iter().collect();
    ServiceSnapshot { figures, clients, up: true, ..Default::default() }
}

/// Returns a group with one member.
fn group() -> GroupFigures {
    let member = MemberView {
        instance: "wm-0".to_owned(),
        life: "00000000000000a0".to_owned(),
        state: "live".into(),
        hold: 60,
        used: 20,
        target: 61,
        ahead: 3,
        capacity: 100,
        configuration: "5d41402a".to_owned(),
        rules_checksum: 9,
        state_age_seconds: 0.25,
    };
    GroupFigures {
        state: Some("active".into()),
        capacity: 100,
        hold: 60,
        target: 61,
        ahead: 3,
        circulating: 100,
        configurations: 1,
        members: vec![member],
    }
}

#[test]
fn a_service_is_shown_as_documented() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    server.show(snapshot());
    let reasons: serde_json::Map<_, _> =
        Reason::ALL.iter().map(|r| (r.into_str().to_owned(), json!(u64::from(*r == Reason::OverAllocation)))).collect();
    let none: serde_json::Map<_, _> = Reason::ALL.iter().map(|r| (r.into_str().to_owned(), json!(0))).collect();
    let client = |name: &str, granted: u64, lent: f64, borrowed: f64| {
        json!({
            "name": name, "wants": 7, "default_share": 50.0, "granted": granted, "admitted": 11, "delayed": 4,
            "rejected": reasons, "backlog": 3, "lent": lent, "borrowed": borrowed, "oldest_seconds": 0.0,
            "shadow": { "admitted": 5, "delayed": 2, "rejected": none, "backlog": 1 },
        })
    };
    let expected = json!({
        "name": "kyc", "mode": "reject", "enforce": true, "capacity": 100, "cycle_seconds": 10.0, "cycle": 42,
        "window_admitted": 90, "window_admitted_max": 99, "ready": true, "trouble": null,
        "clients": [client("car-loan", 30, 20.0, 0.0), client("home-loan", 70, 0.0, 20.0)],
    });
    assert_eq!(server.json("/v1/services/kyc"), (200, expected.clone()));
    assert_eq!(server.json("/v1/services"), (200, json!({ "services": [expected] })));
}

#[test]
fn a_reload_needs_the_token_and_a_file() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    assert_eq!(server.request("POST", "/v1/reload", None).0, 401);
    assert_eq!(server.request("GET", "/v1/reload", None).0, 405);
    let (status, body) = server.request("POST", "/v1/reload", Some(TOKEN));
    assert_eq!((status, body.contains("no configuration file")), (409, true), "{body}");
}

#[test]
fn unknown_paths_are_404_in_json() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let missing = json!({ "error": "no service \"nope\"", "services": ["kyc"] });
    assert_eq!(server.json("/v1/services/nope"), (404, missing));
    assert_eq!(server.json("/v1/nope"), (404, json!({ "error": "no such path" })));
    assert_eq!(server.json("/nope"), (404, json!({ "error": "no such path" })));
}

#[test]
fn readyz_gives_the_reason() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let not = |reason: &str| (503, json!({ "ready": false, "services": [{ "name": "kyc", "reason": reason }] }));
    assert_eq!(server.json("/readyz"), not("joining the group"));
    let trouble = Some("the brokers are unreachable".to_owned());
    server.show(ServiceSnapshot { figures: ServiceFigures { trouble, ..Default::default() }, ..Default::default() });
    assert_eq!(server.json("/readyz"), not("the brokers are unreachable"));
    server.show(snapshot());
    assert_eq!(server.json("/readyz"), (200, json!({ "ready": true, "services": [] })));
    server.state.draining.store(true, Ordering::Relaxed);
    assert_eq!(server.json("/readyz"), not("draining"));
}

#[test]
fn livez_follows_the_heartbeat_alone() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    assert_eq!(server.get("/livez").0, 200);

    let long_ago = Instant::now().checked_sub(HEARTBEAT_LIMIT).unwrap();
    let server = Server::with(Ipv4Addr::LOCALHOST, Heartbeat::new(long_ago, Duration::ZERO));
    let (status, body) = server.json("/livez");
    assert_eq!((status, &body["alive"], &body["services"][0]["name"]), (503, &json!(false), &json!("kyc")));
    // The last snapshot says that the service is ready. The bug: so did /readyz and the metric, for as long as it hung.
    server.show(snapshot());
    let (status, body) = server.json("/readyz");
    assert!(
        status == 503 && body["services"][0]["reason"].as_str().is_some_and(|why| why.contains("silent")),
        "{body}"
    );
    assert!(server.get("/metrics").1.contains("watermaster_ready{service=\"kyc\"} 0\n"));
    server.state.services()[0].heartbeat.stop();
    assert_eq!(server.get("/livez").0, 200);
}

#[test]
fn metrics_are_served_before_and_after_the_first_snapshot() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    assert!(server.get("/metrics").1.contains("watermaster_capacity_units{service=\"kyc\"} 0\n"));
    server.show(snapshot());
    let (status, text) = server.get("/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("watermaster_capacity_units{service=\"kyc\"} 100\n"), "{text}");
}

#[test]
fn the_configuration_is_served_with_its_hash() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let (config, hash) = server.state.configuration.shown(false);
    assert_eq!(config["kafka"]["group_id"], "watermaster");
    assert_eq!(server.json("/v1/config"), (200, json!({ "hash": hash, "config": config })));
    let (status, with_origins) = server.json("/v1/config?origins=true");
    let capacity = &with_origins["config"]["service"][0]["capacity"];
    assert_eq!((status, &capacity["value"]), (200, &config["service"][0]["capacity"]));
    assert!(capacity["origin"].as_str().is_some_and(|origin| origin.starts_with("config/demo.toml:")), "{capacity}");
    assert_eq!(server.get("/v1/config?origins=perhaps").0, 400);
}

#[test]
fn changes_need_the_token_also_on_loopback() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(server.request(method, "/v1/services/kyc", None).0, 401, "{method}");
        assert_eq!(server.request(method, "/v1/services/kyc", Some("wrong")).0, 401, "{method}");
        assert_eq!(server.request(method, "/v1/services/kyc", Some(TOKEN)).0, 405, "{method}");
    }
}

#[test]
fn a_dry_run_of_a_rule_reads() {
    let dry_run = "/v1/services/kyc/rules/none?dry_run=true";
    assert_eq!(Server::start(Ipv4Addr::LOCALHOST).request("DELETE", dry_run, None).0, 200);
    assert_eq!(Server::start(Ipv4Addr::UNSPECIFIED).request("DELETE", dry_run, None).0, 401);
}

/// The demo is such an instance.
#[test]
fn an_instance_that_is_open_on_loopback_takes_changes_without_a_token() {
    let status = |listen| {
        let mut config = config_with_tokens();
        config.settings.admin.open_on_loopback = true;
        let server = Server::of(
            Configuration::new(None, config),
            ConnectionLimits::DEFAULT,
            listen,
            Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT),
        );
        // There is nothing to reload, and the service has no rules of run time.
        [("POST", "/v1/reload"), ("DELETE", "/v1/services/kyc/rules/none")]
            .map(|(method, path)| server.request(method, path, None).0)
    };
    assert_eq!(status(Ipv4Addr::LOCALHOST), [409, 409]);
    assert_eq!(status(Ipv4Addr::UNSPECIFIED), [401, 401]);
}

#[test]
fn beyond_loopback_reading_needs_the_token_but_probes_do_not() {
    let server = Server::start(Ipv4Addr::UNSPECIFIED);
    server.show(snapshot());
    for path in ["/v1/config", "/v1/services", "/v1/services/kyc", "/v1/nope"] {
        assert_eq!(server.get(path).0, 401, "{path}");
    }
    assert_eq!(server.request("GET", "/v1/config", Some(TOKEN)).0, 200);
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).0, 200, "{path}");
    }
}

#[test]
fn a_token_that_reads_changes_nothing() {
    let server = Server::start(Ipv4Addr::UNSPECIFIED);
    assert_eq!(server.request("GET", "/v1/config", Some(READ_TOKEN)).0, 200);
    let (status, body) = server.request("POST", "/v1/reload", Some(READ_TOKEN));
    let error = "this request needs a token with the role operate, and \"board\" has the role read";
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (403, json!({ "error": error })));
    assert_eq!(server.request("POST", "/v1/reload", Some("wrong-wrong-wrong-wrong")).0, 401);
    // Without a file there is nothing to reload, but the token is accepted.
    assert_eq!(server.request("POST", "/v1/reload", Some(TOKEN)).0, 409);
}

#[test]
fn metrics_need_a_token_if_that_is_configured() {
    let mut config = config_with_tokens();
    config.settings.admin.metrics_token = true;
    let heartbeat = Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT);
    let configuration = Configuration::new(None, config);
    let server = Server::of(configuration, ConnectionLimits::DEFAULT, Ipv4Addr::LOCALHOST, heartbeat);
    assert_eq!(server.get("/metrics").0, 401);
    assert_eq!(server.request("GET", "/metrics", Some("wrong-wrong-wrong-wrong")).0, 401);
    for token in [TOKEN, READ_TOKEN] {
        assert_eq!(server.request("GET", "/metrics", Some(token)).0, 200);
    }
    assert_eq!((server.get("/livez").0, server.get("/readyz").0), (200, 503));
}

#[test]
fn serving_ends_with_its_stop_future() {
    let mut server = Server::start(Ipv4Addr::LOCALHOST);
    assert_eq!(server.get("/livez").0, 200);
    // A half-sent request must not block the end for ever.
    let _half = std::net::TcpStream::connect(server.address).unwrap();
    drop(server.stop.take());
    let task = server.task.take().unwrap();
    let ended = server.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), task).await });
    ended.unwrap().unwrap().unwrap();
}

fn impatient(request_timeout: Duration, answer_timeout: Duration) -> Server {
    let limits = ConnectionLimits { request_timeout, answer_timeout, ..ConnectionLimits::DEFAULT };
    Server::within(limits, Ipv4Addr::LOCALHOST, Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT))
}

const SHORT: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::from_secs(3_600);

/// Reads until the server closes or resets the connection. Returns the number of bytes.
fn read_to_end(mut stream: TcpStream) -> usize {
    let mut text = Vec::new();
    match stream.read_to_end(&mut text) {
        Err(why) if why.kind() != std::io::ErrorKind::ConnectionReset => panic!("the connection is still open: {why}"),
        _ => text.len(),
    }
}

#[test]
fn a_client_that_sends_no_request_or_half_of_one_is_cut_off() {
    let server = impatient(SHORT, NEVER);
    for sent in ["", "GET /livez HTT", "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: "] {
        assert_eq!(read_to_end(server.connect(sent)), 0, "{sent:?}");
    }
    let kept_open = server.connect("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(read_to_end(kept_open) > 0, "the request is answered before the idle connection is closed");
}

/// An answer with 19 000 clients is larger than the kernel's buffers.
#[test]
fn a_client_that_does_not_read_its_answer_is_cut_off() {
    let named = |id: usize| ClientSnapshot { name: format!("client-{id}").into(), ..Default::default() };
    let large = ServiceSnapshot { clients: (0..18_500).map(named).collect(), ..snapshot() };
    let (server, patient) = (impatient(SHORT, SHORT), Server::start(Ipv4Addr::LOCALHOST));
    server.show(large.clone());
    patient.show(large);
    let whole = patient.get("/v1/services").1.len();
    assert!(whole > 10_000_000, "{whole}");
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect(&server.address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"GET /v1/services HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // Reads at most 1 MB/s for two seconds, then the rest in the kernel's buffers.
    let mut read = 0;
    for _ in 0..2_000 {
        read += stream.read(&mut [0; 1_024]).unwrap_or(0);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(read + read_to_end(stream) < whole);
}

#[test]
fn idle_connections_do_not_keep_others_from_the_probes() {
    let server = impatient(NEVER, NEVER);
    let mut idle: Vec<TcpStream> = (0..200).map(|_| server.connect("")).collect();
    assert_eq!(server.get("/livez").0, 200);
    idle.extend((0..200).map(|_| server.connect("GET /livez HTTP/1.1\r\n")));
    assert_eq!(server.get("/livez").0, 200);
    for first in idle.drain(..300) {
        assert_eq!(read_to_end(first), 0, "an old connection is closed for a new one");
    }
}

/// The publisher stays locked, as if it rendered a page of 100 000 labels.
#[test]
fn probes_do_not_wait_for_slow_pages() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    server.show(snapshot());
    let publisher = server.state.publisher.lock();
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut waiting: Vec<TcpStream> = (0..40).map(|_| server.connect(request)).collect();
    assert_eq!(server.get("/livez").0, 200);
    assert_eq!(server.get("/readyz").0, 200);
    assert_eq!(server.get("/v1/services/kyc").0, 200);
    drop(publisher);
    let mut statuses = waiting.drain(..).map(|mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text[9..12].to_owned()
    });
    assert!(statuses.all(|status| status == "200" || status == "503"));
    assert_eq!(server.get("/metrics").0, 200);
}

#[test]
fn on_loopback_a_request_must_name_this_machine() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    server.show(snapshot());
    let host = |host: &str| server.status("/v1/services", "1.1", &format!("Host: {host}\r\n"));
    for right in ["localhost", "LocalHost:9464", "127.0.0.1:1", "127.9.9.9", "[::1]:9464"] {
        assert_eq!(host(right), 200, "{right}");
    }
    for wrong in ["evil.example", "evil.example:9464", "10.0.0.7:9464", "localhost.evil.example", ""] {
        assert_eq!(host(wrong), 421, "{wrong}");
    }
    for path in ["/livez", "/readyz", "/metrics", "/v1/config", "/nope"] {
        assert_eq!(server.status(path, "1.1", "Host: evil.example\r\n"), 421, "{path}");
    }
    assert_eq!(server.status("http://evil.example/livez", "1.1", "Host: localhost\r\n"), 421);
    assert_eq!(server.status("/livez", "1.0", ""), 200);
    assert_eq!(server.status("/livez", "1.1", "Host: localhost\r\nHost: evil.example\r\n"), 421);
}

/// Only a request has the dead letters read, by the thread that follows the topics. What producers wrote into headers
/// may be personal: on loopback, no token is asked for, but one that is sent counts.
#[test]
fn the_newest_dead_letters_are_read_for_those_that_ask() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let cell = server.state.services()[0].cell.clone();
    let path = "/v1/services/kyc/dead-letters";
    assert!(!cell.take_wish_for_letters());
    let none = json!({ "service": "kyc", "read_ms": null, "complete": false, "letters": [] });
    assert_eq!(server.json(path), (200, none));
    assert!(cell.take_wish_for_letters() && !cell.take_wish_for_letters());
    let header =
        |name: &str, value: Option<&str>| HeaderHead { name: name.into(), value: value.map(Into::into), bytes: 9 };
    let time = Some("2026-07-03T00:00:00.000Z");
    let headers = vec![header("applicant", Some("Erika")), header("null", None), header("throttle-rejected-at", time)];
    let head = LetterHead { partition: 2, offset: 7, timestamp_ms: -1, headers, state: Some(DoneState::Parked) };
    let letter = NewestLetter { topic: "dead".into(), reason: Some("held"), head };
    cell.set_letters(Some(NewestLetters { read_ms: 5, letters: vec![letter], is_complete: true }));
    let shown = |applicant: &str| {
        let header = |name: &str, value: Option<&str>| json!({ "name": name, "value": value });
        let headers =
            [header("applicant", Some(applicant)), header("null", None), header("throttle-rejected-at", time)];
        let place = json!({ "topic": "dead", "partition": 2, "offset": 7, "at_ms": null, "rejected_at": time });
        let mut letter = json!({ "reason": "held", "state": "parked", "headers": headers });
        letter.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        json!({ "service": "kyc", "read_ms": 5, "complete": true, "letters": [letter] })
    };
    assert_eq!(server.json(path), (200, shown("9 bytes, for the role operate")));
    for (token, applicant) in [(TOKEN, "Erika"), (READ_TOKEN, "9 bytes, for the role operate")] {
        let (status, body) = server.request("GET", path, Some(token));
        assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, shown(applicant)));
    }
    assert_eq!(server.get("/v1/services/nope/dead-letters").0, 404);
    let letters = |shows_all| serde_json::to_value(view::letters(&server.state.services()[0], shows_all)).unwrap();
    assert_eq!([false, true].map(letters), [shown("9 bytes, for the role operate"), shown("Erika")]);
}

#[test]
fn beyond_loopback_a_request_may_name_any_host() {
    let server = Server::start(Ipv4Addr::UNSPECIFIED);
    server.show(snapshot());
    assert_eq!(server.status("/readyz", "1.1", "Host: watermaster.example\r\n"), 200);
}
