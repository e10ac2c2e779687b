//! Bounds the number of connections and the time for which each may keep the server waiting.
//!
//! A client that opens connections and sends nothing, sends half a request, or does not read its answer, must not keep
//! others from `/livez`. Each wait for a client is bounded, and when all connections are in use the one that has kept
//! the server waiting longest is closed for the next one.

use std::sync::Arc;
use std::{future::Future, io, pin::Pin, pin::pin, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use openssl::ssl::Ssl;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_openssl::SslStream;
use tracing::{debug, warn};
use watermaster_settings::tls::TlsIdentity;

use crate::shared::Shared;

/// The time that open requests may take once the shutdown began.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// The pause after a connection could not be accepted, for lack of file descriptors for example.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of a request that are buffered, and so the largest head.
const MAX_BUFFER_BYTES: usize = 32 << 10;

#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    pub(super) connections: usize,
    /// The longest wait for a request: from the connection or the last answer to the end of its head.
    pub(super) request_timeout: Duration,
    /// The longest time that a client may take to read an answer.
    pub(super) answer_timeout: Duration,
    /// The longest time that a client may take to read the next part of an answer that goes on.
    pub(super) event_timeout: Duration,
}

impl ConnectionLimits {
    pub(super) const DEFAULT: ConnectionLimits = ConnectionLimits {
        connections: 64,
        request_timeout: Duration::from_secs(10),
        answer_timeout: Duration::from_secs(30),
        event_timeout: Duration::from_secs(8),
    };
}

/// Serves on `listener` until `shutdown` is done and open requests are answered, or [`SHUTDOWN_GRACE`] has passed.
///
/// Each connection asks for the certificate, so that a renewed one needs no restart; `None` for plain HTTP.
pub(super) async fn serve(
    listener: TcpListener, app: Router, limits: ConnectionLimits, tls: impl Fn() -> Option<TlsIdentity>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let (stop, stopped) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut open = OpenConnections { limit: limits.connections, connections: Vec::new() };
    loop {
        tokio::select! {
            stream = accept(&listener) => {
                let connection = open.add();
                tasks.spawn(begin(stream, tls(), app.clone(), limits, connection, stopped.clone()));
            }
            Some(_) = tasks.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop((listener, stop));
    let _ = timeout(SHUTDOWN_GRACE, async { while tasks.join_next().await.is_some() {} }).await;
}

/// Waits for the next connection. A connection that can't be accepted does not end the server.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(why) if is_of_connection(&why) => {}
            Err(why) => {
                warn!("HTTP: no connection can be accepted: {why}");
                sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

fn is_of_connection(why: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(why.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection, by TLS if there is a certificate. The handshake may take as long as a request.
async fn begin(
    stream: TcpStream, tls: Option<TlsIdentity>, app: Router, limits: ConnectionLimits, connection: Arc<Connection>,
    mut stopped: watch::Receiver<()>,
) {
    let Some(tls) = tls else { return converse(stream, app, limits, connection, stopped).await };
    let handshake = timeout(limits.request_timeout, handshake(stream, &tls));
    let stream = tokio::select! {
        stream = handshake => stream,
        () = connection.closed.notified() => return,
        _ = stopped.changed() => return,
    };
    match stream {
        Ok(Ok(stream)) => converse(stream, app, limits, connection, stopped).await,
        Ok(Err(why)) => debug!("HTTP: a TLS handshake failed: {why}"),
        Err(_) => debug!("HTTP: a TLS handshake took too long"),
    }
}

async fn handshake(stream: TcpStream, tls: &TlsIdentity) -> Result<SslStream<TcpStream>, openssl::ssl::Error> {
    let mut stream = SslStream::new(Ssl::new(tls.acceptor.context())?, stream)?;
    Pin::new(&mut stream).accept().await?;
    Ok(stream)
}

/// Serves one connection until either side closes it.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin, app: Router, limits: ConnectionLimits, connection: Arc<Connection>,
    mut stopped: watch::Receiver<()>,
) {
    let app = TowerToHyperService::new(app);
    let service = service_fn(|mut request| {
        connection.set_answering(true);
        request.extensions_mut().insert(LongAnswer(Arc::clone(&connection)));
        let answer = app.call(request);
        let connection = Arc::clone(&connection);
        async move {
            let answer = answer.await;
            connection.set_answering(false);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.request_timeout).max_buf_size(MAX_BUFFER_BYTES);
    let mut conversation = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut overdue = pin!(connection.overdue(limits));
    let mut stopping = false;
    loop {
        tokio::select! {
            _ = conversation.as_mut() => return,
            () = &mut overdue => return,
            () = connection.closed.notified() => return,
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                conversation.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A connection as the accept loop sees it.
struct Connection {
    turn: Shared<Turn>,
    /// Notified when the connection makes room for another one.
    closed: Notify,
}

#[derive(Clone, Copy)]
struct Turn {
    /// True while the client waits for an answer, false while the server waits for the client.
    answering: bool,
    /// The answer goes on: the client waits for its next part, or has to read one.
    goes_on: bool,
    /// The time since which it has waited.
    since: Instant,
}

/// The connection of a request, found in its extensions, for an answer that goes on.
#[derive(Clone)]
pub(super) struct LongAnswer(Arc<Connection>);

impl LongAnswer {
    /// Notes whether the client waits for the next part. If not, it has to read one before `event_timeout` is over.
    pub(super) fn set_waiting(&self, waiting: bool) {
        self.0.set_turn(waiting, true);
    }
}

impl Connection {
    fn new() -> Connection {
        let turn = Turn { answering: false, goes_on: false, since: Instant::now() };
        Connection { turn: Shared::new(turn), closed: Notify::new() }
    }

    /// Begins an answer, or ends it: then the client has to read it and to send the next request.
    fn set_answering(&self, answering: bool) {
        self.set_turn(answering, false);
    }

    fn set_turn(&self, answering: bool, goes_on: bool) {
        self.turn.set(Turn { answering, goes_on, since: Instant::now() });
    }

    /// Waits until the client has kept the server waiting for too long.
    async fn overdue(&self, limits: ConnectionLimits) {
        let usual = limits.answer_timeout.max(limits.request_timeout);
        loop {
            let (Turn { answering, goes_on, since }, now) = (self.turn.get(), Instant::now());
            let deadline = since + if goes_on { limits.event_timeout } else { usual };
            if !answering && deadline <= now {
                return;
            }
            // The turn may change meanwhile, to one that ends sooner.
            let next_look = now + limits.event_timeout.min(usual);
            sleep_until(if answering { next_look } else { deadline.min(next_look) }).await;
        }
    }
}

struct OpenConnections {
    limit: usize,
    connections: Vec<Arc<Connection>>,
}

impl OpenConnections {
    /// Adds a connection. If there are too many, closes the one that has kept the server waiting longest. If all wait
    /// for the server, closes the one that has waited longest.
    fn add(&mut self) -> Arc<Connection> {
        // The task of a closed connection has dropped its reference.
        self.connections.retain(|connection| Arc::strong_count(connection) > 1);
        if self.connections.len() >= self.limit {
            let key = |connection: &Arc<Connection>| {
                let Turn { answering, since, .. } = connection.turn.get();
                (answering, since)
            };
            let oldest = self.connections.iter().enumerate().min_by_key(|(_, connection)| key(connection));
            if let Some((index, _)) = oldest {
                self.connections.swap_remove(index).closed.notify_one();
            }
        }
        let connection = Arc::new(Connection::new());
        self.connections.push(Arc::clone(&connection));
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_keeps_the_server_waiting_longest_is_closed() {
        let mut open = OpenConnections { limit: 3, connections: Vec::new() };
        let connections = [open.add(), open.add(), open.add()];
        // The oldest connection is being answered, the second has just got its answer.
        connections[0].set_answering(true);
        connections[1].set_answering(false);
        let is_open = |open: &OpenConnections, index: usize| {
            open.connections.iter().any(|one| Arc::ptr_eq(one, &connections[index]))
        };
        let fourth = open.add();
        assert_eq!([0, 1, 2].map(|index| is_open(&open, index)), [true, true, false]);
        let fifth = open.add();
        assert_eq!([0, 1, 2].map(|index| is_open(&open, index)), [true, false, false]);
        fourth.set_answering(true);
        fifth.set_answering(true);
        let _sixth = open.add();
        assert!(!is_open(&open, 0), "all are being answered, the first one for the longest time");
    }

    #[test]
    fn a_closed_connection_does_not_count() {
        let mut open = OpenConnections { limit: 2, connections: Vec::new() };
        let first = open.add();
        drop(open.add());
        let _third = open.add();
        assert!(open.connections.iter().any(|one| Arc::ptr_eq(one, &first)));
        assert_eq!(open.connections.len(), 2);
    }
}
