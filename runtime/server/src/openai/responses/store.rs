//! Responses that are kept: so many bytes of them, in memory, the oldest given up first.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most of them, however small they are.
const MOST: usize = 4096;

/// A response, with what it was an answer to.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The response as clients see it.
    pub(crate) response: Value,
    /// The items that its request had, each with an id.
    pub(crate) input: Vec<Value>,
    /// All items that the next one goes on from: those before, the input, the output.
    pub(crate) items: Vec<Value>,
}

impl Stored {
    fn id(&self) -> &str {
        self.response["id"].as_str().unwrap_or_default()
    }
}

/// What is kept.
#[derive(Debug)]
pub(crate) struct Store {
    /// Most bytes of JSON text.
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// With their sizes, oldest first.
    responses: VecDeque<(Arc<Stored>, usize)>,
    bytes: usize,
}

impl Store {
    /// An empty one of so many bytes.
    pub(crate) fn new(limit: usize) -> Store {
        Store { limit, kept: Mutex::default() }
    }

    /// Keeps a response, unless it is larger than all there is room for.
    pub(crate) fn put(&self, stored: Stored) {
        let texts = stored.input.iter().chain(&stored.items).chain([&stored.response]);
        let bytes: usize = texts.map(|value| value.to_string().len()).sum();
        if bytes > self.limit {
            return;
        }
        let mut kept = self.lock();
        while kept.bytes + bytes > self.limit || kept.responses.len() >= MOST {
            let Some((_, freed)) = kept.responses.pop_front() else { break };
            kept.bytes -= freed;
        }
        kept.bytes += bytes;
        kept.responses.push_back((Arc::new(stored), bytes));
    }

    /// The response of this id.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        let kept = self.lock();
        kept.responses.iter().find(|(stored, _)| stored.id() == id).map(|(stored, _)| Arc::clone(stored))
    }

    /// Gives the response of this id up; whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut kept = self.lock();
        let Some(at) = kept.responses.iter().position(|(stored, _)| stored.id() == id) else { return false };
        if let Some((_, freed)) = kept.responses.remove(at) {
            kept.bytes -= freed;
        }
        true
    }

    /// Nothing can panic between two halves of a change.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(id: &str, size: usize) -> Stored {
        Stored { response: json!({"id": id}), input: Vec::new(), items: vec![json!("x".repeat(size))] }
    }

    #[test]
    fn the_oldest_go_first_and_room_comes_back() {
        let store = Store::new(1000);
        for id in ["a", "b", "c"] {
            store.put(stored(id, 300));
        }
        let there = |ids: [&str; 4]| ids.map(|id| store.get(id).is_some());
        assert_eq!(there(["a", "b", "c", "d"]), [true, true, true, false]);
        store.put(stored("d", 300));
        assert_eq!(there(["a", "b", "c", "d"]), [false, true, true, true]);
        assert!(store.remove("c") && !store.remove("c"));
        store.put(stored("a", 300));
        assert_eq!(there(["a", "b", "c", "d"]), [true, true, false, true]);
        // One that is too large takes nobody's place.
        store.put(stored("c", 1000));
        assert_eq!(there(["a", "b", "c", "d"]), [true, true, false, true]);
        for id in 0..2 * MOST {
            store.put(stored(&id.to_string(), 0));
        }
        assert!(store.lock().bytes <= 1000);
    }
}
