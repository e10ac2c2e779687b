//! The librdkafka properties with values that may be shown: in `/v1/config`, in `watermaster config`, in logs and in
//! errors.
//!
//! The list names the harmless properties and hides all others, so that a property which a later librdkafka brings, or
//! one that is misspelt, is hidden until it is added here. Three kinds are harmless: properties that take only numbers
//! or words of librdkafka's own, which leaves no room for a secret; names under which this program is known to the
//! brokers anyway; and paths of public files. Everything that proves an identity is hidden, and so are parts of such a
//! proof (a user name, a client id of an OAuth server), commands, and addresses, which may hold a password.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::reader::HIDDEN;

/// The harmless properties by category: the reason, then the properties.
const HARMLESS: &[(&str, &str)] = &[
    (
        "names and versions that the brokers are told, and topics that are left out",
        "broker.version.fallback client.id client.rack group.id group.instance.id group.protocol.type \
         group.remote.assignor partition.assignment.strategy partitioner topic.blacklist transactional.id",
    ),
    (
        "the kind of security: protocols, algorithms, switches",
        "enable.ssl.certificate.verification sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name \
         sasl.mechanism sasl.mechanisms sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type \
         sasl.oauthbearer.method security.protocol ssl.ca.certificate.stores ssl.cipher.suites ssl.curves.list \
         ssl.endpoint.identification.algorithm ssl.providers ssl.sigalgs.list",
    ),
    (
        "paths of files that are public: certificates, and lists of revoked ones",
        "https.ca.location ssl.ca.location ssl.certificate.location ssl.crl.location",
    ),
    (
        "connections and metadata: numbers, switches, librdkafka's own words",
        "allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms \
         broker.address.family broker.address.ttl client.dns.lookup connections.max.idle.ms max.in.flight \
         max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes metadata.max.age.ms \
         metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy receive.message.max.bytes \
         reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms \
         retry.backoff.ms socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable \
         socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes \
         socket.timeout.ms topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt \
         topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse",
    ),
    (
        "consuming: numbers, switches, librdkafka's own words",
        "auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs consume.callback.max.messages \
         coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof \
         fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms \
         fetch.wait.max.ms group.protocol heartbeat.interval.ms isolation.level max.partition.fetch.bytes \
         max.poll.interval.ms offset.store.method offset.store.sync.interval.ms queued.max.messages.kbytes \
         queued.min.messages session.timeout.ms",
    ),
    (
        "producing: numbers, switches, librdkafka's own words",
        "acks batch.num.messages batch.size compression.codec compression.level compression.type \
         delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee enable.idempotence linger.ms \
         message.send.max.retries message.timeout.ms produce.offset.report queue.buffering.backpressure.threshold \
         queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms queuing.strategy \
         request.required.acks request.timeout.ms retries sticky.partitioning.linger.ms transaction.timeout.ms",
    ),
    (
        "logs and statistics: numbers, switches, librdkafka's own words",
        "builtin.features debug enable.metrics.push enable.random.seed enabled_events internal.termination.signal \
         log.connection.close log.queue log.thread.name log_level statistics.interval.ms",
    ),
];

/// Properties that name a file in PEM, each with the one that takes its text. The program reads the text with the
/// configuration and checks it, so a file that is broken later does no harm to the clients that are made then.
pub const PEM_FILES: [(&str, &str); 3] = [
    ("ssl.ca.location", "ssl.ca.pem"),
    ("ssl.certificate.location", "ssl.certificate.pem"),
    ("ssl.key.location", "ssl.key.pem"),
];

/// Properties that name a file which librdkafka reads when it makes a client, beside [`PEM_FILES`].
const FILES_OF_CLIENTS: [&str; 2] = ["ssl.crl.location", "ssl.keystore.location"];

/// Properties that name a file which is read at each use, such as for the next token.
const FILES_OF_USES: [&str; 5] = [
    "https.ca.location", "sasl.kerberos.keytab", "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file", "sasl.oauthbearer.assertion.private.key.file",
];

/// Returns whether the value of a property is the path of a file.
pub fn names_file(property: &str) -> bool {
    needs_clients(property) || FILES_OF_USES.contains(&property)
}

/// Returns whether only clients that are made anew take another content of the file that a property names.
pub fn needs_clients(property: &str) -> bool {
    PEM_FILES.iter().any(|(location, _)| *location == property) || FILES_OF_CLIENTS.contains(&property)
}

/// Properties that are not harmless, and are often set.
const OFTEN_SET: &[&str] = &[
    "sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config", "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url", "sasl.password",
    "sasl.username", "ssl.ca.pem", "ssl.certificate.pem", "ssl.key.location", "ssl.key.password", "ssl.key.pem",
];

/// Returns names of librdkafka's properties, to suggest one in place of an unknown one.
pub fn names() -> impl Iterator<Item = &'static str> {
    HARMLESS.iter().flat_map(|(_, properties)| properties.split_whitespace()).chain(OFTEN_SET.iter().copied())
}

/// Returns whether the value of a librdkafka property may be shown.
pub fn is_harmless(property: &str) -> bool {
    HARMLESS.iter().any(|(_, properties)| properties.split(' ').any(|listed| listed == property))
}

/// Returns the value of a librdkafka property as it may be shown.
pub fn shown<'a>(property: &str, value: &'a str) -> &'a str {
    if is_harmless(property) && !has_user_info(value) { value } else { HIDDEN }
}

/// A value with fewer bytes is hidden only where it stands alone: the user `kafka` must not hide a part of
/// `librdkafka`.
const MIN_BYTES_WITHIN_WORDS: usize = 8;

/// Returns a text without the values of these properties that may be secret.
pub fn redact(properties: &BTreeMap<String, String>, text: &str) -> String {
    let is_hidden = |(name, value): &(&String, &String)| !value.is_empty() && shown(name, value) == HIDDEN;
    let mut values: Vec<&str> = properties.iter().filter(is_hidden).map(|(_, value)| value.as_str()).collect();
    // One value may be a part of another.
    values.sort_by_key(|value| Reverse(value.len()));
    values.into_iter().fold(text.to_owned(), |text, value| hide(&text, value))
}

fn hide(text: &str, value: &str) -> String {
    let mut hidden = String::new();
    let mut rest = 0;
    for (at, found) in text.match_indices(value) {
        let end = at + found.len();
        let goes_on = text[..at].ends_with(char::is_alphanumeric) || text[end..].starts_with(char::is_alphanumeric);
        if value.len() >= MIN_BYTES_WITHIN_WORDS || !goes_on {
            hidden += &text[rest..at];
            hidden += HIDDEN;
            rest = end;
        }
    }
    hidden + &text[rest..]
}

/// Returns whether a value holds an address with a user, `https://user:password@host`. No harmless property has one.
fn has_user_info(value: &str) -> bool {
    value.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_short_secret_is_hidden_where_it_stands_alone() {
        let properties = [("sasl.username", "kafka"), ("sasl.password", "long enough")];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        for (text, expected) in [
            ("librdkafka says: user=kafka", "librdkafka says: user=(redacted)"),
            ("kafka, kafkas, \"kafka\"", "(redacted), kafkas, \"(redacted)\""),
            ("xlong enoughx", "x(redacted)x"),
        ] {
            assert_eq!(redact(&properties, text), expected);
        }
    }

    /// A property in librdkafka's CONFIGURATION.md.
    struct Described {
        name: String,
        kind: String,
        /// The description without the names of other properties (in backquotes).
        text: String,
    }

    /// Returns the properties of the librdkafka that this program is built with.
    fn described() -> Vec<Described> {
        let said = |program: &str, arguments: &[&str]| Command::new(program).args(arguments).output().unwrap().stdout;
        // Packages of other platforms may be missing.
        let rustc = String::from_utf8(said("rustc", &["-vV"])).unwrap();
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let arguments = ["metadata", "--format-version", "1", "--offline", "--filter-platform", host];
        let metadata: serde_json::Value = serde_json::from_slice(&said(env!("CARGO"), &arguments)).unwrap();
        let mut packages = metadata["packages"].as_array().unwrap().iter();
        let package = packages.find(|package| package["name"] == "rdkafka-sys").unwrap();
        let manifest = std::path::Path::new(package["manifest_path"].as_str().unwrap());
        let page = std::fs::read_to_string(manifest.with_file_name("librdkafka/CONFIGURATION.md")).unwrap();
        page.lines().filter_map(row).collect()
    }

    fn row(line: &str) -> Option<Described> {
        let mut columns = line.splitn(6, '|');
        let name = columns.next()?.trim().to_owned();
        let (text, kind) = columns.nth(4)?.split_once("*Type: ")?;
        let kind = kind.trim().trim_end_matches('*').to_owned();
        let text = text.split('`').step_by(2).collect::<String>().to_lowercase();
        Some(Described { name, kind, text })
    }

    /// Returns whether the name or the description of a property suggests a secret.
    fn suggests_a_secret(property: &Described) -> bool {
        const NAMES: [&str; 13] = [
            "password", "passphrase", "secret", "pem", "key", "cmd", "config", "token", "extensions", "jaas",
            "assertion", "credential", "username",
        ];
        const TEXTS: [&str; 7] = ["password", "passphrase", "secret", "private key", "credential", "token", "username"];
        // A number or an enumerated value is no secret, even if the description mentions one.
        let is_free = property.kind == "string" || property.kind == "pattern list";
        NAMES.iter().any(|word| property.name.contains(word))
            || (is_free && TEXTS.iter().any(|word| property.text.contains(word)))
    }

    #[test]
    fn no_property_that_suggests_a_secret_is_shown() {
        let all = described();
        assert!(all.len() > 150, "{} properties are found", all.len());
        let shown: Vec<_> = all.iter().filter(|each| suggests_a_secret(each) && is_harmless(&each.name)).collect();
        assert!(shown.is_empty(), "{:?}", shown.iter().map(|each| &each.name).collect::<Vec<_>>());
        for hidden in ["sasl.password", "sasl.kerberos.kinit.cmd", "sasl.oauthbearer.extensions", "ssl.key.location"] {
            assert!(all.iter().any(|each| each.name == hidden) && !is_harmless(hidden), "{hidden}");
        }
    }

    #[test]
    fn the_list_names_properties_of_librdkafka_once_each() {
        let known: Vec<_> = described().into_iter().map(|each| each.name).collect();
        let mut listed: Vec<_> = HARMLESS.iter().flat_map(|(_, properties)| properties.split(' ')).collect();
        let unknown: Vec<_> = listed.iter().filter(|name| !known.iter().any(|other| other == **name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let count = listed.len();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), count, "a property is listed twice");
    }

    #[test]
    fn every_property_that_names_a_file_is_followed() {
        // The path of a library, of a folder for offsets, and a command are no secrets that are renewed.
        let others = ["ssl.engine.location", "offset.store.path", "plugin.library.paths"];
        let is_path = |name: &str| {
            ["location", "file", "keytab", "path", "paths"].contains(&name.rsplit('.').next().unwrap_or_default())
        };
        let all: Vec<_> = described().into_iter().map(|each| each.name).filter(|name| is_path(name)).collect();
        assert!(all.len() > 10, "{all:?}");
        for name in all {
            assert_ne!(names_file(&name), others.contains(&&*name), "{name}");
        }
    }

    #[test]
    fn a_property_that_librdkafka_does_not_know_is_hidden() {
        assert_eq!(shown("sasl.pasword", "hush"), HIDDEN);
        assert_eq!(shown("socket.timeout.ms", "5000"), "5000");
    }

    #[test]
    fn a_text_shows_no_value_that_may_be_secret() {
        let properties =
            [("sasl.username", "wm"), ("sasl.password", "wm-hush"), ("ssl.key.pem", ""), ("client.id", "wm-1")];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(redact(&properties, "user wm, wm-hush: failed"), "user (redacted), (redacted): failed");
        assert_eq!(redact(&properties, "nothing"), "nothing");
    }

    #[test]
    fn a_harmless_property_does_not_show_credentials_in_an_address() {
        for value in ["https://user:pass@host/path", "https://user:p@ss/w?rd@host:1"] {
            assert_eq!(shown("client.id", value), HIDDEN);
            assert_eq!(shown("sasl.oauthbearer.token.endpoint.url", value), HIDDEN);
        }
        assert_eq!(shown("client.id", "team@host"), "team@host");
    }
}
