//! Makes the clients without a broker, so that librdkafka says whether the properties fit together.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::producer::BaseProducer;
use watermaster_settings::{Settings, config::ClientRefused};

use crate::client::{LoggingContext, silence};
use crate::oauth::missing_tokens;
use crate::{consumer, producer, producer::DEFAULT_BATCH_BYTES};

/// Properties that are paths of public files, which an error may show.
const PUBLIC_FILES: [&str; 4] =
    ["https.ca.location", "ssl.ca.location", "ssl.certificate.location", "ssl.crl.location"];
const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
/// An address that libcurl refuses by itself: librdkafka asks for a token as soon as a client is made.
const NO_ENDPOINT: &str = "none://none";

/// Makes a consumer and a producer with all properties, and drops them. They connect to nothing.
///
/// All services have the same properties, so that the clients of one service stand for the others'.
pub(crate) fn check_clients(settings: &Settings) -> Result<(), ClientRefused> {
    let (kafka, Some(service)) = (&settings.kafka, settings.services.first()) else { return Ok(()) };
    let properties = kafka.all_properties();
    let refused =
        |(problem, allowed): (&str, &str)| ClientRefused { problem: problem.to_owned(), allowed: allowed.to_owned() };
    missing_tokens(&properties).or_else(|| wrong_endpoint(&properties)).map_or(Ok(()), |found| Err(refused(found)))?;
    make::<BaseConsumer<_>>("consumer", consumer::config(kafka, service))?;
    make::<BaseProducer<_>>("producer", producer::config(kafka, service, DEFAULT_BATCH_BYTES))
}

/// Returns the problem and what is allowed if the address of the token endpoint is none. librdkafka finds out when it
/// asks for a token, which it does not while it is checked.
fn wrong_endpoint(properties: &BTreeMap<String, String>) -> Option<(&'static str, &'static str)> {
    let endpoint = properties.get(TOKEN_ENDPOINT)?.to_lowercase();
    let is_url = endpoint.starts_with("https://") || endpoint.starts_with("http://");
    (!is_url).then_some(("sasl.oauthbearer.token.endpoint.url is no URL", "https://HOST/PATH, or http://"))
}

fn make<T: FromClientConfigAndContext<LoggingContext>>(
    client: &str, mut config: ClientConfig,
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
        Err(ClientError::ClientCreation(text)) => Err(refused(client, &config, &text)),
        Err(error) => Err(refused(client, &config, &error.to_string())),
    }
}

fn refused(client: &str, config: &ClientConfig, text: &str) -> ClientRefused {
    let named = PUBLIC_FILES.iter().find(|name| text.contains(**name));
    let path = named.and_then(|name| Some(format!(" ({name} = {:?})", config.get(name)?))).unwrap_or_default();
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
