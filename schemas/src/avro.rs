//! Avro: a schema as a list of types, and the way through a value to one field.
//!
//! A value has no names and no lengths of records, so all fields before the wanted one are skipped by their types:
//! <https://avro.apache.org/docs/1.12.0/specification/#binary-encoding>.

use std::{borrow::Cow, collections::HashMap};

use serde_json::Value;
use watermaster_settings::client_id::{AnonymousReason, Found};

use crate::{Memory, SchemaError, wire::Bytes};

/// The deepest nesting of a schema, and of the skipped parts of a value.
const MAX_DEPTH: usize = 100;

const BROKEN: AnonymousReason = AnonymousReason::BrokenValue;

/// A schema. Types name each other by their index in the list.
#[derive(Debug)]
pub struct AvroSchema {
    types: Box<[Type]>,
    root: usize,
    /// The memory that it takes.
    pub bytes: usize,
}

#[derive(Debug, Clone)]
enum Type {
    Null,
    /// An integer of 32 or 64 bits.
    Integer,
    Text,
    /// Bytes with their length in front.
    Bytes,
    /// A number of bytes that the schema knows: a boolean, a float, a fixed.
    Fixed(u64),
    Enum(Box<[Box<str>]>),
    Array(AvroPart),
    Map(AvroPart),
    Union(Box<[usize]>),
    Record(Box<AvroRecord>),
}

#[derive(Debug, Clone)]
struct AvroRecord {
    /// The names of the fields, and their types.
    fields: Box<[(Box<str>, usize)]>,
    parts: Box<[AvroPart]>,
}

/// A part of a value, for skipping it.
///
/// A value must not make the walk longer than its bytes are: 1 MiB takes a few milliseconds whatever its schema is. So
/// fields of a known size are joined to one part, without those of no bytes, and a record with one part is that part.
/// Each part of a record then has at least one byte, and each record that is visited has at least two parts.
#[derive(Debug, Clone, Copy)]
enum AvroPart {
    Sized(u64),
    /// A value of this type.
    Of(usize),
}

/// The types without parts, by name. Each schema begins with them.
const PRIMITIVES: [(&str, Type); 8] = [
    ("null", Type::Null),
    ("boolean", Type::Fixed(1)),
    ("int", Type::Integer),
    ("long", Type::Integer),
    ("float", Type::Fixed(4)),
    ("double", Type::Fixed(8)),
    ("bytes", Type::Bytes),
    ("string", Type::Text),
];

impl AvroSchema {
    /// Parses a schema, after those that define types which it names.
    pub fn parse(references: &[String], text: &str) -> Result<AvroSchema, SchemaError> {
        let mut parser = Parser::default();
        for (_, primitive) in &PRIMITIVES {
            parser.push(primitive.clone(), 0)?;
        }
        for reference in references {
            parser.add(&serde_json::from_str(reference)?, "", MAX_DEPTH)?;
        }
        let root = parser.add(&serde_json::from_str(text)?, "", MAX_DEPTH)?;
        Ok(AvroSchema { types: parser.types.into(), root, bytes: parser.memory.0 })
    }

    /// Finds the string, the integer or the symbol of an enum at a path of fields. A union counts as the type that the
    /// value chose. The bytes behind the field are not looked at.
    pub fn find<'r>(&self, path: &[String], body: &'r [u8]) -> Found<'r> {
        let mut walk = Walk { types: &self.types, bytes: Bytes(body) };
        let (mut at, mut path) = (self.root, path);
        loop {
            match (&self.types[at], path.split_first()) {
                (Type::Union(branches), _) => at = walk.branch(branches)?,
                (Type::Record(record), Some((name, rest))) => {
                    let fields = &record.fields;
                    let Some(index) = fields.iter().position(|(field, _)| **field == **name) else { return Ok(None) };
                    for (_, skipped) in &fields[..index] {
                        walk.skip(AvroPart::Of(*skipped), MAX_DEPTH)?;
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
}

impl<'s, 'r> Walk<'s, 'r> {
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
                Ok(Cow::Owned(symbols.get(index).ok_or(BROKEN)?.to_string()))
            }
            _ => Err(AnonymousReason::NotAField),
        }
    }

    fn skip(&mut self, part: AvroPart, depth: usize) -> Result<(), AnonymousReason> {
        let depth = depth.checked_sub(1).ok_or(BROKEN)?;
        let at = match part {
            AvroPart::Sized(length) => return self.bytes.take(length).map(drop),
            AvroPart::Of(at) => at,
        };
        match &self.types[at] {
            Type::Null => {}
            Type::Integer | Type::Enum(_) => _ = self.bytes.varint()?,
            Type::Text | Type::Bytes => _ = self.counted()?,
            Type::Fixed(length) => _ = self.bytes.take(*length)?,
            Type::Array(item) => self.skip_blocks(false, *item, depth)?,
            Type::Map(value) => self.skip_blocks(true, *value, depth)?,
            Type::Union(branches) => {
                let branch = self.branch(branches)?;
                self.skip(AvroPart::Of(branch), depth)?;
            }
            Type::Record(record) => {
                for part in &record.parts {
                    self.skip(*part, depth)?;
                }
            }
        }
        Ok(())
    }

    /// Skips the blocks of an array or a map. The last one has no items; one with a negative count has its length in
    /// bytes behind the count.
    fn skip_blocks(&mut self, has_keys: bool, item: AvroPart, depth: usize) -> Result<(), AnonymousReason> {
        loop {
            let count = self.bytes.zigzag()?;
            match (u64::try_from(count), item) {
                (Ok(0), _) => return Ok(()),
                (Err(_), _) => _ = self.counted()?,
                (Ok(count), AvroPart::Sized(length)) if !has_keys => {
                    self.bytes.take(count.checked_mul(length).ok_or(BROKEN)?)?;
                }
                (Ok(count), _) => {
                    for _ in 0..count {
                        if has_keys {
                            self.counted()?;
                        }
                        self.skip(item, depth)?;
                    }
                }
            }
        }
    }
}

#[derive(Default)]
struct Parser {
    types: Vec<Type>,
    /// The part that each of `types` is.
    parts: Vec<AvroPart>,
    /// The full names of records, enums and fixed types.
    names: HashMap<String, usize>,
    memory: Memory,
}

impl Parser {
    /// Adds a type and those beneath it; returns its index. Names without a dot belong to `namespace`.
    fn add(&mut self, value: &Value, namespace: &str, depth: usize) -> Result<usize, SchemaError> {
        let depth = depth.checked_sub(1).ok_or(SchemaError::TooDeep)?;
        match value {
            Value::String(name) => self.named(name, namespace),
            Value::Array(branches) => {
                let add = |branch| self.add(branch, namespace, depth);
                let branches = branches.iter().map(add).collect::<Result<Box<[_]>, _>>()?;
                let heap = size_of_val(&*branches);
                self.push(Type::Union(branches), heap)
            }
            Value::Object(object) => match object.get("type") {
                Some(Value::String(kind)) => self.complex(kind, value, namespace, depth),
                Some(inner) => self.add(inner, namespace, depth),
                None => Err(SchemaError::Missing("a type".to_owned(), "type")),
            },
            other => Err(SchemaError::AvroType(other.to_string())),
        }
    }

    /// Adds a type that has `heap` bytes in an allocation of its own.
    fn push(&mut self, new: Type, heap: usize) -> Result<usize, SchemaError> {
        let at = self.types.len();
        self.memory.take(size_of::<Type>() + size_of::<AvroPart>(), heap)?;
        self.parts.push(match new {
            Type::Null => AvroPart::Sized(0),
            Type::Fixed(length) => AvroPart::Sized(length),
            _ => AvroPart::Of(at),
        });
        self.types.push(new);
        Ok(at)
    }

    /// Returns a primitive type, or one that was defined before.
    fn named(&self, name: &str, namespace: &str) -> Result<usize, SchemaError> {
        if let Some(at) = PRIMITIVES.iter().position(|(primitive, _)| *primitive == name) {
            return Ok(at);
        }
        let known = self.names.get(&full_name(name, namespace)).or_else(|| self.names.get(name));
        known.copied().ok_or_else(|| SchemaError::AvroType(format!("{name:?}")))
    }

    fn complex(&mut self, kind: &str, object: &Value, namespace: &str, depth: usize) -> Result<usize, SchemaError> {
        match kind {
            "array" => {
                let item = self.add(&object["items"], namespace, depth)?;
                self.push(Type::Array(self.parts[item]), 0)
            }
            "map" => {
                let value = self.add(&object["values"], namespace, depth)?;
                self.push(Type::Map(self.parts[value]), 0)
            }
            "record" | "error" => {
                // A field may be of the record itself, so the record is known before its fields are.
                let open = AvroRecord { fields: Box::default(), parts: Box::default() };
                let (at, namespace) =
                    self.define(object, namespace, Type::Record(Box::new(open)), size_of::<AvroRecord>())?;
                let (mut fields, mut parts) = (Vec::new(), Vec::new());
                for field in list(object, "fields")? {
                    let (name, kind) = (text(field, "name")?, self.add(&field["type"], &namespace, depth)?);
                    self.memory.take(size_of::<(Box<str>, usize)>() + size_of::<AvroPart>(), name.len())?;
                    fields.push((name.into(), kind));
                    match (parts.last_mut(), self.parts[kind]) {
                        (_, AvroPart::Sized(0)) => {}
                        (Some(AvroPart::Sized(before)), AvroPart::Sized(length)) => {
                            *before = before.saturating_add(length)
                        }
                        (_, part) => parts.push(part),
                    }
                }
                self.parts[at] = match *parts {
                    [] => AvroPart::Sized(0),
                    [part] => part,
                    _ => AvroPart::Of(at),
                };
                self.types[at] = Type::Record(Box::new(AvroRecord { fields: fields.into(), parts: parts.into() }));
                Ok(at)
            }
            "enum" => {
                let symbols = list(object, "symbols")?.iter().map(|symbol| symbol.as_str().map(Box::from));
                let symbols = symbols.collect::<Option<Box<[Box<str>]>>>();
                let symbols = symbols.ok_or_else(|| SchemaError::Missing(kind.to_owned(), "symbols"))?;
                for symbol in &symbols {
                    self.memory.take(size_of::<Box<str>>(), symbol.len())?;
                }
                Ok(self.define(object, namespace, Type::Enum(symbols), 0)?.0)
            }
            "fixed" => {
                let size = object["size"].as_u64().ok_or_else(|| SchemaError::Missing(kind.to_owned(), "size"))?;
                Ok(self.define(object, namespace, Type::Fixed(size), 0)?.0)
            }
            name => self.named(name, namespace),
        }
    }

    /// Adds a type that has a name; returns its index and the namespace of the names inside of it.
    fn define(
        &mut self, object: &Value, namespace: &str, new: Type, heap: usize,
    ) -> Result<(usize, String), SchemaError> {
        let namespace = object["namespace"].as_str().unwrap_or(namespace);
        let name = full_name(text(object, "name")?, namespace);
        self.memory.take_name(&name)?;
        let at = self.push(new, heap)?;
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
