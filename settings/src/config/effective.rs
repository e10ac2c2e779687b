//! The configuration as it takes effect: every value, with its origin, and no secret.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::error::Origin;
use super::layers::child;

/// One key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The path of its section, such as `service[0].shape`.
    pub section: String,
    pub name: String,
    /// `None`: the key says nothing.
    pub value: Option<Value>,
    pub origin: Origin,
}

/// The whole configuration as it takes effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective(Vec<Entry>);

impl Effective {
    /// `entries` in the order in which they are shown, the keys of a section together.
    pub(super) fn new(entries: Vec<Entry>) -> Effective {
        Effective(entries)
    }

    /// Every key, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    /// The values, nested as in the file: what the HTTP API shows.
    pub fn to_json(&self) -> Value {
        self.nest(|entry| entry.value.clone())
    }

    /// Each value as `{"value", "origin"}`, nested as in the file; a key that says nothing has the value null.
    pub fn to_json_with_origins(&self) -> Value {
        self.nest(|entry| Some(json!({"value": entry.value, "origin": entry.origin.to_string()})))
    }

    /// Sixteen hexadecimal digits, the same wherever the same configuration takes effect.
    ///
    /// Hidden values and the instance's id are left out: the instances of a group can be compared, and the hash gives
    /// no way to guess a secret.
    pub fn hash(&self) -> String {
        let mut tree = self.to_json();
        if let Some(kafka) = tree.get_mut("kafka").and_then(Value::as_object_mut) {
            kafka.remove("instance_id");
        }
        format!("{:016x}", fnv1a(tree.to_string().as_bytes()))
    }

    /// TOML again, each line with a comment that names the origin.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for entry in &self.0 {
            if entry.section != section {
                section = &entry.section;
                let _ = writeln!(text, "{}{}", if text.is_empty() { "" } else { "\n" }, header(section));
            }
            let name = child("", &entry.name);
            let _ = match &entry.value {
                Some(value) => writeln!(text, "{:<40} # {}", format!("{name} = {value}"), entry.origin),
                None => writeln!(text, "{:<40} # not set", format!("# {name}")),
            };
        }
        text
    }

    fn nest(&self, show: impl Fn(&Entry) -> Option<Value>) -> Value {
        let mut root = Value::Object(Map::new());
        for entry in &self.0 {
            if let Some(value) = show(entry) {
                descend(&mut root, &entry.section)[entry.name.as_str()] = value;
            }
        }
        root
    }
}

/// One step of a section's path.
enum Step {
    Key(String),
    Index(usize),
}

/// The node of a section in the tree, made where it is missing.
fn descend<'a>(root: &'a mut Value, section: &str) -> &'a mut Value {
    let mut node = root;
    for step in steps(section) {
        node = match step {
            Step::Key(name) => &mut node[name],
            Step::Index(index) => {
                if !node.is_array() {
                    *node = json!([]);
                }
                let items = node.as_array_mut().expect("made an array above");
                while items.len() <= index {
                    items.push(json!({}));
                }
                &mut items[index]
            }
        };
    }
    node
}

/// The header that begins a section: `[[service]]` for `service[0]`.
fn header(section: &str) -> String {
    let names: Vec<_> = steps(section)
        .filter_map(|step| match step {
            Step::Key(name) => Some(child("", &name)),
            Step::Index(_) => None,
        })
        .collect();
    let names = names.join(".");
    if section.ends_with(']') { format!("[[{names}]]") } else { format!("[{names}]") }
}

/// Splits a path as [`child`] and [`element`](super::layers::element) made it.
fn steps(mut path: &str) -> impl Iterator<Item = Step> {
    std::iter::from_fn(move || {
        path = path.strip_prefix('.').unwrap_or(path);
        if let Some(rest) = path.strip_prefix('[') {
            let (index, rest) = rest.split_once(']')?;
            path = rest;
            return Some(Step::Index(index.parse().ok()?));
        }
        if path.starts_with('"') {
            let mut quoted = serde_json::Deserializer::from_str(path).into_iter::<String>();
            let name = quoted.next()?.ok()?;
            path = &path[quoted.byte_offset()..];
            return Some(Step::Key(name));
        }
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (name, rest) = path.split_at(end);
        path = rest;
        (!name.is_empty()).then(|| Step::Key(name.to_owned()))
    })
}

/// FNV-1a: stable over versions of Rust, which its own hashers are not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
