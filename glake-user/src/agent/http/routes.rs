//! What is answered to what. Reading only: there is no verb that changes anything.

use crate::{
    agent::sampler::{Shared, Snapshot},
    telemetry::{metrics::accept::Format, state::Status},
};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Bytes,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VARY},
};
use std::time::Duration;

/// A finished answer.
pub(super) type Answer = Response<Full<Bytes>>;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

const INDEX: &str = "GLake agent. Read only.\n\n/metrics        Prometheus and OpenMetrics text\n\
                     /api/v1/state   the newest interval as JSON\n/healthz        200, with \"degraded\" and reasons in the body\n\
                     /livez          200 while readings are taken\n";

/// Whether a path is answered without asking who is there: liveness probes of orchestrators carry no password.
pub(super) fn is_public(path: &str) -> bool {
    path == "/livez"
}

/// Answers a request.
pub(super) fn route<B>(request: &Request<B>, shared: &Shared) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut answer = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "this server is read only\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match request.uri().path() {
        "/" => answer(StatusCode::OK, TEXT, INDEX),
        "/livez" => livez(shared),
        "/healthz" => {
            with_snapshot(shared, |snapshot| answer(StatusCode::OK, JSON, health(shared, snapshot)))
        }
        "/api/v1/state" => with_snapshot(shared, |snapshot| answer(StatusCode::OK, JSON, snapshot.json())),
        "/metrics" => {
            let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
            let format = Format::of_accept(accept);
            with_snapshot(shared, |snapshot| {
                let mut answer = answer(StatusCode::OK, format.content_type(), snapshot.text(format));
                answer.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
                answer
            })
        }
        _ => answer(StatusCode::NOT_FOUND, TEXT, "there is no such page; / lists all\n"),
    }
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn with_snapshot(shared: &Shared, make: impl FnOnce(&Snapshot) -> Answer) -> Answer {
    match shared.newest() {
        Some(snapshot) => make(&snapshot),
        None => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the first reading is not there yet\n"),
    }
}

/// Live: a reading was tried not long ago. Whether it went well is for /healthz.
fn livez(shared: &Shared) -> Answer {
    let age = shared.beat_age();
    if age < shared.stuck_after() {
        return answer(StatusCode::OK, TEXT, "ok\n");
    }
    let text = format!("no reading was tried for {} s\n", age.as_secs());
    answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
}

/// Always 200: a degraded agent still counts, and a restart would not help it.
fn health(shared: &Shared, snapshot: &Snapshot) -> String {
    let mut health = snapshot.state.health.clone();
    let age = snapshot.taken.elapsed();
    let interval = shared.interval();
    if age > interval * 2 + Duration::from_secs(1) {
        health.reasons.push(format!(
            "the newest reading is {:.1} s old, wanted every {:?}",
            age.as_secs_f64(),
            interval
        ));
        health.status = Status::Degraded;
    }
    if let Some(error) = shared.error() {
        health.reasons.push(format!("the newest reading failed: {error}"));
        health.status = Status::Degraded;
    }
    let body = serde_json::json!({
        "status": health.status,
        "reasons": health.reasons,
        "sample_age_seconds": age.as_secs_f64(),
        "coverage": snapshot.state.coverage,
    });
    format!("{body}\n")
}
