//! The effective configuration: every value with its origin, and no secret.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::schema::NAMED_TABLES;
use crate::reader::{Entry, KeyPath, Segment};

/// The value of each key that takes effect, in the order in which they are shown, the keys of a section together.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective(pub(super) Vec<Entry>);

impl Effective {
    /// Returns every key, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    /// Returns the values, nested as in the file. The HTTP API shows them so.
    pub fn to_json(&self) -> Value {
        self.nest(|entry| entry.value.clone())
    }

    /// Returns each value as `{"value", "origin"}`, nested as in the file; null is the value of a key that is not set.
    pub fn to_json_with_origins(&self) -> Value {
        self.nest(|entry| Some(json!({"value": entry.value, "origin": entry.origin.to_string()})))
    }

    /// Returns sixteen hexadecimal digits that are equal wherever equal configurations take effect.
    ///
    /// Hidden values, the instance's id, its address and its place are left out: the instances of a group can be
    /// compared, and the hash gives no way to guess a secret.
    pub fn hash(&self) -> String {
        let mut tree = self.to_json();
        let keys = [("/kafka", "instance_id"), ("/admin", "listen")];
        let properties = ["client.id", "client.rack"].map(|key| ("/kafka/properties", key));
        for (section, key) in keys.into_iter().chain(properties) {
            if let Some(section) = tree.pointer_mut(section).and_then(Value::as_object_mut) {
                section.remove(key);
            }
        }
        format!("{:016x}", fnv1a(tree.to_string().as_bytes()))
    }

    /// Returns the configuration as TOML; a comment on each line names the origin.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut previous: &[Segment] = &[];
        for entry in &self.0 {
            let Some((key, section)) = entry.key.segments().split_last() else { continue };
            if section != previous {
                previous = section;
                let _ = writeln!(text, "{}{}", if text.is_empty() { "" } else { "\n" }, header(section));
            }
            let _ = match &entry.value {
                Some(value) => {
                    writeln!(text, "{:<40} # {}", format!("{key} = {}", toml_value(value)), entry.origin)
                }
                None => writeln!(text, "{:<40} # not set", format!("# {key}")),
            };
        }
        text
    }

    fn nest(&self, show: impl Fn(&Entry) -> Option<Value>) -> Value {
        let mut root = Value::Object(Map::new());
        for entry in &self.0 {
            let segments = entry.key.segments();
            if let Some(value) = show(entry) {
                *segments.iter().fold(&mut root, descend) = value;
            } else if let [table @ .., _] = segments
                && let [.., Segment::Name(tables), Segment::Name(_)] = table
                && NAMED_TABLES.contains(&tables.as_str())
            {
                let table = table.iter().fold(&mut root, descend);
                if table.is_null() {
                    *table = json!({});
                }
            }
        }
        root
    }
}

/// Returns a scalar, or an array of scalars, as TOML. JSON escapes all characters that TOML wants escaped, but one; and
/// the reader of a file takes `$$` for a dollar, since `${` begins a variable.
pub fn toml_value(value: &Value) -> String {
    value.to_string().replace('\u{7f}', "\\u007f").replace('$', "$$")
}

/// Returns the node beneath `node`, which is made if it is missing.
fn descend<'a>(node: &'a mut Value, segment: &Segment) -> &'a mut Value {
    match segment {
        Segment::Name(name) => &mut node[name],
        Segment::Index(index) => {
            if !node.is_array() {
                *node = json!([]);
            }
            let items = node.as_array_mut().expect("made an array above");
            items.resize_with(items.len().max(index + 1), || json!({}));
            &mut items[*index]
        }
    }
}

/// Returns the header that begins a section: `[[service]]` for `service[0]`.
fn header(section: &[Segment]) -> String {
    let names = section.iter().cloned().collect::<KeyPath>().header();
    if matches!(section, [.., Segment::Index(_)]) { format!("[[{names}]]") } else { format!("[{names}]") }
}

/// Hashes with FNV-1a. It is stable over versions of Rust, unlike the hashers of the standard library.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
