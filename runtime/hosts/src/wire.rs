//! Numbers and lists as bytes, little-endian; the readers believe no length.

/// Why bytes are no message.
pub type Malformed = &'static str;

/// Bytes that are read from the front.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("it is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("it is too short")?;
        self.0 = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        self.flag()?.then(|| read(self)).transpose()
    }

    /// A list, of which each takes at least `least` bytes: a count that the rest is too short for claims
    /// nothing.
    pub fn list<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count.checked_mul(least).is_none_or(|bytes| bytes > self.0.len()) {
            return Err("a list is longer than its message");
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub fn u32s(&mut self) -> Result<Vec<u32>, Malformed> {
        self.list(4, Reader::u32)
    }

    pub fn pairs(&mut self) -> Result<Vec<(u32, u32)>, Malformed> {
        self.list(8, |it| Ok((it.u32()?, it.u32()?)))
    }

    pub fn bytes(&mut self) -> Result<Vec<u8>, Malformed> {
        let count = self.u32()? as usize;
        self.take(count).map(<[u8]>::to_vec)
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?).map_err(|_| "a text is not UTF-8")
    }

    /// Nothing may follow.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err("something follows its end") }
    }
}

/// Bytes that are written to the end.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// A list. One too long for its count makes a message longer than any frame, which is refused there.
    pub fn list<T>(&mut self, list: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.u32(u32::try_from(list.len()).unwrap_or(u32::MAX));
        list.iter().for_each(|one| write(self, one));
    }

    pub fn u32s(&mut self, list: &[u32]) {
        self.list(list, |it, value| it.u32(*value));
    }

    pub fn pairs(&mut self, list: &[(u32, u32)]) {
        self.list(list, |it, (a, b)| {
            it.u32(*a);
            it.u32(*b);
        });
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
}
