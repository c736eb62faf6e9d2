// Ranks with all that an exchange needs: on a card each, or on one card that has room for all, each on a stream of its own. One thread
// gives work to all; nothing waits for the host between a rank's first launch and its last. EXCHANGE_RANKS, two if it is not given.
#pragma once

#include "core/common.cuh"
#include "kernels/exchange_gather.cuh"
#include "kernels/exchange_sum.cuh"

#include <memory>

using namespace monomorph;

#ifndef EXCHANGE_RANKS
#define EXCHANGE_RANKS 2
#endif
constexpr int RANKS = EXCHANGE_RANKS;

// DECODE: with rows beyond the step's; of more than two ranks sums in one shot, too, where others are in two.
template <int WIDTH_, int ROWS_, int THREADS_ = 256, int PIECES_ = 1, Limit LIMIT_ = Limit::TOKENS, int CAPACITY_ = ROWS_, bool DECODE_ = false>
struct Exchange {
    static constexpr int RANKS = ::RANKS, WIDTH = WIDTH_, ROWS = ROWS_, CAPACITY = CAPACITY_, THREADS = THREADS_;
    static constexpr int PIECES = RANKS > 2 && !DECODE_ ? RANKS : PIECES_;
    static constexpr Limit LIMIT = LIMIT_;
    static constexpr bool DECODE = DECODE_;
    // Blocks a multiprocessor that registers allow.
    static constexpr int RESIDENT = 1024 / THREADS / (PIECES > 2 ? 2 : 1);
};

// The same where sums take the place of a rank's part.
template <class C>
struct Replacing : C {
    static constexpr bool REPLACES = true;
};

inline int cards() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
inline bool one_card() { return cards() < RANKS; }

inline int multiprocessors() {
    int count;
    CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
}

// Values whose sums depend on the order in which they are added: 24 bits, of very different sizes.
__host__ __device__ inline unsigned mixed(unsigned a, unsigned b, unsigned c) {
    unsigned long long z = (static_cast<unsigned long long>(a) << 32 | b) + 0x9e3779b97f4a7c15ull * (c + 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return static_cast<unsigned>((z ^ z >> 31) >> 16);
}
__host__ __device__ inline float value_of(unsigned exchange, unsigned rank, unsigned at) {
    const unsigned bits = mixed(exchange, rank, at);
    return static_cast<float>(static_cast<int>(bits & 0xffffff) - (1 << 23)) / static_cast<float>(1u << (bits >> 24) % 24);
}
// Of what the residual stream is before.
constexpr unsigned RESIDUAL = 0xfffffu;

// A rank's values of an exchange, as products leave them; counts those that are not zero before.
__global__ void produce(const Step* step, float* rows, int width, unsigned exchange, int rank, bool zero, unsigned* wrong) {
    launch_dependents();
    wait_for_predecessors();
    const int values = step->tokens * width;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < values; i += gridDim.x * blockDim.x) {
        if (zero && rows[i] != 0) atomicAdd(wrong, 1u);
        rows[i] = value_of(exchange, rank, i);
    }
}

// Counts values of rows put together that are not what all ranks have.
__global__ void inspect(const Step* step, const float* rows, int width, unsigned exchange, unsigned* wrong) {
    launch_dependents();
    wait_for_predecessors();
    const int values = step->outputs * width * RANKS;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < values; i += gridDim.x * blockDim.x) {
        const int row = i / (width * RANKS), rank = i / width % RANKS, column = i % width;
        if (rows[i] != value_of(exchange, rank, row * width + column)) atomicAdd(wrong, 1u);
    }
}

// Counts values of sums that are not the sum of what all ranks have.
__global__ void inspect_sums(const Step* step, const float* rows, int width, unsigned exchange, unsigned* wrong) {
    launch_dependents();
    wait_for_predecessors();
    const int values = step->tokens * width;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < values; i += gridDim.x * blockDim.x) {
        float sum = value_of(exchange, 0, i);
        for (int r = 1; r < RANKS; r++) sum = __fadd_rn(sum, value_of(exchange, r, i));
        if (rows[i] != sum) atomicAdd(wrong, 1u);
    }
}

__device__ inline void spin(unsigned nanoseconds) {
    for (const unsigned long long begin = clock_ns(); clock_ns() - begin < nanoseconds;) {
    }
}
__global__ void pause(unsigned nanoseconds) {
    launch_dependents();
    wait_for_predecessors();
    spin(nanoseconds);
}

// One rank.
struct Rank {
    int rank, device;
    cudaStream_t stream = nullptr;
    std::unique_ptr<test::Buffer<World>> world;
    std::unique_ptr<test::Buffer<float>> sum_inbox, gather_inbox;  // filled with NOT_YET, as every poisoned buffer
    std::unique_ptr<test::Buffer<unsigned>> wrong;
    std::unique_ptr<test::Buffer<Step>> steps;
    MissingPeer* report = nullptr;

    void enter() const { CHECK(cudaSetDevice(device)); }
    float* buffer(size_t values) {
        enter();
        buffers.emplace_back(new test::Buffer<float>(values));
        buffers.back()->zero();
        return buffers.back()->pointer;
    }
    bool intact() const {
        bool all = sum_inbox->intact() && gather_inbox->intact() && world->intact();
        for (const auto& buffer : buffers) all = all && buffer->intact();
        return all;
    }
    unsigned wrongs() const {
        enter();
        return wrong->download()[0];
    }

  private:
    std::vector<std::unique_ptr<test::Buffer<float>>> buffers;
};

// Cards that may read and write the others' memory.
inline bool peers[RANKS] = {};

// What may be in a step, and the graphs of all ranks.
struct Ranks {
    std::vector<Rank> all;

    // `rows`: of the steps that exchanges have, one after another.
    template <class Sum, class Gather>
    static Ranks of(const std::vector<int>& rows, unsigned long long deadline) {
        Ranks ranks;
        ranks.all.resize(RANKS);
        std::vector<Step> steps(rows.size());
        for (size_t i = 0; i < rows.size(); i++) steps[i].tokens = steps[i].outputs = rows[i];
        for (int r = 0; r < RANKS; r++) {
            Rank& it = ranks.all[r];
            it.rank = r, it.device = one_card() ? 0 : r;
            it.enter();
            for (int peer = 0; peer < RANKS; peer++)
                if (!one_card() && !peers[r] && peer != r) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
            peers[r] = true;
            CHECK(cudaStreamCreateWithFlags(&it.stream, cudaStreamNonBlocking));
            it.sum_inbox.reset(new test::Buffer<float>(inbox_bytes(Sum::RANKS, Sum::WIDTH, Sum::CAPACITY) / 4));
            it.gather_inbox.reset(new test::Buffer<float>(inbox_bytes(Gather::RANKS, Gather::WIDTH, Gather::CAPACITY) / 4));
            it.wrong.reset(new test::Buffer<unsigned>(std::vector<unsigned>(1)));
            it.steps.reset(new test::Buffer<Step>(steps));
            it.world.reset(new test::Buffer<World>(1));
            CHECK(cudaHostAlloc(&it.report, sizeof(MissingPeer), cudaHostAllocPortable | cudaHostAllocMapped));
            std::memset(it.report, 0, sizeof(MissingPeer));
        }
        for (Rank& it : ranks.all) {
            World world = {};
            world.rank = it.rank, world.deadline_ns = deadline, world.report = reinterpret_cast<unsigned long long>(it.report);
            for (const Rank& peer : ranks.all) {
                world.sums.inboxes[peer.rank] = reinterpret_cast<unsigned long long>(peer.sum_inbox->pointer);
                world.gathers.inboxes[peer.rank] = reinterpret_cast<unsigned long long>(peer.gather_inbox->pointer);
            }
            it.enter();
            it.world->upload({world});
            CHECK(cudaDeviceSynchronize());
        }
        return ranks;
    }

    // Captures what `enqueue` launches for each rank.
    std::vector<cudaGraphExec_t> record(const std::function<void(Rank&)>& enqueue) {
        std::vector<cudaGraphExec_t> graphs;
        for (Rank& rank : all) {
            cudaGraph_t graph;
            graphs.emplace_back();
            rank.enter();
            CHECK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
            enqueue(rank);
            CHECK(cudaStreamEndCapture(rank.stream, &graph));
            CHECK(cudaGraphInstantiate(&graphs.back(), graph, 0));
            CHECK(cudaGraphDestroy(graph));
            CHECK(cudaGraphUpload(graphs.back(), rank.stream));
            // What buffers were filled with too: the stream does not wait for that.
            CHECK(cudaDeviceSynchronize());
        }
        return graphs;
    }

    void launch(const std::vector<cudaGraphExec_t>& graphs) {
        for (Rank& rank : all) {
            rank.enter();
            CHECK(cudaGraphLaunch(graphs[rank.rank], rank.stream));
        }
    }

    // Waits for all; what went wrong is said. Afterwards nothing works on the card in question.
    bool finished() {
        bool good = true;
        for (Rank& rank : all) {
            cudaError_t error = cudaSetDevice(rank.device);
            if (error == cudaSuccess) error = cudaStreamSynchronize(rank.stream);
            if (error == cudaSuccess) continue;
            const MissingPeer& why = *rank.report;
            std::printf("     rank %d: %s; %s rank %d waited in vain for rank %d, %s %u, row %u\n", rank.rank, cudaGetErrorString(error),
                        why.written ? "reported:" : "NOT REPORTED:", why.rank, why.peer, why.gathers ? "gather" : "sum", why.turn, why.row);
            good = false;
        }
        return good;
    }

    // Turns that were counted, and whether every place of the inboxes is empty again.
    bool settled(unsigned sums, unsigned gathers) const {
        bool good = true;
        for (const Rank& rank : all) {
            rank.enter();
            const World world = rank.world->download()[0];
            good = good && world.sums.turn == sums && world.gathers.turn == gathers && world.sums.blocks == 0 && world.gathers.blocks == 0 && world.failed == 0;
            for (const auto* inbox : {rank.sum_inbox.get(), rank.gather_inbox.get()})
                for (const float value : inbox->download()) good = good && std::memcmp(&value, &NOT_YET, 4) == 0;
            good = good && rank.intact();
        }
        return good;
    }
};

// A launch as decode graphs have it. On one card kernels do not begin early: those of one rank could keep the other's off the card.
template <class... Parameters, class... Arguments>
void launch(const Rank& rank, void (*kernel)(Parameters...), int blocks, int threads, Arguments... arguments) {
    if (one_card()) {
        kernel<<<blocks, threads, 0, rank.stream>>>(static_cast<Parameters>(arguments)...);
        CHECK(cudaGetLastError());
    } else {
        test::launch(kernel, dim3(blocks), threads, 0, rank.stream, arguments...);
    }
}

// All blocks are on the card together; on one card all ranks' are.
template <class C>
int blocks_of() {
    const int wanted = ceil_div(C::ROWS * ExchangeShape<C>::ROW, C::THREADS * C::PIECES);
    return least(wanted, multiprocessors() * C::RESIDENT / (one_card() ? 2 * RANKS : 1));
}
template <class C>
void sum(const Rank& rank, const Step* step, float* partial, float* residual) {
    launch(rank, exchange_sum_kernel<C, C::THREADS, 0, C::RESIDENT>, blocks_of<C>(), C::THREADS, step, rank.world->pointer, partial, residual);
}
template <class C>
void gather(const Rank& rank, const Step* step, const float* part, float* out) {
    launch(rank, exchange_gather_kernel<C, C::THREADS, 0, C::RESIDENT>, blocks_of<C>(), C::THREADS, step, rank.world->pointer, part, out);
}
