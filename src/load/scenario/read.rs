//! Reading a scenario's tables: each key once, every error noted with its line, and nothing stops at one.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml_edit::{Item, TableLike, TomlError};

use super::Rate;
use watermaster_settings::config::{self, ConfigError, KeyPath, Origin};

/// The highest rate that can be asked for, in records per second.
const MOST_PER_SECOND: f64 = 1_000_000.0;
/// The longest phase.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The file, and what was found to be wrong in it.
pub struct Page<'a> {
    text: &'a str,
    path: PathBuf,
    errors: RefCell<Vec<ConfigError>>,
}

impl<'a> Page<'a> {
    /// A text that comes from `path`.
    pub fn new(text: &'a str, path: &Path) -> Page<'a> {
        Page { text, path: path.to_owned(), errors: RefCell::default() }
    }

    /// The whole file as a table.
    pub fn root(&'a self, table: &'a dyn TableLike) -> Table<'a> {
        Table { page: self, table, path: KeyPath::default(), line: None, asked: RefCell::default() }
    }

    /// What was wrong, in the order of the file.
    pub fn finish(&self) -> Vec<ConfigError> {
        let mut errors = self.errors.take();
        errors.sort_by(|a, b| (&a.origin, &a.key).cmp(&(&b.origin, &b.key)));
        errors
    }

    /// The text is no TOML: nothing else can be said of it.
    pub fn no_toml(&self, error: &TomlError) -> ConfigError {
        let line = error.span().map(|span| self.line_at(span.start));
        let problem = format!("is no TOML: {}", error.message().trim().replace('\n', "; "));
        self.error(KeyPath::default(), problem, "a file of TOML 1.0".to_owned(), line)
    }

    fn error(&self, key: KeyPath, problem: String, allowed: String, line: Option<usize>) -> ConfigError {
        let origin = Origin::File { path: self.path.clone(), line };
        ConfigError { key, service: None, problem, allowed, origin }
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
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Table<'a> {
    /// The value of a key, or the default where nobody wrote one. `None`: it is wrong or missing, which has been noted.
    pub fn value<T>(
        &self,
        name: &'static str,
        default: Option<T>,
        allowed: &str,
        parse: impl Fn(&Item) -> Result<T, String>,
    ) -> Option<T> {
        let Some(item) = self.item(name) else {
            if default.is_none() {
                self.refuse(name, "is missing", allowed);
            }
            return default;
        };
        match parse(item) {
            Ok(value) => Some(value),
            Err(why) => {
                self.refuse(name, format!("is {}: {why}", shown(item)), allowed);
                None
            }
        }
    }

    /// One of several words.
    pub fn choice<T: Copy>(&self, name: &'static str, default: Option<T>, words: &[(&str, T)]) -> Option<T> {
        let allowed = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        self.value(name, default, &allowed, |item| {
            let word = text(item)?;
            let found = words.iter().find(|(known, _)| *known == word);
            found.map(|(_, meaning)| *meaning).ok_or_else(|| "none of these words".to_owned())
        })
    }

    /// A duration with its unit.
    pub fn duration(&self, name: &'static str, default: Option<Duration>) -> Option<Duration> {
        self.value(name, default, "a duration with its unit, such as \"500ms\" or \"10s\", from 1ms to 7days", |item| {
            let text = text(item)?;
            let range = Duration::from_millis(1)..=LONGEST;
            config::duration(&text, range).map_err(|error| match error {
                config::ValueError::NotAllowed => "out of range".to_owned(),
                other => other.to_string(),
            })
        })
    }

    /// A rate: records per second, or a part of the capacity.
    pub fn rate(&self, name: &'static str, default: Option<Rate>) -> Option<Rate> {
        let allowed = "records per second (50, 0.5), or a part of the service's capacity (\"80%\", \"400%\"), \
                       from 0 to 1000000 or 100000%";
        self.value(name, default, allowed, rate)
    }

    /// Every `[[name]]` in it.
    pub fn tables(&self, name: &'static str) -> Vec<Table<'a>> {
        let Some(item) = self.item(name) else { return Vec::new() };
        let Some(tables) = item.as_array_of_tables() else {
            self.refuse(
                name,
                format!("is {}", item.type_name()),
                format!("tables, each headed [[{}]]", self.child(name).header()),
            );
            return Vec::new();
        };
        let table = |(at, table): (usize, &'a toml_edit::Table)| Table {
            page: self.page,
            table,
            path: self.child(name).element(at),
            line: table.span().map(|span| self.page.line_at(span.start)),
            asked: RefCell::default(),
        };
        tables.iter().enumerate().map(table).collect()
    }

    /// The table `[name]` in it, if there is one.
    pub fn table(&self, name: &'static str) -> Option<Table<'a>> {
        let item = self.item(name)?;
        let Some(table) = item.as_table_like() else {
            self.refuse(name, format!("is {}", item.type_name()), format!("a table, headed [{}]", self.child(name)));
            return None;
        };
        let line = self.line_of(name);
        Some(Table { page: self.page, table, path: self.child(name), line, asked: RefCell::default() })
    }

    /// Where it stands.
    pub fn origin(&self) -> Origin {
        Origin::File { path: self.page.path.clone(), line: self.line }
    }

    /// Notes an error at `name`.
    pub fn refuse(&self, name: &str, problem: impl Display, allowed: impl Display) {
        let line = self.line_of(name).or(self.line);
        let error = self.page.error(self.child(name), problem.to_string(), allowed.to_string(), line);
        self.page.errors.borrow_mut().push(error);
    }

    /// Refuses the keys that nobody has asked for.
    pub fn finish(&self) {
        let asked = self.asked.borrow();
        for (name, _) in self.table.iter().filter(|(name, _)| !asked.contains(name)) {
            self.refuse(name, "is no key here", asked.join(", "));
        }
    }

    fn item(&self, name: &'static str) -> Option<&'a Item> {
        self.asked.borrow_mut().push(name);
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

/// A value as a person would recognise it.
fn shown(item: &Item) -> String {
    match item.as_value() {
        Some(value) => value.to_string().trim().to_owned(),
        None => item.type_name().to_owned(),
    }
}

/// A text.
pub fn text(item: &Item) -> Result<String, String> {
    item.as_str().map(str::to_owned).ok_or_else(|| format!("{}, no text", item.type_name()))
}

/// A whole number.
pub fn count(item: &Item, least: u64, most: u64) -> Result<u64, String> {
    let number = item.as_integer().ok_or_else(|| format!("{}, no whole number", item.type_name()))?;
    let number = u64::try_from(number).map_err(|_| "below 0".to_owned())?;
    if (least..=most).contains(&number) { Ok(number) } else { Err("out of range".to_owned()) }
}

fn rate(item: &Item) -> Result<Rate, String> {
    let number = item.as_float().or_else(|| item.as_integer().map(|number| number as f64));
    let (number, most, rate): (f64, f64, fn(f64) -> Rate) = match (number, item.as_str()) {
        (Some(number), _) => (number, MOST_PER_SECOND, Rate::PerSecond),
        (None, Some(text)) => {
            let percent = text.strip_suffix('%').ok_or("a text without %")?;
            let percent = percent.trim().parse().map_err(|_| "no number before the %")?;
            (percent, 100_000.0, |percent| Rate::OfCapacity(percent / 100.0))
        }
        (None, None) => return Err(item.type_name().to_owned()),
    };
    if (0.0..=most).contains(&number) { Ok(rate(number)) } else { Err("out of range".to_owned()) }
}
