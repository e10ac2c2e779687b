//! Tokens for the mechanism OAUTHBEARER that this program makes. With `sasl.oauthbearer.method = "oidc"` librdkafka
//! fetches them itself.

use std::{collections::BTreeMap, error::Error};

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::config::ClientConfig;
use watermaster_settings::config::ClientRefused;

use crate::{ffi, msk, msk::MSK};

/// The property that chooses a source of tokens.
const CONFIG: &str = "sasl.oauthbearer.config";

/// A source of tokens.
struct TokenSource {
    /// The text that begins `sasl.oauthbearer.config` if tokens are to come from this source.
    begins: &'static str,
    /// Makes a token, as the rest of `sasl.oauthbearer.config` says.
    token: fn(&str) -> Result<OAuthToken, Box<dyn Error>>,
    /// The purpose of the source and the properties that choose it, for errors.
    allowed: &'static str,
    /// The error for people if there is no token, or if the brokers do not accept it.
    advice: &'static str,
}

/// All sources.
const SOURCES: &[TokenSource] = &[TokenSource {
    begins: MSK,
    token: |region| Ok(msk::token(region)?),
    allowed: "for Amazon MSK, sasl.oauthbearer.config = \"aws-msk-iam region=REGION\"",
    advice: "there is no token, or it is not accepted: check the AWS credentials, the region in \
            sasl.oauthbearer.config, and the policy of the role",
}];

/// Returns the source that `sasl.oauthbearer.config` chooses, and the rest of that text.
fn source(config: &str) -> Option<(&'static TokenSource, &str)> {
    SOURCES.iter().find_map(|source| Some((source, config.strip_prefix(source.begins)?)))
}

/// Makes a token as `sasl.oauthbearer.config` says.
pub(super) fn token(config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    let (source, rest) = config.and_then(source).ok_or("sasl.oauthbearer.config names no source of tokens")?;
    (source.token)(rest.trim())
}

/// Returns the problem and what is allowed if nothing makes the tokens that these properties ask for.
pub(super) fn missing_tokens(properties: &BTreeMap<String, String>) -> Option<ClientRefused> {
    let is = |name: &str, value: &str| properties.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
    let asks = is("sasl.mechanism", "OAUTHBEARER") || is("sasl.mechanisms", "OAUTHBEARER");
    if !asks || is("sasl.oauthbearer.method", "oidc") || advice(properties).is_some() {
        return None;
    }
    let allowed: Vec<_> = SOURCES.iter().map(|source| source.allowed).collect();
    Some(ClientRefused {
        problem: "nothing makes tokens for sasl.mechanism = OAUTHBEARER".to_owned(),
        allowed: format!("sasl.oauthbearer.method = \"oidc\" or, {}", allowed.join(" or, ")),
    })
}

/// Returns the advice of the source that these properties choose, or `None` if they choose none of this program's.
pub(super) fn advice(properties: &BTreeMap<String, String>) -> Option<&'static str> {
    source(properties.get(CONFIG)?).map(|(source, _)| source.advice)
}

/// Gives a new client its first token, if these properties ask for one that this program makes. The client asks for
/// it in an event, too. But not all clients are polled before they connect, and rdkafka's admin client takes no such
/// events.
pub(super) fn give_first_token<C: ClientContext>(client: &Client<C>, config: &ClientConfig) {
    let Some(config) = config.get(CONFIG).filter(|config| source(config).is_some()) else { return };
    ffi::give_token(client, token(Some(config)));
}

/// Lets the context of a client make tokens when librdkafka asks for them.
macro_rules! makes_tokens {
    () => {
        const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

        fn generate_oauth_token(
            &self, config: Option<&str>,
        ) -> Result<rdkafka::client::OAuthToken, Box<dyn std::error::Error>> {
            crate::oauth::token(config)
        }
    };
}
pub(crate) use makes_tokens;
