//! Watermaster beside other code of the same process, for the demo: no signals, and no questions that an embedded broker
//! can't answer.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use watermaster_kafka::preflight;
use watermaster_settings::config::Config;
use watermaster_tools::demo::{AnyError, Running};

use super::{Fleet, Prepared, RunOptions, admin_state};
use crate::admin;
use crate::reload::Configuration;

/// A service that ran in this process met a fatal error, which is logged.
#[derive(Debug, thiserror::Error)]
#[error("no service is left running")]
struct ServicesFailed;

/// The engines and the HTTP side of a configuration, on a runtime of their own.
pub struct InProcess {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// Yields the number of services that failed.
    engines: JoinHandle<usize>,
    end_http: oneshot::Sender<()>,
    http: JoinHandle<std::io::Result<()>>,
    runtime: Runtime,
}

impl InProcess {
    /// Starts all services of a configuration, and HTTP on its address or, if that is taken, on a free port of loopback.
    pub fn start(config: Config) -> Result<InProcess, AnyError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let inside = runtime.enter();
        let settings = config.settings.clone();
        let listener = tokio::net::TcpListener::from_std(bind(settings.admin.listen)?)?;
        let address = listener.local_addr()?;
        let configuration = Arc::new(Configuration::new(PathBuf::new(), config));
        let services = settings.services.iter().zip(configuration.inboxes());
        let engines: Vec<Prepared> = services.map(|(service, inbox)| Prepared::new(service, inbox)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (end_http, http_ends) = oneshot::channel::<()>();
        let state = admin_state(&settings, &configuration, &engines, None, Arc::clone(&stop));
        let http = runtime.spawn(admin::serve(listener, state, async { drop(http_ends.await) }));
        let options = RunOptions { accept_foreign_offsets: false };
        let mut fleet = Fleet::start(&settings, engines, &preflight::Report::default(), options, &stop);
        let engines = runtime.spawn(async move { fleet.wait().await });
        drop(inside);
        Ok(InProcess { address, stop, engines, end_http, http, runtime })
    }
}

impl Running for InProcess {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn has_stopped(&self) -> bool {
        self.engines.is_finished()
    }

    fn stop(self) -> Result<(), AnyError> {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.runtime.block_on(self.engines)?;
        drop(self.end_http);
        self.runtime.block_on(self.http)??;
        if failed > 0 { Err(ServicesFailed.into()) } else { Ok(()) }
    }
}

fn bind(listen: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = match TcpListener::bind(listen) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            eprintln!("{listen} is taken; a free port is used instead");
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        }
        bound => bound,
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
