"""Packs a directory into parts below a size: `pack.py STORE OUT LIMIT` prints the files that were cut, with their pieces, and the parts.

Servers are nearly the same bytes again and again. One stream over all of them, with a window that reaches back over several, makes
each after the first a tenth of its size alone; so parts are tar files in one xz stream each. Weights do not shrink: theirs are plain.
"""

import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

# Files above this are cut, so that parts fill up and their size is known while they grow.
PIECE = 4_000_000
# Files above this come last, in parts of their own: who does without them carries less.
LARGE = 32_000_000
# What the compressor may hold back, and what an archive adds.
RESERVE = 3_000_000
PLAIN_RESERVE = 100_000
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 1 << 26},
]


class Part:
    """A part being written."""

    def __init__(self, out, number, large):
        self.path = out / f"part-{number}.tar{'' if large else '.xz'}"
        self.file = open(self.path, "wb")
        self.stream = self.file if large else lzma.open(self.file, "wb", filters=FILTERS)
        self.archive = tarfile.open(fileobj=self.stream, mode="w")

    def add(self, name, data):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        self.archive.addfile(entry, io.BytesIO(data))

    def close(self):
        self.archive.close()
        self.stream.close()
        self.file.close()


def main():
    store, out, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    parts, cut = [], {}
    part, large = None, False
    files = (path for path in store.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: (path.stat().st_size > LARGE, path)):
        name = str(path.relative_to(store))
        data = path.read_bytes()
        if part is not None and not large and len(data) > LARGE:
            part.close()
            part = None
        large = len(data) > LARGE
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] or [b""]
        names = [name] if len(pieces) == 1 else [f"{name}.{index:03}" for index in range(len(pieces))]
        if len(pieces) > 1:
            cut[name] = names
        for name, piece in zip(names, pieces):
            # A piece may not shrink at all.
            if part is not None and part.file.tell() + len(piece) + (PLAIN_RESERVE if large else RESERVE) > limit:
                part.close()
                part = None
            if part is None:
                part = Part(out, len(parts) + 1, large)
                parts.append(str(part.path))
            part.add(name, piece)
    if part is not None:
        part.close()
    print(json.dumps({"cut": cut, "parts": parts}))


if __name__ == "__main__":
    main()
