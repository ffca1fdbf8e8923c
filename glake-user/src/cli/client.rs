//! Asking an agent for its state. Plain HTTP to an address; no privilege.

use crate::error::{Error, Kind, Result};
use crate::telemetry::state::{SCHEMA, State};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, header};
use hyper_util::rt::TokioIo;
use std::time::Duration;

/// An agent answers within milliseconds; a longer wait means that it is stopped or the network is.
const DEADLINE: Duration = Duration::from_secs(3);
/// An agent's first reading is there within a second of its start.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// A state of 10,000 devices is some 10 MiB.
const MOST: usize = 64 << 20;

/// The agent's newest state.
///
/// # Errors
/// [`Kind::Missing`] when nobody listens there; else what went wrong, with the remedy.
pub(super) async fn state(address: &str) -> Result<State> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let slow = |_| {
        Error::new(Kind::TimedOut, format!("{address} did not answer within {} s", DEADLINE.as_secs()))
            .remedy("see whether the agent is stopped: systemctl status glake")
    };
    loop {
        let (status, body) = tokio::time::timeout_at(deadline, get(address)).await.map_err(slow)??;
        match status {
            StatusCode::OK => return parse(address, &body),
            // It has just been started.
            StatusCode::SERVICE_UNAVAILABLE if tokio::time::Instant::now() + ASK_AGAIN < deadline => {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                return Err(Error::new(Kind::TimedOut, format!("the agent on {address} has no reading yet")));
            }
            StatusCode::UNAUTHORIZED => {
                let doing = format!("the agent on {address} asks for a user and password");
                return Err(Error::new(Kind::Denied, doing)
                    .remedy("run `glake watch` on its own host, against a loopback address without users"));
            }
            other => return Err(foreign(address, format!("it answered {other}"))),
        }
    }
}

async fn get(address: &str) -> Result<(StatusCode, Bytes)> {
    let stream = tokio::net::TcpStream::connect(address).await.map_err(|e| {
        let refused = e.kind() == std::io::ErrorKind::ConnectionRefused;
        let doing = if refused {
            format!("no agent answers on {address}")
        } else {
            format!("connecting to {address}")
        };
        match e.kind() {
            std::io::ErrorKind::ConnectionRefused => Error::new(Kind::Missing, doing).because(e),
            // Not HOST:PORT at all.
            std::io::ErrorKind::InvalidInput => Error::new(Kind::Misuse, format!("{address} is no address"))
                .remedy("give HOST:PORT, such as 127.0.0.1:9517"),
            _ => Error::os(doing, e),
        }
    })?;
    let broken = |e: hyper::Error| foreign(address, format!("it broke off: {e}"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It ends with the connection; its error comes out of the request as well.
    tokio::spawn(connection);
    let request = Request::get("/api/v1/state")
        .header(header::HOST, address)
        .header(header::USER_AGENT, concat!("glake/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|e| Error::new(Kind::Misuse, format!("{address} is no address")).because(e))?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST).collect().await;
    let body = body.map_err(|e| foreign(address, format!("its answer broke off: {e}")))?;
    Ok((status, body.to_bytes()))
}

fn parse(address: &str, body: &[u8]) -> Result<State> {
    let state: State = serde_json::from_slice(body)
        .map_err(|e| foreign(address, format!("its state does not read as schema {SCHEMA}: {e}")))?;
    if state.schema > SCHEMA {
        return Err(Error::new(
            Kind::Unsupported,
            format!("the agent on {address} speaks schema {}, this glake up to {SCHEMA}", state.schema),
        )
        .remedy("use the same version on both sides"));
    }
    Ok(state)
}

fn foreign(address: &str, why: String) -> Error {
    Error::new(Kind::Device, format!("what answers on {address} is no GLake agent of this version: {why}"))
        .remedy("name the agent with --addr HOST:PORT")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Answers one connection with each of `replies`, and gives the result of asking.
    fn asked(replies: Vec<Vec<u8>>) -> Result<State> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            for reply in replies {
                let (mut peer, _) = listener.accept().unwrap();
                let _ = peer.read(&mut [0; 1024]);
                let _ = peer.write_all(&reply);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(state(&address));
        server.join().unwrap();
        answer
    }

    fn http(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[test]
    fn a_state_comes_through_whole() {
        let sent = crate::cli::view::tests::state(1);
        let good = http("200 OK", &serde_json::to_string(&sent).unwrap());
        assert_eq!(asked(vec![good.clone()]).unwrap(), sent);
        let not_yet = http("503 Service Unavailable", "");
        assert_eq!(
            asked(vec![not_yet.clone(), not_yet, good]).unwrap(),
            sent,
            "one that has just been started"
        );
    }

    #[test]
    fn every_wrong_answer_has_its_sentence() {
        for (reply, says) in [
            (http("401 Unauthorized", ""), "asks for a user"),
            (http("404 Not Found", ""), "it answered 404"),
            (http("200 OK", "{}"), "does not read as schema"),
            (b"SSH-2.0-OpenSSH\r\n".to_vec(), "no GLake agent"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_vec(), "broke off"),
        ] {
            let error = asked(vec![reply]).unwrap_err();
            assert!(error.chain().contains(says), "{} should say {says}", error.chain());
        }
    }

    #[test]
    fn nobody_there_is_missing() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(state(&free.to_string())).unwrap_err().kind(), Kind::Missing);
    }
}
