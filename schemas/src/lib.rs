//! Client ids from Avro and Protobuf values, by the schemas of a registry.
//!
//! - [`wire`]: reads untrusted bytes: the id of a schema, numbers, lengths
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
use wire::Named;

/// The most memory of a parsed schema and those that it refers to. Their texts together are not longer either.
pub const MAX_SCHEMA_BYTES: usize = 4 << 20;
/// The longest name of a type, with its namespace or package.
const MAX_NAME_BYTES: usize = 1_024;

/// A schema of the registry, ready to find fields by.
#[derive(Debug)]
pub enum Schema {
    Avro(AvroSchema),
    Protobuf(ProtoSchema),
    /// A format for which no place of `client_from` needs a schema, such as JSON.
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
    #[error("it takes more than {} MiB with the schemas that it refers to", MAX_SCHEMA_BYTES >> 20)]
    TooLarge,
    #[error("it has a name of more than {MAX_NAME_BYTES} bytes")]
    LongName,
}

/// Counts the bytes of a schema, or of several texts, which may take [`MAX_SCHEMA_BYTES`].
#[derive(Debug, Default)]
struct Memory(usize);

impl Memory {
    /// Counts bytes in a list, and one allocation that belongs to them.
    fn take(&mut self, in_list: usize, heap: usize) -> Result<(), SchemaError> {
        self.0 += in_list + heap.next_multiple_of(16);
        if self.0 <= MAX_SCHEMA_BYTES { Ok(()) } else { Err(SchemaError::TooLarge) }
    }

    /// Counts an entry in a table of names. Names are joined and compared often, so each is short.
    fn take_name(&mut self, name: &str) -> Result<(), SchemaError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(SchemaError::LongName);
        }
        self.take(2 * size_of::<(String, usize)>(), name.len())
    }
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

    /// Finds the client id at a path of field names in a value. A value of another format has none.
    pub fn find<'r>(&self, format: SchemaFormat, path: &[String], value: &Named<'r>) -> Found<'r> {
        match (self, format) {
            (Schema::Avro(schema), SchemaFormat::Avro) => schema.find(path, value.body),
            (Schema::Protobuf(schema), SchemaFormat::Protobuf) => schema.find(path, value.message, value.body),
            _ => Ok(None),
        }
    }

    /// Returns the memory that the schema takes, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Schema>()
            + match self {
                Schema::Avro(schema) => schema.bytes,
                Schema::Protobuf(schema) => schema.bytes,
                Schema::Other => 0,
            }
    }
}
