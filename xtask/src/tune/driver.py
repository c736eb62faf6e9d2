"""The CUDA driver, by ctypes: memory, kernels of cubins, launches as the runtime makes them, recorded graphs and their times."""

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy

# Numbers of cuda.h.
COMPUTE_CAPABILITY = (75, 76)
MAX_DYNAMIC_SHARED, SHARED_CARVEOUT = 8, 9
PROGRAMMATIC_STREAM_SERIALIZATION = 6
CAPTURE_THREAD_LOCAL = 1
# Dynamic shared memory a kernel may use without asking.
FREE_SHARED = 48 * 1024


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes whose first word is all that is used here."""

    _fields_ = [("id", c_uint), ("pad", c_uint), ("value", c_int), ("rest", c_int * 15)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", c_uint),
    ]


class Kernel:
    def __init__(self, function, name, block, shared, parameters):
        self.function, self.name, self.block, self.shared, self.parameters = function, name, block, shared, parameters


class Device:
    """The first GPU, and one stream of it."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, device)
        self.card = name.value.decode()
        self.stream = c_void_p()
        self.call("cuStreamCreate", byref(self.stream), 1)
        self.events = [c_void_p(), c_void_p()]
        for event in self.events:
            self.call("cuEventCreate", byref(event), 0)
        self.attribute = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        self.modules, self.allocated = {}, []
        self.landing = numpy.empty(0, numpy.uint8)

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            text = c_char_p()
            self.cuda.cuGetErrorString(result, byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown').decode()} ({result})")

    def allocate(self, size):
        """`size` bytes of zeros."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        self.allocated.append(address)
        self.set(address.value, size, 0)
        return address.value

    def release(self):
        """Frees all that was allocated."""
        self.wait()
        for address in self.allocated:
            self.call("cuMemFree_v2", address)
        self.allocated = []

    def set(self, address, size, byte):
        self.call("cuMemsetD8Async", c_uint64(address), ctypes.c_ubyte(byte), c_size_t(size), self.stream)

    def upload(self, address, data):
        data = bytes(data)
        self.call("cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))

    def copy(self, address, source, size):
        self.call("cuMemcpyDtoDAsync_v2", c_uint64(address), c_uint64(source), c_size_t(size), self.stream)

    def download(self, address, size):
        """The bytes there, valid until the next download: fresh pages would cost more than the copy."""
        self.wait()
        if self.landing.size < size:
            self.landing = numpy.empty(size, numpy.uint8)
        data = self.landing[:size]
        self.call("cuMemcpyDtoH_v2", data.ctypes.data_as(c_void_p), c_uint64(address), c_size_t(size))
        return data

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def kernel(self, path, name, block, shared, shared_part):
        if path not in self.modules:
            module = c_void_p()
            self.call("cuModuleLoad", byref(module), str(path).encode())
            self.modules[path] = module
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), self.modules[path], name.encode())
        if shared > FREE_SHARED:
            self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        # As the runtime does: the split decides which kernels can share a multiprocessor.
        if shared_part is not None:
            self.call("cuFuncSetAttribute", function, SHARED_CARVEOUT, shared_part)
        parameters, offset, size = 0, c_size_t(), c_size_t()
        while self.cuda.cuFuncGetParamInfo(function, c_size_t(parameters), byref(offset), byref(size)) == 0:
            parameters += 1
        return Kernel(function, name, block, shared, parameters)

    def symbol(self, path, name):
        """Address and bytes of a variable of a loaded module."""
        address, size = c_uint64(), c_size_t()
        self.call("cuModuleGetGlobal_v2", byref(address), byref(size), self.modules[path], name)
        return address.value, size.value

    def launch(self, kernel, grid, values, dependent):
        """`values` are ctypes values; with `dependent`, blocks may start before the kernel in front has ended."""
        if len(values) != kernel.parameters:
            raise RuntimeError(f"{kernel.name} takes {kernel.parameters} parameters, and the manifest has {len(values)}")
        parameters = (c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        config = Config(
            (c_uint * 3)(*grid),
            (c_uint * 3)(kernel.block, 1, 1),
            kernel.shared,
            self.stream,
            ctypes.pointer(self.attribute),
            1 if dependent else 0,
        )
        self.call("cuLaunchKernelEx", byref(config), kernel.function, parameters, None)

    def record(self, calls, dependent):
        """A graph of calls, each of (kernel, grid, values)."""
        self.wait()
        self.call("cuStreamBeginCapture_v2", self.stream, CAPTURE_THREAD_LOCAL)
        for at, (kernel, grid, values) in enumerate(calls):
            self.launch(kernel, grid, values, dependent and at > 0)
        graph, executable = c_void_p(), c_void_p()
        self.call("cuStreamEndCapture", self.stream, byref(graph))
        self.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        self.call("cuGraphDestroy", graph)
        self.call("cuGraphUpload", executable, self.stream)
        return executable

    def forget(self, graph):
        self.wait()
        self.call("cuGraphExecDestroy", graph)

    def time(self, graph):
        """Milliseconds of one run."""
        start, end = self.events
        self.call("cuEventRecord", start, self.stream)
        self.call("cuGraphLaunch", graph, self.stream)
        self.call("cuEventRecord", end, self.stream)
        self.call("cuEventSynchronize", end)
        elapsed = c_float()
        self.call("cuEventElapsedTime", byref(elapsed), start, end)
        return elapsed.value
