//! The tokio runtime of a command, and the signals that stop it.

use cuelight_engine::cancel::LoadCancel;

use super::error::CliError;

/// The tokio runtime for actors and connections. Engines compute on their own threads.
///
/// # Errors
/// [`CliError::Io`] when threads cannot be started.
pub fn tokio_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(CliError::io("start the threads"))
}

/// Resolves when the user presses Ctrl-C. After the first call, Ctrl-C no longer ends the process.
///
/// # Errors
/// [`CliError::Io`] when the signal handler cannot be installed.
pub async fn interrupt() -> Result<(), CliError> {
    tokio::signal::ctrl_c().await.map_err(CliError::io("listen for signals"))
}

/// Resolves on SIGHUP, which then no longer ends the process.
///
/// # Errors
/// [`CliError::Io`] when the signal handler cannot be installed.
pub async fn hangup() -> Result<(), CliError> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup()).map_err(CliError::io("listen for signals"))?.recv().await;
        Ok(())
    }
    #[cfg(not(unix))]
    std::future::pending().await
}

/// Resolves on SIGTERM or SIGHUP with the exit code for it. These signals then no longer end the process.
///
/// # Errors
/// [`CliError::Io`] when the signal handlers cannot be installed.
pub async fn end_signal() -> Result<i32, CliError> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(CliError::io("listen for signals"))?;
        tokio::select! {
            _ = terminate.recv() => Ok(128 + SignalKind::terminate().as_raw_value()),
            result = hangup() => result.map(|()| 128 + SignalKind::hangup().as_raw_value()),
        }
    }
    #[cfg(not(unix))]
    std::future::pending().await
}

/// Resolves on Ctrl-C or SIGTERM.
///
/// # Errors
/// [`CliError::Io`] when the signal handlers cannot be installed.
pub async fn stop_signal() -> Result<(), CliError> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(CliError::io("listen for signals"))?;
        tokio::select! {
            result = interrupt() => result,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    interrupt().await
}

/// Runs a task that does not use the runtime. Ctrl-C or SIGTERM cancels it.
///
/// # Errors
/// [`CliError::Io`] when threads cannot be started.
pub fn until_stopped<T>(cancel: &LoadCancel, task: impl FnOnce() -> T) -> Result<T, CliError> {
    let (runtime, cancel) = (tokio_runtime()?, cancel.clone());
    runtime.spawn(async move {
        if stop_signal().await.is_ok() {
            cancel.cancel();
        }
    });
    let result = task();
    runtime.shutdown_background();
    Ok(result)
}
