//! Keys and certificates of a test, made with the command `openssl`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::own_broker::temporary_directory;

/// The configuration of `openssl ca`, which can issue certificates that have already expired.
const AUTHORITY: &str = "[ca]\ndefault_ca = ours\n[ours]\ndatabase = index\nrand_serial = yes\nunique_subject = no\n\
                         new_certs_dir = .\ndefault_md = sha256\npolicy = any\nx509_extensions = leaf\n\
                         [any]\ncommonName = supplied\n[leaf]\nsubjectAltName = ${ENV::NAMES}\n";
const NEW_KEY: [&str; 6] = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
/// The names of the brokers, as in the extension `subjectAltName`.
const BROKERS: &str = "IP:127.0.0.1,DNS:localhost";

/// A folder of keys: `NAME.key`, `NAME.pem` (the certificate) and `NAME.store` (both, as Kafka reads them).
#[derive(Debug)]
pub struct Keys {
    dir: TempDir,
}

impl Keys {
    /// Makes two certificate authorities, `ca` and `other-ca`; of the first one the certificates `broker`,
    /// `elsewhere` (of another host), `expired`, `watermaster` and `renewed` (of clients), and of the other one `moved`
    /// (of a client).
    pub fn new() -> Keys {
        let keys = Keys { dir: temporary_directory() };
        std::fs::write(keys.path("ca.conf"), AUTHORITY).expect("the folder can be written");
        std::fs::write(keys.path("index"), "").expect("the folder can be written");
        for name in ["ca", "other-ca"] {
            keys.new_key(name, &["-x509", "-days", "2", "-out", &format!("{name}.pem")]);
        }
        keys.certify("ca", "broker", BROKERS, "20491231235959Z");
        keys.certify("ca", "elsewhere", "DNS:kafka.elsewhere.example", "20491231235959Z");
        keys.certify("ca", "expired", BROKERS, "20200102000000Z");
        for (authority, client) in [("ca", "watermaster"), ("ca", "renewed"), ("other-ca", "moved")] {
            keys.certify(authority, client, "DNS:watermaster", "20491231235959Z");
        }
        keys
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, file: &str) -> String {
        self.dir.path().join(file).display().to_string()
    }

    fn new_key(&self, name: &str, options: &[&str]) {
        let (subject, key) = (format!("/CN={name}"), format!("{name}.key"));
        self.openssl(&[&NEW_KEY[..], &["-subj", &subject, "-keyout", &key], options].concat(), "");
    }

    fn certify(&self, authority: &str, name: &str, names: &str, until: &str) {
        let [signer, signer_key] = ["pem", "key"].map(|kind| format!("{authority}.{kind}"));
        let [request, certificate] = ["csr", "pem"].map(|kind| format!("{name}.{kind}"));
        self.new_key(name, &["-out", &request]);
        let dates = ["-startdate", "20200101000000Z", "-enddate", until];
        let by = ["ca", "-batch", "-notext", "-config", "ca.conf", "-cert", &signer, "-keyfile", &signer_key];
        let files = ["-in", &request, "-out", &certificate];
        self.openssl_with(&[&by[..], &dates, &files].concat(), names, "");
        let read = |file: String| std::fs::read_to_string(self.path(&file)).expect("openssl wrote the file");
        let store = read(format!("{name}.key")) + &read(certificate);
        std::fs::write(self.path(&format!("{name}.store")), store).expect("the folder can be written");
    }

    /// Runs `openssl` in the folder; returns its output.
    pub fn openssl(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> Vec<u8> {
        self.openssl_with(arguments, "", input)
    }

    fn openssl_with(&self, arguments: &[&str], names: &str, input: impl AsRef<[u8]>) -> Vec<u8> {
        let mut command = Command::new("openssl");
        command.args(arguments).current_dir(self.dir.path()).env("NAMES", names);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("openssl is installed");
        child.stdin.take().expect("stdin is piped").write_all(input.as_ref()).expect("openssl reads its input");
        let output = child.wait_with_output().expect("openssl ends");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}
