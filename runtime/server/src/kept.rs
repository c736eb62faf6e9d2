//! A few results kept for who asks the same again.

/// The newest of what was made, each under the text that it was made of: at most `most` of them, and of texts at most `bytes` in all.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    /// Who was asked for last stands last.
    entries: Vec<(String, T)>,
    most: usize,
    bytes: usize,
}

impl<T: Clone> Kept<T> {
    pub(crate) fn new(most: usize, bytes: usize) -> Kept<T> {
        Kept { entries: Vec::new(), most, bytes }
    }

    /// What is kept of a text.
    pub(crate) fn get(&mut self, text: &str) -> Option<T> {
        // They are few, and most texts differ in length.
        let at = self.entries.iter().position(|(known, _)| known == text)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        self.entries.last().map(|(_, made)| made.clone())
    }

    /// Keeps what was made of a text, and gives up what was not asked for the longest.
    pub(crate) fn keep(&mut self, text: String, made: T) {
        self.entries.retain(|(known, _)| *known != text);
        if text.len() <= self.bytes {
            self.entries.push((text, made));
        }
        while self.entries.len() > self.most
            || self.entries.iter().map(|(text, _)| text.len()).sum::<usize>() > self.bytes
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
        ["a", "b", "c"].into_iter().enumerate().for_each(|(at, text)| kept.keep(text.to_owned(), at));
        assert_eq!(kept.get("a"), Some(0));
        kept.keep("d".to_owned(), 3);
        assert_eq!(["a", "b", "c", "d"].map(|text| kept.get(text)), [Some(0), None, Some(2), Some(3)]);
        // By bytes, too; and what is too long by itself costs nobody its place.
        kept.keep("x".repeat(21), 4);
        assert_eq!((kept.entries.len(), kept.get("a")), (3, Some(0)));
        kept.keep("y".repeat(19), 5);
        assert_eq!(kept.entries.iter().map(|(_, made)| *made).collect::<Vec<_>>(), [0, 5]);
        kept.keep("a".to_owned(), 6);
        assert_eq!((kept.entries.len(), kept.get("a")), (2, Some(6)));
    }
}
