//! Gives living clients the user and the password that were read last: connections that are open stay so. For other
//! secrets a client has to be made anew.

use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka::client::{Client, ClientContext};
use watermaster_settings::Kafka;

use crate::ffi;

/// The user and the password that the clients of one owner know.
pub(super) struct Login {
    kafka: Kafka,
    /// The number of changes before the last one that the clients know.
    known: AtomicU64,
    /// The number of changes of other secrets before the clients were made.
    others: u64,
}

impl Login {
    /// Remembers the values in force. To be called before the clients are made.
    pub fn new(kafka: &Kafka) -> Login {
        let (known, others) = (AtomicU64::new(kafka.secrets.login_changes()), kafka.secrets.other_changes());
        Login { kafka: kafka.clone(), known, others }
    }

    /// Returns true if secrets have changed that a living client does not take.
    pub fn is_outdated(&self) -> bool {
        self.kafka.secrets.other_changes() != self.others
    }

    /// Gives a client the user and the password if they have changed since the last call.
    pub fn renew<C: ClientContext>(&self, client: &Client<C>) {
        let changes = self.kafka.secrets.login_changes();
        if self.known.swap(changes, Ordering::Relaxed) == changes {
            return;
        }
        let mut all = self.kafka.all_properties();
        if let Some((user, password)) = all.remove("sasl.username").zip(all.remove("sasl.password")) {
            ffi::set_login(client, &user, &password);
        }
    }
}
