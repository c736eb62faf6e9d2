// Streams, events and graphs. Work is done as late as it can be: when the host waits for it. So a host that
// reads or writes memory before it has waited for the copy sees, or spoils, what it should not. Of kernels
// that are launched one by one every other hundred is run at once, with all that its stream was told before:
// what should have waited for another stream's copy has not seen it.

#include <cstring>
#include <deque>
#include <functional>
#include <set>

#include "driver.h"

using namespace card;

struct CUevent_st {
    CUstream stream = nullptr;
    size_t after = 0;  // operations of the stream
};

namespace {

struct Operation {
    std::function<void()> act;              // a copy, or a wait for another stream
    std::vector<const Prepared*> launches;  // or kernels, of which each may follow the one before early
    std::vector<std::shared_ptr<Prepared>> owned;
};

}  // namespace

struct CUstream_st {
    std::deque<Operation> waiting;
    size_t told = 0, done = 0;  // operations
    bool running = false;
    CUgraph capture = nullptr;
};
struct CUgraph_st {
    std::vector<std::shared_ptr<Prepared>> launches;
};
struct CUgraphExec_st {
    std::vector<std::shared_ptr<Prepared>> launches;
};

namespace {

auto& streams = *new std::set<CUstream>();
size_t launched;  // one by one

void tell(CUstream stream, Operation operation) {
    stream->waiting.push_back(std::move(operation));
    stream->told++;
}

void work(CUstream stream, size_t until) {
    if (stream->running) return;
    stream->running = true;
    while (stream->done < until && !stream->waiting.empty()) {
        const Operation operation = std::move(stream->waiting.front());
        stream->waiting.pop_front();
        if (operation.act) operation.act();
        if (!operation.launches.empty()) run(operation.launches);
        stream->done++;
    }
    stream->running = false;
}

}  // namespace

void card::synchronize_all() {
    for (CUstream stream : streams) work(stream, stream->told);
}

#define LOCKED std::lock_guard<std::recursive_mutex> locked(lock)

extern "C" {

CUresult cuCtxSynchronize() {
    LOCKED;
    synchronize_all();
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    LOCKED;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_NOT_SUPPORTED;
    streams.insert(*stream = new CUstream_st());
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
    LOCKED;
    work(stream, stream->told);
    streams.erase(stream);
    delete stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    LOCKED;
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    work(stream, stream->told);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    LOCKED;
    if (flags != 0 || stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    if (!event->stream) return CUDA_SUCCESS;
    tell(stream, {[from = event->stream, after = event->after] { if (streams.count(from)) work(from, after); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
    LOCKED;
    if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_NOT_SUPPORTED;
    *event = new CUevent_st();
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    LOCKED;
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    LOCKED;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    event->stream = stream, event->after = stream->told;
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
    LOCKED;
    if (event->stream && streams.count(event->stream)) work(event->stream, event->after);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    LOCKED;
    if (!is_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    if (is_pinned(from, bytes)) {
        tell(stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); }, {}, {}});
        return CUDA_SUCCESS;
    }
    // Memory that is not pinned is read before the call returns.
    const auto* start = static_cast<const unsigned char*>(from);
    auto kept = std::make_shared<std::vector<unsigned char>>(start, start + bytes);
    tell(stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), kept->data(), bytes); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    LOCKED;
    if (!is_device(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    tell(stream, {[=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); }, {}, {}});
    // Memory that is not pinned is written before the call returns.
    if (!is_pinned(to, bytes)) work(stream, stream->told);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    LOCKED;
    const bool apart = to + bytes <= from || from + bytes <= to;
    if (!is_device(to, bytes) || !is_device(from, bytes) || !apart) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    tell(stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
    LOCKED;
    if (!is_device(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    tell(stream, {[=] { std::memset(reinterpret_cast<void*>(at), value, bytes); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    LOCKED;
    const Kernel& kernel = *function->kernel;
    if (extra || !config->hStream) return CUDA_ERROR_NOT_SUPPORTED;
    const bool empty = config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0;
    const bool beyond = config->gridDimX > 0x7fffffff || config->gridDimY > 65535 || config->gridDimZ > 65535;
    if (empty || beyond || config->gridDimX % kernel.cluster != 0) return CUDA_ERROR_INVALID_VALUE;
    if (config->blockDimX == 0 || config->blockDimX > unsigned(kernel.threads) || config->blockDimY != 1 || config->blockDimZ != 1) return CUDA_ERROR_INVALID_VALUE;
    if (config->sharedMemBytes > unsigned(function->most_shared)) return CUDA_ERROR_INVALID_VALUE;
    auto prepared = std::make_shared<Prepared>();
    prepared->kernel = &kernel;
    prepared->geometry = {dim3(config->gridDimX, config->gridDimY, config->gridDimZ), dim3(config->blockDimX), config->sharedMemBytes};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) return CUDA_ERROR_NOT_SUPPORTED;
        prepared->dependent = config->attrs[i].value.programmaticStreamSerializationAllowed != 0;
    }
    for (int i = 0; i < kernel.parameters; i++) {
        const auto* from = static_cast<const unsigned char*>(parameters[i]);
        prepared->arguments.emplace_back(from, from + kernel.sizes[i]);
    }
    CUstream stream = config->hStream;
    if (stream->capture) {
        stream->capture->launches.push_back(std::move(prepared));
    } else {
        const Prepared* one = prepared.get();
        tell(stream, {{}, {one}, {std::move(prepared)}});
        if (launched++ / 100 % 2 == 1) work(stream, stream->told);
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    LOCKED;
    if (stream->capture || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) return CUDA_ERROR_NOT_SUPPORTED;
    stream->capture = new CUgraph_st();
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    LOCKED;
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    *graph = stream->capture;
    stream->capture = nullptr;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    LOCKED;
    if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
    *exec = new CUgraphExec_st{graph->launches};
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    LOCKED;
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    LOCKED;
    synchronize_all();
    delete exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    LOCKED;
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    Operation operation;
    operation.owned = exec->launches;
    for (const auto& launch : operation.owned) operation.launches.push_back(launch.get());
    tell(stream, std::move(operation));
    return CUDA_SUCCESS;
}

}  // extern "C"
