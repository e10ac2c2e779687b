//! Tokens of AWS IAM for Amazon MSK, which takes them with the mechanism OAUTHBEARER.
//!
//! A token is a URL that was signed with the credentials of a role, as Amazon's own signers make it:
//! <https://docs.aws.amazon.com/msk/latest/developerguide/iam-access-control.html>. The signature is AWS's version 4:
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>.

mod credentials;
mod http;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openssl::{base64, error::ErrorStack, hash, hash::MessageDigest};
use rdkafka::client::OAuthToken;

use crate::mac::{hex, hmac};
use credentials::Credentials;

/// The text that begins `sasl.oauthbearer.config` if Amazon MSK is to get tokens of AWS IAM; the region follows.
pub(super) const MSK: &str = "aws-msk-iam region=";
/// The life of a token, and the longest that MSK takes. librdkafka asks for the next one after 80 % of it.
const LIFETIME: Duration = Duration::from_secs(900);
const USER_AGENT: &str = concat!("watermaster/", env!("CARGO_PKG_VERSION"));

/// The reason why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum MskError {
    #[error(
        "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a role to the pod (EKS \
         Pod Identity, IRSA), the task (ECS) or the instance (EC2: {0})"
    )]
    NoCredentials(Box<MskError>),
    #[error("AWS_EC2_METADATA_DISABLED is true")]
    MetadataDisabled,
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("{url}: {problem}")]
    Answer { url: String, problem: String },
    #[error(transparent)]
    Signature(#[from] ErrorStack),
}

/// Makes a token for a region.
pub(super) fn token(region: &str) -> Result<OAuthToken, MskError> {
    let credentials = credentials::find(region, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let token = sign(&credentials, region, now.as_secs())?;
    let lifetime_ms = i64::try_from((now + LIFETIME).as_millis()).unwrap_or(i64::MAX);
    // The brokers take the principal from the signature.
    Ok(OAuthToken { token, principal_name: "watermaster".to_owned(), lifetime_ms })
}

/// Returns the token: a signed URL in base64.
fn sign(credentials: &Credentials, region: &str, seconds: u64) -> Result<String, ErrorStack> {
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    // As AWS writes it: 20150830T123600Z.
    let time = time.replace(['-', ':'], "");
    let day = &time[..8];
    let scope = format!("{day}/{region}/kafka-cluster/aws4_request");
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let host = format!("kafka.{region}.{domain}");
    let mut query = format!(
        "Action={}&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}&X-Amz-Date={time}&X-Amz-Expires={}",
        encode("kafka-cluster:Connect"),
        encode(&format!("{}/{scope}", credentials.access_key)),
        LIFETIME.as_secs(),
    );
    if let Some(token) = &credentials.session_token {
        query += &format!("&X-Amz-Security-Token={}", encode(token));
    }
    query += "&X-Amz-SignedHeaders=host";
    let request = format!("GET\n/\n{query}\nhost:{host}\n\nhost\n{}", hex(&hash::hash(MessageDigest::sha256(), b"")?));
    let digest = hex(&hash::hash(MessageDigest::sha256(), request.as_bytes())?);
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
    let key = signing_key(&credentials.secret_key, day, region, "kafka-cluster")?;
    let signature = hex(&hmac(&key, text.as_bytes())?);
    let url = format!("https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent={}", encode(USER_AGENT));
    let encoded = base64::encode_block(url.as_bytes());
    Ok(encoded.trim_end_matches('=').replace('+', "-").replace('/', "_"))
}

fn signing_key(secret: &str, day: &str, region: &str, service: &str) -> Result<Vec<u8>, ErrorStack> {
    let parts = [day, region, service, "aws4_request"];
    parts.iter().try_fold(format!("AWS4{secret}").into_bytes(), |key, part| hmac(&key, part.as_bytes()))
}

/// Encodes a text for a query, as AWS wants it.
fn encode(text: &str) -> String {
    watermaster_settings::percent_encoded(text, b"-._~")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    /// The example of AWS's documentation.
    #[test]
    fn the_key_for_signatures_is_that_of_the_documentation() {
        let key = signing_key(SECRET, "20150830", "us-east-1", "iam").unwrap();
        assert_eq!(hex(&key), "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
    }

    /// The expected signature was made by another program, from the same description.
    #[test]
    fn a_token_is_a_signed_url() {
        let credentials = Credentials {
            access_key: "AKIDEXAMPLE".to_owned(),
            secret_key: SECRET.to_owned(),
            session_token: Some("a/b+c=".to_owned()),
        };
        let token = sign(&credentials, "eu-west-1", 1_440_938_160).unwrap();
        assert!(!token.contains(['+', '/', '=']), "{token}");
        let padded = token.replace('-', "+").replace('_', "/") + &"=".repeat((4 - token.len() % 4) % 4);
        let url = String::from_utf8(base64::decode_block(&padded).unwrap()).unwrap();
        let query = "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect\
                     &X-Amz-Algorithm=AWS4-HMAC-SHA256\
                     &X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-west-1%2Fkafka-cluster%2Faws4_request\
                     &X-Amz-Date=20150830T123600Z&X-Amz-Expires=900&X-Amz-Security-Token=a%2Fb%2Bc%3D\
                     &X-Amz-SignedHeaders=host&X-Amz-Signature=\
                     8e49a2501cf1513900aaf85b58450546a0155ab72555cc3cf6977d7e283fe472";
        assert_eq!(url, format!("{query}&User-Agent={}", encode(USER_AGENT)));
    }
}
