//! The files of the page.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::admin::Served;

/// A file of the page, which is part of the program.
pub(in crate::admin) struct PageFile {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

const fn file(path: &'static str, content_type: &'static str, text: &'static str) -> PageFile {
    PageFile { path, content_type, text }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

pub(in crate::admin) static FILES: [PageFile; 18] = [
    file("/", HTML, include_str!("page/index.html")),
    file("/console/style.css", CSS, include_str!("page/style.css")),
    file("/console/icon.svg", SVG, include_str!("page/icon.svg")),
    file("/console/main.js", SCRIPT, include_str!("page/main.js")),
    file("/console/api.js", SCRIPT, include_str!("page/api.js")),
    file("/console/dom.js", SCRIPT, include_str!("page/dom.js")),
    file("/console/format.js", SCRIPT, include_str!("page/format.js")),
    file("/console/chart.js", SCRIPT, include_str!("page/chart.js")),
    file("/console/flow.js", SCRIPT, include_str!("page/flow.js")),
    file("/console/table.js", SCRIPT, include_str!("page/table.js")),
    file("/console/overview.js", SCRIPT, include_str!("page/overview.js")),
    file("/console/service.js", SCRIPT, include_str!("page/service.js")),
    file("/console/client.js", SCRIPT, include_str!("page/client.js")),
    file("/console/letters.js", SCRIPT, include_str!("page/letters.js")),
    file("/console/causes.js", SCRIPT, include_str!("page/causes.js")),
    file("/console/pace.js", SCRIPT, include_str!("page/pace.js")),
    file("/console/rules.js", SCRIPT, include_str!("page/rules.js")),
    file("/console/changes.js", SCRIPT, include_str!("page/changes.js")),
];

/// Scripts and styles come from this address alone, none stand in the page, and a script can't turn text into HTML.
const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the routes of all files.
pub(in crate::admin) fn files() -> Router<Arc<Served>> {
    FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(move |headers: HeaderMap| async move { file.answer(&headers) }))
    })
}

impl PageFile {
    /// Answers with the file, or 304 to a browser that has it.
    fn answer(&self, request: &HeaderMap) -> Response {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        let tag = format!("\"{:016x}\"", hasher.finish());
        let has_it = request.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
        let headers = [
            (header::ETAG, tag.as_str()),
            // A browser asks each time, so that page and program are of one version.
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_TYPE, self.content_type),
            (header::CONTENT_SECURITY_POLICY, SECURITY_POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        let (status, text) = if has_it { (StatusCode::NOT_MODIFIED, "") } else { (StatusCode::OK, self.text) };
        (status, headers, text).into_response()
    }
}
