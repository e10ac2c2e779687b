//! Tokens for the mechanism OAUTHBEARER that this program makes. With `sasl.oauthbearer.method = "oidc"` librdkafka
//! fetches them itself.

use std::{collections::BTreeMap, error::Error};

use rdkafka::client::OAuthToken;

/// The time for which a new client is polled where nothing polls it before its first question: it asks for a token in
/// an event.
pub(super) const FIRST_POLL: std::time::Duration = std::time::Duration::from_millis(10);

/// True if this build makes tokens.
pub(super) const MAKES_TOKENS: bool = cfg!(feature = "aws-msk-iam");

/// The text that begins `sasl.oauthbearer.config` if Amazon MSK is to get tokens of AWS IAM; the region follows.
pub(super) const MSK: &str = "aws-msk-iam region=";

/// Makes a token as `sasl.oauthbearer.config` says.
#[cfg(feature = "aws-msk-iam")]
pub(super) fn token(config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    Ok(crate::msk::token(config)?)
}

#[cfg(not(feature = "aws-msk-iam"))]
pub(super) fn token(_: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    Err("this build makes no tokens".into())
}

/// Returns the problem and what is allowed if nothing makes the tokens that these properties ask for.
pub(super) fn missing_tokens(properties: &BTreeMap<String, String>) -> Option<(&'static str, &'static str)> {
    let is = |name: &str, value: &str| properties.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
    let asks = is("sasl.mechanism", "OAUTHBEARER") || is("sasl.mechanisms", "OAUTHBEARER");
    let is_for_msk = properties.get("sasl.oauthbearer.config").is_some_and(|config| config.starts_with(MSK));
    if !asks || is("sasl.oauthbearer.method", "oidc") || (is_for_msk && MAKES_TOKENS) {
        return None;
    }
    Some(if is_for_msk {
        (
            "this build can't make the tokens that sasl.oauthbearer.config asks for",
            "a build of Watermaster with the feature aws-msk-iam",
        )
    } else {
        (
            "nothing makes tokens for sasl.mechanism = OAUTHBEARER",
            "sasl.oauthbearer.method = \"oidc\" or, for Amazon MSK with the feature aws-msk-iam, \
             sasl.oauthbearer.config = \"aws-msk-iam region=REGION\"",
        )
    })
}

/// Lets the context of a client make tokens.
macro_rules! makes_tokens {
    () => {
        const ENABLE_REFRESH_OAUTH_TOKEN: bool = crate::oauth::MAKES_TOKENS;

        fn generate_oauth_token(
            &self, config: Option<&str>,
        ) -> Result<rdkafka::client::OAuthToken, Box<dyn std::error::Error>> {
            crate::oauth::token(config)
        }
    };
}
pub(crate) use makes_tokens;
