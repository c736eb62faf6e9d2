//! Responses that are made while nobody waits: told by their ids, and cancelled by them.

use crate::answer::Answer;
use crate::error::ApiError;
use crate::openai::responses::answers::ResponseWriter;
use crate::openai::responses::store::Store;
use futures_util::future::try_join_all;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// Those in progress, by id. The task that makes one takes it out and stores how it ended, unless a request
/// that cancels it has done so.
#[derive(Debug, Default)]
pub(crate) struct Background(Mutex<HashMap<String, AbortHandle>>);

impl Background {
    /// Makes a response of the answer to a request, and returns it as it is now.
    ///
    /// # Errors
    /// When there is no room to keep it; then there is no answer.
    pub(super) fn start(
        self: &Arc<Self>,
        mut writer: ResponseWriter,
        mut answers: Vec<Answer>,
    ) -> Result<Value, ApiError> {
        let response = writer.begun()?;
        let id = writer.id().to_owned();
        let (all, own) = (Arc::clone(self), id.clone());
        // Held until the task is among them: it may be done at once.
        let mut running = self.lock();
        let task = tokio::spawn(async move {
            let made = try_join_all(answers.iter_mut().map(Answer::collect)).await;
            // Held until it is stored: a request that cancels or deletes it finds it here or there.
            let mut running = all.lock();
            if running.remove(&own).is_some() {
                writer.ended(made.map_err(ApiError::from));
            }
        });
        running.insert(id, task.abort_handle());
        Ok(response)
    }

    /// Cancels a response in progress, and its generation with it. Returns whether it was one.
    pub(super) fn cancel(&self, id: &str, store: &Store) -> bool {
        let mut running = self.lock();
        let Some(task) = running.remove(id) else { return false };
        task.abort();
        store.end(id, "cancelled");
        true
    }

    /// A poisoned lock is usable: no change can panic halfway.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
