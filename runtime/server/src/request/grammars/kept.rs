//! A few results kept for who asks the same again.

/// The newest of what was made, each under the text that it was made of: at most `most` of them, which with
/// their texts take at most `bytes` in all.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    /// Who was asked for last stands last.
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

    /// What is kept of a text.
    pub(crate) fn get(&mut self, text: &str) -> Option<T> {
        // They are few, and most texts differ in length.
        let at = self.entries.iter().position(|entry| entry.text == text)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        self.entries.last().map(|entry| entry.made.clone())
    }

    /// Keeps what was made of a text, which takes so many bytes, and gives up what was not asked for the
    /// longest.
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
        // By bytes, too; and what is too long by itself costs nobody its place.
        kept.keep("x".repeat(20), 4, 1);
        assert_eq!((kept.entries.len(), kept.get("a")), (3, Some(0)));
        kept.keep("y".repeat(9), 5, 10);
        assert_eq!(kept.entries.iter().map(|entry| entry.made).collect::<Vec<_>>(), [0, 5]);
        kept.keep("a".to_owned(), 6, 0);
        assert_eq!((kept.entries.len(), kept.get("a")), (2, Some(6)));
    }
}
