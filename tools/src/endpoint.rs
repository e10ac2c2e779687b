//! The HTTP API of a running instance: its address, its token, and requests to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{io, path::Path, path::PathBuf, time::Duration};

use clap::Args;
use ureq::http::{Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::{Body, RequestBuilder};

use crate::cli::{Exit, Failure};
use crate::format::printable;

/// The longest time until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest wait for a change: a reload may ask the brokers first.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer that is read: that of some hundred thousand clients.
const MAX_ANSWER_BYTES: u64 = 128 << 20;
/// The default of `admin.listen`.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// The option that names the instance.
#[derive(Debug, Args)]
pub struct UrlArg {
    /// The address of the instance (admin.listen), or of the ingress in front of it
    #[arg(long, value_name = "URL", default_value_t = default_url(), value_parser = url)]
    pub url: String,
    /// A file with the certificates (PEM) that may sign the instance's, instead of those that the system trusts
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
}

fn unreadable(option: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Config, format_args!("{option}: {} cannot be read: {error}", path.display()))
}

fn lacks(option: &str, path: &Path, wanted: &str) -> Failure {
    Failure::new(Exit::Config, format_args!("{option}: {} holds no {wanted}", path.display()))
}

impl UrlArg {
    /// Returns the instance, and reads the certificates to trust, if a file is named.
    pub fn endpoint(&self, token: Option<&str>) -> Result<Endpoint, Failure> {
        self.endpoint_at(&self.url, token)
    }

    /// Returns another instance, with the same certificates.
    pub fn endpoint_at(&self, url: &str, token: Option<&str>) -> Result<Endpoint, Failure> {
        let Some(path) = &self.cacert else { return Ok(Endpoint::new(url, token)) };
        let text = std::fs::read(path).map_err(|error| unreadable("--cacert", path, &error))?;
        let items = parse_pem(&text).filter_map(Result::ok);
        let certificate = |item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None };
        let certificates: Vec<_> = items.filter_map(certificate).collect();
        if certificates.is_empty() {
            return Err(lacks("--cacert", path, "certificate in PEM"));
        }
        Ok(Endpoint::with_roots(url, token, Some(certificates.into())))
    }

    /// Returns the instance on this machine by TLS, if no other one is named, and no certificates. The instance's own
    /// need not name a local address, so any is accepted: for questions without secrets alone.
    pub fn local_by_tls(&self) -> Option<Endpoint> {
        let is_local = self.cacert.is_none() && self.url == default_url();
        is_local.then(|| Endpoint::with_roots(&self.url.replace("http://", "https://"), None, None))
    }
}

/// The option that names the file of the token.
#[derive(Debug, Args)]
pub struct TokenArg {
    /// A file with the token of the instance
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArg {
    /// Reads the token, if a file is named.
    pub fn read(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| unreadable("--token-file", path, &error))?;
        match text.trim() {
            "" => Err(lacks("--token-file", path, "token")),
            token => Ok(Some(token.to_owned())),
        }
    }
}

/// Returns the address of the instance on this machine. `run` reads the same variables.
fn default_url() -> String {
    let scheme = if std::env::var_os("WATERMASTER_ADMIN__TLS_CERT").is_some() { "https" } else { "http" };
    local_url(scheme, std::env::var("WATERMASTER_ADMIN__LISTEN").ok().as_deref())
}

fn local_url(scheme: &str, listen: Option<&str>) -> String {
    let mut address = listen.and_then(|listen| listen.parse().ok()).unwrap_or(DEFAULT_LISTEN);
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("{scheme}://{address}")
}

/// Reads the URL of an instance; `http://` may be omitted.
pub(crate) fn url(text: &str) -> Result<String, &'static str> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let fits = |uri: Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none();
    let is_url = url.parse().is_ok_and(fits);
    is_url.then_some(url).ok_or("allowed: http://HOST:PORT or https://HOST, with a path")
}

/// Encodes a text as one segment of a path.
pub fn percent_encoded(text: &str) -> String {
    watermaster_settings::percent_encoded(text, b"-_")
}

/// An instance gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("{source}{}", advice(source))]
    Request { source: ureq::Error },
    #[error("the answer broke off: {0}")]
    Truncated(#[source] ureq::Error),
    #[error("it asks for a token: --token-file ({0})")]
    TokenNeeded(String),
    #[error("it does not accept this token ({0})")]
    TokenRefused(String),
}

impl EndpointError {
    /// Returns the exit code: an instance that refuses the token has answered, and another token is needed.
    pub fn exit(&self) -> Exit {
        match self {
            EndpointError::TokenNeeded(_) | EndpointError::TokenRefused(_) => Exit::Config,
            EndpointError::Request { .. } | EndpointError::Truncated(_) => Exit::Unreachable,
        }
    }

    /// Returns whether the instance may have carried out the request although its answer is missing.
    pub fn may_have_arrived(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
        match self {
            EndpointError::Truncated(_) => true,
            EndpointError::Request { source: ureq::Error::Io(why) } => {
                matches!(why.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof)
            }
            EndpointError::Request { source: ureq::Error::Timeout(of) } => {
                !matches!(of, ureq::Timeout::Connect | ureq::Timeout::Resolve)
            }
            EndpointError::Request { source } => matches!(source, ureq::Error::Protocol(_)),
            EndpointError::TokenNeeded(_) | EndpointError::TokenRefused(_) => false,
        }
    }
}

fn advice(error: &ureq::Error) -> &'static str {
    match error {
        ureq::Error::Io(why) if why.kind() == io::ErrorKind::ConnectionRefused => " (--url chooses another instance)",
        _ if error.to_string().contains("certificate verify failed") => " (--cacert names the certificates to trust)",
        _ => "",
    }
}

/// The status of an answer, and its text.
pub type Reply = (u16, String);

/// An instance that can be asked.
pub struct Endpoint {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
}

impl Endpoint {
    pub fn new(url: &str, token: Option<&str>) -> Endpoint {
        Endpoint::with_roots(url, token, Some(RootCerts::PlatformVerifier))
    }

    /// Returns an instance with a certificate that these roots sign; without roots, any certificate.
    fn with_roots(url: &str, token: Option<&str>, roots: Option<RootCerts>) -> Endpoint {
        let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).disable_verification(roots.is_none());
        let tls = tls.root_certs(roots.unwrap_or(RootCerts::PlatformVerifier));
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .tls_config(tls.build())
            .proxy(None);
        Endpoint {
            agent: config.build().into(),
            url: url.trim_end_matches('/').to_owned(),
            authorization: token.map(|token| format!("Bearer {token}")),
        }
    }

    pub fn get(&self, path: &str) -> Result<Reply, EndpointError> {
        self.reply(self.authorized(self.agent.get(format!("{}{path}", self.url))).call())
    }

    /// Sends a request without a body.
    pub fn post(&self, path: &str) -> Result<Reply, EndpointError> {
        self.reply(self.changing(self.agent.post(format!("{}{path}", self.url))).send_empty())
    }

    /// Puts a resource, or deletes it without a body, under a condition: the name and the value of a header.
    pub fn change(
        &self, path: &str, body: Option<&serde_json::Value>, (name, value): (&str, &str),
    ) -> Result<Reply, EndpointError> {
        let url = format!("{}{path}", self.url);
        self.reply(match body {
            Some(body) => {
                let request = self.changing(self.agent.put(url)).header(name, value);
                request.header("content-type", "application/json").send(body.to_string())
            }
            None => self.changing(self.agent.delete(url)).header(name, value).call(),
        })
    }

    fn changing<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        self.authorized(request).config().timeout_global(Some(CHANGE_TIMEOUT)).build()
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    fn reply(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Reply, EndpointError> {
        let mut response = response.map_err(|source| EndpointError::Request { source })?;
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        match response.status().as_u16() {
            401 if self.authorization.is_none() => Err(EndpointError::TokenNeeded(reason(body))),
            401 | 403 => Err(EndpointError::TokenRefused(reason(body))),
            status => Ok((status, body.map_err(EndpointError::Truncated)?)),
        }
    }
}

/// Returns the reason in an answer, as the instance words it, or what a proxy says.
fn reason(body: Result<String, ureq::Error>) -> String {
    let text = body.unwrap_or_else(|error| error.to_string());
    let json = serde_json::from_str::<serde_json::Value>(&text).ok();
    printable(json.as_ref().and_then(sentence).unwrap_or(text.trim())).into_owned()
}

/// Returns the sentence for people in a refusal, or the word for programs if it has none.
pub fn sentence(refusal: &serde_json::Value) -> Option<&str> {
    ["message", "error"].iter().find_map(|key| refusal[key].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_lack_its_scheme() {
        assert_eq!(url("127.0.0.1:9464").unwrap(), "http://127.0.0.1:9464");
        assert_eq!(url("https://ops.example/watermaster/").unwrap(), "https://ops.example/watermaster/");
        for wrong in ["", "ftp://x", "http://", "http://x?y", "a b"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_segment_of_a_path_may_have_any_characters() {
        assert_eq!(percent_encoded("credit-card"), "credit-card");
        assert_eq!(percent_encoded("../a b%é"), "%2E%2E%2Fa%20b%25%C3%A9");
    }

    #[test]
    fn the_instance_on_this_machine_is_found_where_it_listens() {
        let cases = [
            (None, "http://127.0.0.1:9464"),
            (Some("nonsense"), "http://127.0.0.1:9464"),
            (Some("0.0.0.0:9000"), "http://127.0.0.1:9000"),
            (Some("[::]:9000"), "http://[::1]:9000"),
            (Some("10.0.0.7:9464"), "http://10.0.0.7:9464"),
        ];
        for (listen, url) in cases {
            assert_eq!(local_url("http", listen), url);
        }
    }
}
