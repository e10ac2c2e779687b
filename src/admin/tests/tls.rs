//! The HTTP side by TLS.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslMethod, SslStream, SslVersion};
use openssl::x509::extension::SubjectAlternativeName;
use openssl::x509::{X509, X509Name};
use watermaster_settings::config::Config;

use super::*;

/// A folder with a configuration that names a certificate, and its key.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    /// Writes a certificate that is valid from `from` until `until`, in days from now, and a configuration.
    fn new(from: i64, until: i64) -> Files {
        let files = Files { folder: tempfile::tempdir().unwrap() };
        files.renew(from, until);
        std::fs::write(files.path("token"), TOKEN).unwrap();
        let [certificate, key, token] = ["tls.crt", "tls.key", "token"].map(|name| files.path(name));
        let text = include_str!("../../../config/demo.toml");
        let admin = format!("[admin]\ntls_cert = {certificate:?}\ntls_key = {key:?}\ntoken_file = {token:?}\n");
        std::fs::write(files.path("watermaster.toml"), format!("{admin}{text}")).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes another certificate with its key, and returns it.
    fn renew(&self, from: i64, until: i64) -> X509 {
        let (certificate, key) = pair(from, until);
        std::fs::write(self.path("tls.crt"), certificate.to_pem().unwrap()).unwrap();
        std::fs::write(self.path("tls.key"), key).unwrap();
        certificate
    }

    fn serve(&self, limits: ConnectionLimits) -> Server {
        let path = self.path("watermaster.toml");
        let config = Config::load(&[&path], [], watermaster_kafka::PROPERTY_RULES);
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let heartbeat = Heartbeat::new(Instant::now(), HEARTBEAT_LIMIT);
        Server::of(Configuration::new(Some(vec![path]), config), limits, Ipv4Addr::LOCALHOST, heartbeat)
    }
}

static NEXT_SERIAL: AtomicU32 = AtomicU32::new(1);

/// Makes a certificate for 127.0.0.1 that signs itself, and its key in PEM.
fn pair(from: i64, until: i64) -> (X509, Vec<u8>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut name = X509Name::builder().unwrap();
    // OpenSSL finds the issuer of a certificate by its name.
    let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
    name.append_entry_by_text("CN", &format!("watermaster-{serial}")).unwrap();
    let name = name.build();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let day = |days: i64| Asn1Time::from_unix(now + days * 86_400).unwrap();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&BigNum::from_u32(serial).unwrap().to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&day(from)).unwrap();
    builder.set_not_after(&day(until)).unwrap();
    let names = SubjectAlternativeName::new().ip("127.0.0.1").build(&builder.x509v3_context(None, None)).unwrap();
    builder.append_extension(names).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    (builder.build(), key.private_key_to_pem_pkcs8().unwrap())
}

/// Connects with versions of TLS up to this one, and trusts the certificates in a file.
fn connect(server: &Server, trusted: Option<&Path>, highest: SslVersion) -> Result<SslStream<TcpStream>, String> {
    let mut builder = SslConnector::builder(SslMethod::tls_client()).unwrap();
    // Without this the client's own library refuses the former versions.
    builder.set_cipher_list("ALL:@SECLEVEL=0").unwrap();
    builder.set_min_proto_version(Some(SslVersion::TLS1)).unwrap();
    builder.set_max_proto_version(Some(highest)).unwrap();
    trusted.into_iter().for_each(|path| builder.set_ca_file(path).unwrap());
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    builder.build().connect("127.0.0.1", stream).map_err(|error| error.to_string())
}

/// Returns the first line of the answer to a request.
fn ask(mut stream: SslStream<TcpStream>, request: &str) -> String {
    stream.write_all(format!("{request}\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn two_versions_of_tls_are_served_and_others_are_not() {
    let files = Files::new(-1, 1);
    let server = files.serve(ConnectionLimits::DEFAULT);
    let trusted = files.path("tls.crt");
    for (highest, name) in [(SslVersion::TLS1_2, "TLSv1.2"), (SslVersion::TLS1_3, "TLSv1.3")] {
        let stream = connect(&server, Some(&trusted), highest).unwrap();
        assert_eq!(stream.ssl().version_str(), name);
        assert_eq!(ask(stream, "GET /livez HTTP/1.1"), "HTTP/1.1 200 OK");
    }
    let refused = connect(&server, Some(&trusted), SslVersion::TLS1_1).unwrap_err();
    assert!(refused.contains("alert protocol version"), "the server refuses it: {refused}");
    // Well before the time for a request is over.
    let began = Instant::now();
    let mut plain = server.connect("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = Vec::new();
    let ended = plain.read_to_end(&mut answer).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    assert!(!answer.starts_with(b"HTTP") && began.elapsed() < Duration::from_secs(5), "{answer:?}");
}

#[test]
fn a_client_sees_that_a_certificate_is_unknown_or_has_expired() {
    let files = Files::new(-1, 1);
    let server = files.serve(ConnectionLimits::DEFAULT);
    let unknown = connect(&server, None, SslVersion::TLS1_3).unwrap_err();
    assert!(unknown.contains("certificate verify failed"), "{unknown}");
    let files = Files::new(-2, -1);
    let server = files.serve(ConnectionLimits::DEFAULT);
    let expired = connect(&server, Some(&files.path("tls.crt")), SslVersion::TLS1_3).unwrap_err();
    assert!(expired.contains("certificate has expired"), "{expired}");
}

#[test]
fn a_renewed_certificate_is_used_by_the_next_connection_and_no_request_fails() {
    let files = Files::new(-1, 1);
    let first = X509::from_pem(&std::fs::read(files.path("tls.crt")).unwrap()).unwrap();
    let server = files.serve(ConnectionLimits::DEFAULT);
    let (second, key) = pair(-1, 1);
    // Clients trust both.
    let trusted = files.path("trusted");
    std::fs::write(&trusted, [first.to_pem().unwrap(), second.to_pem().unwrap()].concat()).unwrap();
    let shown = || {
        let stream = connect(&server, Some(&trusted), SslVersion::TLS1_3).unwrap();
        stream.ssl().peer_certificate().unwrap().to_der().unwrap()
    };
    let reload = || server.state.configuration.reload("test").unwrap();
    let (asked, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let stream = connect(&server, Some(&trusted), SslVersion::TLS1_3).unwrap();
                    assert_eq!(ask(stream, "GET /readyz HTTP/1.1"), "HTTP/1.1 503 Service Unavailable");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let wait_for_requests = || {
            let until = asked.load(Ordering::Relaxed) + 10;
            while asked.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
        };
        wait_for_requests();
        assert_eq!(shown(), first.to_der().unwrap());
        std::fs::write(files.path("tls.crt"), second.to_pem().unwrap()).unwrap();
        let refused = reload().unwrap_err().to_string();
        assert!(refused.contains("tls.key\" is not the key of the certificate in"), "{refused}");
        assert_eq!(shown(), first.to_der().unwrap(), "the former pair stays");
        std::fs::write(files.path("tls.key"), &key).unwrap();
        assert_eq!(reload().unwrap().changed, ["admin.tls_cert", "admin.tls_key"]);
        assert_eq!(shown(), second.to_der().unwrap());
        wait_for_requests();
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_ends_no_handshake_is_closed_and_keeps_no_other_waiting() {
    let files = Files::new(-1, 1);
    let limits = ConnectionLimits { request_timeout: Duration::from_millis(300), ..ConnectionLimits::DEFAULT };
    let server = files.serve(limits);
    let mut silent = server.connect("");
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "closed");
    let server = files.serve(ConnectionLimits { connections: 3, ..ConnectionLimits::DEFAULT });
    let mut silent: Vec<_> = (0..3).map(|_| server.connect("")).collect();
    let stream = connect(&server, Some(&files.path("tls.crt")), SslVersion::TLS1_3).unwrap();
    assert_eq!(ask(stream, "GET /livez HTTP/1.1"), "HTTP/1.1 200 OK");
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the oldest one made room");
}
