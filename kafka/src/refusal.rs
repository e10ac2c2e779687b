//! Errors after which waiting does not help: brokers or clients that do not accept each other.

mod certificate;

use rdkafka::error::RDKafkaErrorCode as Code;
use watermaster_settings::{Kafka, properties};

use crate::{consumer_error::Reported, oauth};

/// The reason for which a connection is refused until the configuration, here or at the brokers, is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Credentials,
    /// The listener takes other mechanisms of SASL.
    Mechanism,
    BrokerCertificate,
    /// The brokers ask for a certificate.
    OwnCertificate,
    HostName,
}

impl Reported {
    /// Returns why waiting does not help, unless it does.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        // An alert of TLS 1.3 comes after the handshake, so that librdkafka takes it for a broken connection. Brokers
        // in Java call a missing certificate "bad", and one that expired "unknown".
        let alerts =
            ["alert bad certificate", "alert certificate", "alert unknown ca", "SSL authentication might be required"];
        if alerts.iter().any(|alert| self.reason.contains(alert)) {
            return Some(Refusal::OwnCertificate);
        }
        match self.code {
            // With a list of none if the listener asks for no login.
            Code::Authentication if self.reason.contains("broker's supported mechanisms:") => Some(Refusal::Mechanism),
            Code::Authentication => Some(Refusal::Credentials),
            Code::SSL => Some(Refusal::BrokerCertificate),
            Code::Resolve => Some(Refusal::HostName),
            _ => None,
        }
    }
}

/// Explains errors in plain words, then in librdkafka's.
#[derive(Default)]
pub(super) struct Explanations {
    /// The answer to what is wrong with a certificate: it takes connections to find out.
    certificate: Option<String>,
}

impl Explanations {
    /// Returns a text without secrets.
    pub fn of(&mut self, kafka: &Kafka, error: &Reported) -> String {
        let text = properties::redact(&kafka.all_properties(), &error.reason);
        let reason = match error.refusal() {
            None => return text,
            Some(Refusal::Credentials) => credentials(kafka),
            Some(Refusal::Mechanism) => {
                "the listener takes other mechanisms, or no login: check sasl.mechanism, security.protocol and the port"
            }
            Some(Refusal::OwnCertificate) => {
                "the brokers ask for a certificate: check ssl.certificate.location and \
                                              ssl.key.location (or .pem), and which authorities the brokers accept"
            }
            Some(Refusal::HostName) => "no address is known for a host",
            Some(Refusal::BrokerCertificate) => {
                let find = || certificate::find_refused(kafka).unwrap_or_else(|| "TLS fails".to_owned());
                self.certificate.get_or_insert_with(find)
            }
        };
        format!("{reason}. librdkafka: {text}")
    }
}

/// Names the properties that prove the identity of the client.
fn credentials(kafka: &Kafka) -> &'static str {
    let mechanism = ["sasl.mechanism", "sasl.mechanisms"].iter().find_map(|name| kafka.properties.get(*name));
    match mechanism.map(String::as_str) {
        Some("PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512") => {
            "the credentials are not accepted: check sasl.username and sasl.password"
        }
        Some("OAUTHBEARER") => oauth::advice(&kafka.properties).unwrap_or(
            "there is no token, or it is not accepted: check sasl.oauthbearer.client.id, \
             sasl.oauthbearer.client.secret and sasl.oauthbearer.token.endpoint.url",
        ),
        // librdkafka's default.
        Some("GSSAPI") | None => {
            "there is no Kerberos ticket, or it is not accepted: check sasl.kerberos.principal and \
             sasl.kerberos.keytab"
        }
        Some(_) => "the credentials are not accepted: check sasl.mechanism and the properties that it needs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_lasts_is_a_refusal() {
        let alert = "SSL alert number 116: error:0A00045C:SSL routines::tlsv13 alert certificate required";
        for (code, text, refusal) in [
            (Code::Authentication, "Authentication failed", Some(Refusal::Credentials)),
            (
                Code::Authentication,
                "Unsupported SASL mechanism: broker's supported mechanisms: PLAIN",
                Some(Refusal::Mechanism),
            ),
            // The fault: a listener without a login was told as wrong credentials.
            (
                Code::Authentication,
                "SASL PLAIN mechanism handshake failed: Broker: Request not valid in current SASL state: broker's \
                 supported mechanisms: ",
                Some(Refusal::Mechanism),
            ),
            (Code::SSL, "SSL handshake failed", Some(Refusal::BrokerCertificate)),
            (Code::Resolve, "Failed to resolve", Some(Refusal::HostName)),
            (Code::BrokerTransportFailure, alert, Some(Refusal::OwnCertificate)),
            (Code::BrokerTransportFailure, "Connection refused", None),
            (Code::AllBrokersDown, "1/1 brokers are down", None),
        ] {
            assert_eq!(Reported { code, reason: text.to_owned() }.refusal(), refusal, "{text}");
        }
    }
}
