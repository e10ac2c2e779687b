//! The values of properties that come from files, which a running program reads again, and other passwords.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, fs, io};

use parking_lot::Mutex;

/// The properties that a client takes while it lives.
const LOGIN: [&str; 2] = ["sasl.username", "sasl.password"];

/// Values of librdkafka's properties, by property. All clones have the same values at any time, so that each client is
/// made with those that were read last.
#[derive(Clone, Default)]
pub struct Secrets(Arc<SharedSecrets>);

#[derive(Default)]
struct SharedSecrets {
    values: Mutex<BTreeMap<String, String>>,
    login: AtomicU64,
    others: AtomicU64,
}

impl Secrets {
    pub fn new(values: BTreeMap<String, String>) -> Secrets {
        Secrets(Arc::new(SharedSecrets { values: Mutex::new(values), ..SharedSecrets::default() }))
    }

    /// Returns the values in force.
    pub fn values(&self) -> BTreeMap<String, String> {
        self.0.values.lock().clone()
    }

    /// Returns how often the user or the password of SASL has changed.
    pub fn login_changes(&self) -> u64 {
        self.0.login.load(Ordering::Acquire)
    }

    /// Returns how often other values have changed.
    pub fn other_changes(&self) -> u64 {
        self.0.others.load(Ordering::Acquire)
    }

    /// Takes over other values, for all clones. `files_changed` says that a file has changed which librdkafka reads
    /// when it makes a client.
    pub fn renew(&self, values: BTreeMap<String, String>, files_changed: bool) {
        let mut old = self.0.values.lock();
        let changed = values.iter().filter(|(name, value)| old.get(*name) != Some(value));
        let (login, others): (Vec<_>, Vec<_>) = changed.partition(|(name, _)| LOGIN.contains(&name.as_str()));
        self.0.login.fetch_add(u64::from(!login.is_empty()), Ordering::Release);
        self.0.others.fetch_add(u64::from(files_changed || !others.is_empty()), Ordering::Release);
        *old = values;
    }
}

/// Shows the properties without their values.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.values.lock().keys()).finish()
    }
}

/// Equal configurations name the same properties: values may change while the program runs.
impl PartialEq for Secrets {
    fn eq(&self, other: &Secrets) -> bool {
        self.values().keys().eq(other.values().keys())
    }
}

/// A password, or the file that holds it. Never shown.
#[derive(Clone, PartialEq)]
pub enum Password {
    Text(String),
    File(PathBuf),
}

impl Password {
    /// Returns the password, which a file may have changed since the last call.
    ///
    /// # Errors
    /// The path of the file, and the reason for which it can't be read as text.
    pub fn read(&self) -> Result<String, (PathBuf, io::Error)> {
        match self {
            Password::Text(text) => Ok(text.clone()),
            Password::File(path) => {
                let text = fs::read_to_string(path).map_err(|error| (path.clone(), error))?;
                Ok(without_line_end(&text).to_owned())
            }
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Password::Text(_) => f.write_str("Text"),
            Password::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Returns the content of a file of one line without the end of that line.
pub(crate) fn without_line_end(text: &str) -> &str {
    text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(password: &str, key: &str) -> BTreeMap<String, String> {
        let values = [("sasl.password", password), ("ssl.key.pem", key)];
        values.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn a_new_value_reaches_every_clone_and_is_counted_once() {
        let secrets = Secrets::new(values("hush", "key"));
        let clone = secrets.clone();
        let changes = || (clone.login_changes(), clone.other_changes());
        secrets.renew(values("hush", "key"), false);
        assert_eq!(changes(), (0, 0));
        secrets.renew(values("murmur", "key"), false);
        assert_eq!((changes(), clone.values()), ((1, 0), values("murmur", "key")));
        secrets.renew(values("whisper", "other"), false);
        assert_eq!(changes(), (2, 1));
        secrets.renew(values("whisper", "other"), true);
        assert_eq!(changes(), (2, 2));
        assert!(secrets == Secrets::new(values("", "")) && secrets != Secrets::default());
        assert!(!format!("{secrets:?}").contains("whisper"));
    }
}
