//! The rules of librdkafka for its properties, without a broker: it checks each one, and clients that are made with all
//! of them say whether they fit together.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::producer::BaseProducer;
use rdkafka::types::RDKafkaConfRes;
use watermaster_settings::config::{ClientRefused, PropertyRefused, PropertyRules};
use watermaster_settings::properties::{self, PEM_FILES};
use watermaster_settings::{Kafka, Settings};

use crate::client::{LoggingContext, silence};
use crate::oauth::missing_tokens;
use crate::{consumer, producer, producer::DEFAULT_BATCH_BYTES};

/// The text of librdkafka before the feature that this build lacks.
const UNSUPPORTED: &str = "not supported in this build: ";

/// The rules of this librdkafka for its own properties.
pub const PROPERTY_RULES: PropertyRules =
    PropertyRules { version: crate::client_version, check: check_property, clients: check_clients };

/// Checks that librdkafka knows a property and takes a value for it.
///
/// librdkafka's text about a value may show the value, so it is left out for a hidden property.
fn check_property(property: &str, value: &str) -> Result<(), PropertyRefused> {
    let (code, text) = match ClientConfig::new().set(property, value).create_native_config() {
        Ok(_) => return Ok(()),
        Err(ClientError::ClientConfig(code, text, ..)) => (code, text),
        Err(other) => return Err(PropertyRefused::Refused(other.to_string())),
    };
    if let Some((_, missing)) = text.split_once(UNSUPPORTED) {
        // "OAuth/OIDC depends on libcurl and OpenSSL which were …", "OpenSSL not available at build time".
        let feature =
            [" depends ", " not "].iter().filter_map(|end| missing.split(end).next()).min_by_key(|text| text.len());
        return Err(PropertyRefused::Unsupported { feature: feature.unwrap_or(missing).to_owned() });
    }
    if code != RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN && !properties::is_harmless(property) {
        return Err(PropertyRefused::HiddenValue);
    }
    Err(PropertyRefused::Refused(text))
}

/// Properties that are paths of public files, which an error may show.
const PUBLIC_FILES: [&str; 4] =
    ["https.ca.location", "ssl.ca.location", "ssl.certificate.location", "ssl.crl.location"];
const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
/// An address that libcurl refuses by itself: librdkafka asks for a token as soon as a client is made.
const NO_ENDPOINT: &str = "none://none";

/// Makes a consumer and a producer with all properties, and drops them. They connect to nothing.
///
/// All services have the same properties, so that the clients of one service stand for the others'.
fn check_clients(settings: &Settings) -> Result<(), ClientRefused> {
    let (kafka, Some(service)) = (&settings.kafka, settings.services.first()) else { return Ok(()) };
    let properties = kafka.all_properties();
    if let Some(refused) = missing_tokens(&properties).or_else(|| wrong_endpoint(&properties)) {
        return Err(refused);
    }
    make::<BaseConsumer<_>>("consumer", kafka, consumer::config(kafka, service))?;
    make::<BaseProducer<_>>("producer", kafka, producer::config(kafka, service, DEFAULT_BATCH_BYTES))
}

/// Returns the problem and what is allowed if the address of the token endpoint is none. librdkafka finds out when it
/// asks for a token, which it does not while it is checked.
fn wrong_endpoint(properties: &BTreeMap<String, String>) -> Option<ClientRefused> {
    let endpoint = properties.get(TOKEN_ENDPOINT)?.to_lowercase();
    let is_url = endpoint.starts_with("https://") || endpoint.starts_with("http://");
    (!is_url).then(|| ClientRefused {
        problem: "sasl.oauthbearer.token.endpoint.url is no URL".to_owned(),
        allowed: "https://HOST/PATH, or http://".to_owned(),
    })
}

fn make<T: FromClientConfigAndContext<LoggingContext>>(
    client: &str, kafka: &Kafka, mut config: ClientConfig,
) -> Result<(), ClientRefused> {
    config.remove("bootstrap.servers");
    // librdkafka knows the address of Azure's service of metadata; only the question for it is in the configuration.
    let asks_azure = config.get("sasl.oauthbearer.config").is_some_and(|text| text.contains("query="));
    if asks_azure || config.get(TOKEN_ENDPOINT).is_some() {
        config.set(TOKEN_ENDPOINT, NO_ENDPOINT);
    }
    // A client warns that it has no brokers.
    silence(&mut config);
    config.remove("debug");
    #[expect(clippy::disallowed_methods, reason = "this client connects to no broker")]
    let made = config.create_with_context::<_, T>(LoggingContext::default());
    match made {
        Ok(_) => Ok(()),
        Err(ClientError::ClientCreation(text)) => Err(refused(client, kafka, &text)),
        Err(error) => Err(refused(client, kafka, &error.to_string())),
    }
}

fn refused(client: &str, kafka: &Kafka, text: &str) -> ClientRefused {
    // The user wrote the path of a text that librdkafka got.
    let by_path = PEM_FILES.iter().filter(|(location, _)| kafka.property_files.contains_key(*location));
    let text = &by_path.fold(text.to_owned(), |text, (location, pem)| text.replace(pem, location));
    let named = PUBLIC_FILES.iter().find(|name| text.contains(**name));
    let path = named.and_then(|name| Some(format!(" ({name} = {:?})", kafka.property_files.get(*name)?)));
    let path = path.unwrap_or_default();
    ClientRefused {
        problem: format!("librdkafka refuses these properties together, for a {client}: {text}{path}"),
        allowed: allowed(text).to_owned(),
    }
}

/// Returns the way out of an error that librdkafka words for programmers.
fn allowed(text: &str) -> &'static str {
    if text.contains("GSSAPI") {
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER as sasl.mechanism (GSSAPI is librdkafka's default), or a \
         build of Watermaster with the feature gssapi"
    } else if text.contains("AWS_MSK_IAM") {
        "SCRAM-SHA-512 or mTLS, which Amazon MSK takes, too or OAUTHBEARER with \
         sasl.oauthbearer.config = \"aws-msk-iam region=REGION\""
    } else if text.contains("sasl.username") {
        "sasl.username with sasl.password"
    } else if text.contains(".location") || text.contains(".pem") {
        "the path of a file that can be read, or the text, in the format that the property names, with its password"
    } else {
        "properties that fit together"
    }
}
