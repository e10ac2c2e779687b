//! Avro: a schema as a list of types, and the way through a value to one field.
//!
//! A value has no names and no lengths of records, so all fields before the wanted one are skipped by their types:
//! <https://avro.apache.org/docs/1.12.0/specification/#binary-encoding>.

use std::{borrow::Cow, collections::HashMap};

use serde_json::Value;
use watermaster_settings::client_id::{AnonymousReason, Found};

use crate::{SchemaError, wire::Bytes};

/// The deepest nesting of a schema, and of the skipped parts of a value.
const MAX_DEPTH: usize = 100;
/// The steps that any value may take, and the further steps for each of its bytes. A schema with records of nulls has
/// values that take steps without bytes, in arrays of any length.
const MIN_STEPS: usize = 10_000;
const STEPS_PER_BYTE: usize = 32;

const BROKEN: AnonymousReason = AnonymousReason::BrokenValue;

/// A schema. Types name each other by their index in the list.
#[derive(Debug)]
pub struct AvroSchema {
    types: Vec<Type>,
    root: usize,
}

#[derive(Debug)]
enum Type {
    Null,
    /// An integer of 32 or 64 bits.
    Integer,
    Text,
    /// Bytes with their length in front.
    Bytes,
    /// A number of bytes that the schema knows: a boolean, a float, a fixed.
    Fixed(u64),
    Enum(Vec<String>),
    Array(usize),
    Map(usize),
    Union(Vec<usize>),
    /// The names of the fields, and their types.
    Record(Vec<(String, usize)>),
}

impl AvroSchema {
    /// Parses a schema, after those that define types which it names.
    pub fn parse(references: &[String], text: &str) -> Result<AvroSchema, SchemaError> {
        let mut parser = Parser { types: Vec::new(), names: HashMap::new() };
        for reference in references {
            parser.add(&serde_json::from_str(reference)?, "", MAX_DEPTH)?;
        }
        let root = parser.add(&serde_json::from_str(text)?, "", MAX_DEPTH)?;
        Ok(AvroSchema { types: parser.types, root })
    }

    /// Finds the string, the integer or the symbol of an enum at a path of fields. A union counts as the type that the
    /// value chose. The bytes behind the field are not looked at.
    pub fn find<'r>(&self, path: &[String], body: &'r [u8]) -> Found<'r> {
        let steps = MIN_STEPS.saturating_add(body.len().saturating_mul(STEPS_PER_BYTE));
        let mut walk = Walk { types: &self.types, bytes: Bytes(body), steps };
        let (mut at, mut path) = (self.root, path);
        loop {
            walk.step()?;
            match (&self.types[at], path.split_first()) {
                (Type::Union(branches), _) => at = walk.branch(branches)?,
                (Type::Record(fields), Some((name, rest))) => {
                    let Some(index) = fields.iter().position(|(field, _)| field == name) else { return Ok(None) };
                    for (_, skipped) in &fields[..index] {
                        walk.skip(*skipped, MAX_DEPTH)?;
                    }
                    (at, path) = (fields[index].1, rest);
                }
                (Type::Null, _) | (_, Some(_)) => return Ok(None),
                (leaf, None) => return walk.id(leaf).map(Some),
            }
        }
    }
}

/// The way through one value.
struct Walk<'s, 'r> {
    types: &'s [Type],
    bytes: Bytes<'r>,
    /// The steps that are left.
    steps: usize,
}

impl<'s, 'r> Walk<'s, 'r> {
    fn step(&mut self) -> Result<(), AnonymousReason> {
        self.steps = self.steps.checked_sub(1).ok_or(BROKEN)?;
        Ok(())
    }

    fn branch(&mut self, branches: &[usize]) -> Result<usize, AnonymousReason> {
        let index = usize::try_from(self.bytes.zigzag()?).map_err(|_| BROKEN)?;
        branches.get(index).copied().ok_or(BROKEN)
    }

    fn counted(&mut self) -> Result<&'r [u8], AnonymousReason> {
        let length = u64::try_from(self.bytes.zigzag()?).map_err(|_| BROKEN)?;
        self.bytes.take(length)
    }

    fn id(&mut self, leaf: &'s Type) -> Result<Cow<'r, str>, AnonymousReason> {
        match leaf {
            Type::Integer => Ok(Cow::Owned(self.bytes.zigzag()?.to_string())),
            Type::Text => std::str::from_utf8(self.counted()?).map(Cow::Borrowed).map_err(|_| AnonymousReason::NotUtf8),
            Type::Enum(symbols) => {
                let index = usize::try_from(self.bytes.zigzag()?).map_err(|_| BROKEN)?;
                Ok(Cow::Owned(symbols.get(index).ok_or(BROKEN)?.clone()))
            }
            _ => Err(AnonymousReason::NotAField),
        }
    }

    fn skip(&mut self, at: usize, depth: usize) -> Result<(), AnonymousReason> {
        self.step()?;
        let depth = depth.checked_sub(1).ok_or(BROKEN)?;
        match &self.types[at] {
            Type::Null => {}
            Type::Integer | Type::Enum(_) => _ = self.bytes.varint()?,
            Type::Text | Type::Bytes => _ = self.counted()?,
            Type::Fixed(length) => _ = self.bytes.take(*length)?,
            Type::Array(item) => self.skip_blocks(false, *item, depth)?,
            Type::Map(value) => self.skip_blocks(true, *value, depth)?,
            Type::Union(branches) => {
                let branch = self.branch(branches)?;
                self.skip(branch, depth)?;
            }
            Type::Record(fields) => {
                for (_, field) in fields {
                    self.skip(*field, depth)?;
                }
            }
        }
        Ok(())
    }

    /// Skips the blocks of an array or a map. The last one has no items; one with a negative count has its length in
    /// bytes behind the count.
    fn skip_blocks(&mut self, has_keys: bool, item: usize, depth: usize) -> Result<(), AnonymousReason> {
        loop {
            self.step()?;
            let count = self.bytes.zigzag()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                self.counted()?;
                continue;
            }
            for _ in 0..count {
                if has_keys {
                    self.counted()?;
                }
                self.skip(item, depth)?;
            }
        }
    }
}

struct Parser {
    types: Vec<Type>,
    /// The full names of records, enums and fixed types.
    names: HashMap<String, usize>,
}

impl Parser {
    /// Adds a type and those beneath it; returns its index. Names without a dot belong to `namespace`.
    fn add(&mut self, value: &Value, namespace: &str, depth: usize) -> Result<usize, SchemaError> {
        let depth = depth.checked_sub(1).ok_or(SchemaError::TooDeep)?;
        match value {
            Value::String(name) => self.named(name, namespace),
            Value::Array(branches) => {
                let add = |branch| self.add(branch, namespace, depth);
                let branches = branches.iter().map(add).collect::<Result<_, _>>()?;
                Ok(self.push(Type::Union(branches)))
            }
            Value::Object(object) => match object.get("type") {
                Some(Value::String(kind)) => self.complex(kind, value, namespace, depth),
                Some(inner) => self.add(inner, namespace, depth),
                None => Err(SchemaError::Missing("a type".to_owned(), "type")),
            },
            other => Err(SchemaError::AvroType(other.to_string())),
        }
    }

    fn push(&mut self, new: Type) -> usize {
        self.types.push(new);
        self.types.len() - 1
    }

    /// Returns a primitive type, or one that was defined before.
    fn named(&mut self, name: &str, namespace: &str) -> Result<usize, SchemaError> {
        let primitive = match name {
            "null" => Type::Null,
            "boolean" => Type::Fixed(1),
            "int" | "long" => Type::Integer,
            "float" => Type::Fixed(4),
            "double" => Type::Fixed(8),
            "bytes" => Type::Bytes,
            "string" => Type::Text,
            _ => {
                let known = self.names.get(&full_name(name, namespace)).or_else(|| self.names.get(name));
                return known.copied().ok_or_else(|| SchemaError::AvroType(format!("{name:?}")));
            }
        };
        Ok(self.push(primitive))
    }

    fn complex(&mut self, kind: &str, object: &Value, namespace: &str, depth: usize) -> Result<usize, SchemaError> {
        match kind {
            "array" => {
                let item = self.add(&object["items"], namespace, depth)?;
                Ok(self.push(Type::Array(item)))
            }
            "map" => {
                let value = self.add(&object["values"], namespace, depth)?;
                Ok(self.push(Type::Map(value)))
            }
            "record" | "error" => {
                // A field may be of the record itself, so the record is known before its fields are.
                let (at, namespace) = self.define(object, namespace, Type::Record(Vec::new()))?;
                let mut fields = Vec::new();
                for field in list(object, "fields")? {
                    fields.push((text(field, "name")?.to_owned(), self.add(&field["type"], &namespace, depth)?));
                }
                self.types[at] = Type::Record(fields);
                Ok(at)
            }
            "enum" => {
                let symbols = list(object, "symbols")?.iter().map(|symbol| symbol.as_str().map(str::to_owned));
                let symbols = symbols.collect::<Option<_>>();
                let symbols = symbols.ok_or_else(|| SchemaError::Missing(kind.to_owned(), "symbols"))?;
                Ok(self.define(object, namespace, Type::Enum(symbols))?.0)
            }
            "fixed" => {
                let size = object["size"].as_u64().ok_or_else(|| SchemaError::Missing(kind.to_owned(), "size"))?;
                Ok(self.define(object, namespace, Type::Fixed(size))?.0)
            }
            name => self.named(name, namespace),
        }
    }

    /// Adds a type that has a name; returns its index and the namespace of the names inside of it.
    fn define(&mut self, object: &Value, namespace: &str, new: Type) -> Result<(usize, String), SchemaError> {
        let namespace = object["namespace"].as_str().unwrap_or(namespace);
        let name = full_name(text(object, "name")?, namespace);
        let at = self.push(new);
        let namespace = name.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_owned();
        self.names.insert(name, at);
        Ok((at, namespace))
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if namespace.is_empty() || name.contains('.') { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn text<'v>(object: &'v Value, key: &'static str) -> Result<&'v str, SchemaError> {
    object[key].as_str().ok_or_else(|| missing(object, key))
}

fn list<'v>(object: &'v Value, key: &'static str) -> Result<&'v Vec<Value>, SchemaError> {
    object[key].as_array().ok_or_else(|| missing(object, key))
}

fn missing(object: &Value, key: &'static str) -> SchemaError {
    SchemaError::Missing(object["name"].as_str().unwrap_or("a type").to_owned(), key)
}

#[cfg(test)]
mod tests;
