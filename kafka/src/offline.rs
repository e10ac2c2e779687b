//! Makes the clients without a broker, so that librdkafka says whether the properties fit together.

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::producer::BaseProducer;
use watermaster_settings::{Settings, config::ClientRefused};

use crate::client::{LoggingContext, silence};
use crate::oauth::missing_tokens;
use crate::{consumer, producer, producer::DEFAULT_BATCH_BYTES};

const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
/// An address that libcurl refuses by itself: librdkafka asks for a token as soon as a client is made.
const NO_ENDPOINT: &str = "none://none";

/// Makes a consumer and a producer with all properties, and drops them. They connect to nothing.
///
/// All services have the same properties, so that the clients of one service stand for the others'.
pub(crate) fn check_clients(settings: &Settings) -> Result<(), ClientRefused> {
    let (kafka, Some(service)) = (&settings.kafka, settings.services.first()) else { return Ok(()) };
    if let Some((problem, allowed)) = missing_tokens(&kafka.all_properties()) {
        return Err(ClientRefused { problem: problem.to_owned(), allowed: allowed.to_owned() });
    }
    make::<BaseConsumer<_>>("consumer", consumer::config(kafka, service))?;
    make::<BaseProducer<_>>("producer", producer::config(kafka, service, DEFAULT_BATCH_BYTES))
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
        Err(ClientError::ClientCreation(text)) => Err(refused(client, text)),
        Err(error) => Err(refused(client, error.to_string())),
    }
}

fn refused(client: &str, text: String) -> ClientRefused {
    let allowed = allowed(&text).to_owned();
    ClientRefused { problem: format!("librdkafka refuses these properties together, for a {client}: {text}"), allowed }
}

/// Returns the way out of an error that librdkafka words for programmers.
fn allowed(text: &str) -> &'static str {
    if text.contains("GSSAPI") {
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER as sasl.mechanism (GSSAPI is librdkafka's default), or a \
         build of Watermaster with the feature gssapi"
    } else if text.contains("AWS_MSK_IAM") {
        "SCRAM-SHA-512 or mTLS, which Amazon MSK takes, too or, with the feature aws-msk-iam, OAUTHBEARER with \
         sasl.oauthbearer.config = \"aws-msk-iam region=REGION\""
    } else if text.contains("sasl.username") {
        "sasl.username with sasl.password"
    } else if text.contains(".location") || text.contains(".pem") {
        "the path of a file that can be read, or the text, in the format that the property names, with its password"
    } else {
        "properties that fit together"
    }
}
