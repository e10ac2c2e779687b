//! A proxy before each broker, for the instances only: it cuts, refuses, slows and swallows, and holds an EndTxn back.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const END_TXN: i16 = 26;
const STEP: Duration = Duration::from_millis(10);

/// What it does to connections and requests at the moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// New connections are reset at once.
    pub refuse: bool,
    /// Each request waits for so long.
    pub latency: Duration,
    /// Nothing passes; connections stay open.
    pub blackhole: bool,
    /// The next EndTxn goes out so much later, and its client is cut off meanwhile.
    pub hold_end_txn: Option<Duration>,
}

/// What it did so far.
#[derive(Debug, Default)]
pub struct Counts {
    pub cut: AtomicU64,
    pub refused: AtomicU64,
    /// Requests that were slowed or swallowed for a while.
    pub delayed: AtomicU64,
    pub held: AtomicU64,
    /// Held requests that reached the broker, and were answered.
    pub delivered_late: AtomicU64,
    /// Connections that the broker's side ended.
    pub lost_upstream: AtomicU64,
}

/// One proxy.
pub struct Proxy {
    pub port: u16,
    rules: Mutex<Rules>,
    pub counts: Counts,
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
}

/// A connection through it.
struct Link {
    number: u64,
    client: TcpStream,
    broker: TcpStream,
    /// The client was cut off, but a request of its is still to be delivered.
    holding: AtomicBool,
}

impl Proxy {
    /// Listens on a port of its own. Connects nobody before [`serve`](Proxy::serve).
    pub fn bind() -> (Arc<Proxy>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Proxy { port, rules: Mutex::default(), counts: Counts::default(), open: Mutex::default() };
        (Arc::new(proxy), listener)
    }

    /// Connects whoever comes with the broker on this port.
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

    /// How many connections go through it now.
    pub fn connections(&self) -> usize {
        self.open().len()
    }

    /// Resets every connection; how many.
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

    /// Request by request: a length, then so many bytes, of which the first two say what is asked for.
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
                // What the broker still has to be told goes its way.
                while link.holding.load(Ordering::Acquire) {
                    std::thread::sleep(STEP);
                }
                break;
            }
        }
        if self.open().contains_key(&link.number) {
            self.counts.lost_upstream.fetch_add(1, Ordering::Relaxed);
        }
        self.end(link);
    }

    /// For as long as the rules say.
    fn delay(&self) {
        let rules = *self.rules();
        if rules.latency.is_zero() && !rules.blackhole {
            return;
        }
        self.counts.delayed.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(rules.latency);
        while self.rules().blackhole {
            std::thread::sleep(STEP);
        }
    }

    /// The client believes the request lost and repeats it elsewhere; then this copy arrives after all.
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
            std::thread::sleep(STEP);
        }
        link.holding.store(false, Ordering::Release);
        sent
    }
}

/// So that the peer sees a reset, not an end.
fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Both);
}
