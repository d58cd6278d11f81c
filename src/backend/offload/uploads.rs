//! Threads that upload experts to the device while it computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use cuelight_shaders::experts::Experts;

use crate::backend::stage::ExpertUpload;
use crate::engine::EngineError;

/// A request to upload an expert to a slot of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UploadRequest {
    /// The expert's layer, counted among the layers with experts on the host.
    pub layer: usize,
    pub expert: usize,
    /// The segment that computes with the pool.
    pub segment: usize,
    pub slot: usize,
}

/// A completed request and the number of uploaded bytes.
type Done = Result<(UploadRequest, u64), EngineError>;

/// The upload threads. They process requests roughly in the order of submission.
pub(super) struct Uploads {
    /// Dropped to end the threads.
    requests: Option<mpsc::Sender<UploadRequest>>,
    done: mpsc::Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Uploads {
    /// Starts a thread for each of `uploads`. `layers` are the experts on the host.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(layers: Vec<Experts>, uploads: Vec<Box<dyn ExpertUpload>>) -> std::io::Result<Self> {
        let (requests, queue) = mpsc::channel::<UploadRequest>();
        let (results, done) = mpsc::channel();
        let (queue, layers) = (Arc::new(Mutex::new(queue)), Arc::new(layers));
        let start = |upload: Box<dyn ExpertUpload>| {
            let (queue, layers, results) = (Arc::clone(&queue), Arc::clone(&layers), results.clone());
            let serve = move || serve_requests(upload, &layers, &queue, &results);
            thread::Builder::new().name("cuelight-upload".into()).spawn(serve)
        };
        let threads = uploads.into_iter().map(start).collect::<Result<_, _>>()?;
        Ok(Uploads { requests: Some(requests), done, threads })
    }

    pub fn submit(&self, request: UploadRequest) {
        // Sending fails only if all threads have ended. Their errors are in `done`, which the caller reads.
        let _ = self.requests.as_ref().map(|requests| requests.send(request));
    }

    /// The next request that has completed, if there is one.
    pub fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Waits for the next request to complete.
    pub fn wait(&self) -> Done {
        let ended = |_| EngineError::DeviceLost("the threads that upload experts to it have ended".to_owned());
        self.done.recv().map_err(ended)?
    }
}

fn serve_requests(
    mut upload: Box<dyn ExpertUpload>,
    layers: &[Experts],
    queue: &Mutex<mpsc::Receiver<UploadRequest>>,
    results: &mpsc::Sender<Done>,
) {
    loop {
        // The lock is held only while waiting for a request.
        let request = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(request) = request else { return };
        let run = || upload.upload((request.segment, request.slot), (&layers[request.layer], request.expert));
        let uploaded = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            let UploadRequest { layer, expert, .. } = request;
            Err(EngineError::DeviceLost(format!("the upload of expert {expert} of layer {layer} panicked")))
        });
        let has_failed = uploaded.is_err();
        if results.send(uploaded.map(|bytes| (request, bytes))).is_err() || has_failed {
            return;
        }
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.requests = None;
        // Each thread completes the remaining requests and ends. Its panics have been reported already.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
