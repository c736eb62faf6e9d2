// turn_patches: norms of q, k and v heads and the rotation of q and k by their patch's place, before attention.
//
// Work: a warp has TURN_HEADS heads of a patch, all of q, k or v, and finds the angles of its lanes once for them; its lanes have a
// head's elements (HeadVector). (All heads of a patch in one warp took 22 us of 784 patches: too few warps to hide what they wait for.) Reads qkv
// once and writes half as much: heads in f16, padded with zeros to a multiple of 16, [patches][3: q, k, v][HEADS][HEAD_DIM_16]. EXACT: in
// f32, where they were. An element beyond the largest f16 becomes infinite, and its image's rows no numbers, which is said of their
// logits.
//
// Pairs of a head (PatchPairs) are numbered so that the first half of them turns by one axis, ROWS_FIRST: the row, and the others by the other.
// `angles` f32 [places][HEAD_DIM / 2][cos, sin]: how far each pair turns at each row or column.
//
// Config: HEADS, HEAD_DIM, MERGE, PAIRS (PatchPairs), ROWS_FIRST, Q_NORM, Q_EPS, K_NORM, K_EPS (HeadNorm), optional V_EPS, EXACT.
// Launch: block = TURN_THREADS, grid = ceil(patches / TURN_WARPS) x TURN_SHARES<C>. No shared memory, no barriers.
#pragma once

#include <type_traits>

#include <cuda_fp16.h>

#include "attention/attention.cuh"
#include "vision/patches.cuh"

namespace monomorph {

constexpr int TURN_WARPS = 8, TURN_THREADS = 32 * TURN_WARPS, TURN_HEADS = 4;

// Which elements of a head of D are pair i of D / 2.
enum class PatchPairs {
    HALVES,    // i and i + D / 2
    QUARTERS,  // in each half of the head: i and i + D / 4
    ADJACENT,  // 2i and 2i + 1
};

template <class C>
struct TurnShape {
    static constexpr int D = C::HEAD_DIM, D_16 = (D + 15) / 16 * 16, N = head_registers(D);
    static_assert(D % 4 == 0, "as many pairs turn by rows as by columns");

    // The pair that an element is of, and the other element of that.
    __host__ __device__ static constexpr int pair(int e) {
        if (C::PAIRS == PatchPairs::HALVES) return e % (D / 2);
        if (C::PAIRS == PatchPairs::QUARTERS) return e / (D / 2) * (D / 4) + e % (D / 4);
        return e / 2;
    }
    __host__ __device__ static constexpr int other(int e) {
        if (C::PAIRS == PatchPairs::ADJACENT) return e ^ 1;
        constexpr int APART = C::PAIRS == PatchPairs::HALVES ? D / 2 : D / 4;
        return e / APART % 2 == 0 ? e + APART : e - APART;
    }
    __host__ __device__ static constexpr bool is_first(int e) { return e < other(e); }
};

// Shares of a patch's heads, a warp each: of q, of k, of v.
template <class C>
constexpr int TURN_SHARES = 3 * ((C::HEADS + TURN_HEADS - 1) / TURN_HEADS);

template <class C>
constexpr size_t turned_bytes(int patches) { return sizeof(__half) * patches * 3 * C::HEADS * TurnShape<C>::D_16; }

// qkv f32 [patches, 3 HEADS HEAD_DIM]; q_norm, k_norm f32 [HEAD_DIM], null where there is no norm; out: unused if EXACT.
template <class C>
__device__ __forceinline__ void turn_patches(const Step* step, float* qkv, const float* q_norm, const float* k_norm, const float* angles, __half* out) {
    using S = TurnShape<C>;
    constexpr int D = S::D, N = S::N;
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    HeadVector<C> q_weight, k_weight;
    if constexpr (C::Q_NORM != HeadNorm::None) q_weight.load(q_norm, lane);
    if constexpr (C::K_NORM != HeadNorm::None) k_weight.load(k_norm, lane);
    wait_for_predecessors();
    const int patch = blockIdx.x * TURN_WARPS + warp;
    if (patch >= step->tokens) return;

    const PatchPlace place = place_of<C::MERGE>(grid_of(step, patch), patch);
    float cos[N], sin[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int e = lane + 32 * j, pair = S::pair(e);
        const int at = (pair < D / 4) == C::ROWS_FIRST ? place.row : place.column;
        const float2 turn = e < D ? __ldg(reinterpret_cast<const float2*>(angles) + static_cast<size_t>(at) * (D / 2) + pair) : make_float2(1.0f, 0.0f);
        cos[j] = turn.x, sin[j] = turn.y;
    }
    const auto rotate = [&](HeadVector<C>& head) {
        float other[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int partner = lane + 32 * j < D ? S::other(lane + 32 * j) : lane;
            other[j] = 0.0f;
#pragma unroll
            for (int from = 0; from < N; from++) {
                const float value = __shfl_sync(0xffffffffu, head.x[from], partner & 31);
                if (partner >> 5 == from) other[j] = value;
            }
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float straight = __fmul_rn(head.x[j], cos[j]), crossed = __fmul_rn(other[j], sin[j]);
            if (lane + 32 * j < D) head.x[j] = S::is_first(lane + 32 * j) ? __fsub_rn(straight, crossed) : __fadd_rn(straight, crossed);
        }
    };
    constexpr int SHARES = TURN_SHARES<C> / 3;
    const int part = blockIdx.y / SHARES, first = blockIdx.y % SHARES * TURN_HEADS;
#pragma unroll
    for (int i = 0; i < TURN_HEADS; i++) {
        if (first + i >= C::HEADS) break;
        const size_t at = (static_cast<size_t>(patch) * 3 + part) * C::HEADS + first + i;
        float* const from = qkv + at * D;
        HeadVector<C> head;
        head.load(from, lane);
        if (part == 0) norm_head<C, C::Q_NORM, C::EXACT>(head, q_weight, C::Q_EPS);
        else if (part == 1) norm_head<C, C::K_NORM, C::EXACT>(head, k_weight, C::K_EPS);
        else norm_head<C, ValueNorm<C>::NORM, C::EXACT>(head, k_weight, ValueNorm<C>::EPS);
        if (part < 2) rotate(head);
        if constexpr (C::EXACT) {
            head.each(lane, [&](int e, float v) { from[e] = v; });
        } else {
            __half* const to = out + at * S::D_16;
            head.each(lane, [&](int e, float v) { to[e] = __float2half_rn(v); });
            if (D + lane < S::D_16) to[D + lane] = __float2half_rn(0.0f);
        }
    }
}

}  // namespace monomorph
