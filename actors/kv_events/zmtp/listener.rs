//! Accepts connections and lets a task serve each of them.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::frame::ZmtpError;
use super::handshake::{Kind, shake_hands};

/// Connections at the same time. Others wait until one ends.
const MOST_CONNECTIONS: usize = 256;

/// How long a peer may take until it is ready.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// Time until the next try when the system accepts no connection, for example because the process has too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// A connection after its handshake.
pub(in crate::kv_events) struct Connection {
    pub from: BufReader<OwnedReadHalf>,
    pub to: OwnedWriteHalf,
}

/// Listens on an address, and serves each connection in a task of its own until it ends.
///
/// # Errors
/// When the address cannot be listened on.
pub(in crate::kv_events) async fn listen<S, F>(address: &str, kind: Kind, serve: S) -> io::Result<()>
where
    S: Fn(Connection) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), ZmtpError>> + Send,
{
    let listener = TcpListener::bind(address).await?;
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    tokio::spawn(async move {
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Some(stream) = accept(&listener).await else { continue };
            let serve = serve.clone();
            tokio::spawn(async move {
                if let Err(error) = serve_one(stream, kind, serve).await {
                    tracing::debug!(%error, "a connection for KV events ended");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            tracing::warn!(%error, "a connection for KV events was not accepted");
            sleep(PAUSE).await;
            None
        }
    }
}

async fn serve_one<S, F>(stream: TcpStream, kind: Kind, serve: S) -> Result<(), ZmtpError>
where
    S: Fn(Connection) -> F,
    F: Future<Output = Result<(), ZmtpError>>,
{
    // Without it, small messages would wait for each other.
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    timeout(HANDSHAKE_PATIENCE, shake_hands(&mut from, &mut to, kind)).await.map_err(|_| ZmtpError::Silent)??;
    serve(Connection { from, to }).await
}
