//! A small LRU cache of results.

/// The most recent results by the text they were made of: at most `most`, which with their texts take at most
/// `bytes`.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    /// Most recently used last.
    entries: Vec<Entry<T>>,
    most: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<T> {
    text: String,
    made: T,
    /// Of both.
    bytes: usize,
}

impl<T: Clone> Kept<T> {
    pub(crate) fn new(most: usize, bytes: usize) -> Kept<T> {
        Kept { entries: Vec::new(), most, bytes }
    }

    /// The result for a text.
    pub(crate) fn get(&mut self, text: &str) -> Option<T> {
        // They are few, and most texts differ in length.
        let at = self.entries.iter().position(|entry| entry.text == text)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        self.entries.last().map(|entry| entry.made.clone())
    }

    /// Keeps the result for a text, which takes so many bytes, and evicts the least recently used.
    pub(crate) fn keep(&mut self, text: String, made: T, bytes: usize) {
        self.entries.retain(|entry| entry.text != text);
        let bytes = bytes.saturating_add(text.len());
        if bytes <= self.bytes {
            self.entries.push(Entry { text, made, bytes });
        }
        while self.entries.len() > self.most
            || self.entries.iter().map(|entry| entry.bytes).sum::<usize>() > self.bytes
        {
            self.entries.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;

    #[test]
    fn what_was_asked_for_last_stays() {
        let mut kept = Kept::new(3, 20);
        ["a", "b", "c"].into_iter().enumerate().for_each(|(at, text)| kept.keep(text.to_owned(), at, 0));
        assert_eq!(kept.get("a"), Some(0));
        kept.keep("d".to_owned(), 3, 0);
        assert_eq!(["a", "b", "c", "d"].map(|text| kept.get(text)), [Some(0), None, Some(2), Some(3)]);
        // By bytes, too; a text too long for the cache evicts nothing.
        kept.keep("x".repeat(20), 4, 1);
        assert_eq!((kept.entries.len(), kept.get("a")), (3, Some(0)));
        kept.keep("y".repeat(9), 5, 10);
        assert_eq!(kept.entries.iter().map(|entry| entry.made).collect::<Vec<_>>(), [0, 5]);
        kept.keep("a".to_owned(), 6, 0);
        assert_eq!((kept.entries.len(), kept.get("a")), (2, Some(6)));
    }
}
