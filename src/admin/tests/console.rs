use std::io::{BufRead, BufReader};

use super::*;
use crate::admin::console::{FILES, MAX_PAGES};

/// Returns a service whose clients were admitted so many records since start.
fn admitted(counts: &[(&str, u64)]) -> ServiceSnapshot {
    let client = |(name, admitted): &(&str, u64)| ClientSnapshot {
        name: (*name).into(),
        levels: Levels { wants: 60, default_share: 50.0, granted: 55, admitted_last: *admitted, ..Levels::default() },
        counts: Counts { admitted: *admitted, ..Counts::default() },
        ..Default::default()
    };
    ServiceSnapshot { clients: counts.iter().map(client).collect(), ..snapshot() }
}

impl Server {
    /// Lets the console look at the services, at this number of seconds since 1970.
    pub(super) fn look(&self, seconds: u64) {
        self.recorder.look(&self.state.configuration, Duration::from_secs(seconds));
    }

    fn pages_open(&self) -> usize {
        MAX_PAGES - self.recorder.pages.available_permits()
    }

    /// Waits until so many pages are open.
    fn await_pages(&self, open: usize) {
        while self.pages_open() != open {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the lines of the answer to a request.
    fn lines(&self, path: &str, headers: &str) -> std::io::Lines<BufReader<TcpStream>> {
        let stream = self.connect(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
        BufReader::new(stream).lines()
    }

    /// Opens a page that has the events until `last_id`. Returns the data of its events, as they come.
    pub(super) fn page(&self, last_id: &str) -> impl Iterator<Item = Value> + use<> {
        let lines = self.lines(EVENTS_OF_KYC, &format!("{last_id}Connection: close\r\n"));
        lines.map_while(Result::ok).filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap()))
    }
}

const EVENTS_OF_KYC: &str = "/v1/services/kyc/events";

fn without_console() -> Server {
    let mut config = config_with_tokens();
    config.settings.admin.console = false;
    let heartbeat = Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT);
    Server::of(Configuration::new(None, config), ConnectionLimits::DEFAULT, Ipv4Addr::LOCALHOST, heartbeat)
}

/// Returns the head and the body of an answer.
fn answer(server: &Server, path: &str, headers: &str) -> (String, String) {
    let mut text = String::new();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
    server.connect(&request).read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Returns the paths of the files that a page or a script names.
fn named_files(text: &str) -> Vec<String> {
    let named = text.split(['"', '\'']).filter(|part| part.starts_with("/console/") || part.starts_with("./"));
    named.map(|path| path.replace("./", "/console/")).collect()
}

#[test]
fn the_page_and_all_files_that_it_names_are_served_with_a_strict_policy() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let (mut seen, mut left) = (Vec::new(), vec!["/".to_owned()]);
    let mut bytes = 0;
    while let Some(path) = left.pop() {
        let (head, body) = answer(&server, &path, "");
        let expected = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        for line in [
            "HTTP/1.1 200 OK",
            &format!("content-type: {expected}"),
            "content-security-policy: default-src 'none'; script-src 'self'; ",
            "frame-ancestors 'none'; require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "cache-control: no-cache",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(line), "{path} lacks {line:?}: {head}");
        }
        assert!(!head.contains("unsafe") && !head.contains("access-control"), "{head}");
        for foreign in ["http://", "https://", "innerHTML", "eval(", "document.write", "<style", " style=", "onclick="]
        {
            let body = body.replace("http://www.w3.org/2000/svg", "");
            assert!(!body.contains(foreign), "{path} has {foreign}");
        }
        bytes += body.len();
        left.extend(named_files(&body).into_iter().filter(|file| !seen.contains(file)));
        seen.push(path);
    }
    seen.sort();
    seen.dedup();
    assert!(seen.len() > 10 && bytes < 150_000, "{bytes} bytes in {seen:?}");
    assert_eq!(seen.len(), FILES.len(), "a file that nothing names is never loaded: {seen:?}");
}

#[test]
fn a_file_that_a_browser_has_is_not_sent_again() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let (head, body) = answer(&server, "/", "");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    assert!(body.contains("</html>"));
    let (head, body) = answer(&server, "/", &format!("If-None-Match: {tag}\r\n"));
    assert!(head.starts_with("HTTP/1.1 304") && head.contains(tag) && body.is_empty(), "{head}");
    assert!(answer(&server, "/", "If-None-Match: \"other\"\r\n").0.starts_with("HTTP/1.1 200"));
    assert!(!answer(&server, "/console/main.js", "").0.contains(tag));
}

#[test]
fn without_the_console_its_paths_are_unknown() {
    let server = without_console();
    for path in ["/", "/console/main.js", "/v1/now", EVENTS_OF_KYC] {
        assert_eq!(server.get(path).0, 404, "{path}");
    }
    let paths = server.json("/v1/openapi.json").1["paths"].to_string();
    assert!(!paths.contains("events") && !paths.contains("/v1/now"), "{paths}");
}

/// The page holds no figures; `/v1` protects them.
#[test]
fn beyond_loopback_the_page_is_open_and_its_figures_need_the_token() {
    let server = Server::start(Ipv4Addr::UNSPECIFIED);
    assert_eq!((server.get("/").0, server.get("/console/main.js").0), (200, 200));
    for path in ["/v1/now", EVENTS_OF_KYC] {
        assert_eq!(server.get(path).0, 401, "{path}");
    }
    assert_eq!(server.request("GET", "/v1/now", Some(READ_TOKEN)).0, 200);
}

#[test]
fn a_page_of_another_host_gets_nothing() {
    for listen in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
        let server = Server::start(listen);
        let status = |path: &str, origin: &str| {
            server.status(path, "1.1", &format!("Host: localhost:9464\r\n{origin}Authorization: Bearer {TOKEN}\r\n"))
        };
        for path in ["/", "/v1/now", "/v1/services", "/metrics", "/livez"] {
            assert_eq!(status(path, ""), 200, "{path}");
            assert_eq!(status(path, "Origin: http://localhost:9464\r\n"), 200, "{path}");
            for origin in ["http://evil.example", "http://localhost:8080", "null"] {
                assert_eq!(status(path, &format!("Origin: {origin}\r\n")), 403, "{path} from {origin}");
            }
        }
    }
}

#[test]
fn a_sample_has_the_rise_since_the_one_before() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let newest = |seconds, counts: &[(&str, u64)]| {
        server.show(admitted(counts));
        server.look(seconds);
        let mut newest = server.json("/v1/now").1;
        assert_eq!(newest["services"].as_array().map(Vec::len), Some(1));
        newest["services"][0].take()
    };
    assert_eq!(newest(1, &[("a", 100), ("b", 7)])["samples"][0]["admitted"], 0, "nothing is known of the time before");
    let second = newest(2, &[("a", 130), ("b", 7), ("new", 4)]);
    let sample = &second["samples"][0];
    assert_eq!((&sample["at_ms"], &sample["capacity"]), (&json!(2_000), &json!(100)));
    assert_eq!((&sample["admitted"], &sample["wants"]), (&json!(34), &json!(180)));
    // All records that a client was admitted lately are new if it was not among the busiest before, though there was room.
    assert_eq!(sample["clients"], json!({ "a": [30, 55, 0], "b": [0, 55, 0], "new": [4, 55, 0] }));
    let now = &second["now"];
    assert_eq!(
        (&now["name"], &now["done"]["admitted"], &now["known_clients"]),
        (&json!("kyc"), &json!(141), &json!(3))
    );
    assert_eq!((&now["borrowed"], &now["lent"], &now["within_share"]), (&json!(15.0), &json!(0.0), &json!(0)));
    assert_eq!(now["borrowers"][0], json!({ "client": "a", "records": 5.0 }));
    assert_eq!(now["demands"][0], json!({ "client": "a", "wants": 60, "default_share": 50.0 }));
    // The engine began anew.
    assert_eq!(newest(3, &[("a", 5)])["samples"][0]["admitted"], 0);
    // The records of a client that was not among the eight busiest before are in the sum alone.
    let eight: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, 9)).into();
    newest(4, &eight);
    let ninth = newest(5, &[&eight[..], &[("new", 10)]].concat())["samples"][0].take();
    assert_eq!(
        (&ninth["admitted"], &ninth["clients"]["new"][0], &ninth["clients"]["a"][0]),
        (&json!(10), &json!(0), &json!(0))
    );
}

#[test]
fn in_shadow_mode_a_sample_has_the_decisions_that_enforcing_would_make() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let show = |rejections: u64, enforce: bool| {
        let mut shown = admitted(&[("a", rejections)]);
        shown.figures.enforce = enforce;
        shown.throttle.totals.unregistered_shadow.delayed = 2 * rejections;
        (0..rejections).for_each(|_| shown.throttle.totals.unregistered_shadow.rejected.add(Reason::Anonymous));
        server.show(shown);
        server.look(rejections);
        let mut sample = server.json("/v1/now").1["services"][0]["samples"][0].take();
        ["admitted", "delayed", "rejected"].map(|figure| sample[figure].take())
    };
    show(1, false);
    assert_eq!(show(4, false), [3, 6, 3].map(Value::from));
    // After a change of `enforce`, a sample has the rise of the counts that it shows now.
    assert_eq!(show(5, true), [1, 0, 0].map(Value::from));
    assert_eq!(show(6, false), [1, 2, 1].map(Value::from));
    assert_eq!(show(8, false), [2, 4, 2].map(Value::from));
}

#[test]
fn the_lists_have_the_largest_and_the_waits_those_within_their_share() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let client = |id: u64| ClientSnapshot {
        name: format!("client-{id:02}").into(),
        levels: Levels {
            wants: if id.is_multiple_of(2) { 40 } else { 60 },
            default_share: 50.0,
            granted: 50 - id,
            oldest_seconds: id as f64,
            ..Levels::default()
        },
        ..Default::default()
    };
    server.show(ServiceSnapshot { clients: (0..20).map(client).collect(), ..snapshot() });
    server.look(1);
    let now = server.json("/v1/now").1["services"][0]["now"].take();
    let lenders: Vec<_> = now["lenders"].as_array().unwrap().iter().map(|loan| loan["records"].as_f64()).collect();
    assert_eq!(lenders, (12..20).rev().map(|lent| Some(f64::from(lent))).collect::<Vec<_>>());
    assert_eq!(now["lent"], 190.0);
    assert_eq!(now["longest_wait"], json!({ "client": "client-19", "seconds": 19.0 }));
    assert_eq!(now["waits_within_share"], json!({ "client": "client-18", "seconds": 18.0 }));
    assert_eq!((&now["within_share"], now["demands"].as_array().map(Vec::len)), (&json!(10), Some(8)));
}

#[test]
fn a_page_gets_what_was_before_and_then_what_changed() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let at = |seconds: u64| {
        server.show(admitted(&[("a", seconds)]));
        server.look(seconds);
    };
    (1..=200).for_each(at);
    let mut page = server.page("");
    let mut samples = Vec::new();
    let mut first = page.next().unwrap();
    assert_eq!((&first["now"]["capacity"], &first["now"]["name"]), (&json!(100), &json!("kyc")));
    loop {
        samples.extend(first["samples"].as_array().unwrap().iter().map(|sample| sample["at_ms"].as_u64().unwrap()));
        if samples.len() == 200 {
            break;
        }
        first = page.next().unwrap();
        assert_eq!(first["now"], json!({}), "the present state comes once");
    }
    assert_eq!(samples, (1..=200).map(|second| 1_000 * second).collect::<Vec<u64>>());
    at(201);
    let news = page.next().unwrap();
    assert_eq!(news["samples"].as_array().map(Vec::len), Some(1));
    let changed: Vec<_> = news["now"].as_object().unwrap().keys().collect();
    assert_eq!(changed, ["done"], "nothing but the counts has changed");
    let mut shown = admitted(&[("a", 201)]);
    shown.figures.capacity = 70;
    server.show(shown);
    server.look(202);
    assert_eq!(page.next().unwrap()["now"], json!({ "capacity": 70 }));
}

#[test]
fn an_answer_ends_after_some_news_and_goes_on_from_there() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    server.show(admitted(&[("a", 1)]));
    server.look(1);
    let mut page = server.page("");
    assert_eq!(page.next().unwrap()["samples"][0]["at_ms"], 1_000);
    (2..30).for_each(|second| server.look(second));
    // The page may read these at once or be behind: the answer ends by itself after eight.
    let last = page.last().unwrap()["samples"][0]["at_ms"].as_u64().unwrap();
    assert_eq!(last, 9_000);
    server.await_pages(0);
    let next = server.page(&format!("Last-Event-ID: {last}\r\n")).next().unwrap();
    assert_eq!(next["samples"][0]["at_ms"], last + 1_000);
    assert_eq!(next["now"]["capacity"], 100);
    // The id of a line is that of its last sample.
    let lines = server.lines(EVENTS_OF_KYC, "").map_while(Result::ok);
    assert_eq!(lines.into_iter().find(|line| line.starts_with("id: ")).unwrap(), "id: 29000");
}

#[test]
fn the_samples_of_fifteen_minutes_are_kept_and_their_bytes_are_bounded() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let kept = |ids: &[String]| {
        let counts: Vec<(&str, u64)> = ids.iter().map(|id| (id.as_str(), 1)).collect();
        server.show(admitted(&counts));
        (1..=1_000).for_each(|second| server.look(second));
        let subscription = server.recorder.subscribe("kyc", None).unwrap();
        let bytes: usize = subscription.samples.iter().map(|sample| sample.text.len()).sum();
        (subscription.samples.len(), bytes)
    };
    assert_eq!(kept(&["credit-card".to_owned()]).0, 900);
    // Each of these bytes takes six in JSON.
    let hostile: Vec<String> = (0..30).map(|id| format!("{id:02}{}", "\u{1}".repeat(126))).collect();
    let (samples, bytes) = kept(&hostile);
    assert!((100..900).contains(&samples) && bytes <= 1 << 20, "{samples} samples, {bytes} bytes");
}

#[test]
fn the_thirty_third_page_is_refused() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let request = format!("GET {EVENTS_OF_KYC} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut pages: Vec<TcpStream> = (0..32).map(|_| server.connect(&request)).collect();
    server.await_pages(32);
    let (status, body) = server.json(EVENTS_OF_KYC);
    let error = "32 pages of the console are open, and no more are allowed";
    assert_eq!((status, body), (503, json!({ "error": error })));
    pages.pop();
    server.await_pages(31);
    pages.push(server.connect(&request));
    server.await_pages(32);
    assert_eq!(server.get("/livez").0, 200);
}

/// The buffers of both ends take megabytes, so the events are large.
#[test]
fn a_page_that_does_not_read_is_dropped() {
    let limits = ConnectionLimits { event_timeout: SHORT, ..ConnectionLimits::DEFAULT };
    let server = Server::within(limits, Ipv4Addr::LOCALHOST, Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT));
    let mut shown = admitted(&[("a", 1)]);
    let member = |id: usize| MemberView { instance: format!("{id:0>6000}"), ..group().members.remove(0) };
    shown.group.figures = GroupFigures { members: (0..4_000).map(member).collect(), ..group() };
    server.show(shown);
    server.look(1);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect(&server.address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(format!("GET {EVENTS_OF_KYC} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    server.await_pages(1);
    server.await_pages(0);
    drop(stream);
}

/// A page of which the program would wait for news must not hold its end up.
#[test]
fn open_pages_do_not_delay_the_end() {
    let mut server = Server::start(Ipv4Addr::LOCALHOST);
    let mut page = server.page("");
    server.await_pages(1);
    assert!(page.next().is_some());
    drop(server.stop.take());
    assert!(page.next().is_none(), "the answer ends, not the connection alone");
}

/// A page may come before the first look.
#[test]
fn nothing_is_told_of_a_service_before_the_first_look() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    let mut page = server.page("");
    assert_eq!(page.next().unwrap(), json!({ "samples": [], "now": {} }));
    assert_eq!(server.json("/v1/now"), (200, json!({ "services": [] })));
    server.show(snapshot());
    server.look(1);
    assert_eq!(page.next().unwrap()["now"]["capacity"], 100, "then all of it is new");
}

#[test]
fn an_unknown_service_has_no_events() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    assert_eq!(server.get("/v1/services/nope/events").0, 404);
    assert_eq!(server.get("/v1/services/%FF/events").0, 400);
    assert_eq!(server.pages_open(), 0);
}
