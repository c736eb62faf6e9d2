// The card that the delta-net kernels see when they are built for a processor (MONOMORPH_HOST): blocks of threads as fibers, their
// barriers, warp exchanges, matrix products and copies, as the PTX ISA defines them. It stands in for async.cuh, mma.cuh and
// cluster.cuh. It finds wrong indices, wrong fragments, barriers that not everyone reaches (it stops: "stuck") and copies that nobody waits
// for (they land as late as possible). It does not find races between threads that happen to run in a good order, nor anything about time.
//
//   g++ -x c++ -std=c++17 -O2 -ffp-contract=off -DMONOMORPH_HOST -I templates/cuda/lib -I tests/cuda -I CUDA/include tests/cuda/delta.cu -o delta
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {  // device memory is memory
inline cudaError_t cudaMalloc(void** p, size_t n) { *p = std::aligned_alloc(256, (n + 255) / 256 * 256); return cudaSuccess; }
inline cudaError_t cudaFree(void* p) { std::free(p); return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "failed"; }
inline cudaError_t cudaMemset(void* p, int v, size_t n) { std::memset(p, v, n); return cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { std::memcpy(to, from, n); return cudaSuccess; }
}

#define __launch_bounds__(...)
inline dim3 gridDim;  // cudaLaunchConfig_t has a member of this name, so it is no macro

namespace monomorph::host {

struct Block {
    std::vector<unsigned char> memory;
    unsigned char* shared;
    uint3 index;
    int threads, live, arrived = 0, generation = 0;
};
struct Deposit {
    unsigned char bytes[64];
};
struct Warp {
    Deposit deposits[2][32];
    int arrived = 0, generation = 0, lanes = 32;
};
struct Fiber {
    ucontext_t context;
    uint3 index;
    Block* block;
    Warp* warp;
    bool done = false;
};
struct Phase {  // of an mbarrier
    int expected, pending;
    long bytes;
    unsigned parity;
    void settle() {
        if (pending == 0 && bytes == 0) parity ^= 1, pending = expected;
    }
};
struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
    void* barrier;
};

inline Fiber* current;
inline ucontext_t scheduler;
inline std::vector<Block> blocks;  // of the cluster
inline std::map<void*, Phase> phases;
inline std::vector<Copy> copies;
inline int cluster_threads, cluster_arrived, cluster_generation;
inline long progress;
inline std::function<void()> body;

inline void yield() { swapcontext(&current->context, &scheduler); }
template <class Done>
void wait(Done done) {
    while (!done()) yield();
    progress++;
}
inline void enter() {
    body();
    current->done = true;
    current->block->live--;
    progress++;
    yield();
}
inline const Deposit* exchange(const void* bytes, size_t count) {
    Warp& w = *current->warp;
    const int generation = w.generation;
    std::memcpy(w.deposits[generation % 2][current->index.x % 32].bytes, bytes, count);
    progress++;
    if (++w.arrived == w.lanes) w.arrived = 0, w.generation++;
    wait([&] { return w.generation != generation; });
    return w.deposits[generation % 2];
}
template <class T>
T exchanged(const Deposit* deposits, int lane) {
    T value;
    std::memcpy(&value, deposits[lane].bytes, sizeof value);
    return value;
}
inline unsigned char* shared_at(unsigned address) { return blocks[address >> 24].shared + (address & 0xffffff); }

constexpr size_t STACK = 64 * 1024;
inline unsigned char* stack(size_t fiber) {  // kept from cluster to cluster
    static std::vector<std::unique_ptr<unsigned char[]>> stacks;
    while (stacks.size() <= fiber) stacks.emplace_back(new unsigned char[STACK]);
    return stacks[fiber].get();
}

inline void run_cluster(uint3 first, int cluster, int threads, size_t shared, bool backwards) {
    blocks.assign(cluster, {});
    std::vector<Warp> warps(cluster * (threads / 32));
    std::vector<Fiber> fibers(cluster * threads);
    phases.clear(), copies.clear();
    cluster_threads = cluster * threads, cluster_arrived = 0;
    for (int b = 0; b < cluster; b++) {
        blocks[b].memory.assign(shared + 1024, 0xff);  // NaN until written
        blocks[b].shared = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(blocks[b].memory.data()) + 1023) / 1024 * 1024);
        blocks[b].index = {first.x + b, first.y, first.z};
        blocks[b].threads = blocks[b].live = threads;
        for (int t = 0; t < threads; t++) {
            Fiber& f = fibers[b * threads + t];
            f.index = {unsigned(t), 0, 0};
            f.block = &blocks[b];
            f.warp = &warps[(b * threads + t) / 32];
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = stack(b * threads + t);
            f.context.uc_stack.ss_size = STACK;
            makecontext(&f.context, enter, 0);
        }
    }
    for (int live = cluster * threads; live > 0;) {
        const long before = progress;
        for (size_t i = 0; i < fibers.size(); i++) {
            Fiber& f = fibers[backwards ? fibers.size() - 1 - i : i];
            if (f.done) continue;
            current = &f;
            swapcontext(&scheduler, &f.context);
            live -= f.done;
        }
        if (progress != before) continue;
        if (copies.empty()) {
            std::printf("stuck: %d threads wait for something that does not come\n", live);
            std::exit(3);
        }
        std::memcpy(copies[0].to, copies[0].from, copies[0].bytes);
        Phase& phase = phases.at(copies[0].barrier);
        phase.bytes -= copies[0].bytes;
        phase.settle();
        copies.erase(copies.begin());
    }
}

// One kernel: clusters of `cluster` blocks in x, one after another; every other one with its threads in falling order.
inline void run_grid(dim3 grid, int cluster, int threads, size_t shared, std::function<void()> kernel) {
    body = kernel;
    ::gridDim = grid;
    int n = 0;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x += cluster) run_cluster({x, y, z}, cluster, threads, shared, n++ % 2);
}

}  // namespace monomorph::host

#define threadIdx (::monomorph::host::current->index)
#define blockIdx (::monomorph::host::current->block->index)
#define MONOMORPH_DYNAMIC_SHARED(name) unsigned char* name = ::monomorph::host::current->block->shared

using std::max, std::min;
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return b > 0x1p126f ? 0.0f : a / b; }
#define rsqrtf(x) (1.0f / std::sqrt(x))
inline float __expf(float x) { return std::exp(x); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
#undef __syncthreads
inline void __syncthreads() {
    using namespace monomorph::host;
    Block& b = *current->block;
    const int generation = b.generation;
    progress++;
    if (++b.arrived == b.live) b.arrived = 0, b.generation++;
    wait([&] { return b.generation != generation; });
}
inline void __syncwarp() { monomorph::host::exchange("", 1); }
template <class T>
T __shfl_sync(unsigned, T v, int lane) { return monomorph::host::exchanged<T>(monomorph::host::exchange(&v, sizeof v), lane % 32); }
template <class T>
T __shfl_xor_sync(unsigned m, T v, int distance) { return __shfl_sync(m, v, int(threadIdx.x % 32) ^ distance); }
template <class T>
T __shfl_up_sync(unsigned m, T v, int distance) {
    const int lane = threadIdx.x % 32;
    return __shfl_sync(m, v, lane < distance ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned, bool v) {
    const char mine = v;
    const auto* all = monomorph::host::exchange(&mine, 1);
    unsigned mask = 0;
    for (int i = 0; i < 32; i++) mask |= unsigned(all[i].bytes[0]) << i;
    return mask;
}

namespace monomorph {

using Barrier = unsigned long long;
constexpr unsigned WARP_ARRIVALS = 1;

inline unsigned shared_address(const void* p) {
    const auto* block = host::current->block;
    return unsigned(block - host::blocks.data()) << 24 | unsigned(static_cast<const unsigned char*>(p) - block->shared);
}
inline void launch_dependents() {}
inline void wait_for_predecessors() {}
inline void barrier_init(Barrier* b, unsigned n) { host::phases[b] = {int(n), int(n), 0, 0}; }
inline void barrier_init_fence() {}
inline void barrier_arrive(Barrier* b) {
    host::Phase& p = host::phases.at(b);
    p.pending--, p.settle(), host::progress++;
}
inline void barrier_expect(Barrier* b, unsigned bytes) {
    host::Phase& p = host::phases.at(b);
    p.bytes += bytes, p.pending--, p.settle(), host::progress++;
}
inline void barrier_wait(Barrier* b, unsigned parity) {
    host::wait([&] { return host::phases.at(b).parity != parity; });
}
inline void warp_arrive(Barrier* b, int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(b);
}
inline void bulk_copy(void* to, const void* from, unsigned bytes, Barrier* b) {
    if (bytes % 16 != 0 || uintptr_t(to) % 16 != 0 || uintptr_t(from) % 16 != 0) std::printf("a bulk copy is not of 16s\n"), std::exit(3);
    host::copies.push_back({to, from, bytes, b});
}
inline float load_constant(const float* p) { return *p; }
inline float4 load_constant(const float4* p) { return *p; }
template <class T>
T load_activation(const T* p) { return *p; }
template <class T>
T load_streamed(const T* p) { return *p; }
inline uint4 load_words(const uint4* p) { return *p; }

inline unsigned pack_bf16(float low, float high) {
    const __nv_bfloat16 pair[2] = {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
    unsigned bits;
    std::memcpy(&bits, pair, 4);
    return bits;
}
inline unsigned pack_f16_finite(float low, float high) {
    const __half pair[2] = {__float2half_rn(fminf(fmaxf(low, -65504.0f), 65504.0f)), __float2half_rn(fminf(fmaxf(high, -65504.0f), 65504.0f))};
    unsigned bits;
    std::memcpy(&bits, pair, 4);
    return bits;
}
inline float2 unpack_f16(unsigned bits) {
    __half pair[2];
    std::memcpy(pair, &bits, 4);
    return make_float2(__half2float(pair[0]), __half2float(pair[1]));
}

// Lane = 4 g + c: mma.cuh says who holds what. The tables are the PTX ISA's, written down from it, not from the kernels.
inline void mma_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const unsigned mine[6] = {a0, a1, a2, a3, b0, b1};
    const auto* all = host::exchange(mine, sizeof mine);
    auto element = [&](int lane, int reg, int half) {
        unsigned words[6];
        std::memcpy(words, all[lane].bytes, sizeof words);
        const float2 pair = unpack_f16(words[reg]);
        return half ? pair.y : pair.x;
    };
    auto a = [&](int row, int k) { return element(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2); };
    auto b = [&](int k, int column) { return element(column * 4 + k % 8 / 2, 4 + k / 8, k % 2); };
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        double sum = d[i];
        for (int k = 0; k < 16; k++) sum += double(a(lane / 4 + i / 2 * 8, k)) * b(k, lane % 4 * 2 + i % 2);
        d[i] = float(sum);
    }
}
inline void ldmatrix(unsigned (&r)[4], unsigned address, bool transposed) {
    const auto* all = host::exchange(&address, 4);
    const int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++)
        for (int half = 0; half < 2; half++) {
            const int row = transposed ? lane % 4 * 2 + half : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + half;
            const unsigned from = host::exchanged<unsigned>(all, m * 8 + row);
            if (from % 16 != 0) std::printf("a row of ldmatrix is not aligned\n"), std::exit(3);
            unsigned short bits;
            std::memcpy(&bits, host::shared_at(from) + column * 2, 2);
            r[m] = half ? (r[m] & 0xffff) | unsigned(bits) << 16 : bits;
        }
}
inline void ldmatrix_4(unsigned (&r)[4], unsigned address) { ldmatrix(r, address, false); }
inline void ldmatrix_4_transposed(unsigned (&r)[4], unsigned address) { ldmatrix(r, address, true); }

inline unsigned cluster_address(unsigned address, unsigned rank) { return (address & 0xffffff) | rank << 24; }
inline void store_cluster(unsigned address, float v) { std::memcpy(host::shared_at(address), &v, 4); }
inline std::map<host::Fiber*, int>& cluster_generations() {
    static std::map<host::Fiber*, int> generations;
    return generations;
}
inline void cluster_start() {
    cluster_generations()[host::current] = host::cluster_generation;
    host::progress++;
    if (++host::cluster_arrived == host::cluster_threads) host::cluster_arrived = 0, host::cluster_generation++;
}
inline void cluster_started() {
    host::wait([] { return host::cluster_generation != cluster_generations()[host::current]; });
}
inline void cluster_sync() { cluster_start(), cluster_started(); }

}  // namespace monomorph
