//! Tokens for the mechanism OAUTHBEARER that this program makes. With `sasl.oauthbearer.method = "oidc"` librdkafka
//! fetches them itself.

use std::{collections::BTreeMap, error::Error};

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::config::ClientConfig;

use crate::{ffi, msk, msk::MSK};

const CONFIG: &str = "sasl.oauthbearer.config";

/// Makes a token as `sasl.oauthbearer.config` says.
pub(super) fn token(config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    Ok(msk::token(config)?)
}

/// Returns the problem and what is allowed if nothing makes the tokens that these properties ask for.
pub(super) fn missing_tokens(properties: &BTreeMap<String, String>) -> Option<(&'static str, &'static str)> {
    let is = |name: &str, value: &str| properties.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
    let asks = is("sasl.mechanism", "OAUTHBEARER") || is("sasl.mechanisms", "OAUTHBEARER");
    if !asks || is("sasl.oauthbearer.method", "oidc") || is_for_msk(properties) {
        return None;
    }
    Some((
        "nothing makes tokens for sasl.mechanism = OAUTHBEARER",
        "sasl.oauthbearer.method = \"oidc\" or, for Amazon MSK, \
         sasl.oauthbearer.config = \"aws-msk-iam region=REGION\"",
    ))
}

/// Returns whether these properties ask for tokens of AWS IAM.
pub(super) fn is_for_msk(properties: &BTreeMap<String, String>) -> bool {
    properties.get(CONFIG).is_some_and(|config| config.starts_with(MSK))
}

/// Gives a new client its first token, if these properties ask for one that this program makes. The client asks for
/// it in an event, too. But not all clients are polled before they connect, and rdkafka's admin client takes no such
/// events.
pub(super) fn give_first_token<C: ClientContext>(client: &Client<C>, config: &ClientConfig) {
    let Some(config) = config.get(CONFIG).filter(|config| config.starts_with(MSK)) else { return };
    match token(Some(config)) {
        Ok(token) => ffi::set_token(client, &token),
        Err(reason) => ffi::set_token_failure(client, &reason.to_string()),
    }
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
