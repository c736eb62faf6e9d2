// turn_heads: norms and rotation of a text model's query and key heads where positions have three axes, in place, before attention, which
// then has neither. A row of a prefill has its position beside it (ImageRow), of a decode step its index and a shift (PositionShifts), of a
// draft pass with a header of its own its index and the shift of its place (DraftImages).
//
// Work: as attention_write's, whose heads of queries and keys it takes: TURN_ROWS rows a block, a warp every eighth (row, head), its lanes
// the head's elements.
//
// Config: attention's; HEIGHT_PAIRS, WIDTH_PAIRS: a bit each pair that turns by height or by width, others turn by time; DECODE;
// optional PASS: rows are those of such a pass.
// Launch: block = TURN_HEADS_THREADS, grid = ceil(rows / TURN_ROWS). No shared memory, no barriers.
#pragma once

#include "attention/attention.cuh"
#include "vision/draft_images.cuh"

namespace monomorph {

constexpr int TURN_ROWS = 4, TURN_HEADS_WARPS = 8, TURN_HEADS_THREADS = 32 * TURN_HEADS_WARPS;

// Whether rows are those of a draft pass.
template <class C, class = void>
constexpr bool OF_PASS = false;
template <class C>
constexpr bool OF_PASS<C, decltype(void(C::PASS))> = C::PASS;

// The position of a row by each axis.
struct GridPosition {
    int time, height, width;
};
template <class C>
__device__ __forceinline__ GridPosition grid_position(const Step* step, const ImageRow* images, int row) {
    if constexpr (OF_PASS<C>) {
        const int position = step->sequence[row].position + draft_images(step).shift[row];
        return {position, position, position};
    } else if constexpr (C::DECODE) {
        const PositionShifts& shifts = reinterpret_cast<const PositionShifts*>(step->blocks())[-1];
        const int position = step->sequence[row].position + shifts.shift[row];
        return {position, position, position};
    } else {
        return {images[row].position[0], images[row].position[1], images[row].position[2]};
    }
}

// qkv f32 [rows, QKV_WIDTH]; images: null if DECODE, where row i is sequence i; rotary f32 [positions][ROTARY_PAIRS][cos, sin].
template <class C>
__device__ __forceinline__ void turn_heads(const Step* step, const ImageRow* images, float* qkv, const float* q_norm, const float* k_norm, const float* rotary) {
    using A = AttentionShape<C>;
    static_assert(C::ROTARY_PAIRS > 0 && C::ROTARY_PAIRS <= 64 && !VALUES_ARE_KEYS<C>, "a bit each pair, and values that are not turned");
    constexpr int HEADS = C::HEADS + C::KV_HEADS;
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    HeadVector<C> q_weight, k_weight;
    if constexpr (C::Q_NORM != HeadNorm::None) q_weight.load(q_norm, lane);
    if constexpr (C::K_NORM != HeadNorm::None) k_weight.load(k_norm, lane);
    wait_for_predecessors();

    const int first = blockIdx.x * TURN_ROWS, rows = min(TURN_ROWS, step->tokens - first);
    for (int item = warp; item < rows * HEADS; item += TURN_HEADS_WARPS) {
        const int row = first + item / HEADS, head_row = item % HEADS, key = head_row - C::HEADS;
        float* const at = qkv + static_cast<size_t>(row) * A::QKV_WIDTH + (key < 0 ? head_row : A::FIRST_KEY + key) * C::HEAD_DIM;
        const GridPosition position = grid_position<C>(step, images, row);
        HeadVector<C> head;
        head.load(at, lane);
        Rotation<C> rotation;
#pragma unroll
        for (int j = 0; j < Rotation<C>::N; ++j) {
            const int element = lane + 32 * j;
            const int pair = C::ROTARY_HALVES ? (element < C::ROTARY_PAIRS ? element : element - C::ROTARY_PAIRS) : element / 2;
            const bool live = element < 2 * C::ROTARY_PAIRS;
            const int by = !live ? 0 : C::HEIGHT_PAIRS >> pair & 1 ? position.height : C::WIDTH_PAIRS >> pair & 1 ? position.width : position.time;
            const float2* const table = reinterpret_cast<const float2*>(rotary) + static_cast<size_t>(by) * C::ROTARY_PAIRS;
            const float2 turn = live ? table[pair] : make_float2(1.0f, 0.0f);
            rotation.cos[j] = turn.x, rotation.sin[j] = turn.y;
        }
        if (key < 0) norm_head<C, C::Q_NORM, C::EXACT>(head, q_weight, C::Q_EPS);
        else norm_head<C, C::K_NORM, C::EXACT>(head, k_weight, C::K_EPS);
        rotate_head<C>(head, rotation, lane);
        head.each(lane, [&](int e, float v) { at[e] = v; });
    }
}

}  // namespace monomorph
