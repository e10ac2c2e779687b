//! Replaces `${VAR}` in the texts of a file by variables of the environment.
//!
//! Only whole values are expanded, after parsing, so that no variable can add a key. Errors never show a part of the
//! text or of a variable's value: both may be secrets.

use std::{collections::BTreeMap, ffi::OsString};

use super::error::ConfigError;
use super::key_path::KeyPath;
use super::tree::{Node, NodeContent, ScalarForm, Table};

/// The environment, by name: if two variables set one key, the order of the environment must not decide.
pub type Environment = BTreeMap<OsString, OsString>;

const ALLOWED: &str = "${NAME}, ${NAME:-default} or ${NAME:?message}, one not within another; $$ stands for one dollar";

/// The reason why a text can't be expanded. It follows the key in an error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum VariableError {
    #[error("has a ${{ without a }}")]
    Unclosed,
    #[error("has a ${{…}} that is not understood")]
    Malformed,
    #[error("needs the environment variable {0}, which is not set")]
    Unset(String),
    #[error("needs the environment variable {name}: {message}")]
    Required { name: String, message: String },
    #[error("needs the environment variable {0}, which is not UTF-8")]
    NotUtf8(String),
    #[error("needs the environment variable {0}, which has a line break")]
    LineBreak(String),
}

impl VariableError {
    fn allowed(&self) -> String {
        match self {
            VariableError::Unclosed | VariableError::Malformed => ALLOWED.to_owned(),
            VariableError::Unset(name) => format!("a value for {name}, or a default: ${{{name}:-default}}"),
            VariableError::Required { name, .. } => format!("a value for {name} that is not empty"),
            VariableError::NotUtf8(_) | VariableError::LineBreak(_) => "one line of UTF-8 text".to_owned(),
        }
    }
}

/// Expands every text that the file holds in the table at `path`; returns an error for each that can't be expanded.
pub fn expand_table(table: &mut Table, path: &KeyPath, environment: &Environment) -> Vec<ConfigError> {
    table.iter_mut().flat_map(|(name, node)| expand_node(node, path.child(name), environment)).collect()
}

fn expand_node(node: &mut Node, path: KeyPath, environment: &Environment) -> Vec<ConfigError> {
    let expanded = match &mut node.content {
        NodeContent::Table(table) => return expand_table(table, &path, environment),
        NodeContent::List(items) => {
            let items = items.iter_mut().enumerate();
            return items.flat_map(|(at, item)| expand_node(item, path.element(at), environment)).collect();
        }
        NodeContent::Scalar(text, ScalarForm::Text) if text.contains('$') => expand(text, environment),
        NodeContent::Scalar(..) => return Vec::new(),
    };
    match expanded {
        Ok(content) => {
            node.content = content;
            Vec::new()
        }
        Err(why) => {
            let (problem, allowed, origin) = (why.to_string(), why.allowed(), node.origin.clone());
            vec![ConfigError { key: path, service: None, problem, allowed, origin }]
        }
    }
}

/// Expands one text. A text that a variable is part of stands for any form, as a variable that sets a key does.
fn expand(text: &str, environment: &Environment) -> Result<NodeContent, VariableError> {
    let (mut expanded, mut form, mut rest) = (String::new(), ScalarForm::Text, text);
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if let Some(inner) = after.strip_prefix('{') {
            let (inner, after) = inner.split_once('}').ok_or(VariableError::Unclosed)?;
            expanded.push_str(&variable(inner, environment)?);
            (form, rest) = (ScalarForm::Any, after);
        } else {
            // A dollar by itself stays, so that a pattern such as `^a$` needs no escape.
            expanded.push('$');
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    expanded.push_str(rest);
    Ok(NodeContent::Scalar(expanded, form))
}

/// Returns the text for the part between the braces.
fn variable(inner: &str, environment: &Environment) -> Result<String, VariableError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (name, operator) = inner.split_at(inner.find(|c| !is_part(c)).unwrap_or(inner.len()));
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(VariableError::Malformed);
    }
    let value = environment.get(std::ffi::OsStr::new(name));
    let text = value.map(|value| value.to_str().ok_or_else(|| VariableError::NotUtf8(name.to_owned()))).transpose()?;
    // As in a shell, an empty variable takes the default, too.
    let filled = text.filter(|text| !text.is_empty());
    let text = match (operator.split_at_checked(2), text) {
        (None, Some(text)) if operator.is_empty() => text,
        (None, None) if operator.is_empty() => return Err(VariableError::Unset(name.to_owned())),
        // The first brace ends a default, so a variable in it would be taken as a text.
        (Some((":-" | ":?", text)), _) if text.contains("${") => return Err(VariableError::Malformed),
        (Some((":-", default)), _) => filled.unwrap_or(default),
        (Some((":?", message)), _) => {
            filled.ok_or_else(|| VariableError::Required { name: name.to_owned(), message: message.to_owned() })?
        }
        _ => return Err(VariableError::Malformed),
    };
    if text.contains(['\n', '\r']) {
        return Err(VariableError::LineBreak(name.to_owned()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, VariableError> {
        let environment = [("A", "one"), ("EMPTY", ""), ("LINES", "a\nb"), ("_1", "$A ${A}")];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).into();
        expand(text, &environment).map(|content| match content {
            NodeContent::Scalar(text, _) => text,
            other => other.describe().to_owned(),
        })
    }

    #[test]
    fn variables_are_replaced_once() {
        for (text, expected) in [
            ("${A}", "one"),
            ("a${A}b${A}", "aonebone"),
            ("${EMPTY}", ""),
            ("${NONE:-}", ""),
            ("${NONE:-a default: {x:-y}", "a default: {x:-y"),
            ("${EMPTY:-full}", "full"),
            ("${A:-full}", "one"),
            ("${A:?why}", "one"),
            ("${_1}", "$A ${A}"),
            ("$${A} $$ $A ^a$", "${A} $ $A ^a$"),
            ("$$$${A}$${", "$${A}${"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_text_that_cannot_be_expanded_is_refused_without_being_shown() {
        let required = |name: &str| VariableError::Required { name: name.to_owned(), message: "why not".to_owned() };
        for (text, expected) in [
            ("hush${A", VariableError::Unclosed),
            ("hush${}", VariableError::Malformed),
            ("hush${1A}", VariableError::Malformed),
            ("hush${A:+x}", VariableError::Malformed),
            ("hush${A-é}", VariableError::Malformed),
            ("hush${NONE}", VariableError::Unset("NONE".to_owned())),
            ("hush${NONE:?why not}", required("NONE")),
            ("hush${EMPTY:?why not}", required("EMPTY")),
            ("hush${LINES}", VariableError::LineBreak("LINES".to_owned())),
            ("${NONE:-a\nb}", VariableError::LineBreak("NONE".to_owned())),
            ("${NONE:-${A:-b}}", VariableError::Malformed),
        ] {
            let error = expanded(text).unwrap_err();
            assert!(!error.to_string().contains("hush") && !error.allowed().contains("hush"), "{error}");
            assert_eq!(error, expected, "{text}");
        }
    }
}
