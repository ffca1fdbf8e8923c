use super::*;
use crate::{
    agent::{Sampler, Shared, web::Web},
    clock::Stamp,
    error::{Error, Kind, Result},
    events::{
        event::Event,
        sample::{BlockDevice, BlockOperation, Dropped, Operation, Sample},
        source::Source,
    },
};
use std::{collections::VecDeque, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

/// A test that hangs fails after this long; none passes because of it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A source that gives what it is given, then fails.
struct Script(VecDeque<Sample>);

impl Source for Script {
    fn sample(&mut self) -> Result<Sample> {
        self.0.pop_front().ok_or_else(|| Error::new(Kind::Io, "the script is at its end"))
    }

    fn events(&mut self) -> Result<Vec<Event>> {
        Ok(Vec::new())
    }
}

fn reading(second: u64, bytes: u64, dropped: u64) -> Sample {
    let read = BlockOperation {
        operation: Operation::Read,
        completed: bytes / 512,
        bytes,
        errors: 0,
        queue: None,
        device: None,
    };
    let ns = second * 1_000_000_000;
    Sample {
        at: Stamp { monotonic_ns: ns, realtime_ns: ns },
        block: Some(vec![BlockDevice {
            device: "vda".into(),
            operations: vec![read],
            ..BlockDevice::default()
        }]),
        dropped: vec![Dropped { source: "ring".into(), reason: "ring_full".into(), count: dropped }],
        ..Sample::default()
    }
}

struct Agent {
    address: SocketAddr,
    shared: Arc<Shared>,
    sampler: Sampler,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Agent {
    async fn start(web: Web, limits: Limits) -> Agent {
        let shared = Arc::new(Shared::new(Duration::from_secs(3600)));
        let script = [reading(10, 512, 0), reading(12, 1_024_512, 0), reading(14, 1_024_512, 5)];
        let sampler = Sampler::new(Box::new(Script(script.into())), Path::new("/").to_owned());
        let listen = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(listen, &web, Arc::clone(&shared), limits).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(server.run(stopped));
        Agent { address, shared, sampler, stop, serving }
    }

    fn step(&mut self) {
        let reading = self.sampler.step(&self.shared);
        self.shared.publish(reading);
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// The whole answer to a request; the request asks for the connection to be closed.
    async fn ask(&self, request: &str) -> String {
        ask(self.connect().await, request).await
    }

    async fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    // A server without a place for us may have closed already.
    let _ = stream.write_all(request.as_bytes()).await;
    everything(&mut stream).await
}

async fn everything(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    // A connection that is cut counts as one that ended.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer))
        .await
        .expect("the server neither answers nor closes");
    String::from_utf8(answer).unwrap()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("no answer")
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn before_the_first_reading_there_is_no_number_and_afterwards_there_are() {
    let mut agent = Agent::start(Web::default(), Limits::default()).await;
    for path in ["/metrics", "/api/v1/state", "/healthz"] {
        assert_eq!(status(&agent.get(path).await), "503", "{path}");
    }
    agent.step();
    agent.step();
    let state: serde_json::Value = serde_json::from_str(body(&agent.get("/api/v1/state").await)).unwrap();
    assert_eq!(state["block"][0]["operations"][0]["bytes"]["per_second"], 512_000.0);
    assert_eq!(state["nvme"], serde_json::Value::Null, "unknown is null");
    let text = agent.get("/metrics").await;
    assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
    assert!(
        text.contains("\nglake_events_dropped_total{source=\"ring\",reason=\"ring_full\"} 0\n"),
        "{text}"
    );
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text;version=1.0.0\r\nConnection: close\r\n\r\n";
    let open = agent.ask(request).await;
    assert!(
        open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
}

#[tokio::test]
async fn health_is_always_200_and_says_in_the_body_what_is_wrong() {
    let mut agent = Agent::start(Web::default(), Limits::default()).await;
    let health = |answer: String| {
        assert_eq!(status(&answer), "200");
        serde_json::from_str::<serde_json::Value>(body(&answer)).unwrap()
    };
    agent.step();
    agent.step();
    assert_eq!(health(agent.get("/healthz").await)["status"], "ok");
    agent.step();
    let missed = health(agent.get("/healthz").await);
    assert_eq!(missed["status"], "degraded");
    assert_eq!(missed["reasons"][0], "5 events of ring were missed: ring_full");
    agent.step();
    let families = missed["coverage"].as_array().expect("a list");
    let named = families.iter().find(|c| c["family"] == "uvm_process").expect("a source that is no probe");
    assert!(named["missing"][0].as_str().is_some_and(|why| why.contains("not loaded")), "{named}");
    let failed = health(agent.get("/healthz").await);
    assert!(failed["reasons"][1].as_str().unwrap().contains("the script is at its end"), "{failed}");
    assert_eq!(
        status(&agent.get("/livez").await),
        "200",
        "a failing source is no reason to be started again"
    );
}

#[tokio::test]
async fn nothing_but_reading_is_possible() {
    let mut agent = Agent::start(Web::default(), Limits::default()).await;
    agent.step();
    for verb in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        let answer = agent
            .ask(&format!("{verb} /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"))
            .await;
        assert_eq!(status(&answer), "405", "{verb}: {answer}");
        assert!(
            answer.contains("allow: GET, HEAD\r\n") && answer.contains("connection: close\r\n"),
            "{verb}: {answer}"
        );
    }
    assert_eq!(status(&agent.get("/metrics/../etc/passwd").await), "404");
    let head = agent.ask("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!((status(&head), body(&head)), ("200", ""));
}

#[tokio::test]
async fn a_page_whose_name_was_pointed_at_loopback_is_turned_away() {
    let mut agent = Agent::start(Web::default(), Limits::default()).await;
    agent.step();
    let with_host =
        |host: &str| format!("GET /api/v1/state HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    for host in ["localhost:9517", "127.0.0.1", "[::1]:9517", "LOCALHOST"] {
        assert_eq!(status(&agent.ask(&with_host(host)).await), "200", "{host}");
    }
    for host in ["evil.example", "evil.example:9517", "localhost.evil.example"] {
        assert_eq!(status(&agent.ask(&with_host(host)).await), "421", "{host}");
    }
}

#[tokio::test]
async fn a_client_that_sends_nothing_or_too_slowly_or_too_much_is_closed() {
    let limits = Limits { headers: Duration::from_millis(100), ..Limits::default() };
    let mut agent = Agent::start(Web::default(), limits).await;
    agent.step();
    let mut silent = agent.connect().await;
    everything(&mut silent).await;
    let mut half = agent.connect().await;
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc").await.unwrap();
    let answer = everything(&mut half).await;
    assert!(!answer.contains("glake_"), "{answer}");
    let mut large = agent.connect().await;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(64 * 1024));
    // The server may close before it has read everything.
    let _ = large.write_all(request.as_bytes()).await;
    let answer = everything(&mut large).await;
    assert!(answer.is_empty() || status(&answer) == "431", "{answer}");
    // A slow machine may keep us from asking within the limit.
    while status(&agent.get("/livez").await) != "200" {}
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let limits = Limits { connections: 1, connection: Duration::from_millis(300), ..Limits::default() };
    let mut agent = Agent::start(Web::default(), limits).await;
    agent.step();
    let mut deaf = agent.connect().await;
    // More answers than the socket buffers hold: the server blocks on writing, and the only place is taken.
    let many = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(4_000);
    let _ = timeout(DEADLINE, deaf.write_all(many.as_bytes())).await.expect("cut off while writing");
    let served = async {
        while status(&agent.get("/livez").await) != "200" {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, served).await.expect("the place is never freed");
    drop(deaf);
}

#[tokio::test]
async fn a_flood_is_turned_away_and_those_inside_are_still_served() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let mut agent = Agent::start(Web::default(), limits).await;
    agent.step();
    let request = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut inside = [agent.connect().await, agent.connect().await];
    let mut buffer = [0; 512];
    for stream in &mut inside {
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
    }
    for _ in 0..200 {
        assert_eq!(everything(&mut agent.connect().await).await, "", "there is no place");
    }
    inside[0].write_all(request.as_bytes()).await.unwrap();
    let n = inside[0].read(&mut buffer).await.unwrap();
    assert_eq!(status(std::str::from_utf8(&buffer[..n]).unwrap()), "200");
}

#[tokio::test]
async fn a_stop_ends_idle_half_read_and_busy_connections() {
    let limits = Limits { drain: Duration::from_millis(200), ..Limits::default() };
    let mut agent = Agent::start(Web::default(), limits).await;
    agent.step();
    let mut idle = agent.connect().await;
    let mut half = agent.connect().await;
    half.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
    // Both are accepted: a later one is answered.
    assert_eq!(status(&agent.get("/livez").await), "200");
    agent.stop.send(true).unwrap();
    timeout(DEADLINE, agent.serving).await.expect("the server ends").unwrap();
    everything(&mut idle).await;
    everything(&mut half).await;
    assert!(TcpStream::connect(agent.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_busy_port_is_named_with_what_to_do() {
    let agent = Agent::start(Web::default(), Limits::default()).await;
    let again =
        Server::bind(agent.address, &Web::default(), Arc::clone(&agent.shared), Limits::default()).await;
    let error = again.err().unwrap().chain();
    let port = agent.address.port();
    assert!(error.contains(&format!("listening on 127.0.0.1:{port}")), "{error}");
    assert!(error.contains("choose another with --listen"), "{error}");
}

fn tls_file(name: &str) -> String {
    format!("{}/../tests/data/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn web_file(text: &str) -> Web {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Web::read(Some(file.path())).unwrap()
}

#[tokio::test]
async fn users_are_asked_for_everywhere_but_at_livez() {
    let hash = bcrypt::hash("right", 4).unwrap();
    let mut agent =
        Agent::start(web_file(&format!("[basic_auth_users]\nbob = \"{hash}\"\n")), Limits::default()).await;
    agent.step();
    for path in ["/metrics", "/api/v1/state", "/healthz", "/", "/nothing"] {
        let answer = agent.get(path).await;
        assert_eq!(status(&answer), "401", "{path}");
        assert!(answer.contains("www-authenticate: Basic realm=\"glake\"\r\n"), "{answer}");
    }
    assert_eq!(status(&agent.get("/livez").await), "200");
    let with = |secret: &str| {
        format!(
            "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {secret}\r\nConnection: close\r\n\r\n"
        )
    };
    assert_eq!(status(&agent.ask(&with("Ym9iOnJpZ2h0")).await), "200");
    assert_eq!(status(&agent.ask(&with("Ym9iOndyb25n")).await), "401");
}

async fn over_tls(agent: &Agent, with_certificate: bool, request: &str) -> std::io::Result<String> {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    let certificate = |name| CertificateDer::from_pem_file(tls_file(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.crt")).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let config = if with_certificate {
        let key = PrivateKeyDer::from_pem_file(tls_file("client.key")).unwrap();
        builder.with_client_auth_cert(vec![certificate("client.crt")], key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, agent.connect().await).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut answer))
        .await
        .expect("the server neither answers nor closes")?;
    Ok(String::from_utf8(answer).unwrap())
}

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn tls_answers_those_who_speak_it_and_nobody_else() {
    let (cert, key) = (tls_file("server.crt"), tls_file("server.key"));
    let web = web_file(&format!("[tls_server_config]\ncert_file = {cert:?}\nkey_file = {key:?}\n"));
    let agent = Agent::start(web, Limits::default()).await;
    assert_eq!(status(&over_tls(&agent, false, LIVEZ).await.unwrap()), "200");
    assert!(!agent.get("/livez").await.contains("200"), "plain HTTP gets no answer");
}

#[tokio::test]
async fn client_certificates_are_demanded_where_an_authority_is_named() {
    let (cert, key, ca) = (tls_file("server.crt"), tls_file("server.key"), tls_file("ca.crt"));
    let text =
        format!("[tls_server_config]\ncert_file = {cert:?}\nkey_file = {key:?}\nclient_ca_file = {ca:?}\n");
    let web = web_file(&text);
    web.allows("0.0.0.0:9517".parse().unwrap(), false).unwrap();
    let agent = Agent::start(web, Limits::default()).await;
    assert_eq!(status(&over_tls(&agent, true, LIVEZ).await.unwrap()), "200");
    assert!(over_tls(&agent, false, LIVEZ).await.is_err());
}
