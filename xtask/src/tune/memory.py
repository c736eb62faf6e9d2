"""Everything kernels are handed: weights of the whole model, K/V, activations, the step. Made once a program."""

import ctypes

import numpy

import step

FILL_GRID = (1024, 1, 1)
VECTOR_DEVIATION = 0.02
# Bytes that several copies of a weight come to at least, over those of the second-level cache: nothing is
# read from there twice.
CACHES = 3
MOST_COPIES = 128
# Bytes of random keys and values, repeated over the cache.
CHUNK = 1 << 22


class FillShape(ctypes.Structure):
    """templates/cuda/core/fill.cuh."""

    _fields_ = [
        ("rows", ctypes.c_int),
        ("columns", ctypes.c_int),
        ("gated", ctypes.c_int),
        ("deviation", ctypes.c_float),
        ("seed", ctypes.c_uint64),
    ]


def pointer(address):
    return ctypes.c_uint64(address)


class Weights:
    """Random weights as `--weights dummy` makes them: an instance a layer, and more where the cache would hold them all."""

    def __init__(self, manifest, device, kernel):
        self.copies, self.instances, seed = [], [], 0
        for field in manifest["fields"]:
            shape, fill = field["shape"], kernel(field["fill"])
            copies = field["instances"]
            if "codes" in shape:
                copies = max(copies, min(-(-CACHES * manifest["l2_bytes"] // shape["codes"]), MOST_COPIES))
            instances = []
            for _ in range(copies):
                seed += 1
                instances.append(self.make(device, fill, shape, seed))
            self.copies.append(copies)
            self.instances.append(instances)
        device.wait()

    @staticmethod
    def make(device, fill, shape, seed):
        if "codes" not in shape:
            codes = device.allocate(-(-4 * shape["length"] // 256) * 256)
            values = [pointer(codes), ctypes.c_longlong(shape["length"]), ctypes.c_float(shape["centre"])]
            values += [ctypes.c_float(VECTOR_DEVIATION), ctypes.c_uint64(seed)]
            device.launch(fill, FILL_GRID, values, False)
            return {"codes": codes}
        planes = {name: device.allocate(shape[name]) if shape[name] else 0 for name in ("codes", "scales", "row_scales")}
        argument = FillShape(shape["rows"], shape["columns"], int(shape["gated"]), shape["columns"] ** -0.5, seed)
        device.launch(fill, FILL_GRID, [*map(pointer, planes.values()), argument], False)
        return planes


def areas(manifest, device):
    """Activations and scratch by name: address and bytes. No name is of both."""
    sizes = {**manifest["buffers"], **manifest["scratch"]}
    return {name: (device.allocate(size), size) for name, size in sizes.items() if size}


class Memory:
    """What one program works on: in decode after `context` tokens of each sequence, in prefill with a prompt of so many."""

    def __init__(self, manifest, device, weights, shared, program, context):
        self.manifest, self.device, self.weights, self.areas = manifest, device, weights, shared
        most, block_tokens = manifest["max_sequences"], manifest["kv"]["block_tokens"]
        rows = b""
        if program["decode"]:
            header, blocks = step.decode(most, program["rows"], context, block_tokens)
            self.extents = {"tokens": program["rows"], "sequences": program["rows"], "outputs": program["rows"]}
        else:
            header, rows, blocks = step.prefill(most, context, block_tokens)
            self.extents = {"tokens": context, "sequences": 1, "outputs": 0}
        self.step = self.uploaded(header)
        self.tokens = self.uploaded(rows or bytes(8))
        # More than any step reads or writes of these.
        self.sampled_ids, self.history, self.sampled = (device.allocate(1 << 16) for _ in range(3))
        self.caches, self.rotary, self.states = [], [], []
        for body in manifest["bodies"]:
            attention = body["attention"]
            self.caches.append(self.cache(attention["block_bytes"] * blocks, body["layers"]) if attention else [])
            self.rotary.append(self.uploaded(self.angles(attention, context + 1)) if attention else 0)
            parts = (body["state"] or {}).items()
            self.states.append({name: [device.allocate(most * size) for _ in range(body["layers"])] for name, size in parts if size})
        device.wait()

    def forget(self):
        """Recurrent states as before a first token, so that the same launches give the same results."""
        for body, parts in zip(self.manifest["bodies"], self.states):
            for name, layers in parts.items():
                for address in layers:
                    self.device.set(address, self.manifest["max_sequences"] * body["state"][name], 0)

    def uploaded(self, data):
        address = self.device.allocate(len(data))
        self.device.wait()
        self.device.upload(address, data)
        return address

    def angles(self, attention, positions):
        inverse = numpy.array(attention["inverse"], numpy.float32)
        angle = numpy.arange(positions, dtype=numpy.float32)[:, None] * inverse
        pairs = numpy.stack([numpy.cos(angle), numpy.sin(angle)], axis=-1) * numpy.float32(attention["factor"])
        return pairs.astype(numpy.float32).tobytes()

    def cache(self, size, layers):
        """Random keys and values for each layer, and for more where the second-level cache would hold all."""
        copies = max(layers, min(-(-CACHES * self.manifest["l2_bytes"] // size), MOST_COPIES))
        chunk = self.uploaded(self.random_kv()[: min(size, CHUNK)])
        caches = []
        for _ in range(copies):
            address = self.device.allocate(size)
            for at in range(0, size, CHUNK):
                self.device.copy(address + at, chunk, min(CHUNK, size - at))
            caches.append(address)
        return caches

    def random_kv(self):
        values = numpy.random.default_rng(1).standard_normal(CHUNK // 2, dtype=numpy.float32)
        kind = self.manifest["kv"]["format"]
        if kind == "bf16":
            return (values.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
        return values.astype({"f16": numpy.float16, "f32": numpy.float32}[kind]).tobytes()

    def call(self, kernels, launch, layer, following=(0, 0)):
        """A launch of the manifest as (kernel, grid, values) for a layer, with the range of weights that follows it."""
        grid = []
        for what, number in launch["grid"]:
            grid.append(number if what == "fixed" else -(-self.extents[what] // number))
        return kernels(launch["kernel"]), grid, [pointer(self.address(it, layer, following)) for it in launch["arguments"]]

    def following(self, at):
        """The codes of the first matrix behind place `at` of the schedule: where they begin and end."""
        for body, layer in self.manifest["schedule"][at + 1 :]:
            first = self.manifest["bodies"][body]["first"]
            if first is not None:
                begin = self.address(["field", first, "codes"], layer, None)
                return begin, begin + self.manifest["fields"][first]["shape"]["codes"]
        return 0, 0

    def address(self, argument, layer, following):
        kind, *of = argument
        if kind in ("buffer", "scratch"):
            return self.areas[of[0]][0]
        if kind == "field":
            instances = self.weights.instances[of[0]]
            return instances[layer % len(instances)][of[1]]
        if kind == "cache":
            return self.caches[of[0]][layer % len(self.caches[of[0]])]
        if kind == "following":
            return following[of[0]]
        if kind == "rotary":
            return self.rotary[of[0]]
        if kind == "state":
            return self.states[of[0]][of[1]][layer]
        return 0 if kind == "null" else getattr(self, kind)
