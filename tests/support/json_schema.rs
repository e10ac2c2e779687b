//! Compares values with a JSON Schema, by the keywords that the schemas of this repository use.

use serde_json::Value;

/// Returns how a value differs from a schema of a document. A field that the schema does not name is a problem, too,
/// unless the schema says what others may be: a description that misses a field is of little use.
pub fn problems(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The schema `true` allows everything.
    for (keyword, rule) in schema.as_object().into_iter().flatten() {
        let rules = || rule.as_array().into_iter().flatten();
        let holds = match (&**keyword, value) {
            ("$ref", _) => {
                let target = document.pointer(rule.as_str().unwrap().trim_start_matches('#'));
                let target = target.unwrap_or_else(|| panic!("{rule} leads nowhere"));
                found.extend(problems(document, target, value, at));
                true
            }
            ("anyOf", _) => rules().any(|rule| problems(document, rule, value, at).is_empty()),
            ("enum", _) => rules().any(|rule| rule == value),
            ("type", _) if rule.is_array() => rules().any(|rule| is_a(value, rule)),
            ("type", _) => is_a(value, rule),
            ("minimum", Value::Number(_)) => value.as_f64() >= rule.as_f64(),
            ("maximum", Value::Number(_)) => value.as_f64() <= rule.as_f64(),
            // The only pattern is that of a variable.
            ("pattern", Value::String(text)) => text.contains("${"),
            ("minItems", Value::Array(items)) => items.len() as u64 >= rule.as_u64().unwrap(),
            ("maxItems", Value::Array(items)) => items.len() as u64 <= rule.as_u64().unwrap(),
            ("items", Value::Array(items)) => {
                let numbered = items.iter().enumerate();
                found.extend(numbered.flat_map(|(n, item)| problems(document, rule, item, &format!("{at}[{n}]"))));
                true
            }
            ("required", Value::Object(fields)) => {
                let missing = rules().filter(|name| !fields.contains_key(name.as_str().unwrap()));
                found.extend(missing.map(|name| format!("{at}.{name} is missing")));
                true
            }
            (
                "$schema"
                | "title"
                | "description"
                | "default"
                | "definitions"
                | "format"
                | "minimum"
                | "maximum"
                | "pattern"
                | "minItems"
                | "maxItems"
                | "items"
                | "required"
                | "properties"
                | "additionalProperties",
                _,
            ) => true,
            _ => panic!("{at}: the test knows no keyword {keyword}"),
        };
        if !holds {
            found.push(format!("{at}: {value} does not satisfy {keyword} {rule}"));
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(rule), _) => found.extend(problems(document, rule, field, &at)),
            (None, Some(rule)) if *rule != Value::Bool(false) => found.extend(problems(document, rule, field, &at)),
            (None, None) if schema.get("properties").is_none() => {}
            _ => found.push(format!("{at} is not described")),
        }
    }
    found
}

fn is_a(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("the test knows no type {other}"),
    }
}
