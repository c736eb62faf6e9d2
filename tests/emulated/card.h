// The emulated card, as kernels built for a processor see it: threads are fibers, and what they wait for is here. The functions that take
// the place of the library's PTX (core/) and of the compiler's built-in ones (builtin.h) are written with these.
//
// One processor thread runs everything, one fiber at a time; a fiber runs until it has to wait. So there are no races to be seen here,
// only orders, and these differ from cluster to cluster: engine.h says how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_runtime.h>

namespace card {

struct Fiber;
struct Block;
struct Warp;
struct Launch;

// Fibers that wait for one thing, in the order in which they go on.
struct Waiters {
    Fiber *first = nullptr, *last = nullptr;
};

struct Copy {
    void* to;
    const void* from;
    unsigned valid, bytes;  // what is read, and what is written: zeros behind it
};
struct Product {  // of a warpgroup; the lane's part
    float* d;
    const uint32_t* a;  // nullptr: in shared memory, where a_at says
    uint64_t b;
    int columns;
    bool accumulate, bf16, rows;  // rows: B lies as it is (wgmma.cuh, multiply_rows)
    uint64_t a_at = 0;
    bool e4m3 = false;  // bytes, 32 columns of K; else 16 of two bytes
};
// Asynchronous work of one thread: what was begun, where groups end, and how much is done.
template <class T>
struct Begun {
    std::vector<T> all;
    std::vector<size_t> groups;
    size_t done = 0;
    void commit() { groups.push_back(all.size()); }
    // How far it must be done so that at most `pending` groups are not.
    size_t until(size_t pending) const { return groups.size() > pending ? groups[groups.size() - 1 - pending] : 0; }
    void clear() { all.clear(), groups.clear(), done = 0; }
};

struct Fiber {
    void* stack_pointer;
    unsigned char* stack;
    uint3 thread;
    Block* block;
    Warp* warp;
    Fiber* next;           // in the list it is in
    void* operands;        // what it brings to its warp's operation
    const char* waits_for;  // nullptr while it runs or may run
    int cluster_meeting;   // the meeting it arrived at
    Begun<Copy> copies;
    Begun<Product> products;
};

struct Warp {
    Fiber* lane[32];  // nullptr: none, or ended
    int live = 0, arrived = 0;
    void (*act)(Warp&) = nullptr;
    const char* what = nullptr;
    Waiters waiters;
};

struct Block {
    Launch* launch;
    uint3 index;
    unsigned rank;  // in its cluster
    unsigned char* shared;
    size_t shared_bytes;
    int live;
    bool passed_wait;  // a thread of it has waited for the kernels before
};

// The fiber that runs.
extern Fiber* current;

// What is wrong, and where; ends the process.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// All live lanes of the warp meet, each with its operands; the last one acts for all.
void meet(const char* what, void* operands, void (*act)(Warp&));

// Barriers of a block: `threads` 0 stands for all that live.
void block_barrier(int id, int threads, bool wait);
// The four warps of the thread's warpgroup.
void warpgroup_barrier();
void cluster_arrive();
void cluster_wait();

void wait_for_predecessors();
// The thread asks again and again for something that others do.
void poll();
// It wrote something that another device may ask for.
void wrote();
long long clock();
// Stands still while anybody can go on, so that nobody gives up because this processor is slow.
unsigned long long nanoseconds();
// The thread ends its kernel with an error.
[[noreturn]] void trap(const char* words);

uint3 grid();
uint3 block();
// A block's own variable, known by an address that stands for its declaration.
void* shared_variable(const void* declaration, size_t bytes);
// Shared memory by address and back: bits 24 and up are the block's rank in its cluster.
unsigned shared_address(const void* pointer);
void* shared_at(unsigned address, size_t bytes);
void* at_rank(const void* pointer, unsigned rank);
unsigned cluster_rank();

// Barriers with phases.
void phase_init(void* barrier, unsigned arrivals);
void phase_arrive(void* barrier, long bytes_to_come);
void phase_wait(void* barrier, unsigned parity);
bool phase_passed(void* barrier, unsigned parity);

// Copies that land later.
void bulk_copy(void* to, const void* from, unsigned bytes, void* barrier);
void copy(void* to, const void* from, unsigned valid, unsigned bytes = 16);
void copy_wait(size_t pending);
void copies_arrive(void* barrier);

// What the host's part knows of a kernel.
struct Kernel {
    const char* name;
    int threads, cluster;  // the most a block may have; blocks of a cluster
    int parameters;
    const size_t *sizes, *offsets;
    void (*call)(void* const* arguments);
};

template <class... P>
struct Parameters {
    static constexpr size_t sizes[] = {sizeof(P)..., 0};
    struct Places {
        size_t at[sizeof...(P) + 1];
    };
    static constexpr Places places() {
        Places p = {};
        const size_t alignments[] = {alignof(P)..., 1};
        size_t end = 0;
        for (size_t i = 0; i < sizeof...(P); i++) {
            end = (end + alignments[i] - 1) / alignments[i] * alignments[i];
            p.at[i] = end;
            end += sizes[i];
        }
        return p;
    }
    static constexpr Places offsets = places();
};

template <auto F>
struct Caller;
template <class... P, void (*F)(P...)>
struct Caller<F> {
    template <size_t... I>
    static void with(void* const* arguments, std::index_sequence<I...>) {
        F(*static_cast<std::remove_reference_t<P>*>(arguments[I])...);
    }
    static void call(void* const* arguments) { with(arguments, std::index_sequence_for<P...>()); }
    static constexpr Kernel describe(const char* name, int threads, int cluster) {
        return {name, threads, cluster, int(sizeof...(P)), Parameters<P...>::sizes, Parameters<P...>::offsets.at, call};
    }
};

// Behind the text of a module, once a kernel.
#define EMULATED_KERNEL(name, threads, cluster) \
    extern "C" __attribute__((visibility("default"))) const ::card::Kernel emulated_##name = ::card::Caller<&::name>::describe(#name, threads, cluster);

// Launches, for the driver: the first blocks of a dependent one run up to their wait before the kernel before it does, as a card may do.
struct Geometry {
    dim3 grid, block;
    size_t shared;
};
struct Prepared {
    const Kernel* kernel;
    Geometry geometry;
    std::vector<std::vector<unsigned char>> arguments;
    bool dependent = false;  // may begin before the kernel before it has ended
};
void run(const std::vector<const Prepared*>& in_order);

}  // namespace card
