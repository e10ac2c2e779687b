//! A Kerberos realm of one test: the KDC of Debian's packages `krb5-kdc` and `krb5-admin-server`, in a folder of its own.

use std::process::{Command, Stdio};
use std::{net::TcpStream, time::Duration};

use tempfile::TempDir;

use crate::support::own_broker::{free_port, temporary_directory};
use crate::support::{process::Process, wait::wait_until};

const REALM: &str = "TEST.EXAMPLE";
pub const BROKER: &str = "kafka/localhost";
pub const USER: &str = "watermaster";

/// A running KDC that knows the broker and one user.
#[derive(Debug)]
pub struct Realm {
    // Declared before `dir`, so that the process ends before its directory is removed.
    _kdc: Process,
    dir: TempDir,
}

impl Realm {
    /// Creates the realm with a keytab for each principal, and an old one for the user; starts its KDC.
    pub fn start() -> Realm {
        let (dir, port) = (temporary_directory(), free_port());
        let path = |file: &str| dir.path().join(file).display().to_string();
        let client = format!(
            "[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_canonicalize_hostname = false\n\
             rdns = false\nudp_preference_limit = 1\ndefault_ccache_name = FILE:{}\n\
             [realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n",
            path("cache")
        );
        let server = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n{REALM} = {{\ndatabase_name = {}\nkey_stash_file = {}\n}}\n[logging]\nkdc = FILE:{}\n",
            path("principal"),
            path("stash"),
            path("kdc.log")
        );
        std::fs::write(path("krb5.conf"), client).expect("the folder can be written");
        std::fs::write(path("kdc.conf"), server).expect("the folder can be written");
        let command = |program: &str, arguments: &[&str]| {
            // Debian keeps these programs out of the search path of users.
            let mut command = Command::new(format!("/usr/sbin/{program}"));
            command.args(arguments).args(["-r", REALM]).stdin(Stdio::null()).stdout(Stdio::null());
            command.env("KRB5_CONFIG", path("krb5.conf")).env("KRB5_KDC_PROFILE", path("kdc.conf"));
            command
        };
        let run = |mut command: Command| assert!(command.status().expect("krb5-kdc is installed").success());
        run(command("kdb5_util", &["create", "-s", "-P", "master"]));
        for principal in [BROKER, USER] {
            run(command("kadmin.local", &["-q", &format!("addprinc -randkey {principal}")]));
        }
        // Each of these makes a new key, so that the former keytab of the same principal no longer fits.
        for (principal, keytab) in [(BROKER, "broker.keytab"), (USER, "old.keytab"), (USER, "user.keytab")] {
            run(command("kadmin.local", &["-q", &format!("ktadd -k {} {principal}", path(keytab))]));
        }
        let kdc = Process::start(&mut command("krb5kdc", &["-n"]));
        wait_until("the KDC to listen", Duration::from_secs(10), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Realm { _kdc: kdc, dir }
    }

    /// Returns the path of a file in the realm's folder.
    pub fn path(&self, file: &str) -> String {
        self.dir.path().join(file).display().to_string()
    }

    /// Returns the properties with which a broker takes tickets of this realm on the listener `KERBEROS`.
    pub fn broker_properties(&self) -> Vec<String> {
        let module =
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true serviceName=kafka";
        let (keytab, principal) = (self.path("broker.keytab"), format!("{BROKER}@{REALM}"));
        vec![
            "listener.name.kerberos.sasl.enabled.mechanisms=GSSAPI".to_owned(),
            format!(
                "listener.name.kerberos.gssapi.sasl.jaas.config={module} keyTab=\"{keytab}\" principal=\"{principal}\";"
            ),
        ]
    }
}
