//! A broker that checks tokens of AWS IAM, as Amazon MSK does, with a handler in Java.

use std::process::Command;

use super::keys::Keys;
use crate::support::own_broker::jars;

pub const ACCESS_KEY: &str = "AKIDEXAMPLE";
pub const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
pub const REGION: &str = "eu-west-1";

const HANDLER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broker/auth/AwsIamHandler.java");

/// Compiles the handler, and returns the variables of the environment in which the broker finds it.
pub fn broker_environment(keys: &Keys) -> Vec<(&'static str, String)> {
    let classes = keys.path("classes");
    let mut command = Command::new("javac");
    command.arg("-cp").arg(jars()).args(["-d", &classes, HANDLER]);
    assert!(command.status().expect("javac is installed").success(), "{HANDLER} is not compiled");
    [
        ("WATERMASTER_KAFKA_CLASSES", &*classes),
        ("TEST_AWS_ACCESS_KEY", ACCESS_KEY),
        ("TEST_AWS_SECRET_KEY", SECRET_KEY),
        ("TEST_AWS_REGION", REGION),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

/// Returns the properties with which the broker takes the tokens on the listener `IAM`.
pub fn broker_properties() -> Vec<String> {
    let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule";
    vec![
        "listener.name.iam.sasl.enabled.mechanisms=OAUTHBEARER".to_owned(),
        "listener.name.iam.oauthbearer.sasl.server.callback.handler.class=AwsIamHandler".to_owned(),
        format!("listener.name.iam.oauthbearer.sasl.jaas.config={module} required;"),
    ]
}
