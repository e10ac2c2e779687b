//! The HTTP side of a running configuration.

use std::sync::{Arc, Mutex};
use std::{io, net::SocketAddr};

use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tracing::{info, warn};

use super::{Parts, StartError};
use crate::admin::{self, AdminState};
use crate::metrics::Publisher;
use watermaster_settings::{Admin, Settings};

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct HttpServer {
    pub(super) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

impl HttpServer {
    /// Binds `admin.listen` and serves the figures of the engines; `/readyz` reports draining once `stop` is set.
    pub(super) async fn start(settings: &Settings, parts: &Parts) -> Result<HttpServer, StartError> {
        let (listener, address) = bind(&settings.admin).await?;
        let state = AdminState {
            publisher: Mutex::new(Publisher::new(&watermaster_kafka::client_version(), settings.admin.metrics_clients)),
            configuration: Arc::clone(&parts.configuration),
            draining: Arc::clone(&parts.fleet.stop),
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(admin::serve(listener, Arc::new(state), async { drop(stopped.await) }));
        Ok(HttpServer { address, stop, task })
    }

    /// Answers open requests and ends.
    pub(super) async fn stop(self) {
        drop(self.stop);
        if let Ok(Err(why)) = self.task.await {
            warn!("HTTP: {why}");
        }
    }
}

async fn bind(admin: &Admin) -> Result<(TcpListener, SocketAddr), StartError> {
    let (listen, scheme) = (admin.listen, if admin.tls.is_some() { "https" } else { "http" });
    let refused = |source| StartError::Bind { listen, source };
    let listener = TcpListener::bind(listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    info!("admin listening on {scheme}://{address}");
    Ok((listener, address))
}
