//! A Kafka broker with a listener for each way to authenticate, and Kafka's own authorizer.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::keys::Keys;
use crate::support::own_broker::{Listener, OwnBroker, free_ports};

pub const USER: &str = "alice";
pub const PASSWORD: &str = "correct horse";

/// The host that the certificates name.
const HOST: &str = "localhost";

/// A broker that allows nothing to a client of its listeners without a grant. Tests prepare and read topics through
/// `PLAINTEXT`, where each client is a super user.
#[derive(Debug)]
pub struct Secured {
    own: OwnBroker,
    pub keys: Arc<Keys>,
    listeners: Vec<Listener>,
}

impl Secured {
    /// Starts the broker with these listeners (name and Kafka's security protocol), and more properties and variables of
    /// its environment.
    pub fn start(
        keys: Arc<Keys>, listeners: &[(&'static str, &'static str)], more: Vec<String>,
        mut environment: Vec<(&'static str, String)>,
    ) -> Secured {
        let ports: [u16; 4] = free_ports();
        let listener = |(&(name, protocol), port)| Listener { name, protocol, host: HOST, port };
        let listeners: Vec<Listener> = listeners.iter().zip(ports).map(listener).collect();
        let mut properties = properties(&keys);
        properties.extend(more);
        let scram = format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]");
        environment.push(("WATERMASTER_KAFKA_SCRAM", scram));
        let own = OwnBroker::with_listeners(&listeners, properties, environment);
        Secured { own, keys, listeners }
    }

    /// Returns the address of a listener.
    pub fn address(&self, name: &str) -> String {
        let listener = self.listeners.iter().find(|listener| listener.name == name).expect("a listener");
        format!("{HOST}:{}", listener.port)
    }
}

fn properties(keys: &Keys) -> Vec<String> {
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let store = |name: &str| keys.path(&format!("{name}.store"));
    vec![
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned(),
        "super.users=User:ANONYMOUS".to_owned(),
        "ssl.keystore.type=PEM".to_owned(),
        format!("ssl.keystore.location={}", store("broker")),
        "ssl.truststore.type=PEM".to_owned(),
        format!("ssl.truststore.location={}", keys.path("ca.pem")),
        "listener.name.mtls.ssl.client.auth=required".to_owned(),
        format!("listener.name.expired.ssl.keystore.location={}", store("expired")),
        format!("listener.name.elsewhere.ssl.keystore.location={}", store("elsewhere")),
        "listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512".to_owned(),
        format!("listener.name.scram.scram-sha-512.sasl.jaas.config={scram}"),
    ]
}

impl Deref for Secured {
    type Target = OwnBroker;
    fn deref(&self) -> &OwnBroker {
        &self.own
    }
}

impl DerefMut for Secured {
    fn deref_mut(&mut self) -> &mut OwnBroker {
        &mut self.own
    }
}
