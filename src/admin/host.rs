//! Requests on a loopback address must name that address, and no page of another host may ask.
//!
//! A web page in a browser on this machine can make its own host name resolve to 127.0.0.1 (DNS rebinding). The browser
//! then takes this program for the page's host and lets the page read the answers. The `Host` header gives it away: it
//! still names the page's host.
//!
//! A page of another host that asks under this program's own name can't read the answer, but each of its requests
//! would be served. A browser adds the page's host to such a request, in the header `Origin`.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use axum::{extract::Request, extract::State, http::uri::Authority, middleware::Next};
use serde_json::json;

use super::refusal;

/// The hosts that a request may name, with any port.
const ALLOWED: [&str; 3] = ["localhost", "127.0.0.0/8", "[::1]"];

/// Answers 421 to a request on loopback for another host than this machine, and 403 to one of a page of another host.
///
/// Beyond loopback a host name may lead here in many ways, and the token protects the answers.
pub(super) async fn check(State(on_loopback): State<bool>, request: Request, next: Next) -> Response {
    let named = match request.uri().authority() {
        Some(authority) => is_this_machine(authority.as_str()),
        None => names_this_machine(request.headers(), request.version()),
    };
    if on_loopback && !named {
        let error = "admin.listen is a loopback address, and the Host header of this request names another host";
        let body = json!({ "error": error, "allowed": ALLOWED });
        return refusal(StatusCode::MISDIRECTED_REQUEST, body).into_response();
    }
    if !comes_from_itself(request.headers()) {
        let error = "the Origin header of this request names another host than its Host header";
        return refusal(StatusCode::FORBIDDEN, json!({ "error": error })).into_response();
    }
    next.run(request).await
}

/// Returns whether no `Origin` header names another host and port than the `Host` header.
fn comes_from_itself(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    headers.get_all(header::ORIGIN).iter().all(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.zip(host).is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
    })
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
    use axum::http::HeaderValue;

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
    fn the_page_of_a_request_has_the_host_of_the_request() {
        let own = |origins: &[&'static str]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("wm.example:9464"));
            origins.iter().for_each(|origin| _ = headers.append(header::ORIGIN, HeaderValue::from_static(origin)));
            comes_from_itself(&headers)
        };
        for right in [&[][..], &["http://wm.example:9464"], &["https://WM.example:9464"]] {
            assert!(own(right), "{right:?}");
        }
        for wrong in ["http://evil.example", "http://wm.example", "http://wm.example:9464.evil.example", "null", ""] {
            assert!(!own(&[wrong]), "{wrong}");
        }
        assert!(!own(&["http://wm.example:9464", "http://evil.example"]));
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
