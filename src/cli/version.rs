//! The text of `--version`.

use std::sync::LazyLock;

/// The SASL mechanisms by the feature of librdkafka that has them.
const MECHANISMS: &[(&str, &str)] = &[
    ("sasl_plain", "PLAIN"),
    ("sasl_scram", "SCRAM-SHA-256, SCRAM-SHA-512"),
    ("sasl_oauthbearer", "OAUTHBEARER"),
    ("sasl_gssapi", "GSSAPI"),
];

/// The version, and what this build can use of librdkafka.
pub(super) static LONG: LazyLock<String> = LazyLock::new(long);

fn long() -> String {
    let (version, librdkafka) = (env!("CARGO_PKG_VERSION"), watermaster_kafka::client_version());
    let features = watermaster_kafka::client_features();
    let has = |name: &str| features.split(',').any(|feature| feature == name);
    let mechanisms: Vec<&str> = MECHANISMS.iter().filter(|(name, _)| has(name)).map(|(_, text)| *text).collect();
    let oidc = if has("oidc") { " (with OIDC)" } else { "" };
    let mechanisms = mechanisms.join(", ").replace("OAUTHBEARER", &format!("OAUTHBEARER{oidc}"));
    format!("{version}\nlibrdkafka {librdkafka}: {}\nSASL: {mechanisms}", features.replace(',', ", "))
}
