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
pub(super) static LONG: LazyLock<String> = LazyLock::new(|| {
    let (version, librdkafka) = (env!("CARGO_PKG_VERSION"), watermaster_kafka::client_version());
    let features = watermaster_kafka::client_features();
    let has = |name: &str| features.split(',').any(|feature| feature == name);
    let mechanisms: Vec<&str> = MECHANISMS.iter().filter(|(name, _)| has(name)).map(|(_, text)| *text).collect();
    let oidc = if has("oidc") { " (with OIDC)" } else { "" };
    let mechanisms = mechanisms.join(", ").replace("OAUTHBEARER", &format!("OAUTHBEARER{oidc}"));
    let features = features.replace(',', ", ");
    let mechanisms = format!("{mechanisms}, tokens of AWS IAM");
    format!("{version}\nlibrdkafka {librdkafka}: {features}\nSASL: {mechanisms}\nschema registry: Avro, Protobuf")
});

#[cfg(test)]
mod tests {
    use super::LONG;

    #[test]
    fn the_version_lists_the_mechanisms_that_work() {
        assert!(LONG.contains("PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"), "{}", *LONG);
        assert_eq!(LONG.contains("GSSAPI"), cfg!(feature = "gssapi"), "{}", *LONG);
        assert_eq!(LONG.contains("(with OIDC)"), cfg!(feature = "oidc"), "{}", *LONG);
        assert!(LONG.contains("zstd") && LONG.contains("lz4"), "{}", *LONG);
    }
}
