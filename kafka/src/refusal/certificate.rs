//! Finds the reason for which a broker's certificate is not accepted: librdkafka's text is the same for all.

use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use openssl::error::ErrorStack;
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslVerifyMode};
use openssl::x509::{X509, X509VerifyResult};
use watermaster_settings::Kafka;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_PORT: u16 = 9092;

/// Asks the bootstrap servers for their certificates, as librdkafka does, and returns the first that is not accepted
/// with OpenSSL's reason.
pub(super) fn find_refused(kafka: &Kafka) -> Option<String> {
    let context = context(kafka).ok()?;
    kafka.bootstrap_servers.split(',').find_map(|server| {
        let (host, port) = address(server.trim());
        let result = verify(&context, kafka, host, port)?;
        Some(format!("the certificate of {host}:{port} is not accepted: {}", result.error_string()))
    })
}

/// Returns host and port of a server; an IPv6 address without its brackets.
fn address(server: &str) -> (&str, u16) {
    let address = server.split_once("://").map_or(server, |(_, address)| address);
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(DEFAULT_PORT)),
        _ => (address, DEFAULT_PORT),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

fn context(kafka: &Kafka) -> Result<SslContext, ErrorStack> {
    let properties = kafka.all_properties();
    let property = |name| properties.get(name).map(String::as_str);
    let mut context = SslContextBuilder::new(SslMethod::tls_client())?;
    match (property("ssl.ca.location"), property("ssl.ca.pem")) {
        (Some(path), _) if std::path::Path::new(path).is_dir() => {
            context.load_verify_locations(None, Some(path.as_ref()))?
        }
        (Some(path), _) if path != "probe" => context.set_ca_file(path)?,
        (None, Some(pem)) => {
            for certificate in X509::stack_from_pem(pem.as_bytes())? {
                context.cert_store_mut().add_cert(certificate)?;
            }
        }
        _ => context.set_default_verify_paths()?,
    }
    context.set_verify(SslVerifyMode::PEER);
    Ok(context.build())
}

/// Returns the result of a server's verification, unless it is accepted or can't be had.
fn verify(context: &SslContext, kafka: &Kafka, host: &str, port: u16) -> Option<X509VerifyResult> {
    let mut tls = Ssl::new(context).ok()?;
    let checks_host = kafka.properties.get("ssl.endpoint.identification.algorithm").is_none_or(|name| name != "none");
    match host.parse::<IpAddr>() {
        Ok(ip) if checks_host => tls.param_mut().set_ip(ip).ok()?,
        Ok(_) => {}
        Err(_) => {
            tls.set_hostname(host).ok()?;
            if checks_host {
                tls.param_mut().set_host(host).ok()?;
            }
        }
    }
    let server = (host, port).to_socket_addrs().ok()?.next()?;
    let stream = TcpStream::connect_timeout(&server, ANSWER_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    let Err(openssl::ssl::HandshakeError::Failure(handshake)) = tls.connect(stream) else { return None };
    Some(handshake.ssl().verify_result()).filter(|result| *result != X509VerifyResult::OK)
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (server, host, port) in
            [("a:1", "a", 1), ("SSL://a", "a", 9092), ("[::1]:2", "::1", 2), ("sasl_ssl://[::1]", "::1", 9092)]
        {
            assert_eq!(address(server), (host, port), "{server}");
        }
    }
}
