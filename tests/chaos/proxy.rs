//! A proxy before each broker, used only by the instances. It resets connections, delays or blocks requests, and holds
//! an EndTxn request back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{collections::HashMap, time::Duration};

const END_TXN: i16 = 26;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The current treatment of connections and requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// New connections are reset at once.
    pub refuse: bool,
    /// Delay of each request.
    pub latency: Duration,
    /// Blocks all traffic; connections stay open.
    pub blackhole: bool,
    /// Blocks the requests of clients with this end of their `client.id`.
    pub blocked_clients: Option<&'static str>,
    /// Delays the next EndTxn by this time, and cuts its client off meanwhile.
    pub hold_end_txn: Option<Duration>,
}

/// Counts of the injected faults.
#[derive(Debug, Default)]
pub struct Counts {
    pub cut: AtomicU64,
    pub refused: AtomicU64,
    /// Requests that were delayed or blocked for a while.
    pub delayed: AtomicU64,
    pub held: AtomicU64,
    /// Held requests that reached the broker and were answered.
    pub delivered_late: AtomicU64,
    /// Connections that the broker closed.
    pub lost_upstream: AtomicU64,
}

/// The proxy of one broker.
pub struct Proxy {
    pub port: u16,
    rules: Mutex<Rules>,
    pub counts: Counts,
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
}

/// A connection through the proxy.
struct Link {
    number: u64,
    client: TcpStream,
    broker: TcpStream,
    /// The client was cut off, but one of its requests has yet to be delivered.
    holding: AtomicBool,
}

impl Proxy {
    /// Listens on a free port. No client is connected before [`serve`](Proxy::serve).
    pub fn bind() -> (Arc<Proxy>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("the listener is bound").port();
        let proxy = Proxy { port, rules: Mutex::default(), counts: Counts::default(), open: Mutex::default() };
        (Arc::new(proxy), listener)
    }

    /// Connects each client with the broker on this port.
    pub fn serve(self: &Arc<Proxy>, listener: TcpListener, broker: u16) {
        let proxy = Arc::clone(self);
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
                let proxy = Arc::clone(&proxy);
                std::thread::spawn(move || proxy.connect(number as u64, client, broker));
            }
        });
    }

    pub fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, [TcpStream; 2]>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.open().len()
    }

    /// Resets every connection; returns their number.
    pub fn cut(&self) -> u64 {
        let open = std::mem::take(&mut *self.open());
        let cut = open.len() as u64;
        open.values().flatten().for_each(reset);
        self.counts.cut.fetch_add(cut, Ordering::Relaxed);
        cut
    }

    fn connect(self: &Arc<Proxy>, number: u64, client: TcpStream, broker: u16) {
        if self.rules().refuse {
            reset(&client);
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Ok(broker) =
            TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], broker)), Duration::from_secs(2))
        else {
            return reset(&client);
        };
        let _ = (client.set_nodelay(true), broker.set_nodelay(true));
        let clones = [client.try_clone(), broker.try_clone()];
        if let [Ok(a), Ok(b)] = clones {
            self.open().insert(number, [a, b]);
        }
        let link = Arc::new(Link { number, client, broker, holding: AtomicBool::new(false) });
        let (proxy, answers) = (Arc::clone(self), Arc::clone(&link));
        std::thread::spawn(move || proxy.pass_answers(&answers));
        let _ = self.pass_requests(&link);
        self.end(&link);
    }

    fn end(&self, link: &Link) {
        self.open().remove(&link.number);
        let _ = (link.client.shutdown(Shutdown::Both), link.broker.shutdown(Shutdown::Both));
    }

    /// Passes requests on, one by one. A request is a length and that many bytes, which start with the API key.
    fn pass_requests(&self, link: &Link) -> io::Result<()> {
        let (mut client, mut broker) = (&link.client, &link.broker);
        let mut frame = Vec::new();
        loop {
            let mut head = [0; 4];
            client.read_exact(&mut head)?;
            let length = u32::from_be_bytes(head) as usize;
            frame.clear();
            frame.extend(head);
            frame.resize(4 + length, 0);
            client.read_exact(&mut frame[4..])?;
            self.delay();
            self.block(&frame);
            if length >= 2 && i16::from_be_bytes([frame[4], frame[5]]) == END_TXN {
                let hold = self.rules().hold_end_txn.take();
                if let Some(time) = hold {
                    return self.hold(link, &frame, time);
                }
            }
            broker.write_all(&frame)?;
        }
    }

    fn pass_answers(&self, link: &Link) {
        let (mut client, mut broker) = (&link.client, &link.broker);
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = broker.read(&mut buffer) {
            if self.rules().blackhole {
                self.delay();
            }
            if link.holding.load(Ordering::Acquire) {
                self.counts.delivered_late.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if client.write_all(&buffer[..length]).is_err() {
                // The held request still has to reach the broker.
                while link.holding.load(Ordering::Acquire) {
                    std::thread::sleep(POLL_INTERVAL);
                }
                break;
            }
        }
        if self.open().contains_key(&link.number) {
            self.counts.lost_upstream.fetch_add(1, Ordering::Relaxed);
        }
        self.end(link);
    }

    /// Waits for as long as the rules require.
    fn delay(&self) {
        let rules = *self.rules();
        if rules.latency.is_zero() && !rules.blackhole {
            return;
        }
        self.counts.delayed.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(rules.latency);
        while self.rules().blackhole {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Blocks a request for as long as the rules require. Its header is the API key, its version, a number, and the
    /// length and the bytes of the client's id.
    fn block(&self, frame: &[u8]) {
        let is_blocked = || {
            let end = self.rules().blocked_clients?;
            let length = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
            frame.get(14..14 + usize::from(length))?.ends_with(end.as_bytes()).then_some(())
        };
        if is_blocked().is_some() {
            self.counts.delayed.fetch_add(1, Ordering::Relaxed);
        }
        while is_blocked().is_some() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Holds a request back. The client takes it for lost and repeats it on another connection; then this copy arrives
    /// late.
    fn hold(&self, link: &Link, frame: &[u8], time: Duration) -> io::Result<()> {
        self.open().remove(&link.number);
        link.holding.store(true, Ordering::Release);
        self.counts.held.fetch_add(1, Ordering::Relaxed);
        reset(&link.client);
        std::thread::sleep(time);
        let mut broker = &link.broker;
        let sent = broker.write_all(frame);
        // The answer ends the other thread, which shuts this connection down.
        for _ in 0..200 {
            if sent.is_err() || broker.take_error()?.is_some() || link.broker.peer_addr().is_err() {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        link.holding.store(false, Ordering::Release);
        sent
    }
}

/// Closes a connection so that the peer sees a reset instead of an orderly end.
fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Both);
}
