//! The least of HTTP: one GET with a bounded answer.

use std::{error::Error, path::Path, time::Duration};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ureq::config::RedirectAuthHeaders;
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use super::RegistryError;
use crate::MAX_SCHEMA_BYTES;

/// The longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer. JSON may need two bytes for one of the schema.
const MAX_ANSWER_BYTES: u64 = 2 * MAX_SCHEMA_BYTES as u64;

pub(super) struct HttpClient(ureq::Agent);

impl HttpClient {
    /// Makes a client that trusts the certificates in a file, or those that the system trusts.
    pub(super) fn new(ca_file: Option<&Path>) -> Result<HttpClient, RegistryError> {
        let roots = match ca_file {
            None => RootCerts::PlatformVerifier,
            Some(path) => certificates(path).map_err(|source| RegistryError::File { path: path.to_owned(), source })?,
        };
        let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(roots);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER_TIMEOUT))
            // A registry that leads from http to https, or to another path, needs the login there.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .tls_config(tls.build())
            .proxy(None);
        Ok(HttpClient(config.build().into()))
    }

    /// Returns the status of the answer, and its text; `None` if that is too long.
    pub(super) fn get(
        &self, url: &str, login: Option<(&str, &str)>,
    ) -> Result<(u16, Option<String>), Box<dyn Error + Send + Sync>> {
        let mut request = self.0.get(url).header("accept", "application/vnd.schemaregistry.v1+json, application/json");
        if let Some((user, password)) = login {
            let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
            request = request.header("authorization", format!("Basic {encoded}"));
        }
        let mut response = request.call()?;
        let text = match response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string() {
            Err(ureq::Error::BodyExceedsLimit(_)) => None,
            text => Some(text?),
        };
        Ok((response.status().as_u16(), text))
    }
}

fn certificates(path: &Path) -> Result<RootCerts, Box<dyn Error + Send + Sync>> {
    let mut certificates = Vec::new();
    for item in parse_pem(&std::fs::read(path)?) {
        if let PemItem::Certificate(certificate) = item? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err("it has no certificate in PEM".into());
    }
    Ok(certificates.into())
}
