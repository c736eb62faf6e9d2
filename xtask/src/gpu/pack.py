"""Packs a directory into parts below a size: `pack.py STORE OUT LIMIT` prints the files that were cut, with their pieces, and the parts.

Servers are nearly the same bytes again and again. One stream over all of them, with a window that reaches back over several, makes
each after the first a tenth of its size alone; so parts are tar files in one xz stream each.
"""

import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

# Files above this are cut, so that parts fill up and their size is known while they grow.
PIECE = 4_000_000
# What the compressor may hold back, and the end of the archive.
RESERVE = 3_000_000
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 1 << 26},
]


class Part:
    """A part being written."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "wb")
        self.stream = lzma.open(self.file, "wb", filters=FILTERS)
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
    part = None
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        name = str(path.relative_to(store))
        data = path.read_bytes()
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] or [b""]
        names = [name] if len(pieces) == 1 else [f"{name}.{index:03}" for index in range(len(pieces))]
        if len(pieces) > 1:
            cut[name] = names
        for name, piece in zip(names, pieces):
            # A piece may not shrink at all.
            if part is not None and part.file.tell() + len(piece) + RESERVE > limit:
                part.close()
                part = None
            if part is None:
                part = Part(out / f"part-{len(parts) + 1}.tar.xz")
                parts.append(str(part.path))
            part.add(name, piece)
    if part is not None:
        part.close()
    print(json.dumps({"cut": cut, "parts": parts}))


if __name__ == "__main__":
    main()
