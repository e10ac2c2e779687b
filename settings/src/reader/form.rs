//! The forms of a value in TOML, and how values are shown.

use figment::value::{Num, Value};
use serde_json::json;

use super::schema::Kind;

/// The form of a scalar in TOML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Flag,
    Integer,
    Decimal,
    Text,
}

/// Describes a value without showing it.
pub fn describe(value: &Value) -> &'static str {
    match value {
        Value::String(..) => "a string",
        Value::Char(..) => "a character",
        Value::Bool(..) => "true or false",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a table",
        Value::Array(_, items) if items.is_empty() => "an empty list",
        Value::Array(..) => "a list",
    }
}

/// Returns the text of a scalar with its form; `None` for a list or a table. `spelling` is the text in the file.
pub fn scalar_text(value: &Value, spelling: Option<&str>) -> Option<(String, Form)> {
    match value {
        Value::String(_, text) => Some((text.clone(), Form::Text)),
        Value::Bool(_, flag) => Some((flag.to_string(), Form::Flag)),
        Value::Num(_, number) => Some(number_text(*number, spelling)),
        _ => None,
    }
}

/// A float keeps the decimals that were written. A float with an exponent gets the shortest text that is exact.
fn number_text(number: Num, spelling: Option<&str>) -> (String, Form) {
    if let Some(integer) = number.to_i128() {
        return (integer.to_string(), Form::Integer);
    }
    let float = number.to_f64().unwrap_or(f64::NAN);
    let plain = spelling.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit() || b"+-._".contains(&byte)));
    (plain.map_or_else(|| float.to_string(), |text| text.replace('_', "")), Form::Decimal)
}

/// Returns whether a key of a kind takes a scalar (or an element of a list) of this form.
pub fn fits(form: Form, kind: Kind, text: &str) -> bool {
    match kind {
        Kind::Flag => form == Form::Flag,
        Kind::Count(..) | Kind::Integers(_) => form == Form::Integer,
        Kind::Decimal(_) => matches!(form, Form::Decimal | Form::Integer),
        Kind::DecimalOrPercent(_) => form != Form::Flag && (form == Form::Text) == text.ends_with('%'),
        Kind::Size(..) => matches!(form, Form::Text | Form::Integer),
        Kind::Duration(..) | Kind::Choice(_) | Kind::Text(_) | Kind::Addresses(_) | Kind::Texts(_) => {
            form == Form::Text
        }
    }
}

/// Returns a scalar, or an element of a list, as the effective configuration shows it.
pub fn as_json(text: &str, kind: Kind) -> serde_json::Value {
    let number = || text.replace('_', "");
    match kind {
        Kind::Flag => json!(text == "true"),
        Kind::Count(..) | Kind::Size(..) | Kind::Integers(_) => {
            number().parse::<u64>().map_or_else(|_| json!(text), |n| json!(n))
        }
        Kind::Decimal(_) | Kind::DecimalOrPercent(_) => {
            number().parse::<f64>().map_or_else(|_| json!(text), |n| json!(n))
        }
        _ => json!(text),
    }
}
