//! The certificate of the HTTP side, with its key.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{SslAcceptor, SslMethod, SslVersion};
use openssl::x509::X509;

/// The reason why files give no certificate with its key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path:?} can't be read: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{0:?} holds no certificate in PEM")]
    NoCertificate(PathBuf),
    #[error("{0:?} holds no private key in PEM that is not encrypted")]
    NoKey(PathBuf),
    #[error("{key:?} is not the key of the certificate in {certificate:?}")]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("OpenSSL refuses the certificate: {0}")]
    Refused(#[from] ErrorStack),
}

/// A certificate with its chain and its key, with which connections by TLS 1.2 and 1.3 are accepted.
#[derive(Clone)]
pub struct TlsIdentity {
    pub acceptor: SslAcceptor,
    /// The time at which the certificate expired, if it has.
    pub expired: Option<String>,
}

impl TlsIdentity {
    /// Reads two files in PEM: the certificate with those that link it to an authority, and its key.
    ///
    /// # Errors
    /// Fails when a file can't be read or holds something else, or when the key is that of another certificate.
    pub fn read(certificate: &Path, key: &Path) -> Result<TlsIdentity, TlsError> {
        let mut chain = X509::stack_from_pem(&bytes(certificate)?).unwrap_or_default().into_iter();
        let first = chain.next().ok_or_else(|| TlsError::NoCertificate(certificate.to_owned()))?;
        // OpenSSL would ask for the password of an encrypted key on the terminal.
        let private = PKey::private_key_from_pem_callback(&bytes(key)?, |_| Ok(0));
        let private = private.map_err(|_| TlsError::NoKey(key.to_owned()))?;
        if !first.public_key()?.public_eq(&private) {
            return Err(TlsError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() });
        }
        let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        builder.set_certificate(&first)?;
        builder.set_private_key(&private)?;
        chain.try_for_each(|link| builder.add_extra_chain_cert(link))?;
        let is_expired = first.not_after() < Asn1Time::days_from_now(0)?;
        Ok(TlsIdentity { acceptor: builder.build(), expired: is_expired.then(|| first.not_after().to_string()) })
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
}

/// Equal configurations have a certificate: it may change while the program runs.
impl PartialEq for TlsIdentity {
    fn eq(&self, _: &TlsIdentity) -> bool {
        true
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}
