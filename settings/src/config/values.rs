//! Parses the values of the configuration's own keys.

use std::time::SystemTime;

use strum::{EnumString, VariantNames};
use toml_edit::{Datetime, Offset};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::pace::Control;
use watermaster_core::policy::{CatchUp, Lending, Mode, Overflow, Scope, Window};
use watermaster_core::units::{LAST_MS, Ratio, Weight};

use crate::client_id::MAX_CLIENT_BYTES;
use crate::model::{
    ClientFrom, DeadLetterHeaders, Delivery, GroupProtocol, LogFormat, OnDataLoss, OnForeignOffset, OnUndeliverable,
    Role, SchemaFormat, StartFrom,
};
use crate::pattern::TopicPattern;
use crate::reader::{Choice, FromText, Kind, ValueError, because, decimal};

/// The longest name of a Kafka topic.
const MAX_TOPIC_CHARS: usize = 249;
/// The longest id of a consumer group that is of use: it is a label of a metric.
const MAX_GROUP_BYTES: usize = 255;
/// The longest name of a field.
const MAX_FIELD_CHARS: usize = 255;
/// The part of a seat's transactional id between the service's name and the instance id.
const SEAT_PREFIX: &str = "seat.";
/// The longest metadata of a commit that a broker takes by default.
const MAX_MAP_UNITS: usize = 4096;

/// The search for the capacity, as a rule sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RulePace {
    Observe,
}

/// The number that multiplies a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Scale {
    Weight,
}

macro_rules! choices {
    ($($type:ty),*) => { $(impl Choice for $type {})* };
}

choices!(Lending, Mode, Control, Scope, Window, CatchUp, Overflow, RulePace, Scale);
choices!(
    Delivery, GroupProtocol, StartFrom, OnForeignOffset, OnDataLoss, OnUndeliverable, DeadLetterHeaders, LogFormat,
    Role
);

impl FromText for Weight {
    fn from_text(text: &str, _: Kind) -> Result<Weight, ValueError> {
        weight(text)
    }
}

impl FromText for Ratio {
    fn from_text(text: &str, _: Kind) -> Result<Ratio, ValueError> {
        ratio(text)
    }
}

/// Parses a weight: 0.001 to 1 000 000 with at most three decimals.
pub fn weight(text: &str) -> Result<Weight, ValueError> {
    Weight::from_thousandths(decimal(text, 3)?).ok_or(ValueError::NotAllowed)
}

/// Parses a ratio: 0 to 1 with at most six decimals.
pub fn ratio(text: &str) -> Result<Ratio, ValueError> {
    let millionths = u32::try_from(decimal(text, 6)?).map_err(|_| ValueError::NotAllowed)?;
    Ratio::from_millionths(millionths).ok_or(ValueError::NotAllowed)
}

/// Parses the room for an offset map: `4096 chars` or `4096 bytes`.
pub fn map_budget(text: &str) -> Result<MapBudget, ValueError> {
    let (number, unit) = text.split_once(' ').ok_or_else(|| because("a number and a unit are needed"))?;
    let number: usize = number.parse().map_err(|_| ValueError::NotAllowed)?;
    if !(64..=MAX_MAP_UNITS).contains(&number) {
        return Err(ValueError::NotAllowed);
    }
    match unit.trim() {
        "chars" => Ok(MapBudget::Chars(number)),
        "bytes" => Ok(MapBudget::Bytes(number)),
        other => Err(because(format_args!("{other:?} is neither chars nor bytes"))),
    }
}

pub fn client_from(text: &str) -> Result<ClientFrom, ValueError> {
    match text.split_once(':') {
        None if text == "key" => Ok(ClientFrom::Key),
        None if text == "topic" => Ok(ClientFrom::Topic),
        Some(("key", pattern)) => Ok(ClientFrom::KeyPart(pattern.parse()?)),
        Some(("header", text)) => header(text),
        Some(("json", pointer)) => {
            let tokens = pointer.strip_prefix('/').ok_or_else(|| because("a JSON pointer begins with /"))?;
            Ok(ClientFrom::Json(tokens.split('/').map(pointer_token).collect::<Result<_, _>>()?))
        }
        Some(("avro", path)) => Ok(ClientFrom::Schema(SchemaFormat::Avro, fields(path)?)),
        Some(("protobuf", path)) => Ok(ClientFrom::Schema(SchemaFormat::Protobuf, fields(path)?)),
        _ => Err(ValueError::NotAllowed),
    }
}

/// Parses a path of fields, such as `/client/id`.
fn fields(path: &str) -> Result<Vec<String>, ValueError> {
    let names = path.strip_prefix('/').ok_or_else(|| because("a path of fields begins with /"))?.split('/');
    let names = names.map(|field| match field.chars().next() {
        Some(digit) if digit.is_ascii_digit() => Err(not_allowed(digit)),
        _ => name(field, MAX_FIELD_CHARS, "_"),
    });
    names.collect()
}

/// Parses `NAME` or `NAME:PATTERN`. A name may have colons: a pattern begins at the first colon with a `^` behind it.
fn header(text: &str) -> Result<ClientFrom, ValueError> {
    let (name, pattern) = text.find(":^").map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    match pattern {
        _ if name.is_empty() => Err(because("the header's name is missing")),
        Some(pattern) => Ok(ClientFrom::HeaderPart(name.to_owned(), pattern.parse()?)),
        None => Ok(ClientFrom::Header(name.to_owned())),
    }
}

/// Unescapes a token of a JSON pointer (RFC 6901).
fn pointer_token(token: &str) -> Result<String, ValueError> {
    let mut parts = token.split('~');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (escaped, rest) = match part.as_bytes().first() {
            Some(b'0') => ('~', &part[1..]),
            Some(b'1') => ('/', &part[1..]),
            _ => return Err(because("in a JSON pointer ~ is written ~0 and / is written ~1")),
        };
        plain.push(escaped);
        plain.push_str(rest);
    }
    Ok(plain)
}

pub fn topic(text: &str) -> Result<String, ValueError> {
    if text == "." || text == ".." {
        Err(because("Kafka reserves this name"))
    } else {
        name(text, MAX_TOPIC_CHARS, "._-")
    }
}

/// Parses a regular expression for names of topics.
pub fn topic_pattern(text: &str) -> Result<TopicPattern, ValueError> {
    if text.is_empty() {
        return Err(because("empty"));
    }
    // The other lines of the error show the place in the pattern.
    let reason = |error: regex::Error| error.to_string().lines().last().unwrap_or_default().to_owned();
    TopicPattern::new(text).map_err(|error| because(reason(error)))
}

pub fn service_name(text: &str) -> Result<String, ValueError> {
    name(text, 64, "_-")
}

pub fn group_id(text: &str) -> Result<String, ValueError> {
    name(text, 100, "._-")
}

pub fn instance_id(text: &str) -> Result<String, ValueError> {
    if text.starts_with(SEAT_PREFIX) {
        Err(because(format_args!("{SEAT_PREFIX:?} begins the names of seats")))
    } else {
        name(text, 128, "._-")
    }
}

fn not_allowed(letter: char) -> ValueError {
    because(format_args!("{letter:?} is not allowed"))
}

/// Parses a name of at most `longest` characters out of letters, digits and `also`.
fn name(text: &str, longest: usize, also: &str) -> Result<String, ValueError> {
    if text.is_empty() {
        return Err(because("empty"));
    }
    if text.len() > longest {
        return Err(because(format_args!("{} characters long", text.chars().count())));
    }
    match text.chars().find(|&c| !c.is_ascii_alphanumeric() && !also.contains(c)) {
        Some(c) => Err(not_allowed(c)),
        None => Ok(text.to_owned()),
    }
}

pub fn consumer_group(text: &str) -> Result<String, ValueError> {
    within(text, MAX_GROUP_BYTES)
}

pub fn client(text: &str) -> Result<String, ValueError> {
    within(text, MAX_CLIENT_BYTES)
}

/// Parses the name of a rule. Those of tables have a prefix.
pub fn rule_name(text: &str) -> Result<String, ValueError> {
    let name = name(text, 64, "._-")?;
    let of_table = ["client.", "group."].into_iter().find(|prefix| name.starts_with(prefix));
    match (of_table, name.chars().find(char::is_ascii_uppercase)) {
        _ if ["changes", "accept-loss"].contains(&name.as_str()) => Err(because("the API has this name for itself")),
        _ if [".", ".."].contains(&name.as_str()) => Err(because("a URL cannot end in it")),
        (Some(prefix), _) => Err(because(format_args!("{prefix}… is a table's name"))),
        (None, Some(upper)) => Err(not_allowed(upper)),
        (None, None) => Ok(name),
    }
}

/// Parses a date and a time with an offset, in milliseconds since the Unix epoch.
pub fn moment(text: &str) -> Result<i64, ValueError> {
    let ms = || {
        let Datetime { date, time, offset } = text.parse().ok()?;
        let (date, time, offset) = (date?, time?, offset?);
        let utc = format!("{date}T{:02}:{:02}:{:02}Z", time.hour, time.minute, time.second.unwrap_or_default());
        let utc = humantime::parse_rfc3339(&utc).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let ahead = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes) * 60_000,
        };
        let ms = utc.as_secs() as i64 * 1_000 + i64::from(time.nanosecond.unwrap_or_default() / 1_000_000) - ahead;
        Some(ms).filter(|ms| (0..=LAST_MS).contains(ms))
    };
    ms().ok_or_else(|| because("a time without a date or an offset, or none at all"))
}

/// Parses any text of at most `longest` bytes.
pub fn within(text: &str, longest: usize) -> Result<String, ValueError> {
    match text.len() {
        0 => Err(because("empty")),
        bytes if bytes > longest => Err(because(format_args!("{bytes} bytes long"))),
        _ => Ok(text.to_owned()),
    }
}

/// Parses the addresses of brokers, separated by commas.
pub fn servers(text: &str) -> Result<String, ValueError> {
    if text.contains('@') {
        // librdkafka takes the user for a part of the host's name, and its logs name hosts.
        return Err(because("an address of a broker holds no user: \"sasl.username\" is one of kafka.properties"));
    }
    text.split(',').try_for_each(|server| check_address(server.trim()))?;
    Ok(text.to_owned())
}

/// Parses the URL of a schema registry. Its path is that of the registry's API, without a query.
pub fn registry_url(text: &str) -> Result<String, ValueError> {
    if text.contains('@') {
        return Err(because("an address holds no user: kafka.schema_registry.username has it"));
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let rest = rest.ok_or_else(|| because("the scheme is neither http nor https"))?;
    if let Some(wrong) = text.chars().find(|letter| letter.is_whitespace() || ['?', '#', ','].contains(letter)) {
        return Err(not_allowed(wrong));
    }
    check_address(rest.split('/').next().unwrap_or_default())?;
    Ok(text.to_owned())
}

/// Parses the user of a schema registry. In the header that carries it, a colon ends it.
pub fn registry_user(text: &str) -> Result<String, ValueError> {
    if text.contains(':') { Err(not_allowed(':')) } else { within(text, MAX_GROUP_BYTES) }
}

fn check_address(server: &str) -> Result<(), ValueError> {
    let address = server.split_once("://").map_or(server, |(_, address)| address);
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (address, None),
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(because(format_args!("{server:?} names no host")));
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => Err(because(format_args!("{server:?} has no valid port"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_exact_and_bounded() {
        let thousandths = |text| weight(text).map(Weight::thousandths);
        assert_eq!(thousandths("2.3"), Ok(2_300));
        assert_eq!(thousandths("0.001"), Ok(1));
        assert_eq!(thousandths("1_000_000"), Ok(1_000_000_000));
        assert_eq!(thousandths("1.5000000000"), Ok(1_500), "trailing zeros do not count");
        for wrong in ["0", "0.0001", "1000000.001", "-1", "1e3", "nan", "inf", ".5", "", "1.0.0", "٣"] {
            assert!(thousandths(wrong).is_err(), "{wrong}");
        }
        let millionths = |text| ratio(text).map(Ratio::millionths);
        assert_eq!(millionths("0.000001"), Ok(1));
        assert_eq!(millionths("1"), Ok(1_000_000));
        assert!(millionths("1.000001").is_err());
        assert!(millionths("0.1000000000000000055").is_err(), "a float would round the number");
        assert!(millionths("99999999999999999999").is_err());
    }

    #[test]
    fn pointers_are_unescaped_in_one_pass() {
        let tokens = |text| match client_from(text).unwrap() {
            ClientFrom::Json(tokens) => tokens.join("|"),
            other => format!("{other:?}"),
        };
        assert_eq!(tokens("json:/a/b~1c/d~0e"), "a|b/c|d~e");
        assert_eq!(tokens("json:/~01"), "~1");
        assert_eq!(tokens("json:/"), "");
        assert_eq!(tokens("header:x:y"), "Header(\"x:y\")");
        let wrong = ["json:", "json:a", "json:/~2", "json:/a~", "header:", "header::^(a)", "body", "Key", "key:", ""];
        for wrong in wrong.iter().chain(&["key:(a)", "key:^a", "header:x:^(a", "topic:^(a)"]) {
            assert!(client_from(wrong).is_err(), "{wrong}");
        }
    }

    fn place() -> impl Strategy<Value = ClientFrom> {
        let name = || "\\PC{1,12}|[a:^(]{1,6}".prop_filter("ends the name", |name| !name.contains(":^"));
        let pattern =
            || "\\^(a|:\\^|\\[\\^:\\]\\+){0,3}\\([a-z:/]{0,4}\\)[:$]{0,2}".prop_map(|text| text.parse().unwrap());
        prop_oneof![
            name().prop_map(ClientFrom::Header),
            (name(), pattern()).prop_map(|(name, pattern)| ClientFrom::HeaderPart(name, pattern)),
            prop::collection::vec("\\PC{0,8}|[~/:^01]{0,6}", 1..4).prop_map(ClientFrom::Json),
            prop::collection::vec("[A-Za-z_][A-Za-z0-9_]{0,8}", 1..4)
                .prop_map(|path| ClientFrom::Schema(SchemaFormat::Avro, path)),
            Just(ClientFrom::Key),
            pattern().prop_map(ClientFrom::KeyPart),
            Just(ClientFrom::Topic),
        ]
    }

    fn printed(place: &ClientFrom) -> String {
        match place {
            ClientFrom::Header(name) => format!("header:{name}"),
            ClientFrom::HeaderPart(name, pattern) => format!("header:{name}:{}", pattern.as_str()),
            ClientFrom::Json(tokens) => {
                let tokens = tokens.iter().map(|token| token.replace('~', "~0").replace('/', "~1"));
                tokens.fold("json:".to_owned(), |text, token| text + "/" + &token)
            }
            ClientFrom::Schema(format, path) => format!("{format}:/{}", path.join("/")),
            ClientFrom::Key => "key".to_owned(),
            ClientFrom::KeyPart(pattern) => format!("key:{}", pattern.as_str()),
            ClientFrom::Topic => "topic".to_owned(),
        }
    }

    proptest! {
        #[test]
        fn a_printed_place_is_the_place(place in place()) {
            prop_assert_eq!(client_from(&printed(&place)).unwrap(), place);
        }
    }

    #[test]
    fn servers_need_a_host_and_a_port_that_exists() {
        for right in ["localhost:9092", "a,b:1", "SSL://a:9093, b:9093", "[::1]:9092", "[::1]"] {
            assert!(servers(right).is_ok(), "{right}");
        }
        for wrong in ["", "a,,b", ":9092", "a:0", "a:70000", "a:b", "a b:1"] {
            assert!(servers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_of_fields_has_names_that_both_formats_take() {
        let path = ClientFrom::Schema(SchemaFormat::Protobuf, vec!["client".to_owned(), "id_2".to_owned()]);
        assert_eq!(client_from("protobuf:/client/id_2").unwrap(), path);
        for wrong in ["avro", "avro:", "avro:/", "avro:id", "avro:/a//b", "avro:/a/", "avro:/0", "avro:/a.b", "xml:/a"]
        {
            assert!(client_from(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_registry_has_an_http_url_without_a_user() {
        for right in
            ["http://localhost:8081", "https://registry.example", "https://r:443/apis/ccompat/v7", "http://[::1]:1/"]
        {
            assert_eq!(registry_url(right).unwrap(), right);
        }
        for wrong in [
            "", "registry:8081", "ftp://r", "http://", "http://a:0", "http://u:p@r", "http://a,http://b", "http://a/?b",
        ] {
            assert!(registry_url(wrong).is_err(), "{wrong}");
        }
        assert!(registry_user("a:b").is_err() && registry_user("").is_err() && registry_user("a").is_ok());
    }

    #[test]
    fn budgets_name_their_unit() {
        assert_eq!(map_budget("4096 chars").unwrap(), MapBudget::Chars(4096));
        assert_eq!(map_budget("512 bytes").unwrap(), MapBudget::Bytes(512));
        for wrong in ["4096", "4097 chars", "0 bytes", "512 words", "chars"] {
            assert!(map_budget(wrong).is_err(), "{wrong}");
        }
    }
}
