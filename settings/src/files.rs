//! The files that a configuration names, and whether they have changed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::model::Settings;
use crate::properties;
use crate::reader::{Entry, KeyPath, Segment};

/// The section of librdkafka's own properties.
const PROPERTIES: &str = "properties";

/// A file that a key names, such as one with a password.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedFile {
    pub key: KeyPath,
    pub path: PathBuf,
    /// The fingerprint of the content when the configuration was read.
    pub fingerprint: u64,
}

impl NamedFile {
    fn new(key: KeyPath, path: &Path) -> NamedFile {
        NamedFile { key, path: path.to_owned(), fingerprint: fingerprint(path) }
    }

    /// Returns whether only Kafka clients that are made anew take another content.
    pub fn needs_clients(&self) -> bool {
        match self.key.segments() {
            [_, Segment::Name(section), Segment::Name(name)] => {
                section == PROPERTIES && properties::needs_clients(name)
            }
            _ => false,
        }
    }
}

/// Returns the files that the keys of a configuration name: those of kind `File`, those that hold the values of
/// properties, and those that properties name.
pub(crate) fn named(settings: &Settings, entries: &[Entry]) -> Vec<NamedFile> {
    let holds_value =
        |key: &KeyPath| matches!(key.segments(), [_, Segment::Name(name), _] if name == "properties_file");
    let is_file = |entry: &&Entry| entry.is_file || holds_value(&entry.key);
    let of_entry = |entry: &Entry| Some(NamedFile::new(entry.key.clone(), entry.value.as_ref()?.as_str()?.as_ref()));
    let properties = KeyPath::default().child("kafka").child(PROPERTIES);
    let of_properties = settings.kafka.property_files.iter();
    let of_properties = of_properties.map(|(property, path)| NamedFile::new(properties.child(property), path));
    entries.iter().filter(is_file).filter_map(of_entry).chain(of_properties).collect()
}

/// Returns a number for the content of a file. Anything but a regular file that can be read has no content.
pub fn fingerprint(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    is_file.then(|| fs::read(path).ok()).flatten().hash(&mut hasher);
    hasher.finish()
}
