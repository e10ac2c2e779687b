//! The configuration of Watermaster, and the settings that it means.
//!
//! - [`model`]: the settings, validated, with defaults filled in; re-exported here
//! - [`config`]: reads the file and the environment into them
//! - [`reader`]: reads any TOML file by a table of keys, with all errors at once; `config` uses it, and so do scenarios
//! - [`client_id`]: finds the client id of a record as the settings say
//! - [`properties`]: the librdkafka properties with values that may be shown
//! - [`secrets`]: the values of properties that come from files
//! - [`files`]: the files that a configuration names, which a running program follows
//! - `pattern`: regular expressions for client ids and for topics
//! - `sources`: sources by pattern
//! - [`tls`]: the certificate of the HTTP side
//! - [`token`]: secrets and their files
//!
//! The crate does not know rdkafka: the caller passes in the check of a property ([`config::PropertyRules`]).

pub mod client_id;
pub mod config;
pub mod files;
pub mod model;
mod pattern;
pub mod properties;
pub mod reader;
pub mod secrets;
mod sources;
pub mod tls;
pub mod token;

pub use model::*;

/// Encodes a text for a URL. Letters, digits and the bytes of `kept` stay as they are.
pub fn percent_encoded(text: &str, kept: &[u8]) -> String {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || kept.contains(&byte);
    let encoded = |byte: u8| if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encoded).collect()
}
