//! Commands that ask a served instance: `top` without a terminal, `health` and `reload`.

mod program;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use program::{file, text, watermaster};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};
use watermaster::admin::{self, AdminState};
use watermaster::snapshot::{ClientSnapshot, Counts, Levels, ServiceSnapshot, SnapshotCell};
use watermaster::{metrics::Publisher, reload::Configuration, services::ServiceHandle, shared::Shared};
use watermaster_api::{GroupFigures, MemberView, ServiceFigures};
use watermaster_settings::{AdminToken, Role, config::Config, token::Token};

const TOKEN: &str = "s3cret-s3cret-s3cret";

/// Starts an instance with two services, which ends when the runtime is dropped.
fn instance(listen: Ipv4Addr) -> (Runtime, SocketAddr) {
    serve(listen, None, None)
}

/// Starts an instance with this file as its configuration. With a trouble, its services are not ready.
fn serve(listen: Ipv4Addr, path: Option<&Path>, trouble: Option<&str>) -> (Runtime, SocketAddr) {
    let client = |name: &str, granted, backlog| ClientSnapshot {
        name: name.into(),
        levels: Levels { wants: granted + backlog, default_share: 50.0, granted, backlog, ..Default::default() },
        counts: Counts { admitted: 1_000, ..Default::default() },
        ..Default::default()
    };
    let mut config =
        Config::load(&[path.unwrap_or(Path::new("config/demo.toml"))], [], watermaster_kafka::PROPERTY_RULES).unwrap();
    let service = |name: &str| {
        let cell = SnapshotCell::default();
        let mut snapshot = ServiceSnapshot {
            clients: [client("car-loan", 30, 0), client("home-loan", 70, 7)].into_iter().collect(),
            ..Default::default()
        };
        snapshot.figures = ServiceFigures {
            name: name.to_owned(),
            mode: "shape".into(),
            enforce: true,
            capacity: 100,
            cycle_seconds: 10.0,
            window_admitted: 90,
            ready: trouble.is_none(),
            trouble: trouble.map(str::to_owned),
            ..Default::default()
        };
        if name == "bureau" {
            snapshot.group.figures = group();
        }
        cell.set(snapshot);
        ServiceHandle { name: name.to_owned(), cell, ..ServiceHandle::new(&config.settings.services[0]) }
    };
    let services = vec![service("kyc"), service("bureau")];
    config.settings.admin.tokens = vec![AdminToken {
        name: "token".to_owned(),
        role: Role::Operate,
        services: Vec::new(),
        token: Token::new(TOKEN).unwrap(),
    }];
    let configuration = Configuration::new(path.map(|path| vec![path.to_owned()]), config);
    configuration.services.set(services);
    let state = Arc::new(AdminState {
        publisher: Shared::new(Publisher::new("2.12.1", 10)),
        configuration: Arc::new(configuration),
        draining: Arc::new(AtomicBool::new(false)),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind((listen, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(admin::serve(listener, state, std::future::pending()));
    (runtime, (Ipv4Addr::LOCALHOST, port).into())
}

/// Returns a group of two instances.
fn group() -> GroupFigures {
    let member = |instance: &str, hold: u64, age: f64| MemberView {
        instance: instance.to_owned(),
        life: "00000000000000a0".to_owned(),
        state: "live".into(),
        hold,
        used: 20,
        target: 50,
        ahead: 3,
        capacity: 100,
        configuration: "5d41402a".to_owned(),
        rules_checksum: 0,
        state_age_seconds: age,
    };
    let members = vec![member("wm-0", 60, 1.0), member("wm-1", 40, 2.0)];
    GroupFigures { state: Some("active".into()), hold: 60, configurations: 1, members, ..GroupFigures::default() }
}

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = watermaster(arguments, environment, "");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn top(arguments: &[&str]) -> (Option<i32>, String, String) {
    run(&[&["top"], arguments].concat(), &[])
}

/// Returns an address at which a listener was a moment ago, and no program is.
fn free_address() -> String {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().to_string()
}

/// Without a terminal on stdout, `--once` is implied.
#[test]
fn without_a_terminal_a_table_is_printed_for_each_service() {
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let table = "\
client    wants granted      share admit/s delay/s reject/s backlog
car-loan     30      30   lends 20       0       0        0       0
home-loan    77      70 borrows 20       0       0        0       7
";
    let head = |name, held| format!("{name} takes 100 in any 10 s; {held}90 admitted in the last one; shape; ready\n");
    let (kyc, bureau) = (head("kyc", ""), head("bureau", "60 of them here, shared by 2 instances; "));
    let group = "\
instance hold target used state last state
wm-0       60     50   20  live  1.0 s ago
wm-1       40     50   20  live  2.0 s ago
";
    let all = (Some(0), format!("{bureau}{table}\n{group}\n{kyc}{table}"), String::new());
    assert_eq!(top(&["--url", &address.to_string()]), all);
    let one = (Some(0), format!("{kyc}{table}"), String::new());
    assert_eq!(top(&["--once", "--url", &format!("http://{address}/"), "--service", "kyc"]), one);
}

#[test]
fn json_has_the_data_of_the_api_and_the_rates() {
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let (code, out, _) = top(&["--output", "json", "--service", "kyc", "--url", &address.to_string()]);
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, shown["services"].as_array().map(Vec::len)), (Some(0), Some(1)));
    let client = &shown["services"][0]["clients"][1];
    assert_eq!((&client["name"], &client["backlog"]), (&json!("home-loan"), &json!(7)));
    assert_eq!(client["per_second"], json!({ "admitted": 0.0, "delayed": 0.0, "rejected": 0.0 }));
}

#[test]
fn beyond_loopback_top_needs_the_token() {
    let (_runtime, address) = instance(Ipv4Addr::UNSPECIFIED);
    let url = address.to_string();
    let (_folder, token) = file(&format!("{TOKEN}\n"));
    let (_other_folder, other) = file("another\n");
    let (code, _, why) = top(&["--url", &url]);
    assert_eq!((code, why.contains("it asks for a token: --token-file")), (Some(78), true), "{why}");
    let (code, _, why) = top(&["--url", &url, "--token-file", other.to_str().unwrap()]);
    assert_eq!((code, why.contains("does not accept this token")), (Some(78), true), "{why}");
    assert_eq!(top(&["--url", &url, "--token-file", token.to_str().unwrap()]).0, Some(0));
    assert_eq!(top(&["--url", &url, "--token-file", "/nowhere"]).0, Some(78));
}

#[test]
fn unreachable_instances_and_unknown_services_are_reported() {
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let (code, _, why) = top(&["--url", &address.to_string(), "--service", "kyb"]);
    assert_eq!((code, why.contains("it has no service \"kyb\"; there is: bureau, kyc")), (Some(2), true), "{why}");
    let free = free_address();
    let (code, _, why) = top(&["--url", &free]);
    assert_eq!((code, why.starts_with(&format!("http://{free}: "))), (Some(69), true), "{why}");
    assert_eq!(top(&["--url", "gopher://x"]).0, Some(2));
}

#[test]
fn health_tells_whether_the_instance_is_ready() {
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let ready = (Some(0), "ready\n".to_owned(), String::new());
    assert_eq!(run(&["health", "--url", &address.to_string()], &[]), ready);
    let listen = [("WATERMASTER_ADMIN__LISTEN", format!("0.0.0.0:{}", address.port()))];
    assert_eq!(run(&["health"], &listen.each_ref().map(|(name, value)| (*name, value.as_str()))), ready);

    let (_runtime, address) = serve(Ipv4Addr::LOCALHOST, None, Some("no broker can be reached"));
    let url = address.to_string();
    let reasons = "not ready\n  kyc: no broker can be reached\n  bureau: no broker can be reached\n";
    assert_eq!(run(&["health", "--url", &url], &[]), (Some(1), reasons.to_owned(), String::new()));
    assert_eq!(run(&["health", "--live", "--url", &url], &[]), (Some(0), "alive\n".to_owned(), String::new()));
}

/// A group is one table, also while an instance is away.
#[test]
fn several_instances_are_shown_as_one() {
    let (_first, first) = instance(Ipv4Addr::LOCALHOST);
    let (_second, second) = instance(Ipv4Addr::LOCALHOST);
    let (first, second) = (first.to_string(), second.to_string());
    let json = |others: &[&str]| {
        let (code, out, why) = top(&[&["--output", "json", "--url", &first, "--service", "bureau"], others].concat());
        assert_eq!(code, Some(0), "{why}");
        serde_json::from_str::<Value>(&out).unwrap()["services"][0].clone()
    };
    let (one, both) = (json(&[]), json(&["--and", &second]));
    let backlog = |service: &Value| service["clients"][1]["backlog"].as_u64().unwrap();
    assert_eq!((backlog(&one), backlog(&both)), (7, 14));
    assert_eq!((&both["capacity"], &both["ready"]), (&one["capacity"], &true.into()));
    let free = free_address();
    let without = json(&["--and", &free]);
    let trouble = without["trouble"].as_str().unwrap();
    assert_eq!((backlog(&without), trouble.contains(&free)), (7, true), "{trouble}");
}

#[test]
fn health_needs_an_answer_of_an_instance() {
    let free = free_address();
    let (code, _, why) = run(&["health", "--url", &free], &[]);
    assert_eq!((code, why.starts_with(&format!("http://{free}: "))), (Some(69), true), "{why}");
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let (code, _, why) = run(&["health", "--url", &format!("{address}/elsewhere")], &[]);
    assert_eq!((code, why.contains("it answers with status 404")), (Some(69), true), "{why}");
}

#[test]
fn reload_prints_the_changes_or_the_errors() {
    let (_token_folder, token) = file(TOKEN);
    let demo = format!("[admin]\ntoken_file = {token:?}\n{}", include_str!("../config/demo.toml"));
    let (_folder, path) = file(&demo);
    let (_runtime, address) = serve(Ipv4Addr::LOCALHOST, Some(&path), None);
    let arguments = ["reload", "--url", &address.to_string(), "--token-file", token.to_str().unwrap()];
    let (code, out, why) = run(&arguments, &[]);
    assert_eq!((code, out.starts_with("nothing differs (hash ")), (Some(0), true), "{out}{why}");
    assert!(demo.contains("\ncapacity = 200 "));
    std::fs::write(&path, demo.replace("\ncapacity = 200 ", "\ncapacity = 900 ")).unwrap();
    let line = 1 + demo.lines().position(|line| line.starts_with("capacity = 200")).unwrap();
    let expected = format!(
        "service[0].capacity (service kyc): 200 -> 900\n    from: {}:{line}\n    \
         warning: 4.500 times the former value\nservice kyc: of 107 records that are wanted here, up to 107 are admitted in",
        path.display()
    );
    let (code, out, why) = run(&[&arguments[..], &["--dry-run"]].concat(), &[]);
    let ends = out.starts_with(&expected) && out.contains("\na dry run: nothing was taken over (hash ");
    assert_eq!((code, ends), (Some(0), true), "{out}{why}");
    let (code, out, why) = run(&arguments, &[]);
    let ends = out.starts_with(&expected) && out.contains("\ntaken over (hash ");
    assert_eq!((code, ends), (Some(0), true), "{out}{why}");
    let (_, out, _) = run(&[&arguments[..], &["--output", "json"]].concat(), &[]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["changes"], json!([]));
    std::fs::write(&path, demo.replace("\ncapacity = 200 ", "\ncapacity = 0 ")).unwrap();
    let (code, _, why) = run(&arguments, &[]);
    let parts =
        ["is refused", "service[0].capacity (service kyc) is 0\n    allowed: ", &format!("{}:", path.display())];
    assert_eq!((code, parts.iter().all(|part| why.contains(part))), (Some(78), true), "{why}");
    let (code, _, why) = run(&arguments[..3], &[]);
    assert_eq!((code, why.contains("it asks for a token: --token-file")), (Some(78), true), "{why}");
    let (_wrong_folder, wrong) = file("another\n");
    let (code, _, why) = run(&[&arguments[..4], &[wrong.to_str().unwrap()]].concat(), &[]);
    assert_eq!((code, why.contains("does not accept this token")), (Some(78), true), "{why}");
    // This instance has no file.
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let (code, _, why) = run(&["reload", "--url", &address.to_string(), arguments[3], arguments[4]], &[]);
    assert_eq!((code, why.contains("no configuration file")), (Some(78), true), "{why}");
}

#[test]
fn one_client_is_shown_in_detail() {
    let (_runtime, address) = instance(Ipv4Addr::LOCALHOST);
    let url = address.to_string();
    let (code, out, why) = top(&["--client", "home-loan", "--service", "kyc", "--url", &url]);
    let parts = ["home-loan of kyc\n", "backlog    7 records", "a record that is sent now goes in about 1 s\n"];
    assert_eq!((code, parts.iter().all(|part| out.contains(part))), (Some(0), true), "{out}{why}");
    let (_, out, _) = top(&["--client", "home-loan", "--output", "json", "--url", &url]);
    let shown: Value = serde_json::from_str(&out).unwrap();
    let services: Vec<_> = shown["clients"].as_array().unwrap().iter().map(|client| &client["service"]).collect();
    assert_eq!(services, ["bureau", "kyc"]);
    let (code, _, why) = top(&["--client", "a/b", "--url", &url]);
    assert_eq!((code, why.contains("it knows no client \"a/b\" now")), (Some(1), true), "{why}");
}

#[test]
fn an_instance_with_tls_is_asked_with_the_certificates_to_trust() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=wm"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
    assert!(openssl.output().expect("openssl is installed").status.success());
    let (_token_folder, token) = file(TOKEN);
    let tls = format!("[admin]\ntoken_file = {token:?}\ntls_cert = {certificate:?}\ntls_key = {key:?}\n");
    let (_folder, path) = file(&(tls + include_str!("../config/demo.toml")));
    let (_runtime, address) = serve(Ipv4Addr::LOCALHOST, Some(&path), None);
    let url = format!("https://{address}");
    let trusted = ["--cacert", certificate.to_str().unwrap()];
    for command in [&["top", "--once"][..], &["health"], &["reload", "--token-file", token.to_str().unwrap()]] {
        let asked = [command, &["--url", &url]].concat();
        let (code, out, why) = run(&[&asked[..], &trusted].concat(), &[]);
        assert_eq!(code, Some(0), "{command:?}: {out}{why}");
        let (code, _, why) = run(&asked, &[]);
        assert_eq!((code, why.contains("--cacert names the certificates to trust")), (Some(69), true), "{why}");
    }
    let (code, _, why) = run(&["health", "--url", &url, "--cacert", token.to_str().unwrap()], &[]);
    assert_eq!((code, why.contains("holds no certificate in PEM")), (Some(78), true), "{why}");
    // The health check of the image names no instance: it finds the protocol, and the certificate names another host.
    let listen = format!("0.0.0.0:{}", address.port());
    let environment = [("WATERMASTER_ADMIN__LISTEN", listen.as_str())];
    assert_eq!(run(&["health"], &environment), (Some(0), "ready\n".to_owned(), String::new()));
    let by_tls = [environment[0], ("WATERMASTER_ADMIN__TLS_CERT", certificate.to_str().unwrap())];
    assert_eq!(run(&["health"], &by_tls).0, Some(0));
    // By plain HTTP, the connection ends without an answer.
    assert_eq!(run(&["health", "--url", &format!("http://{address}")], &[]).0, Some(69));
}
