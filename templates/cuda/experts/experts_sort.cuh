// Routes tokens to experts and sorts their pairs by expert (experts_batch.cuh says what comes out).
//
// From router logits f32 [tokens][LOGITS] to ACTIVE experts and weights a token: choose_experts (route_choose.cuh), a warp a token.
//
// Within an expert, pairs stand in the order of their tokens (a token meets an expert once), so a pair's place is the number of earlier
// tokens that chose its expert: a bit a token and expert, set in any order, and counted. Nothing depends on which block or warp was first.
//
//   up to 128 tokens: `experts_sort`, one launch. The block that is done last lays out rows and tiles.
//   more:             `experts_sort`, a block a chunk of 64 tokens: places within the chunk; the block that is done last adds the chunks up;
//                     then `experts_place`: rows.
//
// Config: EXPERTS, ACTIVE, STEP_ROWS, TOKENS (height of a work tile), LOGITS (stride of the logits, a multiple of 4), RENORMALISE, LIMIT
//   (gemm.cuh), ROUTED (experts_batch.cuh).
// Launch: experts_sort: SortShape<C>::BLOCKS x THREADS; experts_place: PLACE_BLOCKS x PLACE_THREADS. No dynamic shared memory.
#pragma once

#include "experts/experts_batch.cuh"
#include "experts/route_choose.cuh"

namespace monomorph {

template <class C>
struct SortShape {
    using Lists = ListsOf<C>;
    static constexpr bool ONE_CHUNK = Lists::ONE_CHUNK;
    static constexpr int THREADS = ONE_CHUNK ? 256 : 512, WARPS = THREADS / 32;
    static constexpr int BLOCKS = ONE_CHUNK ? ceil_div(C::STEP_ROWS, WARPS) : Lists::CHUNKS;
    static constexpr int BLOCK_TOKENS = ONE_CHUNK ? WARPS : Lists::CHUNK;
    static constexpr int WORDS = Lists::CHUNK / 32;                 // of an expert's bits
    static constexpr int SHARE = ceil_div(C::EXPERTS, THREADS);     // adjacent experts of a thread
    static constexpr int PLACE_THREADS = 256;
    static constexpr int PLACE_BLOCKS = ceil_div(Lists::PAIRS, PLACE_THREADS);
    static_assert(C::LOGITS >= Scored<C>::Row::floats(Routed<C>::COUNT) && C::LOGITS % 4 == 0, "the stride of the logits");
};

// What the block that lays out rows keeps in shared memory.
template <class C>
struct SortShared {
    using S = SortShape<C>;
    unsigned chosen[C::EXPERTS][S::WORDS];  // bit t % 32 of word t / 32: the chunk's token t chose it
    int count[C::EXPERTS];                  // pairs; then the row of the first
    int expert[S::Lists::CHUNK * C::ACTIVE];
    int row_sums[S::WARPS], tile_sums[S::WARPS];
    bool last;
};

// `count[e]`: pairs of expert e. Leaves the row of its first pair there, and the work tiles in memory. All threads of the block.
template <class C>
__device__ __forceinline__ void lay_out_tiles(SortShared<C>& shared, char* lists) {
    using S = SortShape<C>;
    using Lists = ListsOf<C>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int counts[S::SHARE], rows = 0, tiles = 0;
#pragma unroll
    for (int i = 0; i < S::SHARE; i++) {
        const int expert = threadIdx.x * S::SHARE + i;
        counts[i] = expert < C::EXPERTS ? shared.count[expert] : 0;
        rows += round_up(counts[i], 8);
        tiles += ceil_div(counts[i], C::TOKENS);
    }
    const int own_rows = rows, own_tiles = tiles;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int lower_rows = __shfl_up_sync(0xffffffff, rows, distance), lower_tiles = __shfl_up_sync(0xffffffff, tiles, distance);
        if (lane >= distance) rows += lower_rows, tiles += lower_tiles;
    }
    if (lane == 31) shared.row_sums[warp] = rows, shared.tile_sums[warp] = tiles;
    __syncthreads();
    rows -= own_rows, tiles -= own_tiles;
    for (int i = 0; i < warp; i++) rows += shared.row_sums[i], tiles += shared.tile_sums[i];

    int2* list = reinterpret_cast<int2*>(lists + Lists::TILES_AT);
#pragma unroll
    for (int i = 0; i < S::SHARE; i++) {
        const int expert = threadIdx.x * S::SHARE + i;
        if (expert < C::EXPERTS) shared.count[expert] = rows;
        for (int first = 0; first < counts[i]; first += C::TOKENS) {
            list[tiles++] = make_int2(rows + first, expert * 256 + min(C::TOKENS, counts[i] - first));
        }
        rows += round_up(counts[i], 8);
    }
    if (threadIdx.x == S::THREADS - 1) *reinterpret_cast<int*>(lists + Lists::COUNT_AT) = tiles;
    __syncthreads();
}

// Whether the rank holds an expert.
template <class C>
__device__ __forceinline__ bool holds(int expert) { return !SHARED_OUT<C> || is_held<C::EXPERTS>(expert); }

// Bits of the chunk's tokens: from `shared.expert` of `tokens` tokens. All threads of the block.
template <class C>
__device__ __forceinline__ void mark_choices(SortShared<C>& shared, int tokens) {
    using S = SortShape<C>;
    for (int i = threadIdx.x; i < C::EXPERTS * S::WORDS; i += S::THREADS) shared.chosen[i / S::WORDS][i % S::WORDS] = 0;
    __syncthreads();
    for (int pair = threadIdx.x; pair < tokens * C::ACTIVE; pair += S::THREADS) {
        const int token = pair / C::ACTIVE;
        if (holds<C>(shared.expert[pair])) atomicOr(&shared.chosen[shared.expert[pair]][token / 32], 1u << token % 32);
    }
    __syncthreads();
    for (int expert = threadIdx.x; expert < C::EXPERTS; expert += S::THREADS) {
        int count = 0;
#pragma unroll
        for (int word = 0; word < S::WORDS; word++) count += __popc(shared.chosen[expert][word]);
        shared.count[expert] = count;
    }
    __syncthreads();
}

// Tokens of the chunk before the pair's that chose its expert, which the rank holds.
template <class C>
__device__ __forceinline__ int place_in_chunk(const SortShared<C>& shared, int pair) {
    const int token = pair / C::ACTIVE, expert = shared.expert[pair];
    int place = __popc(shared.chosen[expert][token / 32] & ((1u << token % 32) - 1));
#pragma unroll
    for (int word = 0; word + 1 < SortShape<C>::WORDS; word++) {
        if (word < token / 32) place += __popc(shared.chosen[expert][word]);
    }
    return place;
}

// Whether this is the last block of the grid to come here; it then sees what all have written.
template <class C>
__device__ __forceinline__ bool last_to_arrive(SortShared<C>& shared, char* lists) {
    int* arrived = reinterpret_cast<int*>(lists + ListsOf<C>::ARRIVED_AT);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = atomicAdd(arrived, 1) == static_cast<int>(gridDim.x) - 1;
        if (shared.last) *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    return shared.last;
}

// The last block, more than one chunk: counts of all chunks become the rows of their first pairs.
template <class C>
__device__ __forceinline__ void add_up_chunks(SortShared<C>& shared, char* lists, int chunks) {
    using S = SortShape<C>;
    int* counts = reinterpret_cast<int*>(lists + ListsOf<C>::COUNTS_AT);
    for (int expert = threadIdx.x; expert < C::EXPERTS; expert += S::THREADS) {
        int sum = 0;
#pragma unroll 8
        for (int chunk = 0; chunk < chunks; chunk++) sum += __ldcg(counts + chunk * C::EXPERTS + expert);
        shared.count[expert] = sum;
    }
    __syncthreads();
    lay_out_tiles<C>(shared, lists);
    for (int expert = threadIdx.x; expert < C::EXPERTS; expert += S::THREADS) {
        int row = shared.count[expert];
        constexpr int AT_ONCE = 8;
        for (int first = 0; first < chunks; first += AT_ONCE) {  // loads before stores: they may not pass one another
            int count[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) count[i] = first + i < chunks ? __ldcg(counts + (first + i) * C::EXPERTS + expert) : 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (first + i < chunks) counts[(first + i) * C::EXPERTS + expert] = row;
                row += count[i];
            }
        }
    }
}

template <class C>
__device__ __forceinline__ void experts_sort(const Step* step, const float* logits, char* lists, const World* world = nullptr) {
    using S = SortShape<C>;
    using Lists = ListsOf<C>;
    MONOMORPH_SHARED(shared, SortShared<C>);
    launch_dependents();
    const int first = first_expert<C>(world);
    wait_for_predecessors();
    const int tokens = gemm_rows<C>(step);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_token = blockIdx.x * S::BLOCK_TOKENS;
    int* experts = reinterpret_cast<int*>(lists + Lists::EXPERTS_AT);
    float* weights = reinterpret_cast<float*>(lists + Lists::WEIGHTS_AT);
    int* row_of_pair = reinterpret_cast<int*>(lists + Lists::ROW_OF_PAIR_AT);
    int* pair_of_row = reinterpret_cast<int*>(lists + Lists::PAIR_OF_ROW_AT);

    for (int within = warp; within < S::BLOCK_TOKENS; within += S::WARPS) {
        const int token = first_token + within;
        if (token >= tokens) break;
        Choice choice = choose_experts<Routed<C>::COUNT, C::ACTIVE, C::RENORMALISE, false, Scored<C>>(logits + size_t(token) * C::LOGITS, lane);
        choice.expert -= first;
        if (lane < C::ACTIVE) {
            experts[token * C::ACTIVE + lane] = choice.expert;
            weights[token * C::ACTIVE + lane] = choice.weight;
            if constexpr (!S::ONE_CHUNK) shared.expert[within * C::ACTIVE + lane] = choice.expert;
        }
    }
    if constexpr (S::ONE_CHUNK) {
        if (!last_to_arrive<C>(shared, lists)) return;
        for (int pair = threadIdx.x; pair < tokens * C::ACTIVE; pair += S::THREADS) shared.expert[pair] = __ldcg(experts + pair);
        mark_choices<C>(shared, tokens);
        lay_out_tiles<C>(shared, lists);
        for (int pair = threadIdx.x; pair < tokens * C::ACTIVE; pair += S::THREADS) {
            if (!holds<C>(shared.expert[pair])) {
                row_of_pair[pair] = -1;
                continue;
            }
            const int row = shared.count[shared.expert[pair]] + place_in_chunk<C>(shared, pair);
            row_of_pair[pair] = row;
            pair_of_row[row] = pair;
        }
    } else {
        const int own_tokens = min(max(tokens - first_token, 0), S::BLOCK_TOKENS);
        mark_choices<C>(shared, own_tokens);
        int* counts = reinterpret_cast<int*>(lists + Lists::COUNTS_AT) + blockIdx.x * C::EXPERTS;
        for (int expert = threadIdx.x; expert < C::EXPERTS; expert += S::THREADS) counts[expert] = shared.count[expert];
        for (int pair = threadIdx.x; pair < own_tokens * C::ACTIVE; pair += S::THREADS) {
            row_of_pair[first_token * C::ACTIVE + pair] = holds<C>(shared.expert[pair]) ? place_in_chunk<C>(shared, pair) : -1;
        }
        if (last_to_arrive<C>(shared, lists)) add_up_chunks<C>(shared, lists, ceil_div(tokens, S::BLOCK_TOKENS));
    }
}

// More than one chunk: places within a chunk become rows.
template <class C>
__device__ __forceinline__ void experts_place(const Step* step, char* lists) {
    using S = SortShape<C>;
    using Lists = ListsOf<C>;
    static_assert(!S::ONE_CHUNK, "the sort has placed the pairs of one chunk");
    launch_dependents();
    wait_for_predecessors();
    const int pair = blockIdx.x * S::PLACE_THREADS + threadIdx.x;
    if (pair >= gemm_rows<C>(step) * C::ACTIVE) return;
    int* row_of_pair = reinterpret_cast<int*>(lists + Lists::ROW_OF_PAIR_AT) + pair;
    const int chunk = pair / (S::BLOCK_TOKENS * C::ACTIVE);
    const int expert = load_activation(reinterpret_cast<const int*>(lists + Lists::EXPERTS_AT) + pair);
    if (!holds<C>(expert)) return;
    const int row = load_activation(row_of_pair) +
                    load_activation(reinterpret_cast<const int*>(lists + Lists::COUNTS_AT) + chunk * C::EXPERTS + expert);
    *row_of_pair = row;
    reinterpret_cast<int*>(lists + Lists::PAIR_OF_ROW_AT)[row] = pair;
}

}  // namespace monomorph
