//! What the program is told: the configuration as written, with the origin of each value, and the settings that it
//! means.
//!
//! - [`model`]: the settings, validated, with defaults filled in; re-exported here
//! - [`config`]: reads the file and the environment into them
//! - [`client_id`]: finds the client id of a record as the settings say
//! - [`properties`]: the librdkafka properties whose values may be shown
//! - [`token`]: the bearer token and its file
//!
//! The crate does not know rdkafka: its caller passes in what checks a property ([`config::CheckProperty`]).

pub mod client_id;
pub mod config;
pub mod model;
pub mod properties;
pub mod token;

pub use model::*;
