//! Protobuf: the messages of a schema, and the way through a value to one field.
//!
//! The registry has schemas as text. `text` reads the parts that matter here: messages, fields and enums. A value
//! begins with the way to its message in the file, then has fields in any order:
//! <https://protobuf.dev/programming-guides/encoding/>.

mod text;

use std::borrow::Cow;

use watermaster_settings::client_id::{AnonymousReason, Found};

use crate::{
    Memory, SchemaError,
    wire::{Bytes, from_zigzag},
};
use text::{Definitions, RawField, RawMessage};

/// The deepest nesting of groups in a value, as in Google's parsers.
const MAX_GROUPS: usize = 100;
/// The longest way to a message in its file.
const MAX_INDEXES: i64 = 32;

const BROKEN: AnonymousReason = AnonymousReason::BrokenValue;

/// The wrappers that make a scalar optional. A registry has no schema for them, since every compiler brings them.
const WRAPPERS: &str = "package google.protobuf;
message StringValue { string value = 1; }
message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; }
message UInt32Value { uint32 value = 1; }";

/// A schema. Messages and enums are named by their index in the lists.
#[derive(Debug)]
pub struct ProtoSchema {
    messages: Box<[ProtoMessage]>,
    enums: Box<[EnumValues]>,
    /// The messages of the file itself, without those that it imports.
    top: Box<[usize]>,
    /// The memory that it takes.
    pub bytes: usize,
}

#[derive(Debug)]
struct ProtoMessage {
    nested: Box<[usize]>,
    fields: Box<[Field]>,
    /// The numbers of the fields in each `oneof`, in order.
    oneofs: Box<[Box<[u32]>]>,
}

#[derive(Debug)]
struct Field {
    name: Box<str>,
    number: u32,
    kind: FieldKind,
    /// The index of the `oneof` in its message.
    oneof: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum FieldKind {
    Text,
    Int32,
    Int64,
    UInt32,
    UInt64,
    SInt32,
    SInt64,
    Fixed32,
    Fixed64,
    SFixed32,
    SFixed64,
    Enum(u32),
    Message(u32),
    /// A kind that is no id and has no fields: a boolean, a float, bytes, a repeated field, an unknown type.
    Other,
}

/// The names of an enum's values, ordered by their numbers.
type EnumValues = Box<[(i32, Box<str>)]>;

/// A field of a value.
#[derive(Debug, Clone, Copy)]
enum Content<'r> {
    Varint(u64),
    Eight(u64),
    Four(u32),
    Counted(&'r [u8]),
    Group,
}

impl ProtoSchema {
    /// Parses a file, and the files that it imports. A missing import matters only if a path leads through it.
    pub fn parse(references: &[String], file: &str) -> Result<ProtoSchema, SchemaError> {
        let mut definitions = Definitions::default();
        for imported in [WRAPPERS].into_iter().chain(references.iter().map(String::as_str)) {
            definitions.add_file(imported)?;
        }
        let top = definitions.add_file(file)?;
        let mut memory = Memory::default();
        let messages = definitions.messages.iter().map(|raw| message(raw, &definitions, &mut memory));
        let messages = messages.collect::<Result<_, _>>()?;
        let enums = definitions.enums.iter().map(|values| numbered(values, &mut memory));
        let enums = enums.collect::<Result<_, _>>()?;
        Ok(ProtoSchema { messages, enums, top: top.into(), bytes: memory.0 })
    }

    /// Finds the string, the integer or the name of an enum's value at a path of fields. A field that occurs more than
    /// once, or beside another one of its `oneof`, is refused: readers differ in the one that they take.
    ///
    /// `way` leads to the message of the value in its file. Without one, it is in front of the body.
    pub fn find<'r>(&self, path: &[String], way: Option<&[u8]>, body: &'r [u8]) -> Found<'r> {
        let mut bytes = Bytes(body);
        let mut message = match way {
            Some(way) => self.message(&mut Bytes(way))?,
            None => self.message(&mut bytes)?,
        };
        let mut path = path;
        while let Some((name, rest)) = path.split_first() {
            let Some(field) = message.fields.iter().find(|field| *field.name == **name) else { return Ok(None) };
            let Some(content) = message.only(field, bytes)? else { return Ok(None) };
            match (field.kind, content, rest) {
                (FieldKind::Message(at), Content::Counted(inner), [_, ..]) => {
                    (message, bytes, path) = (&self.messages[at as usize], Bytes(inner), rest);
                }
                (_, _, [_, ..]) => return Ok(None),
                (kind, content, []) => return self.id(kind, content).map(Some),
            }
        }
        Err(AnonymousReason::NotAField)
    }

    /// Reads the way to the value's message: the number of steps, then in each step the position among the messages of
    /// the file or of the message around it. One byte 0 stands for the first message.
    fn message(&self, bytes: &mut Bytes<'_>) -> Result<&ProtoMessage, AnonymousReason> {
        let count = bytes.zigzag()?;
        if !(0..=MAX_INDEXES).contains(&count) {
            return Err(BROKEN);
        }
        let first = if count == 0 { 0 } else { bytes.zigzag()? };
        let mut message = self.nested(&self.top, first)?;
        for _ in 1..count {
            message = self.nested(&message.nested, bytes.zigzag()?)?;
        }
        Ok(message)
    }

    fn nested(&self, among: &[usize], index: i64) -> Result<&ProtoMessage, AnonymousReason> {
        let at = usize::try_from(index).ok().and_then(|index| among.get(index)).ok_or(BROKEN)?;
        Ok(&self.messages[*at])
    }

    fn id<'r>(&self, kind: FieldKind, content: Content<'r>) -> Result<Cow<'r, str>, AnonymousReason> {
        let number = match (kind, content) {
            (FieldKind::Text, Content::Counted(text)) => {
                return std::str::from_utf8(text).map(Cow::Borrowed).map_err(|_| AnonymousReason::NotUtf8);
            }
            (FieldKind::Enum(at), Content::Varint(bits)) => {
                let (values, number) = (&self.enums[at as usize], low(bits).cast_signed());
                let found = values.binary_search_by_key(&number, |(number, _)| *number);
                return found.map(|at| Cow::Owned(values[at].1.to_string())).map_err(|_| AnonymousReason::NotAField);
            }
            (FieldKind::Int32, Content::Varint(bits)) => i128::from(low(bits).cast_signed()),
            (FieldKind::Int64, Content::Varint(bits)) => i128::from(bits.cast_signed()),
            (FieldKind::UInt32, Content::Varint(bits)) => i128::from(low(bits)),
            (FieldKind::UInt64, Content::Varint(bits)) | (FieldKind::Fixed64, Content::Eight(bits)) => bits.into(),
            (FieldKind::SInt32, Content::Varint(bits)) => from_zigzag(low(bits).into()).into(),
            (FieldKind::SInt64, Content::Varint(bits)) => from_zigzag(bits).into(),
            (FieldKind::SFixed64, Content::Eight(bits)) => bits.cast_signed().into(),
            (FieldKind::Fixed32, Content::Four(bits)) => bits.into(),
            (FieldKind::SFixed32, Content::Four(bits)) => bits.cast_signed().into(),
            _ => return Err(AnonymousReason::NotAField),
        };
        Ok(Cow::Owned(number.to_string()))
    }
}

/// Returns the lower half, which is what a field of 32 bits keeps of a longer number.
fn low(bits: u64) -> u32 {
    bits as u32
}

impl ProtoMessage {
    /// Returns the only occurrence of a field. One that has another form than its type is unknown to every reader, and
    /// does not count. Takes a time that hardly depends on the number of fields in the schema.
    fn only<'r>(&self, field: &Field, mut bytes: Bytes<'r>) -> Result<Option<Content<'r>>, AnonymousReason> {
        let (mut found, mut rivals) = (None, false);
        let members = field.oneof.map_or(&[][..], |oneof| &self.oneofs[oneof as usize]);
        while !bytes.is_empty() {
            let (number, form) = tag(&mut bytes)?;
            let content = content(&mut bytes, number, form)?;
            if number == field.number && field.kind.fits(content) {
                if found.replace(content).is_some() {
                    return Err(AnonymousReason::RepeatedField);
                }
            } else {
                rivals = rivals || members.binary_search(&number).is_ok();
            }
        }
        if rivals && found.is_some() { Err(AnonymousReason::RepeatedField) } else { Ok(found) }
    }
}

impl FieldKind {
    fn fits(self, content: Content<'_>) -> bool {
        match self {
            FieldKind::Text | FieldKind::Message(_) => matches!(content, Content::Counted(_)),
            FieldKind::Fixed32 | FieldKind::SFixed32 => matches!(content, Content::Four(_)),
            FieldKind::Fixed64 | FieldKind::SFixed64 => matches!(content, Content::Eight(_)),
            FieldKind::Other => true,
            _ => matches!(content, Content::Varint(_)),
        }
    }
}

/// Reads the number of a field, and the form of its content.
fn tag(bytes: &mut Bytes<'_>) -> Result<(u32, u8), AnonymousReason> {
    let tag = u32::try_from(bytes.varint()?).map_err(|_| BROKEN)?;
    if tag >> 3 == 0 { Err(BROKEN) } else { Ok((tag >> 3, (tag & 7) as u8)) }
}

fn content<'r>(bytes: &mut Bytes<'r>, number: u32, form: u8) -> Result<Content<'r>, AnonymousReason> {
    let whole = |taken: &[u8]| taken.iter().rev().fold(0, |bits, byte| (bits << 8) | u64::from(*byte));
    match form {
        0 => Ok(Content::Varint(bytes.varint()?)),
        1 => Ok(Content::Eight(whole(bytes.take(8)?))),
        2 => {
            let length = bytes.varint()?;
            Ok(Content::Counted(bytes.take(length)?))
        }
        3 => skip_group(bytes, number).map(|()| Content::Group),
        5 => Ok(Content::Four(low(whole(bytes.take(4)?)))),
        _ => Err(BROKEN),
    }
}

/// Skips a group up to the end with its number. Groups may be nested.
fn skip_group(bytes: &mut Bytes<'_>, number: u32) -> Result<(), AnonymousReason> {
    let mut open = vec![number];
    while let Some(innermost) = open.last() {
        match tag(bytes)? {
            (ended, 4) if ended == *innermost => _ = open.pop(),
            (begun, 3) if open.len() < MAX_GROUPS => open.push(begun),
            (_, 3 | 4) => return Err(BROKEN),
            (number, form) => _ = content(bytes, number, form)?,
        }
    }
    Ok(())
}

fn message(
    raw: &RawMessage<'_>, definitions: &Definitions<'_>, memory: &mut Memory,
) -> Result<ProtoMessage, SchemaError> {
    memory.take(size_of::<ProtoMessage>(), size_of_val(&*raw.nested) + raw.oneofs * size_of::<Box<[u32]>>())?;
    let mut oneofs = vec![Vec::new(); raw.oneofs];
    let mut fields = Vec::with_capacity(raw.fields.len());
    for field in &raw.fields {
        memory.take(size_of::<Field>(), field.name.len())?;
        if let Some(oneof) = field.oneof {
            memory.take(size_of::<u32>(), 0)?;
            oneofs[oneof].push(field.number);
        }
        fields.push(resolve(field, &raw.full_name, definitions));
    }
    oneofs.iter_mut().for_each(|members| members.sort_unstable());
    let oneofs = oneofs.into_iter().map(Into::into).collect();
    Ok(ProtoMessage { nested: raw.nested.clone().into(), fields: fields.into(), oneofs })
}

/// Returns the values of an enum by their numbers. Of several names for one number, the first is its name.
fn numbered(values: &[(i32, &str)], memory: &mut Memory) -> Result<EnumValues, SchemaError> {
    memory.take(size_of::<EnumValues>(), 0)?;
    let mut values = values.to_vec();
    values.sort_by_key(|(number, _)| *number);
    values.dedup_by_key(|(number, _)| *number);
    let mut named = Vec::with_capacity(values.len());
    for (number, name) in values {
        memory.take(size_of::<(i32, Box<str>)>(), name.len())?;
        named.push((number, name.into()));
    }
    Ok(named.into())
}

fn resolve(raw: &RawField<'_>, scope: &str, definitions: &Definitions<'_>) -> Field {
    let kind = match raw.kind {
        _ if raw.repeated => FieldKind::Other,
        "string" => FieldKind::Text,
        "int32" => FieldKind::Int32,
        "int64" => FieldKind::Int64,
        "uint32" => FieldKind::UInt32,
        "uint64" => FieldKind::UInt64,
        "sint32" => FieldKind::SInt32,
        "sint64" => FieldKind::SInt64,
        "fixed32" => FieldKind::Fixed32,
        "fixed64" => FieldKind::Fixed64,
        "sfixed32" => FieldKind::SFixed32,
        "sfixed64" => FieldKind::SFixed64,
        "bool" | "bytes" | "double" | "float" => FieldKind::Other,
        name => match definitions.find(name, scope) {
            Some(text::Definition::Message(at)) => FieldKind::Message(at as u32),
            Some(text::Definition::Enum(at)) => FieldKind::Enum(at as u32),
            None => FieldKind::Other,
        },
    };
    Field { name: raw.name.into(), number: raw.number, kind, oneof: raw.oneof.map(|oneof| oneof as u32) }
}

#[cfg(test)]
mod tests;
