//! Asks a schema registry, by the API that Confluent's has: `GET /schemas/ids/{id}` and `GET /schemas/guids/{guid}`.
//!
//! <https://docs.confluent.io/platform/current/schema-registry/develop/api.html>. Karapace, Redpanda and
//! Apicurio have it, too; not all of their versions know GUIDs.

mod http;

use std::{collections::BTreeSet, error::Error, path::PathBuf};

use serde::Deserialize;
use watermaster_settings::{SchemaRegistry, client_id::SchemaId, percent_encoded};

use crate::{Memory, Schema, SchemaError};

/// The largest number that a registry gives to a schema.
const MAX_NUMBER: u32 = i32::MAX as u32;
/// The most schemas that one schema may refer to, directly and through others.
const MAX_REFERENCES: usize = 100;

/// The registry's answer about a schema.
#[derive(Debug)]
pub enum Answer<S = Schema> {
    Schema(S),
    /// The schema exists, but can't be used.
    Unusable(SchemaError),
    Missing,
}

/// The registry gave no answer that says anything about the schema.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{url} can't be reached: {source}{}", advice(source.as_ref()))]
    Unreachable { url: String, source: Box<dyn Error + Send + Sync> },
    #[error("{0} asks for a user and a password (401): kafka.schema_registry.username and password")]
    LoginNeeded(String),
    #[error("{0} does not accept the user or the password of kafka.schema_registry (401)")]
    LoginRefused(String),
    #[error("{0} does not let this user read schemas (403)")]
    Forbidden(String),
    #[error("{url} answers {status}: {text}")]
    Status { url: String, status: u16, text: String },
    #[error("{0} gives no answer of a schema registry: see the path in kafka.schema_registry.url")]
    NotARegistry(String),
    #[error("{} can't be read: {source}", path.display())]
    File { path: PathBuf, source: Box<dyn Error + Send + Sync> },
}

fn advice(error: &(dyn Error + Send + Sync)) -> &'static str {
    let is_untrusted = error.to_string().contains("certificate verify failed");
    if is_untrusted { ": kafka.schema_registry.ca_file names the certificates to trust" } else { "" }
}

impl RegistryError {
    /// Returns true if no registry answered.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, RegistryError::Unreachable { .. })
    }

    /// Returns true if a registry may refuse one id so and answer about others. All other refusals concern the program
    /// or the moment.
    fn may_be_about_the_id(&self) -> bool {
        match self {
            RegistryError::NotARegistry(_) => true,
            RegistryError::Status { status, .. } => (400..500).contains(status) && ![408, 425, 429].contains(status),
            _ => false,
        }
    }
}

/// Returns true for an id that not all registries can look up.
fn is_strange(id: SchemaId) -> bool {
    !matches!(id, SchemaId::Number(..=MAX_NUMBER))
}

/// A schema as the registry stores it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSchema {
    schema: String,
    schema_type: Option<String>,
    #[serde(default)]
    references: Vec<Reference>,
}

#[derive(Debug, Deserialize)]
struct Reference {
    subject: String,
    version: i64,
}

/// The texts of the schemas that one schema refers to, each behind those that it names itself.
#[derive(Default)]
struct References {
    texts: Vec<String>,
    seen: BTreeSet<(String, i64)>,
    /// The bytes of all texts: the schema's own and those of its references.
    memory: Memory,
}

/// The body of an error. Codes of five digits are the registry's own; 404 alone may come from any web server.
#[derive(Deserialize)]
struct ErrorAnswer {
    error_code: i64,
}

/// A client of one registry.
pub struct RegistryClient {
    settings: SchemaRegistry,
    client: Option<http::HttpClient>,
}

impl RegistryClient {
    pub fn new(settings: SchemaRegistry) -> RegistryClient {
        RegistryClient { settings, client: None }
    }

    /// Fetches a schema, and those that it refers to. Blocks for some seconds if the registry is slow.
    pub fn schema(&mut self, id: SchemaId) -> Result<Answer, RegistryError> {
        let path = match id {
            SchemaId::Number(number) => format!("/schemas/ids/{number}"),
            SchemaId::Guid(_) => format!("/schemas/guids/{id}"),
        };
        let stored = match self.get(&path) {
            Ok(Answer::Schema(stored)) => stored,
            Ok(Answer::Missing) => return Ok(Answer::Missing),
            Ok(Answer::Unusable(error)) => return Ok(Answer::Unusable(error)),
            // A registry that knows no GUIDs answers as any web server does about a page that it does not have, and so
            // does one about a number that is none of its own. Any producer can write such an id.
            Err(refused) if is_strange(id) && refused.may_be_about_the_id() && self.check().is_ok() => {
                return Ok(Answer::Missing);
            }
            Err(error) => return Err(error),
        };
        let mut references = References::default();
        let parsed = match references.memory.take(stored.schema.len(), 0) {
            Ok(()) => self.add_references(&stored, &mut references)?,
            Err(error) => Err(error),
        };
        let parsed =
            parsed.and_then(|()| Schema::parse(stored.schema_type.as_deref(), &references.texts, &stored.schema));
        Ok(parsed.map_or_else(Answer::Unusable, Answer::Schema))
    }

    /// Asks for an id that no schema has: the answer tells whether the address and the login are right.
    pub fn check(&mut self) -> Result<(), RegistryError> {
        self.get("/schemas/ids/0").map(drop)
    }

    /// Adds the schemas that `stored` names. The inner error says why one of them can't be had.
    fn add_references(
        &mut self, stored: &StoredSchema, references: &mut References,
    ) -> Result<Result<(), SchemaError>, RegistryError> {
        for Reference { subject, version } in &stored.references {
            if !references.seen.insert((subject.clone(), *version)) {
                continue;
            }
            if references.seen.len() > MAX_REFERENCES {
                return Ok(Err(SchemaError::TooManyReferences(MAX_REFERENCES)));
            }
            // A version that was deleted softly is still referred to.
            let path = format!("/subjects/{}/versions/{version}?deleted=true", percent_encoded(subject, b"-_"));
            let referred = match self.get(&path)? {
                Answer::Schema(referred) => referred,
                Answer::Missing => {
                    return Ok(Err(SchemaError::NoReference { subject: subject.clone(), version: *version }));
                }
                Answer::Unusable(error) => return Ok(Err(error)),
            };
            if let Err(error) = references.memory.take(referred.schema.len(), 0) {
                return Ok(Err(error));
            }
            if let Err(error) = self.add_references(&referred, references)? {
                return Ok(Err(error));
            }
            references.texts.push(referred.schema);
        }
        Ok(Ok(()))
    }

    fn get(&mut self, path: &str) -> Result<Answer<StoredSchema>, RegistryError> {
        let base = self.settings.url.trim_end_matches('/').to_owned();
        let client = match self.client.take() {
            Some(client) => client,
            None => http::HttpClient::new(self.settings.ca_file.as_deref())?,
        };
        let login = match &self.settings.login {
            // A file is read each time, so that a new password takes effect without a restart.
            Some(login) => Some((
                login.username.as_str(),
                login.password.read().map_err(|(path, error)| RegistryError::File { path, source: error.into() })?,
            )),
            None => None,
        };
        let answer = client.get(&format!("{base}{path}"), login.as_ref().map(|(user, password)| (*user, &**password)));
        let (status, text) = answer.map_err(|source| RegistryError::Unreachable { url: base.clone(), source })?;
        // After a failure the next client reads the certificates again, which may have been renewed.
        self.client = Some(client);
        let Some(text) = text else { return Ok(Answer::Unusable(SchemaError::TooLarge)) };
        match status {
            200 => serde_json::from_str(&text).map(Answer::Schema).map_err(|_| RegistryError::NotARegistry(base)),
            401 if login.is_none() => Err(RegistryError::LoginNeeded(base)),
            401 => Err(RegistryError::LoginRefused(base)),
            403 => Err(RegistryError::Forbidden(base)),
            404 => match serde_json::from_str(&text) {
                Ok(ErrorAnswer { error_code: 40_400..=40_499 }) => Ok(Answer::Missing),
                _ => Err(RegistryError::NotARegistry(base)),
            },
            _ => Err(RegistryError::Status { url: base, status, text: text.trim().chars().take(200).collect() }),
        }
    }
}

#[cfg(test)]
mod tests;
