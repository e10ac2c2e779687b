//! Requests on a loopback address must name that address.
//!
//! A web page in a browser on this machine can make its own host name resolve to 127.0.0.1 (DNS rebinding). The browser
//! then takes this program for the page's host and lets the page read the answers. The `Host` header gives it away: it
//! still names the page's host.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::Request, http::uri::Authority, middleware::Next};
use serde_json::json;

/// The hosts that a request may name, with any port.
const ALLOWED: [&str; 3] = ["localhost", "127.0.0.0/8", "[::1]"];

/// Answers 421 to a request for another host than this machine.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let named = match request.uri().authority() {
        Some(authority) => is_this_machine(authority.as_str()),
        None => names_this_machine(request.headers(), request.version()),
    };
    if named {
        return next.run(request).await;
    }
    let error = "admin.listen is a loopback address, and the Host header of this request names another host";
    (StatusCode::MISDIRECTED_REQUEST, Json(json!({ "error": error, "allowed": ALLOWED }))).into_response()
}

/// Returns whether the `Host` header names this machine; HTTP/1.0 requests may have none.
fn names_this_machine(headers: &HeaderMap, version: Version) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => version < Version::HTTP_11,
        (Some(host), None) => host.to_str().is_ok_and(is_this_machine),
        (Some(_), Some(_)) => false,
    }
}

fn is_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let has_user = host.contains('@');
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name).parse::<IpAddr>();
    !has_user && (name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.to_canonical().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_allowed() {
        for right in ["localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:9464", "127.1.2.3:80", "[::1]", "[::1]:1"]
        {
            assert!(is_this_machine(right), "{right}");
        }
        for wrong in [
            "", "evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example",
            "evil@localhost", "localhost@evil.example", "128.0.0.1", "0.0.0.0:9464", "[::2]:9464",
            "localhost, evil.example",
        ] {
            assert!(!is_this_machine(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_request_names_one_host_or_none_in_http_1_0() {
        let named = |hosts: &[&'static str], version| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            names_this_machine(&headers, version)
        };
        assert!(named(&["localhost"], Version::HTTP_11));
        assert!(named(&[], Version::HTTP_10));
        assert!(!named(&[], Version::HTTP_11));
        assert!(!named(&["evil.example"], Version::HTTP_10));
        assert!(!named(&["localhost", "evil.example"], Version::HTTP_11));
    }
}
