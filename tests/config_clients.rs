//! Properties that librdkafka takes one by one and refuses together are errors of the configuration, without a broker.

mod program;

use program::{file, text, watermaster};

const REST: &str = r#"
[[service]]
name = "kyc"
target = "kyc.requests"
dead_letter = "kyc.dead-letter"
capacity = 2000
[[service.source]]
topic = "loans.kyc"
"#;

/// Properties, the key of the error, and parts of its text.
struct Case {
    properties: &'static str,
    key: &'static str,
    says: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        properties: "\"security.protocol\" = \"TLS\"",
        key: "security.protocol",
        says: &["PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"],
    },
    #[cfg(feature = "oidc")]
    Case {
        properties: "\"security.protocol\" = \"sasl_ssl\"\n\"sasl.mechanism\" = \"OAUTHBEARER\"\n\
                     \"sasl.oauthbearer.method\" = \"oidc\"\n\"sasl.oauthbearer.client.id\" = \"wm\"\n\
                     \"sasl.oauthbearer.client.secret\" = \"hush\"\n\
                     \"sasl.oauthbearer.token.endpoint.url\" = \"login.example.com\"",
        key: "sasl.oauthbearer.token.endpoint.url",
        says: &["is no URL", "https://HOST/PATH"],
    },
    Case {
        properties: "\"sasl.pasword\" = \"hush\"",
        key: "sasl.pasword",
        says: &["No such configuration property", "(did you mean sasl.password?)"],
    },
    #[cfg(not(feature = "gssapi"))]
    Case {
        properties: "\"security.protocol\" = \"sasl_plaintext\"\n\"sasl.mechanism\" = \"GSSAPI\"",
        key: "sasl.mechanism",
        says: &["No provider for SASL mechanism GSSAPI", "SCRAM-SHA-256", "the feature gssapi"],
    },
    #[cfg(not(feature = "gssapi"))]
    Case {
        properties: "\"security.protocol\" = \"sasl_ssl\"\n\"sasl.username\" = \"wm\"",
        key: "security.protocol",
        says: &["No provider for SASL mechanism GSSAPI", "GSSAPI is librdkafka's default"],
    },
    Case {
        properties: "\"security.protocol\" = \"sasl_ssl\"\n\"sasl.mechanism\" = \"AWS_MSK_IAM\"",
        key: "sasl.mechanism",
        says: &["Unsupported SASL mechanism: AWS_MSK_IAM", "SCRAM-SHA-512"],
    },
    Case {
        properties: "\"security.protocol\" = \"sasl_ssl\"\n\"sasl.mechanism\" = \"OAUTHBEARER\"",
        key: "sasl.mechanism",
        says: &["nothing makes tokens", "sasl.oauthbearer.method"],
    },
    Case {
        properties: "\"security.protocol\" = \"sasl_plaintext\"\n\"sasl.mechanism\" = \"SCRAM-SHA-256\"",
        key: "sasl.mechanism",
        says: &["sasl.username and sasl.password must be set"],
    },
    Case {
        properties: "\"security.protocol\" = \"ssl\"\n\"ssl.ca.location\" = \"/nowhere/ca.pem\"",
        key: "ssl.ca.location",
        says: &[
            "ssl.ca.location failed", "No such file or directory", "\"/nowhere/ca.pem\"", "a file that can be read",
        ],
    },
    Case {
        properties: "\"fetch.max.bytes\" = 1000\n\"message.max.bytes\" = 2000",
        key: "fetch.max.bytes",
        says: &["for a consumer", "`fetch.max.bytes` must be >= `message.max.bytes`"],
    },
    Case {
        properties: "\"max.in.flight\" = 6",
        key: "max.in.flight",
        says: &["for a producer", "`max.in.flight` must be set <= 5"],
    },
];

#[test]
fn properties_that_do_not_fit_together_are_a_configuration_error() {
    for case in CASES {
        let (_folder, path) = file(&format!("[kafka.properties]\n{}\n{REST}", case.properties));
        let path = path.to_str().unwrap();
        for command in [&["check"][..], &["check", "--connect"], &["run"]] {
            let output = watermaster(&[command, &["--config", path]].concat(), &[], "");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(78), "{command:?}: {said}");
            assert!(said.starts_with("configuration: 1 error\n"), "{said}");
            assert!(said.contains(&format!("\nkafka.properties.\"{}\" ", case.key)), "{said}");
            assert!(said.contains(&format!("    from:    {path}:")), "{said}");
            for words in case.says {
                assert!(said.contains(words), "{words:?} is not in {said}");
            }
        }
    }
}

/// librdkafka's text has the path. It is hidden as the value of a property that may be secret, not for its form.
#[test]
fn a_text_of_librdkafka_shows_no_secret() {
    let properties = "\"security.protocol\" = \"ssl\"\n\"ssl.keystore.location\" = \"/nowhere/hush.p12\"\n\
                      \"ssl.keystore.password\" = \"murmur\"";
    let (_folder, path) = file(&format!("[kafka.properties]\n{properties}\n{REST}"));
    let output = watermaster(&["check", "--config", path.to_str().unwrap()], &[], "");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("(redacted)") && !said.contains("hush") && !said.contains("murmur"), "{said}");
}

/// OAuth with OIDC, with an endpoint for tokens in this process.
#[cfg(feature = "oidc")]
mod oidc {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};
    use std::{sync::mpsc, thread};

    use super::*;

    /// A token without a signature for the user `wm` that expires in the year 2286.
    const TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJleHAiOjk5OTk5OTk5OTksImlhdCI6MSwic3ViIjoid20ifQ.";

    fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// Starts an endpoint that gives each request this answer. Returns its URL and the requests that come.
    fn endpoint(status: &'static str, answer: String) -> (String, mpsc::Receiver<String>) {
        let ((listener, address), (sender, requests)) = (listen(), mpsc::channel());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let request = read(stream.unwrap(), status, &answer);
                if sender.send(request).is_err() {
                    break;
                }
            }
        });
        (format!("http://{address}/token"), requests)
    }

    fn read(mut stream: TcpStream, status: &str, answer: &str) -> String {
        let mut request = String::new();
        let mut buffer = [0; 4096];
        while !request.contains("grant_type=") {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the request ends early: {request}");
            request.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        let length = answer.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
        )
        .unwrap();
        request
    }

    fn config(endpoint: &str, broker: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        file(&format!(
            "[kafka]\nbootstrap_servers = \"{broker}\"\n[kafka.properties]\n\"security.protocol\" = \"sasl_plaintext\"\n\
             \"sasl.mechanism\" = \"OAUTHBEARER\"\n\"sasl.oauthbearer.method\" = \"oidc\"\n\
             \"sasl.oauthbearer.client.id\" = \"wm\"\n\"sasl.oauthbearer.client.secret\" = \"hush\"\n\
             \"sasl.oauthbearer.token.endpoint.url\" = \"{endpoint}\"\n{REST}"
        ))
    }

    /// librdkafka connects to a broker only with a token.
    #[test]
    fn a_token_is_fetched_before_a_broker_is_asked() {
        let (url, requests) = endpoint("200 OK", format!("{{\"access_token\":\"{TOKEN}\",\"expires_in\":600}}"));
        let (broker, address) = listen();
        let (_folder, path) = config(&url, &address);
        let path = path.to_str().unwrap();
        let output = watermaster(&["check", "--config", path], &[], "");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(requests.try_recv().is_err(), "check asks for a token without --connect");

        let mut command = Command::new(env!("CARGO_BIN_EXE_watermaster"));
        let command = command.args(["check", "--connect", "--config", path]).stderr(Stdio::null());
        let mut check = command.spawn().unwrap();
        let request = requests.recv().unwrap();
        // `wm:hush` in base64.
        assert!(request.starts_with("POST /token ") && request.contains("Basic d206aHVzaA=="), "{request}");
        assert!(request.contains("grant_type=client_credentials"), "{request}");
        broker.accept().unwrap();
        check.kill().unwrap();
        check.wait().unwrap();
    }

    #[test]
    fn a_refused_token_is_named_in_time() {
        let (url, _requests) = endpoint("401 Unauthorized", "{\"error\":\"invalid_client\"}".to_owned());
        let (_broker, address) = listen();
        let (_folder, path) = config(&url, &address);
        let output = watermaster(&["check", "--connect", "--config", path.to_str().unwrap()], &[], "");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("sasl.oauthbearer.client.secret") && said.contains("librdkafka: "), "{said}");
        assert!(said.contains("token") && !said.contains("hush"), "{said}");
    }
}
