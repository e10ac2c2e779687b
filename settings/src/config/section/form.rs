//! The forms that a value can have in TOML, and how it is shown.

use figment::value::{Num, Value};
use serde_json::json;

use crate::config::kind::{Form, Kind};

/// A problem as errors have it: what is there, and why that is wrong.
pub fn problem(shown: &str, why: &str) -> String {
    if why.is_empty() { format!("is {shown}") } else { format!("is {shown}: {why}") }
}

/// What a value is, without showing it.
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

/// The text of a scalar with its TOML type; `spelling` is how the file has it. `None` for a list or a table.
pub fn scalar_text(value: &Value, spelling: Option<&str>) -> Option<(String, Form)> {
    match value {
        Value::String(_, text) => Some((text.clone(), Form::Text)),
        Value::Bool(_, flag) => Some((flag.to_string(), Form::Flag)),
        Value::Num(_, number) => Some(number_text(*number, spelling)),
        _ => None,
    }
}

/// A float keeps the decimals that were written; only one with an exponent is spelt anew, as briefly as is exact.
fn number_text(number: Num, spelling: Option<&str>) -> (String, Form) {
    if let Some(integer) = number.to_i128() {
        return (integer.to_string(), Form::Integer);
    }
    let float = number.to_f64().unwrap_or(f64::NAN);
    let plain = spelling.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit() || b"+-._".contains(&byte)));
    (plain.map_or_else(|| float.to_string(), |text| text.replace('_', "")), Form::Decimal)
}

/// Whether a value of one TOML type is as good as one of another.
pub fn fits(written: Form, wanted: Form) -> bool {
    match wanted {
        Form::Decimal => matches!(written, Form::Decimal | Form::Integer),
        Form::TextOrInteger => matches!(written, Form::Text | Form::Integer),
        _ => written == wanted,
    }
}

/// A value as the effective configuration shows it.
pub fn as_json(kind: Kind, text: &str) -> serde_json::Value {
    let number = || text.replace('_', "");
    match kind.form() {
        Form::Flag => json!(text == "true"),
        Form::Integer | Form::TextOrInteger => number().parse::<u64>().map_or_else(|_| json!(text), |n| json!(n)),
        Form::Decimal => number().parse::<f64>().map_or_else(|_| json!(text), |n| json!(n)),
        Form::Text | Form::List => json!(text),
    }
}
