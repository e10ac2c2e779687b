//! Client ids from Avro and Protobuf values, by the schemas of a registry.
//!
//! - [`wire`]: reads untrusted bytes: the registry's header, numbers, lengths
//! - [`avro`], [`proto`]: parse a schema, and walk a value to one field without decoding the others
//! - [`cache`]: the schemas that an engine knows, and the ids that it waits for
//! - [`registry`]: asks the registry over HTTP
//!
//! `wire`, `avro` and `proto` are pure. The caller of `cache` passes in the time.

pub mod avro;
pub mod cache;
pub mod proto;
pub mod registry;
pub mod wire;

use watermaster_settings::SchemaFormat;
use watermaster_settings::client_id::Found;

use avro::AvroSchema;
use proto::ProtoSchema;

/// A schema of the registry, ready to find fields by.
#[derive(Debug)]
pub enum Schema {
    Avro(AvroSchema),
    Protobuf(ProtoSchema),
    /// A format in which no place of `client_from` looks, such as JSON Schema.
    Other,
}

/// The reason why a schema can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0} is no Avro type")]
    AvroType(String),
    #[error("{0} has no {1}")]
    Missing(String, &'static str),
    #[error("unexpected {0:?}")]
    Unexpected(String),
    #[error("it ends too early")]
    Truncated,
    #[error("it is nested too deeply")]
    TooDeep,
    #[error("its reference {subject} version {version} does not exist")]
    NoReference { subject: String, version: i64 },
    #[error("it refers to more than {0} other schemas")]
    TooManyReferences(usize),
}

impl Schema {
    /// Parses the text of a schema. `references` are the schemas that it names, each behind those that it names itself.
    ///
    /// `format` is the registry's name of the format; Avro has none.
    pub fn parse(format: Option<&str>, references: &[String], text: &str) -> Result<Schema, SchemaError> {
        match format {
            None | Some("AVRO") => Ok(Schema::Avro(AvroSchema::parse(references, text)?)),
            Some("PROTOBUF") => Ok(Schema::Protobuf(ProtoSchema::parse(references, text)?)),
            Some(_) => Ok(Schema::Other),
        }
    }

    /// Finds the client id at a path of field names in a value without its registry's header. A value of another format
    /// has none.
    pub fn find<'r>(&self, format: SchemaFormat, path: &[String], body: &'r [u8]) -> Found<'r> {
        match (self, format) {
            (Schema::Avro(schema), SchemaFormat::Avro) => schema.find(path, body),
            (Schema::Protobuf(schema), SchemaFormat::Protobuf) => schema.find(path, body),
            _ => Ok(None),
        }
    }
}
