//! One value at a time: from the text that was written to what it means.
//!
//! Each function takes the text and answers with the value, or with why not (a clause that follows "is …: ").
//! Nothing here passes through a float, so a weight of `2.3` is 2 300 thousandths on every machine.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use watermaster_core::offset_map::MapBudget;
use watermaster_core::units::{Ratio, Weight};

use crate::settings::ClientFrom;

/// The longest client id, in bytes.
pub const MAX_CLIENT_BYTES: usize = 128;
/// The longest name of a Kafka topic.
const MAX_TOPIC_CHARS: usize = 249;
/// What one partition's commit metadata may hold on a broker as it is shipped.
pub const MAX_MAP_UNITS: usize = 4096;

/// Why a text is not a value; empty where the range says it all.
pub type Why = String;

/// A decimal as an integer count of 10^-`places`: `decimal("0.1", 3)` is 100.
fn decimal(text: &str, places: usize) -> Result<u64, Why> {
    let text = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return Err("not a plain decimal number".to_owned());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > places {
        return Err(format!("more than {places} decimals"));
    }
    format!("{whole}{fraction:0<places$}").parse().map_err(|_| Why::new())
}

/// A weight, 0.001 to 1 000 000 with at most three decimals.
pub fn weight(text: &str) -> Result<Weight, Why> {
    Weight::from_thousandths(decimal(text, 3)?).ok_or_else(Why::new)
}

/// A ratio, 0 to 1 with at most six decimals.
pub fn ratio(text: &str) -> Result<Ratio, Why> {
    let millionths = u32::try_from(decimal(text, 6)?).map_err(|_| Why::new())?;
    Ratio::from_millionths(millionths).ok_or_else(Why::new)
}

/// A whole number.
pub fn count(text: &str, range: RangeInclusive<u64>) -> Result<u64, Why> {
    let number = text.replace('_', "").parse().map_err(|_| Why::new())?;
    if range.contains(&number) { Ok(number) } else { Err(Why::new()) }
}

/// A duration with its unit.
pub fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, Why> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if range.contains(&duration) { Ok(duration) } else { Err(Why::new()) }
}

/// A size in bytes, with a unit of 1000 (`MB`) or 1024 (`MiB`) or none.
pub fn size(text: &str, range: RangeInclusive<u64>) -> Result<u64, Why> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let number: u64 = text[..end].replace('_', "").parse().map_err(|_| Why::new())?;
    let unit = match text[end..].trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => return Err(format!("{other:?} is no unit of size")),
    };
    let bytes = number.checked_mul(unit).ok_or_else(Why::new)?;
    if range.contains(&bytes) { Ok(bytes) } else { Err(Why::new()) }
}

/// Room for the map: `4096 chars` or `4096 bytes`.
pub fn map_budget(text: &str) -> Result<MapBudget, Why> {
    let (number, unit) = text.split_once(' ').ok_or("a number and a unit are needed")?;
    let number: usize = number.parse().map_err(|_| Why::new())?;
    if !(64..=MAX_MAP_UNITS).contains(&number) {
        return Err(Why::new());
    }
    match unit.trim() {
        "chars" => Ok(MapBudget::Chars(number)),
        "bytes" => Ok(MapBudget::Bytes(number)),
        other => Err(format!("{other:?} is neither chars nor bytes")),
    }
}

/// An address to listen on.
pub fn listen(text: &str) -> Result<SocketAddr, Why> {
    text.parse().map_err(|_| Why::new())
}

/// A place where a client id is found.
pub fn client_from(text: &str) -> Result<ClientFrom, Why> {
    match text.split_once(':') {
        None if text == "key" => Ok(ClientFrom::Key),
        None if text == "topic" => Ok(ClientFrom::Topic),
        Some(("header", "")) => Err("the header's name is missing".to_owned()),
        Some(("header", name)) => Ok(ClientFrom::Header(name.to_owned())),
        Some(("json", pointer)) => json_pointer(pointer).map(ClientFrom::Json),
        _ => Err(Why::new()),
    }
}

/// The unescaped tokens of a JSON pointer (RFC 6901).
fn json_pointer(pointer: &str) -> Result<Vec<String>, Why> {
    let tokens = pointer.strip_prefix('/').ok_or("a JSON pointer begins with /")?;
    tokens.split('/').map(pointer_token).collect()
}

fn pointer_token(token: &str) -> Result<String, Why> {
    let mut parts = token.split('~');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (escaped, rest) = match part.as_bytes().first() {
            Some(b'0') => ('~', &part[1..]),
            Some(b'1') => ('/', &part[1..]),
            _ => return Err("in a JSON pointer ~ is written ~0 and / is written ~1".to_owned()),
        };
        plain.push(escaped);
        plain.push_str(rest);
    }
    Ok(plain)
}

/// The name of a Kafka topic.
pub fn topic(text: &str) -> Result<String, Why> {
    if text == "." || text == ".." {
        return Err("Kafka reserves this name".to_owned());
    }
    name(text, MAX_TOPIC_CHARS, "._-")
}

/// A name of at most `longest` characters out of letters, digits and `also`.
pub fn name(text: &str, longest: usize, also: &str) -> Result<String, Why> {
    if text.is_empty() {
        return Err("empty".to_owned());
    }
    if text.len() > longest {
        return Err(format!("{} characters long", text.chars().count()));
    }
    match text.chars().find(|&c| !c.is_ascii_alphanumeric() && !also.contains(c)) {
        Some(c) => Err(format!("{c:?} is not allowed")),
        None => Ok(text.to_owned()),
    }
}

/// A client's id.
pub fn client(text: &str) -> Result<String, Why> {
    match text.len() {
        0 => Err("empty".to_owned()),
        1..=MAX_CLIENT_BYTES => Ok(text.to_owned()),
        bytes => Err(format!("{bytes} bytes long")),
    }
}

/// Brokers, separated by commas.
pub fn servers(text: &str) -> Result<String, Why> {
    // librdkafka takes it for a part of the host's name, and names hosts in its logs.
    if text.contains('@') {
        return Err("an address of a broker holds no user: \"sasl.username\" is one of kafka.properties".to_owned());
    }
    for server in text.split(',') {
        server_address(server.trim())?;
    }
    Ok(text.to_owned())
}

fn server_address(server: &str) -> Result<(), Why> {
    let address = server.split_once("://").map_or(server, |(_, address)| address);
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (address, None),
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(format!("{server:?} names no host"));
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => Err(format!("{server:?} has no valid port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_bounded() {
        let thousandths = |text| weight(text).map(Weight::thousandths);
        assert_eq!(thousandths("2.3"), Ok(2_300));
        assert_eq!(thousandths("0.001"), Ok(1));
        assert_eq!(thousandths("1_000_000"), Ok(1_000_000_000));
        assert_eq!(thousandths("1.5000000000"), Ok(1_500), "zeros at the end say nothing");
        for wrong in ["0", "0.0001", "1000000.001", "-1", "1e3", "nan", "inf", ".5", "", "1.0.0", "٣"] {
            assert!(thousandths(wrong).is_err(), "{wrong}");
        }
        let millionths = |text| ratio(text).map(Ratio::millionths);
        assert_eq!(millionths("0.000001"), Ok(1));
        assert_eq!(millionths("1"), Ok(1_000_000));
        assert!(millionths("1.000001").is_err());
        assert!(millionths("0.1000000000000000055").is_err(), "a float would have swallowed it");
        assert!(millionths("99999999999999999999").is_err());
    }

    #[test]
    fn sizes_have_units() {
        let bytes = |text| size(text, 1..=u64::MAX);
        assert_eq!(bytes("256MiB"), Ok(268_435_456));
        assert_eq!(bytes("16 MB"), Ok(16_000_000));
        assert_eq!(bytes("1024"), Ok(1024));
        for wrong in ["", "MiB", "1.5GiB", "10mb", "99999999999TiB", "-1", "0"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pointers_are_unescaped_in_one_pass() {
        let tokens = |text| {
            client_from(text).map(|from| match from {
                ClientFrom::Json(tokens) => tokens.join("|"),
                other => format!("{other:?}"),
            })
        };
        assert_eq!(tokens("json:/a/b~1c/d~0e"), Ok("a|b/c|d~e".to_owned()));
        assert_eq!(tokens("json:/~01"), Ok("~1".to_owned()));
        assert_eq!(tokens("json:/"), Ok(String::new()));
        assert_eq!(tokens("header:x:y"), Ok("Header(\"x:y\")".to_owned()));
        for wrong in ["json:", "json:a", "json:/~2", "json:/a~", "header:", "body", "Key", "key:", ""] {
            assert!(tokens(wrong).is_err(), "{wrong}");
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
    fn budgets_name_their_unit() {
        assert_eq!(map_budget("4096 chars"), Ok(MapBudget::Chars(4096)));
        assert_eq!(map_budget("512 bytes"), Ok(MapBudget::Bytes(512)));
        for wrong in ["4096", "4097 chars", "0 bytes", "512 words", "chars"] {
            assert!(map_budget(wrong).is_err(), "{wrong}");
        }
    }
}
