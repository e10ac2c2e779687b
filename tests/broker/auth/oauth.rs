//! An OAuth server on loopback, which signs tokens with a key that the broker knows.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::keys::Keys;

pub const CLIENT: &str = "watermaster";
pub const SECRET: &str = "open sesame";
pub const AUDIENCE: &str = "kafka";

/// The server; it ends with the test's process.
#[derive(Debug)]
pub struct OAuthServer {
    pub endpoint: String,
    tokens: Arc<AtomicU64>,
}

impl OAuthServer {
    /// Makes the signing key, writes its public half to `jwks.json`, and starts the server. Tokens last for `lifetime`.
    pub fn start(keys: Arc<Keys>, lifetime: Duration) -> OAuthServer {
        keys.openssl(&["genrsa", "-out", "oauth.key", "2048"], "");
        let modulus = keys.openssl(&["rsa", "-in", "oauth.key", "-noout", "-modulus"], "");
        let modulus = String::from_utf8(modulus).expect("hexadecimal digits");
        let hex = modulus.trim().trim_start_matches("Modulus=").as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
        let modulus = base64url(&keys, &hex.chunks(2).map(byte).collect::<Vec<u8>>());
        let jwks =
            format!(r#"{{"keys":[{{"kty":"RSA","alg":"RS256","use":"sig","kid":"1","e":"AQAB","n":"{modulus}"}}]}}"#);
        std::fs::write(keys.path("jwks.json"), jwks).expect("the folder can be written");

        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}/token", listener.local_addr().expect("the listener is bound"));
        let tokens = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&tokens);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that goes away is no error of the test.
                let _ = answer(&keys, stream, lifetime, &count);
            }
        });
        OAuthServer { endpoint, tokens }
    }

    /// Returns the properties with which a broker takes the tokens on the listener `OAUTH`. A connection lives no longer
    /// than its token.
    pub fn broker_properties(keys: &Keys) -> Vec<String> {
        let module = "org.apache.kafka.common.security.oauthbearer";
        let listener = "listener.name.oauth.oauthbearer";
        let handler = format!("{module}.OAuthBearerValidatorCallbackHandler");
        vec![
            "listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER".to_owned(),
            format!("{listener}.sasl.server.callback.handler.class={handler}"),
            format!("{listener}.sasl.jaas.config={module}.OAuthBearerLoginModule required;"),
            format!("{listener}.sasl.oauthbearer.jwks.endpoint.url=file://{}", keys.path("jwks.json")),
            format!("{listener}.sasl.oauthbearer.expected.audience={AUDIENCE}"),
            format!("{listener}.connections.max.reauth.ms=3600000"),
        ]
    }

    /// Returns the number of tokens that were issued.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }
}

fn answer(keys: &Keys, stream: TcpStream, lifetime: Duration, count: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut known) = (0, false);
    let credentials = keys.openssl(&["base64", "-A"], format!("{CLIENT}:{SECRET}"));
    let expected = format!("Basic {}", String::from_utf8_lossy(&credentials));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let Some((name, value)) = line.trim_end().split_once(": ") else { continue };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "authorization" => known = value == expected,
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let (status, body) = if known {
        count.fetch_add(1, Ordering::Relaxed);
        let token = token(keys, lifetime);
        let seconds = lifetime.as_secs();
        ("200 OK", format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{seconds}}}"#))
    } else {
        (
            "401 Unauthorized",
            r#"{"error":"invalid_client","error_description":"unknown client or wrong secret"}"#.into(),
        )
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n");
    reader.get_mut().write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
}

fn token(keys: &Keys, lifetime: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is later than 1970").as_secs();
    let until = now + lifetime.as_secs();
    let header = base64url(keys, br#"{"alg":"RS256","typ":"JWT","kid":"1"}"#);
    let claims = format!(r#"{{"sub":"{CLIENT}","aud":"{AUDIENCE}","iat":{now},"exp":{until},"scope":"kafka"}}"#);
    let signed = format!("{header}.{}", base64url(keys, claims.as_bytes()));
    let signature = keys.openssl(&["dgst", "-sha256", "-sign", "oauth.key"], &signed);
    format!("{signed}.{}", base64url(keys, &signature))
}

fn base64url(keys: &Keys, bytes: &[u8]) -> String {
    let text = String::from_utf8(keys.openssl(&["base64", "-A"], bytes)).expect("base64 is ASCII");
    text.trim_end().trim_end_matches('=').replace('+', "-").replace('/', "_")
}
