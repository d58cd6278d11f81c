//! Accepts connections, limits their number and their idle time, and serves HTTP/1.1 on each.
//!
//! A client that holds connections open must not lock out others. When the limit is reached, the connection that has been
//! idle for longest is closed for a new one. When every connection is busy, new ones are taken from a small reserve: they
//! can call the probes, and every other request is refused with status 503.

mod activity;
mod body;
mod options;
mod request_body;
mod stream;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use metrics::{counter, gauge};
use tokio::net::{TcpListener, TcpStream};

use self::activity::Activity;
use self::body::TrackedBody;
pub use self::options::ConnectionOptions;
use self::request_body::Rest;
use self::stream::TimedStream;
use crate::metrics::catalogue::{CONNECTIONS_OPEN, CONNECTIONS_REFUSED};

/// Connections beyond the limit, for probes.
pub const RESERVED_CONNECTIONS: usize = 16;

/// The address of the client, as an extension of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub IpAddr);

/// Marks a request on a connection beyond the limit, which may only call the probes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeyondLimit;

/// Serves `app` until `shutdown` resolves, then waits for the requests in flight.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) {
    let connections = Arc::new(Connections::new(options));
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = connections.accept(&listener) => accepted,
            () = &mut shutdown => break,
        };
        if let Some(slot) = Connections::enter(&connections) {
            tokio::spawn(serve_connection(stream, peer, slot, app.clone(), graceful.watcher()));
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn serve_connection(stream: TcpStream, peer: IpAddr, slot: Slot, app: Router, watcher: Watcher) {
    // Otherwise the kernel delays a token's small packet to merge it with the next one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let activity = slot.activity.clone();
    let stream = TimedStream::new(stream, activity.clone(), slot.connections.options.clone());
    let service = ConnectionService {
        app: TowerToHyperService::new(app),
        peer,
        activity: activity.clone(),
        is_beyond_limit: slot.is_beyond_limit,
    };
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        result = watcher.watch(connection) => {
            if let Err(error) = result {
                tracing::debug!(%error, %peer, "a connection ended with an error");
            }
        }
        () = activity.closed() => tracing::debug!(%peer, "an idle connection was closed for a new one"),
    }
}

/// Passes requests on with the address of their client, and records when the connection is busy.
struct ConnectionService {
    app: TowerToHyperService<Router>,
    peer: IpAddr,
    activity: Arc<Activity>,
    is_beyond_limit: bool,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<TrackedBody>;
    type Error = std::convert::Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let serving = Activity::serve(&self.activity);
        request.extensions_mut().insert(Peer(self.peer));
        if self.is_beyond_limit {
            request.extensions_mut().insert(BeyondLimit);
        }
        let rest = Rest::default();
        let response = self.app.call(request.map(|body| rest.lend(body)));
        Box::pin(async move {
            let mut response = response.await?.map(|body: Body| TrackedBody::new(body, serving));
            rest.settle(&mut response).await;
            Ok(response)
        })
    }
}

/// All open connections.
struct Connections {
    options: ConnectionOptions,
    open: Mutex<HashMap<u64, Arc<Activity>>>,
    next_id: AtomicU64,
    log: Mutex<Option<Instant>>,
}

impl Connections {
    fn new(options: ConnectionOptions) -> Self {
        Connections { options, open: Mutex::default(), next_id: AtomicU64::new(0), log: Mutex::default() }
    }

    /// The next connection. When the process cannot accept one, waits and tries again.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, IpAddr) {
        const PAUSE: Duration = Duration::from_millis(100);
        loop {
            match listener.accept().await {
                Ok((stream, address)) => return (stream, address.ip().to_canonical()),
                // The client has gone already.
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    self.warn(&format!(
                        "no connection can be accepted: {error}; if file descriptors are used up, raise the limit with \
                         `ulimit -n`"
                    ));
                    self.close_idle();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Counts a new connection. `None` when even the reserve is used up: the connection is closed.
    fn enter(connections: &Arc<Self>) -> Option<Slot> {
        let limit = connections.options.max_connections;
        while connections.open().len() >= limit && connections.close_idle() {}
        let is_full = connections.open().len() >= limit;
        if is_full {
            connections.warn(&format!("all {limit} connections are in use; new ones can call only the probes"));
        }
        let mut open = connections.open();
        if open.len() >= limit + RESERVED_CONNECTIONS {
            counter!(CONNECTIONS_REFUSED).increment(1);
            return None;
        }
        let id = connections.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::default());
        open.insert(id, activity.clone());
        gauge!(CONNECTIONS_OPEN).set(open.len() as f64);
        drop(open);
        Some(Slot { id, activity, is_beyond_limit: is_full, connections: connections.clone() })
    }

    /// Closes the connection that has been idle for longest. Returns `false` when all are busy.
    fn close_idle(&self) -> bool {
        let mut open = self.open();
        let idle = open.iter().filter_map(|(id, activity)| Some((activity.idle_since()?, *id)));
        let Some((_, id)) = idle.min() else { return false };
        // It no longer counts, although its task ends a little later.
        open.remove(&id).is_some_and(|activity| {
            activity.close();
            true
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Activity>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a warning, at most one every ten seconds.
    fn warn(&self, message: &str) {
        const INTERVAL: Duration = Duration::from_secs(10);
        let mut last = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!("{message}");
        }
    }
}

/// Whether an error of `accept` is about one connection, and not about the listener or the process.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// An open connection. It no longer counts when this is dropped.
struct Slot {
    id: u64,
    activity: Arc<Activity>,
    is_beyond_limit: bool,
    connections: Arc<Connections>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.remove(&self.id);
        gauge!(CONNECTIONS_OPEN).set(open.len() as f64);
    }
}
