// Streams, events and graphs. Work is done as late as it can be: when the host waits for it. So a host that
// reads or writes memory before it has waited for the copy sees, or spoils, what it should not. Of kernels
// that are launched one by one every other hundred is run at once, with all that its stream was told before:
// what should have waited for another stream's copy has not seen it.

#include <chrono>
#include <cstring>

#include "driver.h"

using namespace card;

struct CUevent_st {
    Owner owner;
    std::weak_ptr<CUstream_st> stream = {};
    size_t after = 0;  // operations of the stream
    std::shared_ptr<double> passed = {};  // milliseconds of a clock, of an event that takes times
    CUgraph captured = nullptr;           // recorded while this graph was
    CUstream from = nullptr;              // in this of its streams
};

namespace {

size_t launched[CARD_DEVICES];  // one by one

// Whether work of the stream may touch these bytes of a device's memory.
CUresult reachable(const char* call, const CUstream_st& stream, CUdeviceptr at, size_t bytes) {
    const int device = owner_of(at, bytes);
    if (device < 0) return CUDA_ERROR_INVALID_VALUE;
    const CUctx_st& context = *stream.owner.context;
    if (may_reach(context, device)) return CUDA_SUCCESS;
    return refuse(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "%s: device %d has no right to memory of device %d (cuCtxEnablePeerAccess)", call, context.device, device);
}

unsigned graphs_begun = 0;

// The first stream of a capture waits for the second.
void join(CUgraph_st& graph) {
    for (Operation& operation : graph.second) graph.operations.push_back(std::move(operation));
    graph.second.clear();
    graph.unjoined = false;
}

double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool is_pinned(const void* at, size_t bytes) { return owner_of(uintptr_t(at), bytes) == HOST; }

}  // namespace

#define ON(stream) \
    LOCKED;        \
    EXPECT(usable(__func__, "stream", (stream)->owner))
#define INSIDE \
    LOCKED;    \
    EXPECT(inside(__func__))

extern "C" {

CUresult cuCtxSynchronize() {
    INSIDE;
    return synchronize(entered);
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    INSIDE;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_NOT_SUPPORTED;
    streams.push_back(Stream(new CUstream_st{{entered, entered->life}}));
    *stream = streams.back().get();
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
    LOCKED;
    const Stream kept = find(stream);
    if (!kept) return CUDA_ERROR_INVALID_HANDLE;
    wait_for(kept, kept->told);
    streams.erase(std::find(streams.begin(), streams.end(), kept));
    retire(*kept);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    ON(stream);
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return wait_for(find(stream), stream->told);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    ON(stream);
    EXPECT(usable(__func__, "event", event->owner));
    if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (event->captured) {
        CUgraph graph = event->captured;
        if (stream->capture && stream->capture != graph) return refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE, "%s: the event belongs to another capture", __func__);
        if (!stream->capture) graph->forked.push_back(find(stream)), stream->capture = graph;
        if (stream == graph->first && event->from != graph->first) join(*graph);
        return CUDA_SUCCESS;
    }
    if (stream->capture) return refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "%s: the event was recorded before the capture", __func__);
    if (event->stream.expired()) return CUDA_SUCCESS;
    tell(*stream, {{}, {}, {}, event->stream, event->after});
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
    INSIDE;
    if (flags != CU_EVENT_DISABLE_TIMING && flags != CU_EVENT_DEFAULT) return CUDA_ERROR_NOT_SUPPORTED;
    *event = new CUevent_st{{entered, entered->life}};
    if (flags == CU_EVENT_DEFAULT) (*event)->passed = std::make_shared<double>(-1);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    LOCKED;
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    LOCKED;
    EXPECT(together(__func__, "event", event->owner, "stream", stream->owner));
    event->captured = stream->capture, event->from = stream;
    if (stream->capture) return event->passed ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    if (event->passed) {
        *event->passed = -1;
        tell(*stream, {[passed = event->passed] { *passed = now(); }, {}, {}});
    }
    event->stream = find(stream), event->after = stream->told;
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
    LOCKED;
    EXPECT(usable(__func__, "event", event->owner));
    const Stream stream = event->stream.lock();
    return stream ? wait_for(stream, event->after) : CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    LOCKED;
    EXPECT(usable(__func__, "event", event->owner));
    const Stream stream = event->stream.lock();
    if (!stream || ask(stream, event->after)) return CUDA_SUCCESS;
    const CUresult fault = stream->owner.context->fault;
    return fault == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : fault;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    LOCKED;
    EXPECT(usable(__func__, "event", start->owner));
    if (!start->passed || !end->passed) return CUDA_ERROR_INVALID_HANDLE;
    if (*start->passed < 0 || *end->passed < 0) return CUDA_ERROR_NOT_READY;
    *milliseconds = float(*end->passed - *start->passed);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    ON(stream);
    EXPECT(reachable(__func__, *stream, to, bytes));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    if (is_pinned(from, bytes)) {
        tell(*stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); }, {}, {}});
        return CUDA_SUCCESS;
    }
    // Memory that is not pinned is read before the call returns.
    const auto* start = static_cast<const unsigned char*>(from);
    auto kept = std::make_shared<std::vector<unsigned char>>(start, start + bytes);
    tell(*stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), kept->data(), bytes); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ON(stream);
    EXPECT(reachable(__func__, *stream, from, bytes));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    tell(*stream, {[=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); }, {}, {}});
    // Memory that is not pinned is written before the call returns.
    return is_pinned(to, bytes) ? CUDA_SUCCESS : wait_for(find(stream), stream->told);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ON(stream);
    const bool apart = to + bytes <= from || from + bytes <= to;
    if (!apart) return CUDA_ERROR_INVALID_VALUE;
    EXPECT(reachable(__func__, *stream, to, bytes));
    EXPECT(reachable(__func__, *stream, from, bytes));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    tell(*stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
    ON(stream);
    EXPECT(reachable(__func__, *stream, at, bytes));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    tell(*stream, {[=] { std::memset(reinterpret_cast<void*>(at), value, bytes); }, {}, {}});
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    INSIDE;
    const Kernel& kernel = *function->kernel;
    if (extra || !config->hStream) return CUDA_ERROR_NOT_SUPPORTED;
    const Owner& owner = config->hStream->owner;
    EXPECT(together(__func__, "kernel", function->owner, "stream", owner));
    EXPECT(together(__func__, "stream", owner, "context that the thread has entered", {entered, entered->life}));
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
        CUgraph graph = stream->capture;
        const bool beside = stream != graph->first;
        graph->unjoined |= beside;
        std::vector<Operation>& operations = beside && graph->late ? graph->second : graph->operations;
        const bool behind_act = !operations.empty() && operations.back().act;
        if (behind_act && prepared->dependent) return refuse(CUDA_ERROR_NOT_SUPPORTED, "%s: %s is to begin before what it follows, which is no kernel of this program", __func__, kernel.name);
        if (operations.empty() || behind_act) operations.emplace_back();
        operations.back().launches.push_back(prepared.get());
        operations.back().owned.push_back(std::move(prepared));
    } else {
        const Prepared* one = prepared.get();
        tell(*stream, {{}, {one}, {std::move(prepared)}});
        if (launched[owner.context->device]++ / 100 % 2 == 1) begin(find(stream));
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    ON(stream);
    if (stream->capture || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) return CUDA_ERROR_NOT_SUPPORTED;
    stream->capture = new CUgraph_st{stream->owner, {}};
    stream->capture->first = stream;
    stream->capture->late = graphs_begun++ % 2 == 1;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    LOCKED;
    if (!stream->capture || stream->capture->first != stream) return CUDA_ERROR_ILLEGAL_STATE;
    CUgraph ended = stream->capture;
    stream->capture = nullptr;
    for (const Stream& forked : ended->forked) forked->capture = nullptr;
    if (ended->unjoined) {
        delete ended;
        *graph = nullptr;
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "%s: the first stream has not waited for all that was launched beside it", __func__);
    }
    *graph = ended;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    LOCKED;
    EXPECT(usable(__func__, "graph", graph->owner));
    if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
    *exec = new CUgraphExec_st{graph->owner, graph->operations};
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    LOCKED;
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    LOCKED;
    const CUresult result = synchronize(exec->owner.context);
    delete exec;
    return result;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    LOCKED;
    return together(__func__, "graph", exec->owner, "stream", stream->owner);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    LOCKED;
    EXPECT(together(__func__, "graph", exec->owner, "stream", stream->owner));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    stream->owner.context->runs_graphs = true;
    for (const Operation& operation : exec->operations) tell(*stream, operation);
    return CUDA_SUCCESS;
}

}  // extern "C"
