//! Reading one section: each key once, with everything that is wrong noted and nothing stopping at it.

use std::cell::RefCell;
use std::fmt::Display;
use std::time::Duration;

use figment::value::{Dict, Num, Value};
use serde_json::json;
use watermaster_core::units::{Ratio, Weight};

use super::effective::Entry;
use super::error::{ConfigError, Origin};
use super::layers::{Written, child, element};
use super::schema::{self, Fallback, Form, Key, Kind};
use super::values::{self, Why};

/// The layers, and what has been found while reading them.
pub struct Reader {
    written: Written,
    errors: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<ConfigError>>,
    entries: RefCell<Vec<Entry>>,
}

/// What was found.
pub struct Findings {
    pub errors: Vec<ConfigError>,
    pub warnings: Vec<ConfigError>,
    pub entries: Vec<Entry>,
}

impl Reader {
    /// Reads `written`; `errors` are what was found before.
    pub fn new(written: Written, errors: Vec<ConfigError>) -> Reader {
        Reader {
            written,
            errors: RefCell::new(errors),
            warnings: RefCell::default(),
            entries: RefCell::default(),
        }
    }

    /// The whole configuration as a section.
    pub fn root(&self) -> Section<'_> {
        Section::new(self, Some(&self.written.root), String::new(), "", None)
    }

    /// Everything that was found.
    pub fn finish(self) -> Findings {
        Findings {
            errors: self.errors.into_inner(),
            warnings: self.warnings.into_inner(),
            entries: self.entries.into_inner(),
        }
    }
}

/// One section of the configuration, whether or not it was written.
pub struct Section<'a> {
    reader: &'a Reader,
    dict: Option<&'a Dict>,
    path: String,
    schema: &'static str,
    service: Option<String>,
}

/// A scalar as it was written.
struct Scalar {
    text: String,
    /// As a person would recognise it.
    shown: String,
    origin: Origin,
    /// The TOML type; `None` for a default and for a variable, which are texts of any type.
    form: Option<Form>,
}

impl<'a> Section<'a> {
    fn new(
        reader: &'a Reader,
        dict: Option<&'a Dict>,
        path: String,
        schema: &'static str,
        service: Option<String>,
    ) -> Section<'a> {
        let section = Section {
            reader,
            dict,
            path,
            schema,
            service,
        };
        section.refuse_unknown_keys();
        section
    }

    // ## Where it is

    /// Its path, such as `service[0].shape`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether anybody wrote it.
    pub fn is_written(&self) -> bool {
        self.dict.is_some()
    }

    /// Where `name` was written; the section itself where it was not required to be.
    pub fn origin(&self, name: &str) -> Origin {
        let key = child(&self.path, name);
        match self.dict.and_then(|dict| dict.get(name)) {
            Some(value) => self.reader.written.origin(&key, value.tag()),
            None => Origin::Default,
        }
    }

    // ## What is wrong

    /// Notes an error at `name`.
    pub fn refuse(&self, name: &str, problem: impl Display, allowed: impl Display) {
        self.refuse_at(child(&self.path, name), self.origin(name), problem, allowed);
    }

    /// Notes something doubtful at `name`.
    pub fn warn(&self, name: &str, problem: impl Display, advice: impl Display) {
        let warning = self.error(child(&self.path, name), self.origin(name), problem, advice);
        self.reader.warnings.borrow_mut().push(warning);
    }

    fn refuse_at(&self, key: String, origin: Origin, problem: impl Display, allowed: impl Display) {
        self.reader
            .errors
            .borrow_mut()
            .push(self.error(key, origin, problem, allowed));
    }

    fn error(
        &self,
        key: String,
        origin: Origin,
        problem: impl Display,
        allowed: impl Display,
    ) -> ConfigError {
        let (problem, allowed) = (problem.to_string(), allowed.to_string());
        ConfigError {
            key,
            service: self.service.clone(),
            problem,
            allowed,
            origin,
        }
    }

    fn refuse_unknown_keys(&self) {
        let free = [schema::FREE_PROPERTIES, schema::FREE_PROPERTIES_FILE].contains(&self.schema);
        let Some(dict) = self.dict.filter(|_| !free) else {
            return;
        };
        let known = schema::children(self.schema);
        for name in dict.keys().filter(|name| !known.contains(&name.as_str())) {
            let homes = schema::homes_of(name);
            let hint = if homes.is_empty() {
                String::new()
            } else {
                format!(" (did you mean {}?)", homes.join(" or "))
            };
            self.refuse(
                name,
                "is not a key of this section",
                format!("{}{hint}", known.join(", ")),
            );
        }
    }

    // ## Sections beneath it

    /// The table `name`.
    pub fn table(&self, name: &str) -> Section<'a> {
        let dict = match self.dict.and_then(|dict| dict.get(name)) {
            Some(Value::Dict(_, dict)) => Some(dict),
            Some(value) => {
                self.refuse(
                    name,
                    format!("is {}", describe(value)),
                    format!("a table: [{name}]"),
                );
                None
            }
            None => None,
        };
        Section::new(
            self.reader,
            dict,
            child(&self.path, name),
            self.schema_of(name),
            self.service.clone(),
        )
    }

    /// The tables of the list `name`. `service_name` says what errors beneath each should call its service.
    pub fn tables(
        &self,
        name: &str,
        service_name: impl Fn(&Dict) -> Option<String>,
    ) -> Vec<Section<'a>> {
        let path = child(&self.path, name);
        let items = match self.dict.and_then(|dict| dict.get(name)) {
            Some(Value::Array(_, items)) => items.as_slice(),
            Some(value) => {
                self.refuse(
                    name,
                    format!("is {}", describe(value)),
                    format!("a list of tables: [[{name}]]"),
                );
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let mut sections = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = element(&path, index);
            match item {
                Value::Dict(_, dict) => {
                    let service = service_name(dict).or_else(|| self.service.clone());
                    sections.push(Section::new(
                        self.reader,
                        Some(dict),
                        path,
                        self.schema_of(name),
                        service,
                    ));
                }
                other => {
                    let origin = self.reader.written.origin(&path, other.tag());
                    self.refuse_at(path, origin, format!("is {}", describe(other)), "a table");
                }
            }
        }
        sections
    }

    /// The tables of the table `name`, each with its key.
    pub fn named_tables(&self, name: &str) -> Vec<(&'a str, Section<'a>)> {
        let dict = match self.dict.and_then(|dict| dict.get(name)) {
            Some(Value::Dict(_, dict)) => dict,
            Some(value) => {
                self.refuse(
                    name,
                    format!("is {}", describe(value)),
                    format!("tables: [{}.{name}.NAME]", self.schema),
                );
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let parent = child(&self.path, name);
        let mut sections = Vec::new();
        for (key, value) in dict {
            let path = child(&parent, key);
            match value {
                Value::Dict(_, inner) => {
                    let schema = self.schema_of(name);
                    sections.push((
                        key.as_str(),
                        Section::new(self.reader, Some(inner), path, schema, self.service.clone()),
                    ));
                }
                other => {
                    let origin = self.reader.written.origin(&path, other.tag());
                    self.refuse_at(path, origin, format!("is {}", describe(other)), "a table");
                }
            }
        }
        sections
    }

    fn schema_of(&self, name: &str) -> &'static str {
        let path = if self.schema.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.schema)
        };
        schema::SECTIONS
            .iter()
            .find(|section| **section == path)
            .expect("the table of keys names the section")
    }

    // ## Values

    /// A key that has a value: written, or by default. `None`: it is wrong, and that has been noted.
    pub fn value<T>(&self, name: &str, parse: impl Fn(&str, Kind) -> Result<T, Why>) -> Option<T> {
        let key = schema::key_of(self.schema, name);
        let fallback = match key.fallback {
            Fallback::Text(text) => Some(text),
            _ => None,
        };
        self.read(key, fallback, parse)
    }

    /// A key whose default follows from other things.
    pub fn derived<T>(
        &self,
        name: &str,
        default: Option<&str>,
        parse: impl Fn(&str, Kind) -> Result<T, Why>,
    ) -> Option<T> {
        let key = schema::key_of(self.schema, name);
        debug_assert!(matches!(key.fallback, Fallback::Derived(_)));
        if default.is_none() && self.dict.is_none_or(|dict| !dict.contains_key(name)) {
            return None;
        }
        self.read(key, default, parse)
    }

    /// A key that may say nothing. The outer `None`: it is wrong.
    pub fn optional<T>(
        &self,
        name: &str,
        parse: impl Fn(&str, Kind) -> Result<T, Why>,
    ) -> Option<Option<T>> {
        let key = schema::key_of(self.schema, name);
        if self.dict.is_some_and(|dict| dict.contains_key(name)) {
            return self.read(key, None, parse).map(Some);
        }
        self.show(name, None, Origin::Default);
        Some(None)
    }

    /// A list of texts; the default is a list of one. The outer `None`: something in it is wrong.
    pub fn list<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, Why>,
    ) -> Option<Option<Vec<T>>> {
        let key = schema::key_of(self.schema, name);
        let Some(value) = self.dict.and_then(|dict| dict.get(name)) else {
            let Fallback::Text(text) = key.fallback else {
                self.show(name, None, Origin::Default);
                return Some(None);
            };
            self.show(name, Some(json!([text])), Origin::Default);
            return Some(Some(vec![parse(text).ok()?]));
        };
        let items = match value {
            Value::Array(_, items) if !items.is_empty() => items,
            other => {
                self.refuse(name, format!("is {}", describe(other)), key.kind.allowed());
                return None;
            }
        };
        let path = child(&self.path, name);
        let parsed: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.item(key, element(&path, index), item, &parse))
            .collect();
        let parsed: Vec<T> = parsed.into_iter().collect::<Option<_>>()?;
        let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
        self.show(name, Some(json!(texts)), self.origin(name));
        Some(Some(parsed))
    }

    fn item<T>(
        &self,
        key: &Key,
        path: String,
        item: &Value,
        parse: impl Fn(&str) -> Result<T, Why>,
    ) -> Option<T> {
        let wrong = match item.as_str().map(parse) {
            Some(Ok(value)) => return Some(value),
            Some(Err(why)) => problem(&format!("{:?}", item.as_str().unwrap_or_default()), &why),
            None => format!("is {}", describe(item)),
        };
        let origin = self.reader.written.origin(&path, item.tag());
        self.refuse_at(path, origin, wrong, key.kind.allowed());
        None
    }

    fn read<T>(
        &self,
        key: &Key,
        default: Option<&str>,
        parse: impl Fn(&str, Kind) -> Result<T, Why>,
    ) -> Option<T> {
        let scalar = self.scalar(key, default)?;
        if scalar.form.is_some_and(|form| !fits(form, key.kind.form())) {
            self.refuse(key.name, problem(&scalar.shown, ""), key.kind.allowed());
            return None;
        }
        match parse(&scalar.text, key.kind) {
            Ok(value) => {
                self.show(
                    key.name,
                    Some(as_json(key.kind, &scalar.text)),
                    scalar.origin,
                );
                Some(value)
            }
            Err(why) => {
                self.refuse_at(
                    child(&self.path, key.name),
                    scalar.origin,
                    problem(&scalar.shown, &why),
                    key.kind.allowed(),
                );
                None
            }
        }
    }

    fn scalar(&self, key: &Key, default: Option<&str>) -> Option<Scalar> {
        let path = child(&self.path, key.name);
        let Some(value) = self.dict.and_then(|dict| dict.get(key.name)) else {
            let Some(text) = default else {
                let origin = self.reader.written.section_origin(&self.path);
                self.refuse_at(path, origin, "is missing", key.kind.allowed());
                return None;
            };
            let shown = format!("{text:?}");
            return Some(Scalar {
                text: text.to_owned(),
                shown,
                origin: Origin::Default,
                form: None,
            });
        };
        let origin = self.reader.written.origin(&path, value.tag());
        let untyped = matches!(origin, Origin::Variable(_));
        let Some((text, form)) = scalar_text(value, self.reader.written.spelling(&path)) else {
            self.refuse(
                key.name,
                format!("is {}", describe(value)),
                key.kind.allowed(),
            );
            return None;
        };
        let shown = if form == Form::Text {
            format!("{text:?}")
        } else {
            text.clone()
        };
        Some(Scalar {
            text,
            shown,
            origin,
            form: (!untyped).then_some(form),
        })
    }

    // ## librdkafka's own keys

    /// Every key of a section whose keys are not ours, with its text; what is no scalar is refused.
    pub fn free_scalars(&self) -> Vec<(&'a str, String)> {
        let mut found = Vec::new();
        for (name, value) in self.dict.into_iter().flatten() {
            let path = child(&self.path, name);
            match scalar_text(value, self.reader.written.spelling(&path)) {
                Some((text, _)) => found.push((name.as_str(), text)),
                None => self.refuse(
                    name,
                    format!("is {}", describe(value)),
                    "a string, a number or true or false",
                ),
            }
        }
        found
    }

    /// Puts a value on the page that shows the effective configuration; `None`: the key says nothing.
    pub fn show(&self, name: &str, value: Option<serde_json::Value>, origin: Origin) {
        let entry = Entry {
            section: self.path.clone(),
            name: name.to_owned(),
            value,
            origin,
        };
        self.reader.entries.borrow_mut().push(entry);
    }

    // ## Values of one kind

    /// A whole number in its range.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.value(name, count)
    }

    /// A duration in its range.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        self.value(name, duration)
    }

    /// A ratio.
    pub fn ratio(&self, name: &str) -> Option<Ratio> {
        self.value(name, |text, _| values::ratio(text))
    }

    /// A weight.
    pub fn weight(&self, name: &str) -> Option<Weight> {
        self.value(name, |text, _| values::weight(text))
    }

    /// Yes or no.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.value(name, |text, _| text.parse().map_err(|_| Why::new()))
    }

    /// The name of a topic.
    pub fn topic(&self, name: &str) -> Option<String> {
        self.value(name, |text, _| values::topic(text))
    }

    /// One of several words.
    pub fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Option<T> {
        self.value(name, |text, _| pick(text, words))
    }
}

/// The meaning of a word.
pub fn pick<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Why> {
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, meaning)| *meaning)
        .ok_or_else(Why::new)
}

/// A whole number in the range of its kind.
pub fn count(text: &str, kind: Kind) -> Result<u64, Why> {
    match kind {
        Kind::Count(min, max) => values::count(text, min..=max),
        Kind::Size(min, max) => values::size(text, min..=max),
        other => unreachable!("{other:?} is not counted"),
    }
}

/// A duration in the range of its kind.
pub fn duration(text: &str, kind: Kind) -> Result<Duration, Why> {
    match kind {
        Kind::Duration(min, max) => values::duration(text, min..=max),
        other => unreachable!("{other:?} is no duration"),
    }
}

fn problem(shown: &str, why: &str) -> String {
    if why.is_empty() {
        format!("is {shown}")
    } else {
        format!("is {shown}: {why}")
    }
}

/// What a value is, without showing it.
fn describe(value: &Value) -> &'static str {
    match value {
        Value::String(..) => "a string",
        Value::Char(..) => "a character",
        Value::Bool(..) => "true or false",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a table",
        Value::Array(_, items) if items.is_empty() => "an empty list",
        Value::Array(..) => "a list",
    }
}

fn scalar_text(value: &Value, spelling: Option<&str>) -> Option<(String, Form)> {
    match value {
        Value::String(_, text) => Some((text.clone(), Form::Text)),
        Value::Bool(_, flag) => Some((flag.to_string(), Form::Flag)),
        Value::Num(_, number) => Some(number_text(*number, spelling)),
        _ => None,
    }
}

/// A float keeps the decimals that were written; only one with an exponent is spelt anew, as briefly as is exact.
fn number_text(number: Num, spelling: Option<&str>) -> (String, Form) {
    if let Some(integer) = number.to_i128() {
        return (integer.to_string(), Form::Integer);
    }
    let float = number.to_f64().unwrap_or(f64::NAN);
    let plain = spelling.filter(|text| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || b"+-._".contains(&byte))
    });
    (
        plain.map_or_else(|| float.to_string(), |text| text.replace('_', "")),
        Form::Decimal,
    )
}

fn fits(written: Form, wanted: Form) -> bool {
    match wanted {
        Form::Decimal => matches!(written, Form::Decimal | Form::Integer),
        Form::TextOrInteger => matches!(written, Form::Text | Form::Integer),
        _ => written == wanted,
    }
}

fn as_json(kind: Kind, text: &str) -> serde_json::Value {
    let number = || text.replace('_', "");
    match kind.form() {
        Form::Flag => json!(text == "true"),
        Form::Integer | Form::TextOrInteger => number()
            .parse::<u64>()
            .map_or_else(|_| json!(text), |n| json!(n)),
        Form::Decimal => number()
            .parse::<f64>()
            .map_or_else(|_| json!(text), |n| json!(n)),
        Form::Text | Form::List => json!(text),
    }
}
