//! Stored responses: a bounded number of bytes in memory, the oldest evicted first. They are stored as JSON
//! text: parsed values take several times as much, which would not be counted.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most responses, however small.
const MOST: usize = 4096;

/// A response, with the items it answers.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The response as clients see it.
    pub(crate) response: Value,
    /// The items that its request had, each with an id.
    pub(crate) input: Vec<Value>,
    /// All items that the next response continues from: earlier ones, the input, the output.
    pub(crate) items: Vec<Value>,
}

impl Stored {
    fn id(&self) -> &str {
        self.response["id"].as_str().unwrap_or_default()
    }
}

/// The stored responses.
#[derive(Debug)]
pub(crate) struct Store {
    /// Most bytes.
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first.
    responses: VecDeque<Written>,
    bytes: usize,
}

/// A [`Stored`] as JSON text. Its parts are separate, so that none is nested deeper than it was in its
/// request.
#[derive(Debug)]
struct Written {
    id: Box<str>,
    response: Box<str>,
    input: Box<str>,
    items: Box<str>,
}

impl Written {
    fn new(stored: &Stored) -> Written {
        let list = |items: &[Value]| {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            format!("[{}]", items.join(",")).into_boxed_str()
        };
        Written {
            id: stored.id().into(),
            response: stored.response.to_string().into_boxed_str(),
            input: list(&stored.input),
            items: list(&stored.items),
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Written>()
            + [&self.id, &self.response, &self.input, &self.items].map(|it| it.len()).iter().sum::<usize>()
    }

    fn read(&self) -> Stored {
        const WHOLE: &str = "JSON that was written can be read";
        Stored {
            response: serde_json::from_str(&self.response).expect(WHOLE),
            input: serde_json::from_str(&self.input).expect(WHOLE),
            items: serde_json::from_str(&self.items).expect(WHOLE),
        }
    }
}

impl Kept {
    fn remove(&mut self, id: &str) -> bool {
        let Some(at) = self.responses.iter().position(|it| *it.id == *id) else { return false };
        if let Some(removed) = self.responses.remove(at) {
            self.bytes -= removed.bytes();
        }
        true
    }
}

impl Store {
    /// An empty store of so many bytes.
    pub(crate) fn new(limit: usize) -> Store {
        Store { limit, kept: Mutex::default() }
    }

    /// Whether it keeps any.
    pub(crate) fn keeps(&self) -> bool {
        self.limit > 0
    }

    /// Stores a response in place of an earlier one of its id. Returns whether it did: one that exceeds the
    /// whole room changes nothing.
    pub(crate) fn put(&self, stored: &Stored) -> bool {
        let written = Written::new(stored);
        let bytes = written.bytes();
        if bytes > self.limit {
            return false;
        }
        let mut kept = self.lock();
        kept.remove(&written.id);
        while kept.bytes + bytes > self.limit || kept.responses.len() >= MOST {
            let Some(oldest) = kept.responses.pop_front() else { break };
            kept.bytes -= oldest.bytes();
        }
        kept.bytes += bytes;
        kept.responses.push_back(written);
        true
    }

    /// The response of this id.
    pub(crate) fn get(&self, id: &str) -> Option<Stored> {
        self.lock().responses.iter().find(|it| *it.id == *id).map(Written::read)
    }

    /// Deletes the response of this id; whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.lock().remove(id)
    }

    /// Gives the response of this id another status, if it is there.
    pub(crate) fn end(&self, id: &str, status: &str) {
        if let Some(mut stored) = self.get(id) {
            stored.response["status"] = status.into();
            self.put(&stored);
        }
    }

    /// A poisoned lock is usable: no change can panic halfway.
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
        let store = Store::new(1200);
        for id in ["a", "b", "c"] {
            store.put(&stored(id, 300));
        }
        let there = |ids: [&str; 4]| ids.map(|id| store.get(id).is_some());
        assert_eq!(there(["a", "b", "c", "d"]), [true, true, true, false]);
        store.put(&stored("d", 300));
        assert_eq!(there(["a", "b", "c", "d"]), [false, true, true, true]);
        assert!(store.remove("c") && !store.remove("c"));
        store.put(&stored("a", 300));
        assert_eq!(there(["a", "b", "c", "d"]), [true, true, false, true]);
        // One that is too large evicts none.
        assert!(!store.put(&stored("c", 1200)) && !store.put(&stored("a", 1200)));
        assert_eq!(there(["a", "b", "c", "d"]), [true, true, false, true]);
        // One of the same id takes the place of the earlier one.
        store.put(&stored("b", 10));
        store.put(&stored("b", 20));
        assert_eq!(store.lock().responses.iter().filter(|it| *it.id == *"b").count(), 1);
        store.end("b", "cancelled");
        assert_eq!(store.get("b").expect("it is kept").response["status"], "cancelled");
        store.end("x", "cancelled");
        assert!(store.get("x").is_none() && store.keeps() && !Store::new(0).keeps());
        for id in 0..2 * MOST {
            store.put(&stored(&id.to_string(), 0));
        }
        assert!(store.lock().bytes <= 1200);
    }
}
