//! A file of packed weights: what a CPU server makes of a checkpoint, in the order and layout in which it
//! reads them, so that it can map them.
//!
//! | bytes | |
//! |---|---|
//! | 0 .. [`PREFIX`] | [`Prefix`]: [`MAGIC`], version, whether weights are made up, lengths, a digest |
//! | [`PREFIX`] .. bytes of the header | [`Header`]: strings and lists have their length in front |
//! | behind that | the header of a GGUF file, files beside a checkpoint, tensors that are kept as they are |
//! | behind that | arrays, each at a multiple of [`ALIGNMENT`] |
//!
//! All numbers are little endian. What an instruction set could change is not in it: tiles have the same 16
//! rows for all ([`crate::tiles`]).

use std::ops::Range;

/// The first bytes.
pub const MAGIC: [u8; 8] = *b"MONOPACK";

/// Version of the header's form.
pub const VERSION: u32 = 1;

/// Version of how arrays are packed: another one whenever a kernel wants other bytes for the same tensors.
/// `runtime/device/src/cpu/layout.rs` has digests of every format's tiles, and fails where it was forgotten.
pub const LAYOUT: u32 = 1;

/// Arrays begin at multiples of this: a page of most systems. Larger pages need no more, since a file is
/// mapped in one piece and they lie where they lie in the file.
pub const ALIGNMENT: u64 = 4096;

/// Bytes in front of the header proper.
pub const PREFIX: usize = 40;

/// Most bytes of a header. One of 100,000 arrays has 10 MB.
pub const MOST_HEADER: u64 = 256 << 20;

/// Bytes of a piece's entry.
const PIECE: usize = 3 * 8;

/// Bytes of an array's entry without its name.
const ARRAY: usize = 4 + 8 + PIECE;

/// What a file says of itself in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Whether weights are made up.
    pub made_up: bool,
    /// Bytes of the header, with this.
    pub header: u64,
    /// Bytes of the file.
    pub file: u64,
    /// Digest of the header, without this.
    pub digest: u64,
}

/// What is in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`LAYOUT`] of the server that packed it.
    pub layout: u32,
    /// The build's model and quantisation, as targets are named: `smollm2-135m/q4_1`.
    pub build: String,
    /// The release and commit that packed it, for people.
    pub by: String,
    /// The files that it was packed from; none of made-up weights.
    pub sources: Vec<Source>,
    /// The header of the first, where that is a GGUF file: the tokenizer is in it.
    pub gguf: Option<Piece>,
    /// Files beside these, such as a tokenizer.
    pub beside: Vec<Beside>,
    /// Tensors that are read as they are: static scales of keys and values.
    pub tensors: Vec<Kept>,
    /// What was packed, in the order in which it is loaded.
    pub arrays: Vec<Array>,
}

/// A file of the checkpoint, for people: nothing looks at it any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Its name without directories.
    pub name: String,
    /// How long it was.
    pub bytes: u64,
    /// When it was last written to: seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// Bytes of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where they stand.
    pub place: Range<u64>,
    /// XXH3 of them.
    pub digest: u64,
}

/// A file beside the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Its name without directories.
    pub name: String,
    /// What was in it.
    pub piece: Piece,
}

/// A tensor as the checkpoint had it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// What the checkpoint calls it.
    pub name: String,
    /// Its format, by the name that quant specs use.
    pub format: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// Its elements.
    pub piece: Piece,
}

/// What a kernel reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Array {
    /// Its kind, format and dimensions, and the first of its tensors, for people.
    pub name: String,
    /// Digest of all that decides its bytes but the tensors' own: kind, format, dimensions, and which rows of
    /// which tensors.
    pub made: u64,
    /// Its bytes.
    pub piece: Piece,
}

impl Prefix {
    /// As it stands in a file.
    pub fn encode(&self) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.made_up.into();
        for (at, number) in [self.header, self.file, self.digest].into_iter().enumerate() {
            bytes[16 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The prefix of a file of so many bytes that begins with these.
    ///
    /// # Errors
    /// What is wrong with it, as the rest of a sentence about the file.
    pub fn decode(bytes: &[u8; PREFIX], file: u64) -> Result<Prefix, String> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes[..8] != MAGIC {
            return Err("does not begin as a file of packed weights".to_owned());
        }
        let version = number(8) as u32;
        if version != VERSION {
            return Err(format!(
                "is version {version} of packed weights, and this server reads version {VERSION}: {AGAIN}"
            ));
        }
        let made_up = match bytes[12..16] {
            [0, 0, 0, 0] => false,
            [1, 0, 0, 0] => true,
            _ => {
                return Err(format!(
                    "says neither that its weights are made up nor that they are not; {AGAIN}"
                ));
            }
        };
        let prefix = Prefix { made_up, header: number(16), file: number(24), digest: number(32) };
        if prefix.file != file {
            return Err(format!(
                "has {file} bytes and says that it has {}: it was cut short, or written to; {AGAIN}",
                prefix.file
            ));
        }
        if prefix.header < PREFIX as u64 || prefix.header > file.min(MOST_HEADER) {
            return Err(format!("says that its header has {} of its {file} bytes; {AGAIN}", prefix.header));
        }
        Ok(prefix)
    }
}

/// What is to be done about a file that is of no use.
pub const AGAIN: &str = "make it again with the verb `pack`";

impl Header {
    /// As it stands behind the prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.layout.to_le_bytes());
        string(&mut out, &self.build);
        string(&mut out, &self.by);
        count(&mut out, self.sources.len());
        for source in &self.sources {
            string(&mut out, &source.name);
            out.extend(source.bytes.to_le_bytes());
            out.extend(source.modified.0.to_le_bytes());
            out.extend(source.modified.1.to_le_bytes());
        }
        count(&mut out, self.gguf.iter().len());
        self.gguf.iter().for_each(|it| piece(&mut out, it));
        count(&mut out, self.beside.len());
        for beside in &self.beside {
            string(&mut out, &beside.name);
            piece(&mut out, &beside.piece);
        }
        count(&mut out, self.tensors.len());
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            string(&mut out, &tensor.format);
            count(&mut out, tensor.shape.len());
            tensor.shape.iter().for_each(|size| out.extend(size.to_le_bytes()));
            piece(&mut out, &tensor.piece);
        }
        count(&mut out, self.arrays.len());
        for array in &self.arrays {
            string(&mut out, &array.name);
            out.extend(array.made.to_le_bytes());
            piece(&mut out, &array.piece);
        }
        out
    }

    /// Bytes that [`Header::encode`] makes of this and so many more arrays, whose names have so many bytes.
    pub fn encoded_bytes(&self, arrays: usize, names: usize) -> usize {
        self.encode().len() + arrays * ARRAY + names
    }

    /// The header in these bytes, which follow the prefix of a file.
    ///
    /// # Errors
    /// What is wrong with it, as the rest of a sentence about the file. Nothing is claimed for a count before
    /// there are bytes for that many.
    pub fn decode(bytes: &[u8], prefix: &Prefix) -> Result<Header, String> {
        let mut from = Cursor { bytes, at: 0 };
        let layout = from.u32()?;
        if layout != LAYOUT {
            return Err(format!(
                "is packed in layout {layout}, and this server reads layout {LAYOUT}: {AGAIN}"
            ));
        }
        let (build, by) = (from.string()?, from.string()?);
        let mut sources = Vec::new();
        for _ in 0..from.count(4 + 3 * 8)? {
            let (name, bytes) = (from.string()?, from.u64()?);
            sources.push(Source { name, bytes, modified: (from.u64()? as i64, from.u64()? as i64) });
        }
        let gguf = match from.count(PIECE)? {
            0 => None,
            1 => Some(from.piece()?),
            more => return Err(damaged(format!("it has {more} headers of GGUF"))),
        };
        let mut beside = Vec::new();
        for _ in 0..from.count(4 + PIECE)? {
            beside.push(Beside { name: from.string()?, piece: from.piece()? });
        }
        let mut tensors = Vec::new();
        for _ in 0..from.count(3 * 4 + PIECE)? {
            let (name, format, mut shape) = (from.string()?, from.string()?, Vec::new());
            for _ in 0..from.count(8)? {
                shape.push(from.u64()?);
            }
            tensors.push(Kept { name, format, shape, piece: from.piece()? });
        }
        let mut arrays = Vec::new();
        for _ in 0..from.count(ARRAY)? {
            arrays.push(Array { name: from.string()?, made: from.u64()?, piece: from.piece()? });
        }
        if from.at != bytes.len() {
            return Err(damaged(format!("{} bytes follow its last entry", bytes.len() - from.at)));
        }
        let header = Header { layout, build, by, sources, gguf, beside, tensors, arrays };
        header.check(prefix)?;
        Ok(header)
    }

    /// What is kept besides arrays, in the order of the file, and what each is called.
    pub fn kept(&self) -> impl Iterator<Item = (&str, &Piece)> {
        let gguf = self.gguf.iter().map(|piece| ("the header of GGUF", piece));
        let beside = self.beside.iter().map(|it| (&*it.name, &it.piece));
        gguf.chain(beside).chain(self.tensors.iter().map(|it| (&*it.name, &it.piece)))
    }

    /// Checks that everything lies within the file, and nothing over anything else.
    fn check(&self, prefix: &Prefix) -> Result<(), String> {
        if prefix.made_up != self.sources.is_empty() {
            let made_up = if prefix.made_up { "" } else { "not " };
            let sources = self.sources.len();
            return Err(damaged(format!("its weights are {made_up}made up, and of {sources} files")));
        }
        let mut end = prefix.header;
        let mut follow = |what: &dyn Fn() -> String, Piece { place, .. }: &Piece, alignment: u64| {
            let inside = place.start >= end && place.start <= place.end && place.end <= prefix.file;
            if !inside || !place.start.is_multiple_of(alignment) {
                return Err(damaged(format!(
                    "{} lies at bytes {place:?}, and what is before it ends at {end} of {}",
                    what(),
                    prefix.file
                )));
            }
            end = place.end;
            Ok(())
        };
        for (name, piece) in self.kept() {
            follow(&|| name.to_owned(), piece, 1)?;
        }
        for (at, array) in self.arrays.iter().enumerate() {
            follow(&|| format!("array {at} ({})", array.name), &array.piece, ALIGNMENT)?;
        }
        Ok(())
    }
}

fn damaged(what: String) -> String {
    format!("has a damaged header: {what}; {AGAIN}")
}

fn count(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u32).to_le_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    count(out, text.len());
    out.extend(text.as_bytes());
}

fn piece(out: &mut Vec<u8>, Piece { place, digest }: &Piece) {
    for number in [place.start, place.end, *digest] {
        out.extend(number.to_le_bytes());
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(damaged(format!("{length} bytes are said to be from its byte {} on", self.at)));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        Ok(std::array::from_fn(|at| taken[at]))
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of entries of at least `least` bytes each.
    fn count(&mut self, least: usize) -> Result<usize, String> {
        let (count, left) = (self.u32()? as usize, self.bytes.len() - self.at);
        if count > left / least {
            return Err(damaged(format!("{count} entries are said to be in {left} bytes")));
        }
        Ok(count)
    }

    fn string(&mut self) -> Result<String, String> {
        let length = self.count(1)?;
        let at = self.at;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned).map_err(|_| damaged(format!("its bytes from {at} on are no text")))
    }

    fn piece(&mut self) -> Result<Piece, String> {
        Ok(Piece { place: self.u64()?..self.u64()?, digest: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(place: Range<u64>, digest: u64) -> Piece {
        Piece { place, digest }
    }

    fn header() -> Header {
        Header {
            layout: LAYOUT,
            build: "model/q4_1".to_owned(),
            by: "0.1.0".to_owned(),
            sources: vec![Source { name: "model.gguf".to_owned(), bytes: 10_000, modified: (1, -2) }],
            gguf: Some(piece(600..700, 1)),
            beside: vec![Beside { name: "tokenizer.json".to_owned(), piece: piece(710..900, 3) }],
            tensors: vec![Kept {
                name: "k_scale".to_owned(),
                format: "f32".to_owned(),
                shape: vec![2],
                piece: piece(900..908, 2),
            }],
            arrays: vec![
                Array { name: "a".to_owned(), made: 4, piece: piece(4096..5000, 5) },
                Array { name: "b".to_owned(), made: 6, piece: piece(8192..8192, 7) },
            ],
        }
    }

    const PLACES: Prefix = Prefix { made_up: false, header: 600, file: 9000, digest: 0 };

    fn wrong(change: impl Fn(&mut Header)) -> String {
        let mut header = header();
        change(&mut header);
        Header::decode(&header.encode(), &PLACES).unwrap_err()
    }

    #[test]
    fn what_was_written_is_read() {
        let encoded = header().encode();
        assert_eq!(Header::decode(&encoded, &PLACES).unwrap(), header());
        let few = Header { arrays: Vec::new(), ..header() };
        assert_eq!(few.encoded_bytes(2, 2), encoded.len());
        for made_up in [false, true] {
            let prefix = Prefix { made_up, header: 600, file: 9000, digest: 77 };
            assert_eq!(Prefix::decode(&prefix.encode(), 9000).unwrap(), prefix);
        }
        let bare = Header { sources: Vec::new(), gguf: None, ..header() };
        let made_up = Prefix { made_up: true, ..PLACES };
        assert_eq!(Header::decode(&bare.encode(), &made_up).unwrap(), bare);
    }

    #[test]
    fn what_lies_outside_or_over_something_is_refused() {
        assert!(wrong(|it| it.layout = 9).contains("is packed in layout 9, and this server reads layout 1"));
        for place in [4096..9001, 4096..u64::MAX, u64::MAX - 4095..u64::MAX, 0..4096, 4097..4098] {
            assert!(
                wrong(|it| it.arrays[0].piece.place = place.clone()).contains("array 0 (a) lies at"),
                "{place:?}"
            );
        }
        assert!(
            wrong(|it| (it.arrays[0].piece.place.start, it.arrays[0].piece.place.end) = (8192, 4096))
                .contains("array 0 (a)")
        );
        assert!(wrong(|it| it.arrays[0].piece.place = 4096..8193).contains("array 1 (b) lies at"));
        assert!(wrong(|it| it.beside[0].piece.place = 699..800).contains("tokenizer.json lies at"));
        assert!(wrong(|it| it.gguf = Some(piece(599..700, 1))).contains("the header of GGUF lies at"));
        assert!(wrong(|it| it.tensors[0].piece.place = 899..908).contains("k_scale lies at"));
        assert!(wrong(|it| it.sources.clear()).contains("are not made up, and of 0 files"));
        let made_up = Header::decode(&header().encode(), &Prefix { made_up: true, ..PLACES }).unwrap_err();
        assert!(made_up.contains("are made up, and of 1 files"), "{made_up}");
    }

    #[test]
    fn bytes_that_are_no_header_are_refused() {
        let encoded = header().encode();
        for length in 0..encoded.len() {
            Header::decode(&encoded[..length], &PLACES).unwrap_err();
        }
        let longer = [&encoded[..], &[0]].concat();
        assert!(Header::decode(&longer, &PLACES).unwrap_err().contains("1 bytes follow"));
        // Every length and count of them, and all else, as large as can be.
        for at in 0..encoded.len() - 4 {
            let mut large = encoded.clone();
            large[at..at + 4].fill(0xff);
            // Names and digests may be anything.
            let _ = Header::decode(&large, &PLACES);
        }
    }

    #[test]
    fn a_prefix_says_what_is_wrong() {
        let good = Prefix { digest: 1, ..PLACES };
        let wrong = |prefix: [u8; PREFIX], file| Prefix::decode(&prefix, file).unwrap_err();
        let mut other = good.encode();
        other[0] = b'G';
        assert!(wrong(other, 9000).contains("does not begin as"));
        let mut other = good.encode();
        other[8] = 2;
        assert!(
            wrong(other, 9000).contains("is version 2 of packed weights, and this server reads version 1")
        );
        let mut other = good.encode();
        other[13] = 1;
        assert!(wrong(other, 9000).contains("neither that its weights are made up nor that they are not"));
        assert!(wrong(good.encode(), 8999).contains("has 8999 bytes and says that it has 9000"));
        for header in [0, 39, 9001, u64::MAX] {
            assert!(wrong(Prefix { header, ..good }.encode(), 9000).contains("its header has"));
        }
    }
}
