//! Brokers that authenticate their clients: each way, the mistakes in it, and Kafka's own authorizer.

mod aws_iam;
mod denied;
#[cfg(feature = "gssapi")]
mod kerberos;
mod keys;
mod oauth;
mod permissions;
mod rotation;
mod secured;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::exactly_once::{self, finish_with, follow, numbered};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::Producer;
use crate::support::{config::Config, wait::wait_until, watermaster::check};
use keys::Keys;
use secured::{PASSWORD, Secured, USER};

const RECORDS: u64 = 3_000;
/// The time in which `check --connect` names the cause: 10 s, and a second for the process itself.
const CHECK_TIMEOUT: Duration = Duration::from_secs(11);

/// OpenSSL's words for a certificate that no known authority signed.
const UNKNOWN_AUTHORITY: &str = "unable to get local issuer certificate";

/// Waits until the brokers' authorizer knows the grants of a user.
fn wait_for_grants(config: &Config) {
    wait_until("the grants to take effect", DRAIN_TIMEOUT, || {
        let (code, said) = check(config);
        if code != Some(0) {
            eprintln!("{said}");
        }
        code == Some(0)
    });
}

/// The way in which a test's program connects to a secured broker.
struct Login {
    listener: &'static str,
    /// The user as Kafka's authorizer knows it.
    user: &'static str,
    delivery: &'static str,
    properties: Vec<(&'static str, String)>,
    /// Variables of the program's environment.
    environment: Vec<(&'static str, String)>,
}

impl Login {
    fn new(listener: &'static str, user: &'static str, properties: &[(&'static str, &str)]) -> Login {
        let owned = properties.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        Login { listener, user, delivery: "exactly_once", properties: owned, environment: vec![] }
    }

    fn scram(password: &str, authority: &str) -> Login {
        let properties = [
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", USER),
            ("sasl.password", password),
            ("ssl.ca.location", authority),
        ];
        Login::new("SCRAM", USER, &properties)
    }

    fn tls(listener: &'static str, authority: &str) -> Login {
        Login::new(listener, "CN=watermaster", &[("security.protocol", "SSL"), ("ssl.ca.location", authority)])
    }

    fn with(mut self, name: &'static str, value: String) -> Login {
        self.properties.push((name, value));
        self
    }

    fn config(&self, rig: &Rig, secured: &Secured) -> Config {
        let mut config = exactly_once::config(rig, 100_000, "only");
        config.bootstrap = secured.address(self.listener);
        config.environment = self.environment.clone();
        let family = "[kafka.properties]\n\"broker.address.family\" = \"v4\"";
        config.kafka = format!("delivery = {:?}\n{family}\n", self.delivery);
        for (name, value) in &self.properties {
            config.kafka.push_str(&format!("{name:?} = {value:?}\n"));
        }
        config
    }

    /// Creates the topics and grants the documented permissions to the user. Returns when the brokers know them.
    fn rig(&self, secured: &Secured) -> Rig {
        self.rig_with(secured, TargetTime::Create)
    }

    /// Does as [`rig`](Login::rig), with a target of these timestamps.
    fn rig_with(&self, secured: &Secured, time: TargetTime) -> Rig {
        let rig = Rig::new(secured, &self.listener.to_lowercase(), 2, 4, time);
        permissions::grant_required(secured, self.user, &rig);
        wait_for_grants(&self.config(&rig, secured));
        rig
    }

    /// Asserts that this user forwards all records exactly once with the documented permissions, and asks for no others.
    fn forwards(&self, secured: &Secured) {
        let rig = self.rig(secured);
        let known = secured.log().len();
        Producer::to(secured).send_all((0..RECORDS).map(|n| numbered(&rig.sources, n)));
        finish_with(&self.config(&rig, secured), &rig, &mut follow(secured, &rig), RECORDS);
        let (log, denied) = (secured.log(), format!("Principal = User:{} is Denied", self.user));
        let optional = ["DESCRIBE_CONFIGS", "__transaction_state", ".redrive.default", ".dead-letter.ledger"];
        let denials = log[known..].lines().filter(|line| line.contains(&denied));
        let denials: Vec<&str> = denials.filter(|line| !optional.iter().any(|known| line.contains(known))).collect();
        assert!(denials.is_empty(), "{} permissions more are asked for: {}", denials.len(), denials.join("\n"));
    }

    /// Asserts that `check --connect` ends in time with the code for unreachable brokers, and names the cause.
    fn is_refused(&self, secured: &Secured, cause: &str) {
        let rig = Rig::new(secured, "refused", 1, 1, TargetTime::Create);
        let began = Instant::now();
        let (code, said) = check(&self.config(&rig, secured));
        let took = began.elapsed();
        eprintln!("{}, {:.1} s: {said}", self.listener, took.as_secs_f32());
        assert_eq!(code, Some(69), "{said}");
        assert!(took <= CHECK_TIMEOUT, "{took:?}: {said}");
        assert!(said.contains(cause), "it does not say {cause:?}: {said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn a_password_over_tls_opens_the_broker_and_a_wrong_one_is_named() {
    let secured = Secured::start(Arc::new(Keys::new()), &[("SCRAM", "SASL_SSL")], vec![], vec![]);
    let [ours, other] = ["ca.pem", "other-ca.pem"].map(|file| secured.keys.path(file));
    std::thread::scope(|scope| {
        scope.spawn(|| Login::scram("wrong horse", &ours).is_refused(&secured, "sasl.password"));
        scope.spawn(|| Login::scram(PASSWORD, &other).is_refused(&secured, UNKNOWN_AUTHORITY));
        Login::scram(PASSWORD, &ours).forwards(&secured);
    });
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::oauth::{CLIENT, OAuthServer, SECRET};
    use super::*;
    use crate::exactly_once::{STOP_TIMEOUT, judge};
    use crate::support::{producer::Load, watermaster::Watermaster};

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn a_certificate_opens_the_broker_and_a_wrong_one_is_named() {
        let listeners = [("MTLS", "SSL"), ("EXPIRED", "SSL"), ("ELSEWHERE", "SSL")];
        let secured = Secured::start(Arc::new(Keys::new()), &listeners, vec![], vec![]);
        let path = |file: &str| secured.keys.path(file);
        for (listener, authority, cause) in [
            ("EXPIRED", "ca.pem", "certificate has expired"),
            ("ELSEWHERE", "ca.pem", "hostname mismatch"),
            ("MTLS", "other-ca.pem", UNKNOWN_AUTHORITY),
            ("MTLS", "ca.pem", "ssl.certificate.location"),
        ] {
            Login::tls(listener, &path(authority)).is_refused(&secured, cause);
        }
        Login::new("MTLS", "", &[]).is_refused(&secured, "security.protocol");
        let own = |name: &str| {
            let login = Login::tls("MTLS", &path("ca.pem")).with("ssl.key.location", path(&format!("{name}.key")));
            login.with("ssl.certificate.location", path(&format!("{name}.pem")))
        };
        own("expired").is_refused(&secured, "ssl.certificate.location");
        own("watermaster").forwards(&secured);
    }

    fn oidc(server: &OAuthServer, secret: &str) -> Login {
        let properties = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "OAUTHBEARER"),
            ("sasl.oauthbearer.method", "oidc"),
            ("sasl.oauthbearer.token.endpoint.url", &server.endpoint),
            ("sasl.oauthbearer.client.id", CLIENT),
            ("sasl.oauthbearer.client.secret", secret),
        ];
        Login::new("OAUTH", CLIENT, &properties)
    }

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn a_token_opens_the_broker_and_is_renewed() {
        let keys = Arc::new(Keys::new());
        let server = OAuthServer::start(Arc::clone(&keys), Duration::from_secs(20));
        let allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://";
        let environment = vec![("JAVA_TOOL_OPTIONS", format!("{allowed}{}", keys.path("jwks.json")))];
        let properties = OAuthServer::broker_properties(&keys);
        let secured = Secured::start(keys, &[("OAUTH", "SASL_PLAINTEXT")], properties, environment);
        oidc(&server, "open barley").is_refused(&secured, "sasl.oauthbearer.client.secret");
        let login = oidc(&server, SECRET);
        let rig = login.rig(&secured);
        let sources = rig.sources.clone();
        let load = Load::start(&secured, 200, move |n| numbered(&sources, n));
        let mut watermaster = Watermaster::start(&login.config(&rig, &secured));
        // The consumer and the producer, the reader of the control log, and the producers of the own seat and of the
        // bank renew their tokens before these expire.
        let renewed = server.tokens() + 2 * 5;
        wait_until("five clients to renew their tokens twice", DRAIN_TIMEOUT, || server.tokens() >= renewed);
        let (sent, mut follower) = (load.stop(), follow(&secured, &rig));
        follower.wait_for(sent, DRAIN_TIMEOUT);
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        assert_eq!(judge(&rig, &[]).admitted, sent);
    }

    #[test]
    #[ignore = "needs a real Kafka, its jars and a JDK: scripts/test --long"]
    fn aws_credentials_open_the_broker_and_wrong_ones_are_named() {
        use super::aws_iam::{ACCESS_KEY, REGION, SECRET_KEY, broker_environment, broker_properties};

        let keys = Arc::new(Keys::new());
        let environment = broker_environment(&keys);
        let secured = Secured::start(keys, &[("IAM", "SASL_SSL")], broker_properties(), environment);
        let login = |region: &str, credentials: &[(&'static str, &str)]| {
            let properties = [
                ("security.protocol", "SASL_SSL"),
                ("sasl.mechanism", "OAUTHBEARER"),
                ("sasl.oauthbearer.config", &format!("aws-msk-iam region={region}")),
                ("ssl.ca.location", &secured.keys.path("ca.pem")),
            ];
            let mut login = Login::new("IAM", ACCESS_KEY, &properties);
            login.environment = credentials.iter().map(|&(name, value)| (name, value.to_owned())).collect();
            login
        };
        let credentials = |secret| [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", secret)];
        let none = [("AWS_EC2_METADATA_DISABLED", "true")];
        login(REGION, &none).is_refused(&secured, "there are no AWS credentials");
        login(REGION, &credentials("wrong")).is_refused(&secured, "check the AWS credentials");
        login("eu-central-1", &credentials(SECRET_KEY)).is_refused(&secured, "check the AWS credentials");
        login(REGION, &credentials(SECRET_KEY)).forwards(&secured);
    }

    #[cfg(feature = "gssapi")]
    #[test]
    #[ignore = "needs a real Kafka, its jars and a KDC: scripts/test --long"]
    fn a_kerberos_ticket_opens_the_broker_and_an_old_keytab_is_named() {
        use super::kerberos::{Realm, USER};

        let realm = Realm::start();
        let options = format!("-Djava.security.krb5.conf={}", realm.path("krb5.conf"));
        let (listeners, environment) = ([("KERBEROS", "SASL_PLAINTEXT")], vec![("JAVA_TOOL_OPTIONS", options)]);
        let secured = Secured::start(Arc::new(Keys::new()), &listeners, realm.broker_properties(), environment);
        let login = |keytab: &str| {
            let properties = [
                ("security.protocol", "SASL_PLAINTEXT"),
                ("sasl.mechanism", "GSSAPI"),
                ("sasl.kerberos.principal", USER),
                ("sasl.kerberos.keytab", &realm.path(keytab)),
            ];
            let mut login = Login::new("KERBEROS", USER, &properties);
            login.environment = vec![("KRB5_CONFIG", realm.path("krb5.conf"))];
            login
        };
        // The others come first: a ticket of the right keytab stays in the cache.
        login("no.keytab").is_refused(&secured, "sasl.kerberos.keytab");
        login("old.keytab").is_refused(&secured, "sasl.kerberos.keytab");
        login("user.keytab").forwards(&secured);
    }
}
