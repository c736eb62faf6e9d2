// What two emulated cards do together, and what they refuse. The first argument names a check, the second is
// the file of the compiled devices_kernels.cu. What is wrong is said on stderr, and the program ends with 1.
#include <cuda.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int BLOCKS = 5, VALUES = BLOCKS * 64 * 4;
constexpr size_t BYTES = VALUES * sizeof(float);

[[noreturn]] void wrong(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    std::fprintf(stderr, "\n");
    std::_Exit(1);
}

void expect(CUresult found, CUresult wanted, const char* what) {
    if (found != wanted) wrong("%s gives %d and not %d", what, int(found), int(wanted));
}
#define DO(call) expect(call, CUDA_SUCCESS, #call)
#define REFUSED(call, error) expect(call, error, #call)

std::vector<char> image;

// A device and what one thread of the host has on it.
struct Rank {
    int device;
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUmodule module;
    CUfunction exchange, together, scale, shift;
    CUdeviceptr values, inbox;
    Rank* peer = nullptr;
    unsigned long long limit = 0;
    float* read;       // pinned
    unsigned* report;  // pinned
    int turn = 0;

    explicit Rank(int number) : device(number) {
        CUdevice handle;
        DO(cuDeviceGet(&handle, number));
        DO(cuDevicePrimaryCtxRetain(&context, handle));
        enter();
        DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        DO(cuModuleLoadData(&module, image.data()));
        DO(cuModuleGetFunction(&exchange, module, "exchange"));
        DO(cuModuleGetFunction(&together, module, "exchange_together"));
        DO(cuModuleGetFunction(&scale, module, "scale"));
        DO(cuModuleGetFunction(&shift, module, "shift"));
        DO(cuMemAlloc(&values, BYTES));
        DO(cuMemAlloc(&inbox, 2 * BYTES));
        DO(cuMemHostAlloc(reinterpret_cast<void**>(&read), BYTES, CU_MEMHOSTALLOC_PORTABLE));
        DO(cuMemHostAlloc(reinterpret_cast<void**>(&report), 4, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
        *report = 0;
        // NOT_YET everywhere.
        DO(cuMemsetD8Async(inbox, 0xff, 2 * BYTES, stream));
        DO(cuStreamSynchronize(stream));
        fill(float(1 + number));
    }
    void enter() const { DO(cuCtxSetCurrent(context)); }
    void fill(float value) const {
        const std::vector<float> all(VALUES, value);
        DO(cuMemcpyHtoDAsync(values, all.data(), BYTES, stream));
        DO(cuStreamSynchronize(stream));
    }
    CUresult launch_on(CUstream on, CUfunction function, std::vector<void*> arguments, bool dependent = false) const {
        CUlaunchAttribute attribute = {};
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        CUlaunchConfig config = {};
        config.gridDimX = BLOCKS, config.gridDimY = config.gridDimZ = 1, config.blockDimX = 64, config.blockDimY = config.blockDimZ = 1;
        config.hStream = on, config.attrs = &attribute, config.numAttrs = dependent;
        return cuLaunchKernelEx(&config, function, arguments.data(), nullptr);
    }
    void add(bool dependent = false) {
        int number = device;
        const CUdeviceptr half = turn++ % 2 * BYTES;
        CUdeviceptr mine = values, own = inbox + half, theirs = peer->inbox + half, flag;
        DO(cuMemHostGetDevicePointer(&flag, report, 0));
        DO(launch_on(stream, exchange, {&number, &mine, &own, &theirs, &flag, &limit}, dependent));
    }
    void add_together() {
        const CUdeviceptr half = turn++ % 2 * BYTES;
        CUdeviceptr mine = values, own = inbox + half, theirs = peer->inbox + half;
        DO(launch_on(stream, together, {&mine, &own, &theirs}));
    }
    void multiply(float factor, bool dependent = false) {
        CUdeviceptr mine = values;
        DO(launch_on(stream, scale, {&mine, &factor}, dependent));
    }
    void fetch() {
        DO(cuMemcpyDtoHAsync(read, values, BYTES, stream));
        DO(cuEventRecord(event, stream));
    }
    void wait() const { DO(cuEventSynchronize(event)); }
    void check(float wanted, const char* when) const {
        for (int i = 0; i < VALUES; i++)
            if (read[i] != wanted) wrong("%s: value %d of device %d is %g and not %g", when, i, device, read[i], wanted);
    }
};

struct World {
    Rank first{0}, second{1};
    explicit World(bool rights = true) {
        first.peer = &second, second.peer = &first;
        if (!rights) return;
        for (Rank* rank : {&first, &second}) rank->enter(), DO(cuCtxEnablePeerAccess(rank->peer->context, 0));
    }
    // Each on a thread of its own; device `late` some time after the other.
    template <class F>
    void both(int late, F act) {
        std::vector<std::thread> threads;
        for (Rank* rank : {&first, &second})
            threads.emplace_back([=] {
                if (rank->device == late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                rank->enter();
                act(*rank);
            });
        for (std::thread& thread : threads) thread.join();
    }
};

// (1 + 2) * 2
void adds(World& world, int late, const char* when) {
    world.both(late, [=](Rank& rank) {
        rank.fill(float(1 + rank.device));
        rank.add();
        rank.multiply(2);
        rank.fetch();
        rank.wait();
        rank.check(6, when);
    });
}

void values_are_exchanged_in_both_orders() {
    World world;
    for (int round = 0; round < 10; round++) {
        adds(world, 0, "device 1 first");
        adds(world, 1, "device 0 first");
        adds(world, -1, "both at once");
    }
}

// A graph of exchanges that begin early, launched again and again, and no thread waits before the end.
void graphs_exchange() {
    World world;
    world.both(1, [](Rank& rank) {
        DO(cuStreamBeginCapture(rank.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (int i = 0; i < 6; i++) rank.add(true), rank.multiply(0.5f, true);
        CUgraph graph;
        DO(cuStreamEndCapture(rank.stream, &graph));
        CUgraphExec exec;
        DO(cuGraphInstantiateWithFlags(&exec, graph, 0));
        DO(cuGraphDestroy(graph));
        for (int i = 0; i < 30; i++) DO(cuGraphLaunch(exec, rank.stream));
        rank.fetch();
        rank.wait();
        rank.check(1.5f, "30 graphs");
        DO(cuGraphExecDestroy(exec));
    });
}

// Enough that some are run at once, in the middle of being told.
void launches_one_by_one_exchange() {
    World world;
    world.both(0, [](Rank& rank) {
        for (int i = 0; i < 250; i++) rank.add(), rank.multiply(0.5f);
        rank.fetch();
        rank.wait();
        rank.check(1.5f, "250 launches");
    });
}

void who_asks_together_with_others_gives_way() {
    World world;
    world.both(1, [](Rank& rank) {
        for (int i = 0; i < 20; i++) rank.add_together(), rank.multiply(0.5f);
        rank.fetch();
        rank.wait();
        if (rank.read[0] != 1.5f) wrong("%g and not 1.5", rank.read[0]);
    });
}

// Device 1's thread has told it everything, and waits for something else of the host.
void work_nobody_waits_for_is_done_for_a_peer() {
    World world;
    std::promise<void> told, done;
    world.both(-1, [&](Rank& rank) {
        for (int i = 0; i < 10; i++) rank.add(), rank.multiply(0.5f);
        rank.fetch();
        if (rank.device == 1) told.set_value(), done.get_future().wait();
        else told.get_future().wait();
        rank.wait();
        rank.check(1.5f, "parked");
        if (rank.device == 0) done.set_value();
    });
}

// Another stream of device 1 holds what its first waits for.
void a_peer_that_waits_for_another_stream_comes() {
    World world;
    world.second.enter();
    CUstream other;
    CUevent copied;
    DO(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DO(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
    const std::vector<float> all(VALUES, 5);
    DO(cuMemcpyHtoDAsync(world.second.values, all.data(), BYTES, other));
    DO(cuEventRecord(copied, other));
    DO(cuStreamWaitEvent(world.second.stream, copied, 0));
    world.second.add();
    world.first.enter();
    world.first.add();
    world.first.fetch();
    world.first.wait();
    world.first.check(6, "behind an event");
}

// A graph of two streams: what runs beside is raised by one, the first stream's work doubled, and then, `met`, the whole raised by ten.
// Unless the streams wait for each other, they race.
CUresult branch(Rank& a, CUstream beside, CUevent forked, CUevent joined, bool met, CUgraph* graph) {
    CUdeviceptr mine = a.values;
    float one = 1, ten = 10;
    DO(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    a.multiply(3);
    DO(cuEventRecord(forked, a.stream));
    DO(cuStreamWaitEvent(beside, forked, 0));
    DO(a.launch_on(beside, a.shift, {&mine, &one}));
    a.multiply(2, true);
    if (met) {
        DO(cuEventRecord(joined, beside));
        DO(cuStreamWaitEvent(a.stream, joined, 0));
        DO(a.launch_on(a.stream, a.shift, {&mine, &ten}, true));
    }
    return cuStreamEndCapture(a.stream, graph);
}

void a_race_within_a_graph_shows_in_one_of_two() {
    World world;
    Rank& a = world.first;
    a.enter();
    CUstream beside;
    CUevent forked, joined;
    DO(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
    DO(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    DO(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    CUgraph graph;
    float found[2];
    for (float& one : found) {
        a.fill(1);
        DO(branch(a, beside, forked, joined, true, &graph));
        CUgraphExec exec;
        DO(cuGraphInstantiateWithFlags(&exec, graph, 0));
        DO(cuGraphDestroy(graph));
        DO(cuGraphLaunch(exec, a.stream));
        a.fetch();
        a.wait();
        one = a.read[0];
        a.check(one, "all values alike");
        DO(cuGraphExecDestroy(exec));
    }
    if (found[0] + found[1] != 18 + 17 || found[0] == found[1]) wrong("%g and %g, and not 18 and 17", found[0], found[1]);
    REFUSED(branch(a, beside, forked, joined, false, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // The streams can be used as before.
    DO(cuEventRecord(joined, beside));
    DO(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    REFUSED(cuStreamWaitEvent(a.stream, joined, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

void copies_need_rights() {
    World world(false);
    Rank &a = world.first, &b = world.second;
    int can = 0;
    DO(cuDeviceCanAccessPeer(&can, 0, 1));
    if (!can) wrong("devices are no peers");
    DO(cuDeviceCanAccessPeer(&can, 0, 0));
    if (can) wrong("a device is its own peer");
    a.enter();
    REFUSED(cuMemcpyDtoDAsync(b.values, a.values, BYTES, a.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    REFUSED(cuMemcpyDtoDAsync(a.values, b.values, BYTES, a.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    REFUSED(cuMemsetD8Async(b.values, 0, BYTES, a.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    REFUSED(cuMemcpyDtoHAsync(a.read, b.values, BYTES, a.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    REFUSED(cuMemcpyHtoDAsync(b.values, a.read, BYTES, a.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    REFUSED(cuCtxEnablePeerAccess(a.context, 0), CUDA_ERROR_INVALID_DEVICE);
    DO(cuCtxEnablePeerAccess(b.context, 0));
    REFUSED(cuCtxEnablePeerAccess(b.context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    DO(cuMemcpyDtoDAsync(b.values, a.values, BYTES, a.stream));
    DO(cuStreamSynchronize(a.stream));
    // A right is one device's, in one direction.
    REFUSED(cuMemcpyDtoDAsync(a.values, b.values, BYTES, b.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    b.fetch();
    b.wait();
    b.check(1, "copied");
}

void kernels_need_rights() {
    World world(false);
    world.first.enter();
    world.first.add();
    world.first.fetch();
    world.first.wait();
    wrong("a kernel wrote another device's memory");
}

void handles_of_two_contexts_are_not_mixed() {
    World world;
    Rank &a = world.first, &b = world.second;
    a.enter();
    REFUSED(cuEventRecord(a.event, b.stream), CUDA_ERROR_INVALID_HANDLE);
    CUdeviceptr mine = b.values;
    float factor = 2;
    REFUSED(b.launch_on(a.stream, b.scale, {&mine, &factor}), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(b.launch_on(b.stream, b.scale, {&mine, &factor}), CUDA_ERROR_INVALID_HANDLE);
    DO(cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    a.multiply(2);
    CUgraph graph;
    DO(cuStreamEndCapture(a.stream, &graph));
    CUgraphExec exec;
    DO(cuGraphInstantiateWithFlags(&exec, graph, 0));
    REFUSED(cuGraphLaunch(exec, b.stream), CUDA_ERROR_INVALID_HANDLE);
    std::thread([] {
        CUdeviceptr at;
        REFUSED(cuMemAlloc(&at, 16), CUDA_ERROR_INVALID_CONTEXT);
    }).join();
    CUdevice device;
    REFUSED(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
}

void each_device_has_its_own_memory() {
    World world;
    size_t free[2], total, before;
    for (Rank* rank : {&world.first, &world.second}) rank->enter(), DO(cuMemGetInfo(&free[rank->device], &total));
    world.first.enter();
    CUdeviceptr at;
    DO(cuMemAlloc(&at, total / 64));
    DO(cuMemGetInfo(&before, &total));
    if (before != free[0] - total / 64) wrong("%zu are free", before);
    world.second.enter();
    DO(cuMemGetInfo(&before, &total));
    if (before != free[1]) wrong("%zu are free on the other device", before);
    DO(cuMemFree(at));
}

void a_released_context_takes_all_with_it() {
    World world;
    Rank& a = world.first;
    a.enter();
    DO(cuDevicePrimaryCtxRelease(0));
    REFUSED(cuStreamSynchronize(a.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    REFUSED(cuEventSynchronize(a.event), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    REFUSED(cuModuleGetFunction(&a.scale, a.module, "scale"), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CUdeviceptr at;
    REFUSED(cuMemAlloc(&at, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    REFUSED(cuMemFree(a.values), CUDA_ERROR_INVALID_VALUE);
    // The handle serves the next user, who has nothing of the one before.
    Rank again(0);
    again.multiply(3);
    again.fetch();
    again.wait();
    again.check(3, "a second life");
    REFUSED(cuMemcpyDtoDAsync(world.second.values, again.values, BYTES, again.stream), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    REFUSED(cuStreamSynchronize(a.stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

void a_peer_that_never_comes_is_reported() {
    World world;
    world.first.enter();
    world.first.add();
    world.first.multiply(2);
    world.first.fetch();
    world.first.wait();
    wrong("it came");
}

void it_is_reported_of_threads_that_ask_together() {
    World world;
    world.second.enter();
    world.second.add_together();
    world.second.fetch();
    world.second.wait();
    wrong("it came");
}

// It gives up by its clock, its context is broken, and the other device's is not.
void who_gives_up_by_the_clock_breaks_its_context() {
    World world;
    Rank &a = world.first, &b = world.second;
    a.enter();
    a.limit = 10'000'000'000;
    a.add();
    a.fetch();
    REFUSED(cuEventSynchronize(a.event), CUDA_ERROR_LAUNCH_FAILED);
    if (*a.report != 1) wrong("the flag for the host is %u", *a.report);
    REFUSED(cuStreamSynchronize(a.stream), CUDA_ERROR_LAUNCH_FAILED);
    b.enter();
    b.multiply(2);
    b.fetch();
    b.wait();
    b.check(4, "the other device");
}

struct Check {
    const char* name;
    void (*run)();
};
#define CHECK(name) {#name, name}
const Check CHECKS[] = {
    CHECK(values_are_exchanged_in_both_orders),
    CHECK(graphs_exchange),
    CHECK(launches_one_by_one_exchange),
    CHECK(who_asks_together_with_others_gives_way),
    CHECK(work_nobody_waits_for_is_done_for_a_peer),
    CHECK(a_peer_that_waits_for_another_stream_comes),
    CHECK(a_race_within_a_graph_shows_in_one_of_two),
    CHECK(copies_need_rights),
    CHECK(kernels_need_rights),
    CHECK(handles_of_two_contexts_are_not_mixed),
    CHECK(each_device_has_its_own_memory),
    CHECK(a_released_context_takes_all_with_it),
    CHECK(a_peer_that_never_comes_is_reported),
    CHECK(it_is_reported_of_threads_that_ask_together),
    CHECK(who_gives_up_by_the_clock_breaks_its_context),
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) wrong("a check and a module");
    std::ifstream file(arguments[2], std::ios::binary);
    image.assign(std::istreambuf_iterator<char>(file), {});
    DO(cuInit(0));
    int devices = 0;
    DO(cuDeviceGetCount(&devices));
    if (devices != 2) wrong("there are %d devices", devices);
    for (const Check& check : CHECKS)
        if (std::strcmp(check.name, arguments[1]) == 0) return check.run(), 0;
    wrong("there is no check %s", arguments[1]);
}
