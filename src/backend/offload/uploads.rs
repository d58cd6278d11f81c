//! Threads that bring experts to the device while that computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use cuelight_shaders::experts::Experts;

use crate::backend::stage::ExpertUpload;
use crate::engine::EngineError;

/// An expert that is to come to a place of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    /// Whose it is, counted among those with experts on the host.
    pub layer: usize,
    pub expert: usize,
    /// The piece that computes with the pool.
    pub piece: usize,
    pub place: usize,
}

/// An order that was carried out, and how many bytes were brought.
type Done = Result<(Order, u64), EngineError>;

/// The threads, which carry orders out in about their order.
pub(super) struct Uploads {
    /// Dropped to end the threads.
    orders: Option<mpsc::Sender<Order>>,
    done: mpsc::Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Uploads {
    /// A thread for each of these.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(layers: Vec<Experts>, uploads: Vec<Box<dyn ExpertUpload>>) -> std::io::Result<Self> {
        let (orders, waiting) = mpsc::channel::<Order>();
        let (give, done) = mpsc::channel();
        let (waiting, layers) = (Arc::new(Mutex::new(waiting)), Arc::new(layers));
        let start = |upload: Box<dyn ExpertUpload>| {
            let (waiting, layers, give) = (Arc::clone(&waiting), Arc::clone(&layers), give.clone());
            let serve = move || carry_out(upload, &layers, &waiting, &give);
            thread::Builder::new().name("cuelight-upload".into()).spawn(serve)
        };
        let threads = uploads.into_iter().map(start).collect::<Result<_, _>>()?;
        Ok(Uploads { orders: Some(orders), done, threads })
    }

    pub fn order(&self, order: Order) {
        // Threads that ended have said why, and whoever waits hears of it.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    /// The next order that was carried out already, if there is one.
    pub fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Waits for the next order to be carried out.
    pub fn wait(&self) -> Done {
        let ended = |_| EngineError::DeviceLost("the threads that bring experts to it have ended".to_owned());
        self.done.recv().map_err(ended)?
    }
}

fn carry_out(
    mut upload: Box<dyn ExpertUpload>,
    layers: &[Experts],
    orders: &Mutex<mpsc::Receiver<Order>>,
    give: &mpsc::Sender<Done>,
) {
    loop {
        // Nothing is done under the lock but waiting.
        let order = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(order) = order else { return };
        let bring = || upload.bring((order.piece, order.place), (&layers[order.layer], order.expert));
        let brought = catch_unwind(AssertUnwindSafe(bring)).unwrap_or_else(|_| {
            let Order { layer, expert, .. } = order;
            Err(EngineError::DeviceLost(format!("bringing expert {expert} of layer {layer} to it panicked")))
        });
        let failed = brought.is_err();
        if give.send(brought.map(|bytes| (order, bytes))).is_err() || failed {
            return;
        }
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.orders = None;
        // Each ends after the orders that are left. What they held is free then, and a panic of one was told already.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
