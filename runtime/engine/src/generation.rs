//! The client's end of a request: its events.

use crate::request::{EngineError, Event};
use crate::sequence::Signals;
use crate::shared::{Health, Shared};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::sync::mpsc::UnboundedReceiver;

/// The events of one accepted request: a stream that ends after [`Event::Finished`] or [`Event::Failed`].
/// Dropping it cancels the request within one step.
#[derive(Debug)]
pub struct Generation {
    pub(crate) id: u64,
    pub(crate) events: UnboundedReceiver<Event>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) over: bool,
}

impl Generation {
    /// Number of the request in its engine, for logs.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Cancels the rest of the answer. It ends with [`FinishReason::Cancelled`] before the next step is
    /// planned, unless it ends by itself before; tokens of steps in flight still arrive.
    pub fn cancel(&self) {
        self.signals.interest.cancel();
    }

    /// Ends it because the client has all it wants, as after a stop string: like dropping it, but counted as
    /// finished.
    pub fn satisfied(self) {
        self.signals.interest.satisfy();
    }

    /// Tokens of the prompt that were in the cache and not fed; 0 until the first event.
    pub fn cached_tokens(&self) -> usize {
        self.signals.cached_tokens.load(Ordering::Relaxed)
    }

    /// The next event; `None` after the last.
    pub async fn recv(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// The next event; `None` after the last.
    ///
    /// # Panics
    /// Inside async code, where it would block the runtime.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// The next event if it is there.
    pub fn try_recv(&mut self) -> Option<Event> {
        use tokio::sync::mpsc::error::TryRecvError;
        if self.over {
            return None;
        }
        match self.events.try_recv() {
            Ok(event) => Some(self.note(Some(event))),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(self.note(None)),
        }
    }

    /// [`Generation::recv`] as a poll.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.events.poll_recv(context).map(|event| Some(self.note(event)))
    }

    /// Makes an event of a closed channel, so that the last one is never missing.
    fn note(&mut self, event: Option<Event>) -> Event {
        let event = event.unwrap_or_else(|| {
            Event::Failed(match self.shared.health() {
                Health::Dead(message) | Health::Poisoned(message) => EngineError::Fault(message),
                Health::Running | Health::Draining | Health::Stopped => EngineError::Stopped,
            })
        });
        self.over = !matches!(event, Event::Prompt(_) | Event::Token(_));
        event
    }
}

impl futures_core::Stream for Generation {
    type Item = Event;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll_recv(context)
    }
}
