//! Reads the text of a `.proto` file: messages with their fields, and enums. Everything else is skipped as a statement
//! with balanced brackets: options, services, extensions, groups.
//!
//! <https://protobuf.dev/reference/protobuf/proto3-spec/>, and proto2 and editions, which differ in what is skipped.

use std::collections::HashMap;

use crate::{Memory, SchemaError};

/// The deepest nesting of messages.
const MAX_NESTED: usize = 32;

/// The messages and enums of several files, with names from their texts.
#[derive(Debug, Default)]
pub struct Definitions<'t> {
    pub messages: Vec<RawMessage<'t>>,
    /// The numbers of an enum's values, and their names.
    pub enums: Vec<Vec<(i32, &'t str)>>,
    /// Messages and enums by their full names.
    names: HashMap<String, Definition>,
    memory: Memory,
}

/// A message or an enum, by its index.
#[derive(Debug, Clone, Copy)]
pub enum Definition {
    Message(usize),
    Enum(usize),
}

#[derive(Debug)]
pub struct RawMessage<'t> {
    pub full_name: String,
    /// The messages in it, in order.
    pub nested: Vec<usize>,
    pub fields: Vec<RawField<'t>>,
    pub oneofs: usize,
}

/// A field with the name of its type as it is written.
#[derive(Debug)]
pub struct RawField<'t> {
    pub name: &'t str,
    pub number: u32,
    pub kind: &'t str,
    pub repeated: bool,
    /// The number of the `oneof` in its message.
    pub oneof: Option<usize>,
}

impl<'t> Definitions<'t> {
    /// Adds what a file defines. Returns its messages, in order, without those in other messages.
    pub fn add_file(&mut self, text: &'t str) -> Result<Vec<usize>, SchemaError> {
        let mut tokens = Tokens { rest: text, peeked: None };
        let (mut top, mut package) = (Vec::new(), "");
        while let Some(token) = tokens.peek()? {
            match token {
                ProtoToken::Word("package") => {
                    tokens.next()?;
                    package = tokens.word()?;
                }
                ProtoToken::Word("message") => top.push(self.add_message(&mut tokens, package, MAX_NESTED)?),
                ProtoToken::Word("enum") => self.add_enum(&mut tokens, package)?,
                ProtoToken::Word("export" | "local") => _ = tokens.next()?,
                _ => tokens.skip_statement()?,
            }
        }
        Ok(top)
    }

    /// Finds the definition that a name means inside of `scope`: the innermost one.
    pub fn find(&self, name: &str, scope: &str) -> Option<Definition> {
        if let Some(name) = name.strip_prefix('.') {
            return self.names.get(name).copied();
        }
        let mut scope = scope;
        loop {
            if let Some(found) = self.names.get(&join(scope, name)) {
                return Some(*found);
            }
            if scope.is_empty() {
                return None;
            }
            scope = scope.rsplit_once('.').map_or("", |(outer, _)| outer);
        }
    }

    fn define(&mut self, scope: &str, name: &str, definition: Definition) -> Result<String, SchemaError> {
        let name = join(scope, name);
        self.memory.take_name(&name)?;
        self.names.insert(name.clone(), definition);
        Ok(name)
    }

    fn add_message(&mut self, tokens: &mut Tokens<'t>, scope: &str, depth: usize) -> Result<usize, SchemaError> {
        let depth = depth.checked_sub(1).ok_or(SchemaError::TooDeep)?;
        tokens.next()?;
        let at = self.messages.len();
        let name = self.define(scope, tokens.word()?, Definition::Message(at))?;
        self.memory.take(size_of::<RawMessage<'_>>(), name.len())?;
        let full_name = name.clone();
        self.messages.push(RawMessage { full_name, nested: Vec::new(), fields: Vec::new(), oneofs: 0 });
        tokens.expect('{')?;
        loop {
            match tokens.peek()?.ok_or(SchemaError::Truncated)? {
                ProtoToken::Mark('}') => break,
                ProtoToken::Word("message") => {
                    let nested = self.add_message(tokens, &name, depth)?;
                    self.messages[at].nested.push(nested);
                }
                ProtoToken::Word("enum") => self.add_enum(tokens, &name)?,
                ProtoToken::Word("oneof") => self.add_oneof(tokens, at)?,
                ProtoToken::Word("export" | "local") => _ = tokens.next()?,
                ProtoToken::Word("extend" | "extensions" | "group" | "option" | "reserved") | ProtoToken::Mark(';') => {
                    tokens.skip_statement()?;
                }
                _ => self.add_field(tokens, at, None)?,
            }
        }
        tokens.next()?;
        Ok(at)
    }

    fn add_oneof(&mut self, tokens: &mut Tokens<'t>, at: usize) -> Result<(), SchemaError> {
        tokens.next()?;
        tokens.word()?;
        tokens.expect('{')?;
        self.memory.take(size_of::<Vec<u32>>(), 0)?;
        let number = self.messages[at].oneofs;
        self.messages[at].oneofs += 1;
        loop {
            match tokens.peek()?.ok_or(SchemaError::Truncated)? {
                ProtoToken::Mark('}') => break,
                ProtoToken::Word("group" | "option") | ProtoToken::Mark(';') => tokens.skip_statement()?,
                _ => self.add_field(tokens, at, Some(number))?,
            }
        }
        tokens.next().map(drop)
    }

    /// Adds a field, such as `repeated Tag tags = 7 [deprecated = true];`. A group is left out.
    fn add_field(&mut self, tokens: &mut Tokens<'t>, at: usize, oneof: Option<usize>) -> Result<(), SchemaError> {
        let mut kind = tokens.word()?;
        let mut repeated = kind == "repeated";
        if ["optional", "required", "repeated"].contains(&kind) {
            kind = tokens.word()?;
        }
        if kind == "group" {
            return tokens.skip_statement();
        }
        if kind == "map" && tokens.peek()? == Some(ProtoToken::Mark('<')) {
            repeated = true;
            while tokens.next()? != ProtoToken::Mark('>') {}
        }
        let name = tokens.word()?;
        tokens.expect('=')?;
        let number = tokens.number()?;
        tokens.skip_statement()?;
        self.memory.take(size_of::<RawField<'_>>(), 0)?;
        self.messages[at].fields.push(RawField { name, number, kind, repeated, oneof });
        Ok(())
    }

    fn add_enum(&mut self, tokens: &mut Tokens<'t>, scope: &str) -> Result<(), SchemaError> {
        tokens.next()?;
        self.define(scope, tokens.word()?, Definition::Enum(self.enums.len()))?;
        tokens.expect('{')?;
        let mut values = Vec::new();
        loop {
            match tokens.peek()?.ok_or(SchemaError::Truncated)? {
                ProtoToken::Mark('}') => break,
                ProtoToken::Word("option" | "reserved") | ProtoToken::Mark(';') => tokens.skip_statement()?,
                _ => {
                    let name = tokens.word()?;
                    tokens.expect('=')?;
                    let is_negative = tokens.peek()? == Some(ProtoToken::Mark('-'));
                    if is_negative {
                        tokens.next()?;
                    }
                    let number = tokens.number()?;
                    let number = if is_negative { number.wrapping_neg() } else { number };
                    tokens.skip_statement()?;
                    self.memory.take(size_of::<(i32, &str)>(), 0)?;
                    values.push((number.cast_signed(), name));
                }
            }
        }
        self.enums.push(values);
        tokens.next().map(drop)
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// A word is a name with its dots, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtoToken<'t> {
    Word(&'t str),
    /// A text in quotes. No text matters here.
    Quoted,
    Mark(char),
}

/// The tokens of a text, without spaces and comments.
struct Tokens<'t> {
    rest: &'t str,
    peeked: Option<ProtoToken<'t>>,
}

impl<'t> Tokens<'t> {
    /// Returns the next token, which stays. `None` at the end of the text.
    fn peek(&mut self) -> Result<Option<ProtoToken<'t>>, SchemaError> {
        if self.peeked.is_none() {
            self.peeked = self.read()?;
        }
        Ok(self.peeked)
    }

    fn next(&mut self) -> Result<ProtoToken<'t>, SchemaError> {
        self.peek()?;
        self.peeked.take().ok_or(SchemaError::Truncated)
    }

    fn read(&mut self) -> Result<Option<ProtoToken<'t>>, SchemaError> {
        let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
        while let Some(first) = self.rest.chars().next() {
            let rest = self.rest;
            let (length, token) = if first.is_whitespace() {
                (first.len_utf8(), None)
            } else if rest.starts_with("//") {
                (rest.find('\n').unwrap_or(rest.len()), None)
            } else if let Some(comment) = rest.strip_prefix("/*") {
                // The star of the beginning does not end the comment.
                (4 + comment.find("*/").ok_or(SchemaError::Truncated)?, None)
            } else if first == '"' || first == '\'' {
                (quoted_length(rest, first)?, Some(ProtoToken::Quoted))
            } else if is_of_word(first) {
                let length = rest.find(|letter| !is_of_word(letter)).unwrap_or(rest.len());
                (length, Some(ProtoToken::Word(&rest[..length])))
            } else {
                (first.len_utf8(), Some(ProtoToken::Mark(first)))
            };
            self.rest = &rest[length..];
            if token.is_some() {
                return Ok(token);
            }
        }
        Ok(None)
    }

    fn word(&mut self) -> Result<&'t str, SchemaError> {
        match self.next()? {
            ProtoToken::Word(word) => Ok(word),
            other => Err(unexpected(other)),
        }
    }

    fn expect(&mut self, mark: char) -> Result<(), SchemaError> {
        match self.next()? {
            ProtoToken::Mark(found) if found == mark => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Reads a number: decimal, hexadecimal or octal.
    fn number(&mut self) -> Result<u32, SchemaError> {
        let word = self.word()?;
        let parsed = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16),
            None if word.len() > 1 && word.starts_with('0') => u32::from_str_radix(word, 8),
            None => word.parse(),
        };
        parsed.map_err(|_| SchemaError::Unexpected(word.to_owned()))
    }

    /// Skips to the end of a statement: a semicolon outside of brackets, or the end of a block in braces.
    fn skip_statement(&mut self) -> Result<(), SchemaError> {
        let mut open = 0_usize;
        loop {
            match self.next()? {
                ProtoToken::Mark(';') if open == 0 => return Ok(()),
                ProtoToken::Mark('{' | '[' | '(') => open += 1,
                ProtoToken::Mark(close @ ('}' | ']' | ')')) => {
                    open = open.checked_sub(1).ok_or(SchemaError::Unexpected(close.to_string()))?;
                    if open == 0 && close == '}' {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }
}

fn unexpected(token: ProtoToken<'_>) -> SchemaError {
    SchemaError::Unexpected(match token {
        ProtoToken::Word(word) => word.to_owned(),
        ProtoToken::Quoted => "a text in quotes".to_owned(),
        ProtoToken::Mark(mark) => mark.to_string(),
    })
}

/// Returns the length of a text in quotes, in which a backslash keeps the next character from ending it.
fn quoted_length(text: &str, quote: char) -> Result<usize, SchemaError> {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => _ = letters.next(),
            _ if letter == quote => return Ok(at + 1),
            _ => {}
        }
    }
    Err(SchemaError::Truncated)
}
