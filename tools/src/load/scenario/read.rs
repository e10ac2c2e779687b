//! Reads the tables of a scenario: notes every error with its line, and refuses unknown keys.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml_edit::{Item, TableLike, TomlError};
use watermaster_settings::config::{self, ConfigError, KeyPath, Origin};

use super::Rate;

/// The highest rate, in records per second.
const MAX_RATE: f64 = 1_000_000.0;
/// The highest rate, in percent of the capacity.
const MAX_PERCENT: f64 = 100_000.0;
/// The longest phase.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// A value is not what its key allows.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("{found}, no {wanted}")]
    Kind { found: &'static str, wanted: &'static str },
    #[error("out of range")]
    OutOfRange,
    #[error("not one of these values")]
    Unknown,
    #[error("{0}")]
    Duration(#[source] config::ValueError),
    #[error("a text that is no number with a %")]
    Percent,
    #[error("{0} bytes long")]
    Length(usize),
    #[error("{0} comes before {1}")]
    Order(u32, u32),
    #[error("a list of {0}")]
    Pair(usize),
}

/// The file, and the errors found in it.
pub struct Page<'a> {
    text: &'a str,
    path: PathBuf,
    errors: RefCell<Vec<ConfigError>>,
}

impl<'a> Page<'a> {
    /// Begins to read the text of the file at `path`.
    pub fn new(text: &'a str, path: &Path) -> Page<'a> {
        Page { text, path: path.to_owned(), errors: RefCell::default() }
    }

    /// Returns the whole file as a table.
    pub fn root(&'a self, table: &'a dyn TableLike) -> Table<'a> {
        Table { page: self, table, path: KeyPath::default(), line: None, known: RefCell::default() }
    }

    /// Returns all errors, in the order of the file.
    pub fn into_errors(self) -> Vec<ConfigError> {
        let mut errors = self.errors.into_inner();
        errors.sort_by(|a, b| (&a.origin, &a.key).cmp(&(&b.origin, &b.key)));
        errors
    }

    /// Describes a text that is no TOML.
    pub fn syntax_error(&self, error: &TomlError) -> ConfigError {
        let line = error.span().map(|span| self.line_at(span.start));
        let problem = format!("is no TOML: {}", error.message().trim().replace('\n', "; "));
        self.error(KeyPath::default(), problem, "a file of TOML 1.0".to_owned(), line)
    }

    fn error(&self, key: KeyPath, problem: String, allowed: String, line: Option<usize>) -> ConfigError {
        ConfigError { key, service: None, problem, allowed, origin: self.origin(line) }
    }

    fn origin(&self, line: Option<usize>) -> Origin {
        Origin::File { path: self.path.clone(), line }
    }

    fn line_at(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
    }
}

/// One table of the file.
pub struct Table<'a> {
    page: &'a Page<'a>,
    table: &'a dyn TableLike,
    path: KeyPath,
    line: Option<usize>,
    /// Keys that were read.
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Table<'a> {
    /// Reads the value of a key, or returns the default if the key is absent. `None` stands for an error, which is
    /// noted.
    pub fn value<T>(
        &self,
        name: &'static str,
        default: Option<T>,
        allowed: &str,
        parse: impl Fn(&Item) -> Result<T, ValueError>,
    ) -> Option<T> {
        let Some(item) = self.item(name) else {
            if default.is_none() {
                self.refuse(name, "is missing", allowed);
            }
            return default;
        };
        let shown = || item.as_value().map_or(item.type_name().to_owned(), |value| value.to_string().trim().to_owned());
        parse(item).inspect_err(|error| self.refuse(name, format!("is {}: {error}", shown()), allowed)).ok()
    }

    /// Reads one of several names.
    pub fn choice<T: Copy>(&self, name: &'static str, default: Option<T>, names: &[(&str, T)]) -> Option<T> {
        let allowed = names.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
        self.value(name, default, &allowed, |item| {
            let chosen = text(item)?;
            names.iter().find(|(known, _)| *known == chosen).map(|(_, value)| *value).ok_or(ValueError::Unknown)
        })
    }

    /// Reads a whole number.
    pub fn count(&self, name: &'static str, default: Option<u64>, range: RangeInclusive<u64>) -> Option<u64> {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        self.value(name, default, &allowed, |item| count(item, range.clone()))
    }

    /// Reads a duration with its unit.
    pub fn duration(&self, name: &'static str, default: Option<Duration>) -> Option<Duration> {
        self.value(name, default, "a duration with its unit, such as \"500ms\" or \"10s\", from 1ms to 7days", |item| {
            let range = Duration::from_millis(1)..=MAX_DURATION;
            config::duration(&text(item)?, range).map_err(|error| match error {
                config::ValueError::NotAllowed => ValueError::OutOfRange,
                error => ValueError::Duration(error),
            })
        })
    }

    /// Reads a rate: records per second, or a part of the capacity.
    pub fn rate(&self, name: &'static str, default: Option<Rate>) -> Option<Rate> {
        let allowed = "records per second (50, 0.5), or a part of the service's capacity (\"80%\", \"400%\"), \
                       from 0 to 1000000 or 100000%";
        self.value(name, default, allowed, rate)
    }

    /// Returns every `[[name]]` in the table.
    pub fn tables(&self, name: &'static str) -> Vec<Table<'a>> {
        let Some(item) = self.item(name) else { return Vec::new() };
        let Some(tables) = item.as_array_of_tables() else {
            let allowed = format!("tables, each headed [[{}]]", self.child(name).header());
            self.refuse(name, format!("is {}", item.type_name()), allowed);
            return Vec::new();
        };
        let table = |(at, table): (usize, &'a toml_edit::Table)| {
            let line = table.span().map(|span| self.page.line_at(span.start));
            let path = self.child(name).element(at);
            Table { page: self.page, table, path, line, known: RefCell::default() }
        };
        tables.iter().enumerate().map(table).collect()
    }

    /// Returns the table `[name]` in the table, if there is one.
    pub fn table(&self, name: &'static str) -> Option<Table<'a>> {
        let item = self.item(name)?;
        let Some(table) = item.as_table_like() else {
            self.refuse(name, format!("is {}", item.type_name()), format!("a table, headed [{}]", self.child(name)));
            return None;
        };
        let line = self.line_of(name);
        Some(Table { page: self.page, table, path: self.child(name), line, known: RefCell::default() })
    }

    /// Returns the place of the table in the file.
    pub fn origin(&self) -> Origin {
        self.page.origin(self.line)
    }

    /// Notes an error at `name`.
    pub fn refuse(&self, name: &str, problem: impl Display, allowed: impl Display) {
        let line = self.line_of(name).or(self.line);
        let error = self.page.error(self.child(name), problem.to_string(), allowed.to_string(), line);
        self.page.errors.borrow_mut().push(error);
    }

    /// Refuses all keys that were not read.
    pub fn finish(&self) {
        let known = self.known.borrow();
        for (name, _) in self.table.iter().filter(|(name, _)| !known.contains(name)) {
            self.refuse(name, "is no key here", known.join(", "));
        }
    }

    fn item(&self, name: &'static str) -> Option<&'a Item> {
        self.known.borrow_mut().push(name);
        self.table.get(name)
    }

    fn child(&self, name: &str) -> KeyPath {
        self.path.child(name)
    }

    fn line_of(&self, name: &str) -> Option<usize> {
        let key = self.table.key(name).and_then(|key| key.span());
        let span = key.or_else(|| self.table.get(name).and_then(Item::span))?;
        Some(self.page.line_at(span.start))
    }
}

/// Reads a text.
pub fn text(item: &Item) -> Result<String, ValueError> {
    item.as_str().map(str::to_owned).ok_or(ValueError::Kind { found: item.type_name(), wanted: "text" })
}

/// Reads a whole number in a range.
pub fn count(item: &Item, range: RangeInclusive<u64>) -> Result<u64, ValueError> {
    let number = item.as_integer().ok_or(ValueError::Kind { found: item.type_name(), wanted: "whole number" })?;
    u64::try_from(number).ok().filter(|number| range.contains(number)).ok_or(ValueError::OutOfRange)
}

fn rate(item: &Item) -> Result<Rate, ValueError> {
    if let Some(text) = item.as_str() {
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let percent = percent.ok_or(ValueError::Percent)?;
        let in_range = (0.0..=MAX_PERCENT).contains(&percent);
        return in_range.then_some(Rate::OfCapacity(percent / 100.0)).ok_or(ValueError::OutOfRange);
    }
    let number = item.as_float().or_else(|| item.as_integer().map(|number| number as f64));
    let number = number.ok_or(ValueError::Kind { found: item.type_name(), wanted: "rate" })?;
    (0.0..=MAX_RATE).contains(&number).then_some(Rate::PerSecond(number)).ok_or(ValueError::OutOfRange)
}
