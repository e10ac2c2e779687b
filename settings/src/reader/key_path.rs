//! The path of a key, such as `service[0].client."a.b".weight`.

use std::fmt;

use serde_json::Value;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// A key of a table.
    Name(String),
    /// The position of an element in a list.
    Index(usize),
}

/// The path of a key or a section. The empty path is the file as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Vec<Segment>);

impl KeyPath {
    /// Returns the path of the key `name` in this section.
    pub fn child(&self, name: &str) -> KeyPath {
        self.with(Segment::Name(name.to_owned()))
    }

    /// Returns the path of an element of this list.
    pub fn element(&self, index: usize) -> KeyPath {
        self.with(Segment::Index(index))
    }

    /// Returns the steps of the path, outermost first.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Returns the path as a header in a file names it, without positions: `service.shape` for `service[0].shape`.
    pub fn header(&self) -> KeyPath {
        self.0.iter().filter(|segment| matches!(segment, Segment::Name(_))).cloned().collect()
    }

    fn with(&self, segment: Segment) -> KeyPath {
        self.0.iter().cloned().chain([segment]).collect()
    }
}

impl FromIterator<Segment> for KeyPath {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> KeyPath {
        KeyPath(segments.into_iter().collect())
    }
}

/// Writes a name as TOML does: bare if possible, else quoted. JSON's quotes are TOML's, too.
impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_bare_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        match self {
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Name(name) if !name.is_empty() && name.bytes().all(is_bare_byte) => f.write_str(name),
            Segment::Name(name) => write!(f, "{}", Value::from(name.as_str())),
        }
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(file)");
        }
        for (at, segment) in self.0.iter().enumerate() {
            let dot = if at > 0 && matches!(segment, Segment::Name(_)) { "." } else { "" };
            write!(f, "{dot}{segment}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_toml_does() {
        let root = KeyPath::default();
        let client = root.child("service").element(0).child("client").child("a.\"b\"");
        assert_eq!(root.to_string(), "(file)");
        assert_eq!(client.child("weight").to_string(), r#"service[0].client."a.\"b\"".weight"#);
        assert_eq!(client.header().to_string(), r#"service.client."a.\"b\"""#);
        assert_eq!(root.child("").child("é").to_string(), r#"""."é""#);
        assert!(root.child("service").element(2) < root.child("service").element(10));
    }
}
