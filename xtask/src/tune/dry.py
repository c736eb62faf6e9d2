"""A device that is none: it checks what it is asked for, and its times follow from names, so that all of tune.py runs without a GPU."""

import zlib

import numpy

LARGEST_GRID = (2**31 - 1, 65535, 65535)


class Kernel:
    def __init__(self, name):
        self.name = name


class Device:
    card = "no card"

    def __init__(self):
        self.end = 256
        self.sources = {}

    def allocate(self, size):
        address = self.end
        self.end += (size + 255) // 256 * 256
        return address

    def release(self):
        print(f"{self.end / 1e9:.1f} GB were allocated")

    def inside(self, address, size=1):
        if not 256 <= address <= address + size <= self.end:
            raise RuntimeError(f"{size} bytes at {address} were never allocated")

    def set(self, address, size, byte):
        self.inside(address, size)

    def upload(self, address, data):
        self.inside(address, len(data))

    def copy(self, address, source, size):
        self.inside(address, size)
        self.inside(source, size)

    def download(self, address, size):
        self.inside(address, size)
        # What every variant leaves here is the same.
        return numpy.zeros(min(size, 1 << 20), numpy.uint8)

    def wait(self):
        pass

    def kernel(self, path, name, block, shared, shared_part):
        source = self.sources.setdefault(path, path.read_bytes())
        if name.encode() not in source:
            raise RuntimeError(f"{name} is not in {path}")
        if not 32 <= block <= 1024:
            raise RuntimeError(f"{name} has {block} threads")
        return Kernel(name)

    def launch(self, kernel, grid, values, dependent):
        if not all(1 <= blocks <= most for blocks, most in zip(grid, LARGEST_GRID)):
            raise RuntimeError(f"{kernel.name}: a grid of {grid}")

    def record(self, calls, dependent):
        for kernel, grid, values in calls:
            self.launch(kernel, grid, values, dependent)
        return sum(1.0 + zlib.crc32(kernel.name.encode()) % 100 / 1000 for kernel, _, _ in calls) / 1000

    def forget(self, graph):
        pass

    def time(self, graph):
        return graph
