//! The table of keys as a JSON Schema (draft 7, which editors of TOML know).

use serde_json::{Map, Value, json};

use super::schema::{Fallback, Key, Kind, Schema, SectionSchema, Shape};
use super::section::as_json;

impl Schema {
    /// Returns the JSON Schema of a file with these keys. A file that satisfies it may still have errors that depend on
    /// several keys.
    pub fn to_json_schema(&self) -> Value {
        let mut schema = object(&self.root, true);
        schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        schema["title"] = json!(self.subject);
        schema["definitions"] = json!({
            "variable": { "type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:[-?][^}]*)?\}" }
        });
        schema
    }

    /// Returns the JSON Schema of these keys in a request: none is required, and none takes a variable.
    pub fn to_request_schema(&self) -> Value {
        let mut schema = object(&self.root, false);
        schema["required"] = json!([]);
        schema
    }
}

/// Describes one table of a section, whose values perhaps come from variables.
fn object(section: &SectionSchema, variables: bool) -> Value {
    let variants = section.sections.iter().filter(|inner| inner.shape == Shape::Variant);
    let is_required = |key: &&Key| key.fallback == Fallback::Required;
    let lists = section.sections.iter().filter(|inner| matches!(inner.shape, Shape::Services | Shape::List));
    let required = section.keys.iter().filter(is_required).map(|key| key.name).chain(lists.map(|list| list.name));
    let required: Vec<_> = required.collect();
    let keys = section.keys.iter().chain(variants.flat_map(|variant| variant.keys));
    let mut properties: Map<_, _> = keys.map(|key| (key.name.to_owned(), of_key(key, variables))).collect();
    let object = |inner| object(inner, variables);
    for inner in section.sections {
        let schema = match inner.shape {
            Shape::Table => object(inner),
            Shape::FreeTable => {
                json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
            }
            Shape::Services | Shape::List => json!({ "type": "array", "items": object(inner), "minItems": 1 }),
            Shape::OptionalList | Shape::OptionalNamed => json!({ "type": "array", "items": object(inner) }),
            Shape::Map => json!({ "type": "object", "additionalProperties": object(inner) }),
            Shape::Variant => continue,
        };
        properties.insert(inner.name.to_owned(), schema);
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn of_key(key: &Key, variables: bool) -> Value {
    let mut schema = of_kind(key.kind, variables);
    let mut description = key.kind.allowed();
    match key.fallback {
        Fallback::Text(text) if matches!(key.kind, Kind::Texts(_)) => {
            schema["default"] = text.split(", ").collect();
        }
        Fallback::Text(text) => schema["default"] = as_json(text, key.kind),
        Fallback::Derived(how) => description += &format!("; by default {how}"),
        Fallback::Required | Fallback::Unset => {}
    }
    schema["description"] = json!(description);
    schema
}

fn of_kind(kind: Kind, variables: bool) -> Value {
    let schema = match kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Whole(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Decimal(_) => json!({ "type": "number" }),
        Kind::Choice(names) => json!({ "enum": names }),
        Kind::DecimalOrPercent(_) => return json!({ "type": ["number", "string"] }),
        Kind::Size(..) => return json!({ "type": ["integer", "string"] }),
        Kind::Duration(..) | Kind::Text(_) | Kind::Moment(_) | Kind::File(_) | Kind::Addresses(_) | Kind::Secret(_) => {
            return json!({ "type": "string" });
        }
        Kind::Texts(_) => return json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 }),
        Kind::Integers(_) => {
            return json!({ "type": ["integer", "array"], "items": { "type": "integer" }, "minItems": 1 });
        }
    };
    // A variable is a text in the file.
    if variables { json!({ "anyOf": [schema, { "$ref": "#/definitions/variable" }] }) } else { schema }
}

#[cfg(test)]
#[path = "../../../tests/support/json_schema.rs"]
mod checker;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tree::{self, Node, NodeContent, ScalarForm};
    use super::*;
    use crate::config::SCHEMA;

    fn to_json(content: &NodeContent) -> Value {
        let of_node = |node: &Node| to_json(&node.content);
        match content {
            NodeContent::Scalar(text, ScalarForm::Text | ScalarForm::Time | ScalarForm::Any) => json!(text),
            NodeContent::Scalar(text, _) => serde_json::from_str(text).unwrap(),
            NodeContent::List(items) => items.iter().map(of_node).collect(),
            NodeContent::Table(table) => table.iter().map(|(name, node)| (name.clone(), of_node(node))).collect(),
        }
    }

    /// Returns how a file differs from the schema.
    fn problems(text: &str) -> Vec<String> {
        let root = tree::parse(text, Path::new("w.toml")).unwrap_or_else(|error| panic!("{error}"));
        let schema = SCHEMA.to_json_schema();
        checker::problems(&schema, &schema, &to_json(&NodeContent::Table(root)), "file")
    }

    #[test]
    fn the_shipped_files_satisfy_the_schema() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> = files.filter(|path| path.is_file()).collect();
        assert!(files.len() >= 3);
        for file in files {
            assert_eq!(problems(&std::fs::read_to_string(&file).unwrap()), [""; 0], "{}", file.display());
        }
    }

    #[test]
    fn a_file_with_a_wrong_key_or_kind_does_not_satisfy_the_schema() {
        let right = include_str!("../../../config/watermaster.reference.toml");
        for (from, to, is_right) in [
            ("capacity = 2000", "capacity = \"${CAPACITY:-2000}\"", true),
            ("[kafka.properties]", "[kafka.properties]\n\"socket.timeout.ms\" = 5000", true),
            ("capacity = 2000", "capacity = \"2000\"", false),
            ("capacity = 2000", "capacity = 0", false),
            ("capacity = 2000", "capacity = 1000000000001", false),
            ("capacity = 2000", "capasity = 2000", false),
            ("mode = \"shape\"", "mode = \"shaping\"", false),
            ("enforce = true", "enforce = 1", false),
            ("cycle = \"10s\"", "cycle = 10", false),
            ("queue_bytes = \"256MiB\"", "queue_bytes = 1.5", false),
            ("allowed_clients = [\"home-loan\"]", "allowed_clients = []", false),
            ("weight = 1.0", "weight = \"much\"", false),
            ("\nrate = 50", "\n# rate = 50", false),
            ("[kafka.properties]", "[kafka.properties]\ndebug = [\"all\"]", false),
            ("[[service.source]]", "[service.source]", false),
        ] {
            assert!(right.contains(from), "{from}");
            assert_eq!(problems(&right.replacen(from, to, 1)).is_empty(), is_right, "{to}");
        }
        assert!(!problems("[kafka]").is_empty(), "a service is required");
    }

    #[test]
    fn a_key_tells_its_default_and_what_is_allowed() {
        let schema = SCHEMA.to_json_schema();
        let service = &schema["properties"]["service"]["items"]["properties"];
        assert_eq!(service["client_from"]["default"], json!(["header:client-id", "topic"]));
        assert_eq!(service["max_clients"]["default"], json!(1000));
        assert_eq!(service["capacity"]["description"], "a whole number from 1 to 1000000000000");
    }
}
