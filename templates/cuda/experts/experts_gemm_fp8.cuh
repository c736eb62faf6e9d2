// Grouped products of experts in fp8 on sm_90a: gemm_fp8.cuh with the matrix of the work tile's expert (experts_batch.cuh).
//
// Gate and up leave what down's products read: a block has 128 features of its rows, a group, so the thread that has made them quantises
// them and no row passes through memory in f32.
//
// Config: as gemm_fp8.cuh (EPILOGUE: STORE, GATED or ACTIVATED), and as experts_batch.cuh with work tiles of 128 rows (TOKENS). x holds quantised rows.
//   GATHER   x holds tokens, and what is written are quantised rows [CAPACITY][OUTPUTS], OUTPUTS % 128 == 0 (gate and up)
//   NARROW   otherwise: products are stored as NarrowProducts, not f32 (down)
// Launch: block = ExpertsFp8<C>::THREADS, grid experts_fp8_blocks<C>(multiprocessors), dynamic shared memory SHARED_BYTES.
#pragma once

#include "experts/experts_batch.cuh"
#include "products/gemm_fp8.cuh"

namespace monomorph {

template <class C>
struct ExpertsFp8 : GemmFp8<C, false> {
    using S = GemmFp8<C, false>;
    using Lists = ListsOf<C>;
    static_assert(C::TOKENS == S::ROWS, "a work tile is a block's rows");
    static_assert(!C::BIAS, "experts have no biases");
    static_assert(C::CAPACITY == Lists::ROWS, "rows of pairs");
    static_assert(C::GATHER ? C::X_ROWS >= C::STEP_ROWS : C::X_ROWS == C::CAPACITY, "the stride of x");
    static_assert(C::GATHER == (S::GATED || C::EPILOGUE == Epilogue::ACTIVATED), "gate and up read tokens, down reads rows");
    static_assert(C::EPILOGUE != Epilogue::ADD, "pairs are summed in the order of their slots");
    static_assert(!C::GATHER || C::OUTPUTS % GROUP_COLUMNS == 0, "whole groups of inner rows");
    // Planes of one expert.
    static constexpr size_t CODE_BYTES = size_t(S::TILES) * S::UNITS * UNIT_BYTES;
    static constexpr size_t SCALE_BYTES = S::BLOCK_SCALED ? size_t(4) * S::TILES * S::PANELS : 0;
    static constexpr int SCALED_ROWS = S::TILES * 8;
};

// Bytes of what is written.
template <class C>
constexpr size_t experts_fp8_bytes() {
    return C::GATHER ? quantised_bytes(ListsOf<C>::ROWS, C::OUTPUTS) : products_bytes<C, C::OUTPUTS>();
}

template <class C>
constexpr int experts_fp8_blocks(int multiprocessors) {
    const int work = ListsOf<C>::TILES * ExpertsFp8<C>::ROW_BLOCKS;
    return work < multiprocessors ? work : multiprocessors;
}

// Rows of a work tile, gathered by token: a token's chunks stand where its number puts them, and must stand where the tile's row does.
template <class C>
struct Fp8Gatherer {
    using S = ExpertsFp8<C>;
    static constexpr int AT_ONCE = 4 * S::COPYING_WARPS, EACH = S::ROWS / AT_ONCE;   // eight lanes a row
    unsigned from[EACH];   // bytes within a panel
    int rows, first, chunk;

    __device__ __forceinline__ Fp8Gatherer(const int* pairs, int rows, int warp, int lane) : rows(rows), first(warp * 4 + lane / 8), chunk(lane % 8) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = first + i * AT_ONCE;
            const unsigned token = row < rows ? static_cast<unsigned>(load_activation(pairs + row)) / C::ACTIVE : 0;
            from[i] = token * GROUP_COLUMNS + (chunk ^ (token & 7)) * 16;
        }
    }
    __device__ __forceinline__ void copy(const char* x, int panel, char* stage) const {
        const char* source = x + size_t(panel) * C::X_ROWS * GROUP_COLUMNS;
        const unsigned to = shared_address(stage);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = first + i * AT_ONCE;
            if (row < rows) copy_16(to + row * GROUP_COLUMNS + (chunk ^ (row & 7)) * 16, source + from[i]);
        }
    }
};

template <class C>
struct Fp8ExpertEpilogue : Fp8Epilogue<C, ExpertsFp8<C>> {
    using Base = Fp8Epilogue<C, ExpertsFp8<C>>;
    using S = ExpertsFp8<C>;
    using Sums = typename Base::Sums;
    using Base::lane;

    // The largest of the four lanes that share a row.
    static __device__ __forceinline__ float of_row(float largest) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
        return fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    }

    // Quantised, the thread's rows `row` and row + 8 of the pairs'. A group is 128 features: GATED, those of both halves, else of one.
    __device__ __forceinline__ void write_quantised(const Sums& sums, int row_block, char* out, int row, const bool (&exists)[2]) const {
        constexpr int GROUPS = S::GATED ? 1 : 2;   // of the block
        float* const scales = reinterpret_cast<float*>(out + quantised_scales_at(C::CAPACITY, C::OUTPUTS));
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                const int panel = row_block * GROUPS + group;
                if (S::TILES % S::BLOCK_TILES != 0 && panel * GROUP_COLUMNS >= C::OUTPUTS) continue;   // of the whole block
                float2 values[2][8];   // 64 features, eight tiles
                float largest = 0;
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int t = 0; t < 8; t++) {
                        values[i][t] = S::GATED ? Base::pair(sums, row_block, i, 2 * t, r) : Base::pair(sums, row_block, group, 8 * i + t, r);
                        largest = fmaxf(fmaxf(largest, fabsf(values[i][t].x)), fabsf(values[i][t].y));
                    }
                const GroupScale by(of_row(largest));
                if (!exists[r]) continue;
                const int at = row + 8 * r;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    unsigned words[4];
#pragma unroll
                    for (int w = 0; w < 4; w++) {
                        const float2 low = values[i][2 * w], high = values[i][2 * w + 1];
                        words[w] = pack_e4m3_pair(__fmul_rn(low.x, by.inverse), __fmul_rn(low.y, by.inverse)) |
                                   pack_e4m3_pair(__fmul_rn(high.x, by.inverse), __fmul_rn(high.y, by.inverse)) << 16;
                    }
                    *reinterpret_cast<uint4*>(out + quantised_chunk<C::CAPACITY>(panel, at, 4 * i + lane % 4)) = make_uint4(words[0], words[1], words[2], words[3]);
                }
                if (lane % 4 == 0) scales[size_t(panel) * C::CAPACITY + at] = by.scale;
            }
        }
    }

    // Four lanes each have a word for each of four; each gets those for it, in the order of the lanes.
    __device__ __forceinline__ uint4 exchanged(const unsigned (&own)[4]) const {
        const bool upper = lane & 2, odd = lane & 1;
        const unsigned near0 = upper ? own[2] : own[0], near1 = upper ? own[3] : own[1];
        const unsigned far0 = __shfl_xor_sync(0xffffffff, upper ? own[0] : own[2], 2), far1 = __shfl_xor_sync(0xffffffff, upper ? own[1] : own[3], 2);
        const unsigned low0 = upper ? far0 : near0, low1 = upper ? far1 : near1, high0 = upper ? near0 : far0, high1 = upper ? near1 : far1;
        const unsigned low = __shfl_xor_sync(0xffffffff, odd ? low0 : low1, 1), high = __shfl_xor_sync(0xffffffff, odd ? high0 : high1, 1);
        return odd ? make_uint4(low, low1, high, high1) : make_uint4(low0, low, high0, high);
    }

    // NarrowProducts: 64 features of a row in f16, under a scale that they have in common.
    __device__ __forceinline__ void write_narrow(const Sums& sums, int row_block, void* out, int row, const bool (&exists)[2]) const {
        using Narrow = NarrowProducts<C::CAPACITY, C::OUTPUTS>;
        static_assert(Narrow::SPAN == 64, "eight tiles");
        float* const scales = reinterpret_cast<float*>(static_cast<char*>(out) + Narrow::SCALES_AT);
#pragma unroll
        for (int span = 0; span < 4; span++) {
            const int first = (row_block * 4 + span) * Narrow::SPAN;
            if (S::TILES % S::BLOCK_TILES != 0 && first >= C::OUTPUTS) continue;   // of the whole block
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 values[8];
                float largest = 0;
#pragma unroll
                for (int t = 0; t < 8; t++) {
                    values[t] = make_float2(0, 0);
                    if (C::OUTPUTS % Narrow::SPAN == 0 || first + 8 * t < C::OUTPUTS) values[t] = Base::pair(sums, row_block, span / 2, span % 2 * 8 + t, r);
                    largest = fmaxf(fmaxf(largest, fabsf(values[t].x)), fabsf(values[t].y));
                }
                const HalfScale by(of_row(largest));
                unsigned short* const to = static_cast<unsigned short*>(out) + size_t(row + 8 * r) * C::OUTPUTS + first + lane % 4 * 8;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    unsigned words[4];
#pragma unroll
                    for (int t = 0; t < 4; t++) words[t] = pack_f16(values[4 * half + t].x * by.scale, values[4 * half + t].y * by.scale);
                    const uint4 features = exchanged(words);
                    if (exists[r] && (C::OUTPUTS % Narrow::SPAN == 0 || first + half * 32 + lane % 4 * 8 < C::OUTPUTS)) *reinterpret_cast<uint4*>(to + half * 32) = features;
                }
                if (exists[r] && lane % 4 == 0) scales[size_t(row + 8 * r) * Narrow::SCALES + row_block * 4 + span] = by.unscale;
            }
        }
    }
};

template <class C>
__device__ __forceinline__ void experts_gemm_fp8(const char* lists, const void* x, const void* codes, const void* scales, const float* row_scales, void* out) {
    using S = ExpertsFp8<C>;
    using Pieces = ExpertPieces<C, S>;
    MONOMORPH_DYNAMIC_SHARED(gemm_shared, 1024);
    char* const shared = reinterpret_cast<char*>(gemm_shared);
    launch_dependents();
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_OFFSET);
    Barrier* empty = full + C::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        if (shared_address(shared) % 1024 != 0) __trap();  // the swizzle is a function of the address
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, S::COPYING_WARPS * WARP_ARRIVALS + (C::GATHER ? 0 : 1));
            barrier_init(empty + i, S::CONSUMER_WARPS * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const char* const own = static_cast<const char*>(x);
    const int* const pairs = reinterpret_cast<const int*>(lists + S::Lists::PAIR_OF_ROW_AT);
    if (warp >= S::CONSUMER_WARPS) {
        registers_release<40>();
        Fp8Copier<C, S> copier = {shared, full, empty, warp - S::CONSUMER_WARPS, lane};
        wait_for_predecessors();
        for (Pieces work(lists); work.exists(); work.advance()) {
            const char* const of_expert = static_cast<const char*>(codes) + work.expert() * S::CODE_BYTES;
            const int first_tile = work.row_block() * S::BLOCK_TILES;
            if constexpr (C::GATHER) {
                const Fp8Gatherer<C> gatherer(pairs + work.first_row(), work.rows(), copier.warp, lane);
                for (int panel = 0; panel < S::PANELS; panel++) {
                    copier.begin_panel();
                    gatherer.copy(own, panel, copier.stage());
                    copier.weights(of_expert, first_tile, panel);
                    copier.end_panel();
                }
            } else {
                for (int panel = 0; panel < S::PANELS; panel++) {
                    copier.begin_panel();
                    if (copier.warp == 0 && lane == 0) copier.rows(own, C::X_ROWS, work.first_row(), work.rows(), panel);
                    copier.weights(of_expert, first_tile, panel);
                    copier.end_panel();
                }
            }
        }
        copier.end();
        return;
    }
    registers_acquire<232>();
    const int warpgroup = warp / 4, row = warp * 16 + lane / 4;   // of the tile
    Fp8Consumer<C, S> consumer = {shared, full, empty, warpgroup, lane};
    wait_for_predecessors();
    const float* const x_scales = reinterpret_cast<const float*>(own + quantised_scales_at(C::X_ROWS, C::INPUTS));
    typename Fp8Consumer<C, S>::Sums sums;
    for (Pieces work(lists); work.exists(); work.advance()) {
        const int rows = work.rows(), first_row = work.first_row(), expert = work.expert(), row_block = work.row_block();
        int of_x[2];   // where x has the thread's rows
#pragma unroll
        for (int r = 0; r < 2; r++) {
            of_x[r] = first_row + min(row + 8 * r, rows - 1);
            if constexpr (C::GATHER) of_x[r] = static_cast<unsigned>(load_activation(pairs + of_x[r])) / C::ACTIVE;
        }
        consumer.multiply(sums, row_block, static_cast<const char*>(scales) + expert * S::SCALE_BYTES, warpgroup * 64 < rows,
                          [&](int r, int panel) { return load_activation(x_scales + size_t(panel) * C::X_ROWS + of_x[r]); });
        Fp8ExpertEpilogue<C> epilogue;
        epilogue.row_scales = row_scales + expert * S::SCALED_ROWS, epilogue.bias = epilogue.up_bias = nullptr, epilogue.lane = lane;
        const bool exists[2] = {row < rows, row + 8 < rows};
        if (warp * 16 >= rows) continue;   // of the whole warp
        if constexpr (C::GATHER) {
            epilogue.write_quantised(sums, row_block, static_cast<char*>(out), first_row + row, exists);
        } else if constexpr (C::NARROW) {
            epilogue.write_narrow(sums, row_block, out, first_row + row, exists);
        } else {
            epilogue.write(sums, row_block, static_cast<float*>(out) + size_t(first_row + row) * C::OUTPUTS, exists);
        }
    }
}

}  // namespace monomorph
