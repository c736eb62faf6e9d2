// attention_write: norms and rotary of all tokens' heads, K/V into the cache. Prefill, and every regime of exact targets.
//
// Work: WRITE_TOKENS rows a block, WRITE_WARPS warps; a warp takes every WRITE_WARPS-th (row, head) of the block's, its lanes the
// head's elements, so every read and write is coalesced. Memory-bound: reads qkv once, writes half of it once.
// q goes to `q_out` in the operand format of the products (AttentionShape::Operand), [rows, HEADS, HEAD_DIM padded to 16]
// with zero padding, scale not folded in. EXACT: q goes back to where it came from, in f32, and q_out is unused.
// Vectors that are kept rotated are rotated last, and so are queries of such keys. Shared memory: a head a warp, for codes of groups only.
// No barriers. Grid: ceil(tokens / WRITE_TOKENS) blocks; more are harmless.
#pragma once

#include "attention/attention.cuh"

namespace monomorph {

constexpr int WRITE_TOKENS = 4, WRITE_WARPS = 8, WRITE_THREADS = 32 * WRITE_WARPS;

template <class C>
__device__ __forceinline__ void attention_write(const Step* step, const TokenRow* tokens, float* qkv, const float* q_norm,
                                                const float* k_norm, const float* rotary, typename C::Kv* layer,
                                                typename AttentionShape<C>::Operand* q_out) {
    using A = AttentionShape<C>;
    using Kv = typename C::Kv;
    constexpr int ALL_HEADS = C::HEADS + 2 * C::KV_HEADS;
    constexpr bool ROTATED_KEYS = is_rotated<Kv, Side::Keys>(), ROTATED_VALUES = is_rotated<Kv, Side::Values>();
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    HeadVector<C> q_weight, k_weight;
    if constexpr (C::Q_NORM != HeadNorm::None) q_weight.load(q_norm, lane);
    if constexpr (C::K_NORM != HeadNorm::None) k_weight.load(k_norm, lane);
    wait_for_predecessors();

    const int first = blockIdx.x * WRITE_TOKENS, rows = min(WRITE_TOKENS, step->tokens - first);
    for (int item = warp; item < rows * ALL_HEADS; item += WRITE_WARPS) {
        const int row = first + item / ALL_HEADS, head_row = item % ALL_HEADS;
        // Without token rows (decode) row i is the one token of sequence i.
        const int index = tokens ? tokens[row].sequence : row;
        const Sequence& sequence = step->sequence[index];
        const int position = sequence.position + row - sequence.first_token;
        HeadVector<C> head;
        const int beyond = head_row - C::HEADS;  // of a key or value head; gates stand between
        const int head_at = beyond < 0 ? head_row : beyond < C::KV_HEADS ? A::FIRST_KEY + beyond : A::FIRST_VALUE + beyond - C::KV_HEADS;
        float* from = qkv + static_cast<size_t>(row) * A::QKV_WIDTH + head_at * C::HEAD_DIM;
        head.load(from, lane);
        Rotation<C> rotation;
        rotation.load(rotary, position, lane);
        if (head_row < C::HEADS) {
            norm_head<C, C::Q_NORM, C::EXACT>(head, q_weight, C::Q_EPS);
            rotate_head<C>(head, rotation, lane);
            if constexpr (ROTATED_KEYS) rotate_kept(head, lane);
            if constexpr (C::EXACT) {
                head.each(lane, [&](int e, float v) { from[e] = v; });
            } else {
                auto* to = q_out + (static_cast<size_t>(row) * C::HEADS + head_row) * A::HEAD_DIM_16;
                head.each(lane, [&](int e, float v) { to[e] = round_to<typename A::Operand>(v); });
                if (C::HEAD_DIM + lane < A::HEAD_DIM_16) to[C::HEAD_DIM + lane] = round_to<typename A::Operand>(0.0f);
            }
        } else {
            const bool is_key = beyond < C::KV_HEADS;
            if (is_key) {
                norm_head<C, C::K_NORM, C::EXACT>(head, k_weight, C::K_EPS);
                rotate_head<C>(head, rotation, lane);
                if constexpr (ROTATED_KEYS) rotate_kept(head, lane);
            } else {
                norm_head<C, ValueNorm<C>::NORM, C::EXACT>(head, k_weight, ValueNorm<C>::EPS);
                if constexpr (ROTATED_VALUES) rotate_kept(head, lane);
            }
            const int block = step->blocks()[table_start<C>(step, index) + position / C::BLOCK_TOKENS];
            const int kv_head = beyond - (is_key ? 0 : C::KV_HEADS);
            const Side side = is_key ? Side::Keys : Side::Values;
            measure_head<C>(layer, side, kv_head, head, lane);
            const float scale = static_scale<C>(layer, side, kv_head);
            const int token = position % C::BLOCK_TOKENS;
            if constexpr (GROUPED<Kv>) {
                MONOMORPH_SHARED(of_warps, float4[WRITE_WARPS][C::HEAD_DIM / 4]);
                float* values = reinterpret_cast<float*>(of_warps[warp]);
                if (is_key) keep_groups<C, Side::Keys>(head, scale, values, lane, kept_place<C, Side::Keys>(layer, block, kv_head, token));
                else keep_groups<C, Side::Values>(head, scale, values, lane, kept_place<C, Side::Values>(layer, block, kv_head, token));
            } else {
                Kv* to = cached_row<C>(layer, block, kv_head, token) + (is_key ? 0 : A::VALUES);
                head.each(lane, [&](int e, float v) { to[e] = keep<Kv>(v, scale); });
            }
        }
    }
}

}  // namespace monomorph
