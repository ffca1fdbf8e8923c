//! Connections: how many, how long, how large. A slow client or a flood costs a bounded amount and hurts nobody else.

use super::{
    auth::{Gate, Verdict},
    routes::{Answer, answer, is_public, route},
};
use crate::{
    agent::{sampler::Shared, web::Web},
    error::{Error, Result},
};
use hyper::{
    Request, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};

/// What a client may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; more are closed at once.
    pub connections: usize,
    /// For the TLS handshake and for the headers of a request.
    pub headers: Duration,
    /// For a connection as a whole: scrapers open a new one afterwards.
    pub connection: Duration,
    /// Bytes of the headers of a request.
    pub header_bytes: usize,
    /// For open requests once the agent is asked to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 64,
            headers: Duration::from_secs(5),
            connection: Duration::from_secs(120),
            header_bytes: 16 * 1024,
            drain: Duration::from_millis(1_000),
        }
    }
}

/// The listening agent.
pub struct Server {
    listener: TcpListener,
    context: Arc<Context>,
    limits: Limits,
}

struct Context {
    shared: Arc<Shared>,
    web: RwLock<Arc<Door>>,
    /// Answers on loopback only, and to everybody: then the name in `Host` tells a browser that was lured here.
    local_only: bool,
    hostname: String,
}

/// TLS and users of this moment; a reload puts another in its place.
struct Door {
    tls: Option<tokio_rustls::TlsAcceptor>,
    gate: Gate,
}

impl Door {
    fn new(web: &Web) -> Door {
        Door { tls: web.tls.clone().map(Into::into), gate: Gate::new(web.users.clone()) }
    }
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// When the port is taken or the address is not one of this host.
    pub async fn bind(listen: SocketAddr, web: &Web, shared: Arc<Shared>, limits: Limits) -> Result<Server> {
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            let remedy = match e.kind() {
                std::io::ErrorKind::AddrInUse => {
                    format!(
                        "another program answers on port {}: stop it, or choose another with --listen",
                        listen.port()
                    )
                }
                std::io::ErrorKind::AddrNotAvailable => {
                    "no interface of this host has that address".to_owned()
                }
                std::io::ErrorKind::PermissionDenied => {
                    "ports below 1024 need CAP_NET_BIND_SERVICE".to_owned()
                }
                _ => "choose another with --listen".to_owned(),
            };
            Error::os(format!("listening on {listen}"), e).remedy(remedy)
        })?;
        let hostname =
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_lowercase();
        let context = Context {
            shared,
            web: RwLock::new(Arc::new(Door::new(web))),
            local_only: listen.ip().is_loopback(),
            hostname,
        };
        Ok(Server { listener, context: Arc::new(context), limits })
    }

    /// The address in use: with port 0 the kernel chose one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// A handle that puts other TLS keys and users in place for connections to come.
    pub fn rekey(&self) -> impl Fn(&Web) + Send + Sync + use<> {
        let context = Arc::clone(&self.context);
        move |web| *context.web.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Door::new(web))
    }

    /// Answers until `stop` changes, then lets open requests end within [`Limits::drain`].
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = stop.changed() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // Full: the newcomer is closed at once, which a scraper sees as a failed scrape, not a hang.
                        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                        let (context, limits, stop) = (Arc::clone(&self.context), self.limits, stop.clone());
                        connections.spawn(async move {
                            let _ = timeout(limits.connection, connection(stream, context, limits, stop)).await;
                            drop(place);
                        });
                    }
                    // Out of descriptors, or the client left at once: wait instead of spinning.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
        drop(self.listener);
        let _ = timeout(self.limits.drain, async { while connections.join_next().await.is_some() {} }).await;
    }
}

async fn connection(stream: TcpStream, context: Arc<Context>, limits: Limits, stop: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let door = Arc::clone(&context.web.read().unwrap_or_else(PoisonError::into_inner));
    match &door.tls {
        None => speak(stream, context, door, limits, stop).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = timeout(limits.headers, acceptor.accept(stream)).await {
                speak(stream, context, Arc::clone(&door), limits, stop).await;
            }
        }
    }
}

async fn speak<S>(
    stream: S,
    context: Arc<Context>,
    door: Arc<Door>,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let (context, door) = (Arc::clone(&context), Arc::clone(&door));
        async move { Ok::<_, Infallible>(reply(&request, &context, &door).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.headers.max(Duration::from_millis(1)));
    builder.max_buf_size(limits.header_bytes.max(8192));
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = serving.as_mut() => {}
        _ = stop.changed() => {
            // The request at hand is answered, then the connection closes.
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

async fn reply(request: &Request<Incoming>, context: &Context, door: &Door) -> Answer {
    if !host_is_ours(request, context, door) {
        return answer(
            StatusCode::MISDIRECTED_REQUEST,
            "text/plain; charset=utf-8",
            "this agent answers to localhost, its address and its host's name only\n",
        );
    }
    if !is_public(request.uri().path()) {
        let header = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        match door.gate.check(header).await {
            Verdict::Welcome => {}
            Verdict::Refused => {
                let mut no = answer(StatusCode::UNAUTHORIZED, "text/plain; charset=utf-8", "who are you?\n");
                no.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"glake\""));
                return no;
            }
            Verdict::Busy => {
                let mut later =
                    answer(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", "try later\n");
                later.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
                return later;
            }
        }
    }
    let mut answer = route(request, &context.shared);
    // A body is never wanted: rather than read it, end the connection.
    if request.headers().contains_key("content-length") || request.headers().contains_key("transfer-encoding")
    {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Guards an open agent on loopback against web pages whose name was pointed at 127.0.0.1 (DNS rebinding): a browser
/// sends that name as `Host`.
fn host_is_ours(request: &Request<Incoming>, context: &Context, door: &Door) -> bool {
    if !(context.local_only && door.gate.is_open() && door.tls.is_none()) {
        return true;
    }
    let Some(host) = request.headers().get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
        || bare.eq_ignore_ascii_case("localhost")
        || bare.to_lowercase() == context.hostname
}
