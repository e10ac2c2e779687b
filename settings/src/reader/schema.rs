//! The table of the keys that a file may hold, and the kinds of their values.

use std::time::Duration;

use super::key_path::{KeyPath, Segment};

/// The keys of one kind of file.
#[derive(Debug)]
pub struct Schema {
    /// The noun that errors name the file with, such as `configuration`.
    pub subject: &'static str,
    /// The prefix of environment variables that set a key. If it is empty, the environment is not used at all.
    pub variable_prefix: &'static str,
    /// The beginnings of variables that have the prefix and serve another purpose, without the prefix.
    pub other_variables: &'static [&'static str],
    /// Keys of former versions, each with the reason why it is gone.
    pub former_keys: &'static [(&'static str, &'static str)],
    pub root: SectionSchema,
}

/// The keys of one section.
#[derive(Debug)]
pub struct SectionSchema {
    pub name: &'static str,
    pub shape: Shape,
    /// The keys, in the order in which they are shown.
    pub keys: &'static [Key],
    /// The sections beneath it, which are shown after the keys.
    pub sections: &'static [SectionSchema],
}

/// The way in which a section is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `[name]`, with the keys of the schema.
    Table,
    /// `[name]`, with keys that are not in the schema.
    FreeTable,
    /// `[[name]]`, any number of them, at least one.
    List,
    /// `[[name]]`, any number of them, or none.
    OptionalList,
    /// `[[name]]`, each a service with a key `name`, which errors beneath it tell. A later file changes it by its name.
    Services,
    /// `[[name]]`, any number of them, or none, each with a key `name`. A later file changes one by its name.
    OptionalNamed,
    /// `[name.KEY]`, with a KEY of the user's choice.
    Map,
    /// The keys that a table has besides, if one of its keys has the value `name`: see [`Section::variant`].
    ///
    /// [`Section::variant`]: super::Section::variant
    Variant,
}

/// One key that a file may hold.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub fallback: Fallback,
    /// `true` if a running program takes over a new value.
    pub reloads: bool,
}

/// The value of a key that is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// None: the key has to be written.
    Required,
    /// None: the key is optional.
    Unset,
    /// The value of this text.
    Text(&'static str),
    /// A value that follows from other keys. The text describes it.
    Derived(&'static str),
}

/// The kind of a key's value. A text describes what is allowed.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Flag,
    /// A whole number in this range.
    Count(u64, u64),
    /// A whole number in this range, which may be negative.
    Whole(i64, i64),
    /// A number with a fraction.
    Decimal(&'static str),
    /// A number with a fraction, or a text that ends with `%`.
    DecimalOrPercent(&'static str),
    /// A duration with its unit, in this range.
    Duration(Duration, Duration),
    /// A number of bytes, with or without a unit, in this range.
    Size(u64, u64),
    /// One of these names.
    Choice(&'static [&'static str]),
    Text(&'static str),
    /// A date and a time.
    Moment(&'static str),
    /// The path of a file that the program reads again when it changes.
    File(&'static str),
    /// Network addresses. A text with `@` is never shown: a password may stand before it.
    Addresses(&'static str),
    /// A text that is never shown.
    Secret(&'static str),
    /// A list of texts.
    Texts(&'static str),
    /// A whole number or a list of them.
    Integers(&'static str),
}

impl Kind {
    /// Describes the values that are allowed.
    pub fn allowed(self) -> String {
        match self {
            Kind::Flag => "true or false".to_owned(),
            Kind::Count(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Whole(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Duration(min, max) => format!(
                "a duration with its unit, such as \"100ms\" or \"10s\", from {} to {}",
                humantime::format_duration(min),
                humantime::format_duration(max)
            ),
            Kind::Size(min, max) => {
                format!("a size such as \"256MiB\" or \"16MB\", or whole bytes, from {min} to {max} bytes")
            }
            Kind::Choice(names) => names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or "),
            Kind::Decimal(allowed)
            | Kind::DecimalOrPercent(allowed)
            | Kind::Text(allowed)
            | Kind::Moment(allowed)
            | Kind::File(allowed)
            | Kind::Addresses(allowed)
            | Kind::Secret(allowed)
            | Kind::Texts(allowed)
            | Kind::Integers(allowed) => allowed.to_owned(),
        }
    }
}

/// Returns a key that only a restart changes.
pub const fn key(name: &'static str, kind: Kind, fallback: Fallback) -> Key {
    Key { name, kind, fallback, reloads: false }
}

/// Returns a key that takes effect while the program runs.
pub const fn reloaded_key(name: &'static str, kind: Kind, fallback: Fallback) -> Key {
    Key { name, kind, fallback, reloads: true }
}

/// Returns a section.
pub const fn section(
    name: &'static str, shape: Shape, keys: &'static [Key], sections: &'static [SectionSchema],
) -> SectionSchema {
    SectionSchema { name, shape, keys, sections }
}

impl Schema {
    /// Returns every key with the header of its section.
    pub fn keys(&self) -> Vec<(KeyPath, &'static Key)> {
        fn add(section: &SectionSchema, path: &KeyPath, keys: &mut Vec<(KeyPath, &'static Key)>) {
            keys.extend(section.keys.iter().map(|key| (path.clone(), key)));
            section.sections.iter().for_each(|inner| add(inner, &path.child(inner.name), keys));
        }
        let mut keys = Vec::new();
        add(&self.root, &KeyPath::default(), &mut keys);
        keys
    }

    /// Returns the position of a key among all keys: that of each segment, and the name where the user has chosen it.
    pub(super) fn rank(&self, path: &KeyPath) -> Vec<(usize, String)> {
        let (mut section, mut is_chosen) = (&self.root, false);
        let rank = |segment: &Segment| match segment {
            Segment::Index(index) => (*index, String::new()),
            Segment::Name(name) if std::mem::take(&mut is_chosen) => (0, name.clone()),
            Segment::Name(name) => match section.sections.iter().position(|inner| inner.name == *name) {
                Some(at) => {
                    let before = section.keys.len();
                    section = &section.sections[at];
                    is_chosen = section.shape == Shape::Map;
                    (before + at, String::new())
                }
                None => (section.keys.iter().position(|key| key.name == *name).unwrap_or_default(), name.clone()),
            },
        };
        path.segments().iter().map(rank).collect()
    }
}

impl SectionSchema {
    /// Returns the row of a key that the program reads.
    pub(super) fn key(&self, name: &str) -> &'static Key {
        let row = self.keys.iter().find(|key| key.name == name);
        row.unwrap_or_else(|| panic!("{name} is a key of {:?} in the schema", self.name))
    }

    /// Returns a section beneath this one that the program reads.
    pub(super) fn section(&self, name: &str) -> &'static SectionSchema {
        let section = self.sections.iter().find(|section| section.name == name);
        section.unwrap_or_else(|| panic!("{name} is a section of {:?} in the schema", self.name))
    }

    /// Returns the names of the keys and sections that may stand directly in this one.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let sections = self.sections.iter().filter(|section| section.shape != Shape::Variant);
        self.keys.iter().map(|key| key.name).chain(sections.map(|section| section.name))
    }
}
