//! Changes to the models on disk: downloads into the models directory, and deletion from it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::directory::ModelsDirectory;
use super::entry::Entry;
use super::store::{ModelStore, PullState, StoreError};
use super::{Models, ModelsError};

/// Why a model is not deleted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeleteError {
    /// It is not known, or cannot be unloaded.
    #[error(transparent)]
    Model(#[from] ModelsError),
    /// It may not or cannot be removed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Models {
    /// Begins to download a model into the models directory, or joins the download that runs. It is cancelled when its last
    /// receiver is dropped.
    ///
    /// # Errors
    /// [`StoreError`] when no download is begun.
    pub fn pull(&self, name: &str) -> Result<watch::Receiver<PullState>, StoreError> {
        let (directory, store) = self.store()?;
        let reference = store.reference(name)?;
        directory.pulls.begin(store.clone(), &reference)
    }

    /// Whether a model was downloaded into the models directory.
    pub async fn is_pulled(&self, id: &str) -> bool {
        let (Ok((_, store)), Some(entry)) = (self.store(), self.0.registry.entry(id)) else { return false };
        let path = self.path_of(&entry).await;
        !entry.named && path.is_ok_and(|path| !store.references(&path).is_empty())
    }

    /// Unloads a model of the models directory and deletes it from the disk.
    ///
    /// # Errors
    /// [`DeleteError`] when the model is in use, was named at startup or was not downloaded into the directory.
    pub async fn delete(&self, name: &str, drain: Duration) -> Result<(), DeleteError> {
        let (directory, store) = self.store()?;
        if name.is_empty() || name == "default" {
            return Err(ModelsError::Unknown(name.to_owned()).into());
        }
        let entry = self.find(Some(name)).await?;
        check_unused(&entry)?;
        if !directory.pulls.are_over() {
            return Err(
                StoreError::Conflict("a download is running; delete models when it has ended".to_owned()).into()
            );
        }
        let path = self.path_of(&entry).await?;
        if store.references(&path).is_empty() {
            let reason =
                format!("the model `{}` was not downloaded by this server, which does not delete it", entry.id);
            return Err(StoreError::NotAllowed(reason).into());
        }
        self.unload(&entry.id, drain).await?;
        let store = store.clone();
        blocking(move || store.remove(&path)).await?;
        self.rescan().await;
        Ok(())
    }

    /// The models directory and what downloads into it.
    fn store(&self) -> Result<(&ModelsDirectory, &Arc<dyn ModelStore>), StoreError> {
        let directory = self.directory().ok_or(StoreError::Off)?;
        Ok((directory, directory.store.as_ref().ok_or(StoreError::Off)?))
    }

    /// The file of a model in the models directory.
    async fn path_of(&self, entry: &Arc<Entry>) -> Result<PathBuf, DeleteError> {
        let (registry, id) = (self.0.registry.clone(), entry.id.clone());
        let find = move || {
            let found = registry.directory.as_ref().and_then(|directory| directory.scan().ok()).unwrap_or_default();
            Ok(found.into_iter().find(|found| *found.id == *id).map(|found| found.path))
        };
        blocking(find).await?.ok_or_else(|| ModelsError::Unknown(entry.id.to_string()).into())
    }
}

fn check_unused(entry: &Entry) -> Result<(), StoreError> {
    let info = entry.info();
    if entry.named {
        let reason = format!("the model `{}` was named when the server was started, and is not deleted", entry.id);
        return Err(StoreError::NotAllowed(reason));
    }
    match info.calls + info.waiting_calls {
        0 => Ok(()),
        calls => Err(StoreError::Conflict(format!("{calls} requests use the model `{}`; delete it later", entry.id))),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let failed = |_| StoreError::Failed("the server failed on this request; the cause is in its log".to_owned());
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failed(error)))
}
