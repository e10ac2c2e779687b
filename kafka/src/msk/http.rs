//! One request for credentials, with a short answer.

use std::{error::Error, time::Duration};

use serde_json::Value;
use ureq::http::{Request, StatusCode};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use super::MskError;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Returns the JSON that is at `url`.
pub(super) fn get(url: &str, headers: &[(&str, &str)]) -> Result<Value, MskError> {
    parse(url, &request("GET", url, headers, TIMEOUT)?)
}

pub(super) fn parse(url: &str, answer: &str) -> Result<Value, MskError> {
    serde_json::from_str(answer).map_err(|error| problem(url, &error))
}

/// Returns the body of an answer that comes within `timeout`. No proxy is asked: most addresses are those of this
/// machine's own metadata.
pub(super) fn request(
    method: &str, url: &str, headers: &[(&str, &str)], timeout: Duration,
) -> Result<String, MskError> {
    ask(method, url, headers, timeout).map_err(|error| problem(url, &*error))
}

/// Names the URL without its query, which may hold a secret.
fn problem(url: &str, error: &dyn Error) -> MskError {
    let shown = url.split('?').next().unwrap_or_default();
    MskError::Answer { url: shown.to_owned(), problem: error.to_string() }
}

fn ask(method: &str, url: &str, headers: &[(&str, &str)], timeout: Duration) -> Result<String, Box<dyn Error>> {
    let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier);
    let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None);
    let agent: ureq::Agent = config.timeout_global(Some(timeout)).tls_config(tls.build()).build().into();
    let mut request = Request::builder().method(method).uri(url).header("accept", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = match method {
        // A server may reject a PUT without a length.
        "PUT" => agent.run(request.body("")?),
        _ => agent.run(request.body(())?),
    };
    let mut answer = answer.map_err(|error| match error {
        // The text of this error has the whole URL.
        ureq::Error::BadUri(_) => Box::from("is no URL"),
        error => Box::<dyn Error>::from(error),
    })?;
    let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
    match answer.status() {
        StatusCode::OK => Ok(body?),
        status => Err(format!("answers {status}: {}", body.unwrap_or_default().trim()).into()),
    }
}
