//! A server with a simulated model on a real socket.
#![allow(dead_code, clippy::unwrap_used)]

use cuelight::api::{ServerOptions, serve};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions};
use cuelight::pipeline::simulation::SimulatedModel;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server on its own port, until [`Listening::stop`].
pub struct Listening {
    pub runtime: Runtime,
    pub url: String,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Listening {
    pub async fn start(model: SimulatedModel, options: ServerOptions) -> Self {
        Self::start_with(model, RuntimeOptions::default(), options).await
    }

    pub async fn start_with(model: SimulatedModel, runtime: RuntimeOptions, options: ServerOptions) -> Self {
        let runtime = Runtime::start(model, runtime).await.unwrap();
        assert!(runtime.wait_ready().await.is_ok());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(listener, runtime.clone(), options, async {
            let _ = stopped.await;
        }));
        Listening { runtime, url, stop, served }
    }

    /// Stops like the binary: accepts no new connections, and lets running requests finish.
    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }
}
