// Stages rows of pairs (experts_batch.cuh) for the down products: f32 rows [CAPACITY, WIDTH] to staged f16, a warp a row.
//
// Config: EXPERTS, ACTIVE, STEP_ROWS, TOKENS (of the work tiles), WIDTH, CAPACITY (ExpertLists::ROWS).
// Launch: grid = ceil(CAPACITY / 8), block EXPERTS_STAGE_THREADS, no dynamic shared memory. Rows behind the last work tile's are passed
// over; what is staged of rows that no pair has is read by nobody.
#pragma once

#include "experts/experts_batch.cuh"
#include "products/stage.cuh"

namespace monomorph {

constexpr int EXPERTS_STAGE_THREADS = 256;

template <class C>
__device__ __forceinline__ void experts_stage(const char* lists, const float* x, void* out) {
    using Lists = ListsOf<C>;
    constexpr int EACH = ceil_div(staged_panels(C::WIDTH) * 8, 32), HELD = least(EACH, 8);   // chunks of eight columns of a lane; kept in registers
    static_assert(C::CAPACITY == Lists::ROWS, "rows of pairs");
    launch_dependents();
    wait_for_predecessors();
    const int lane = threadIdx.x % 32, row = blockIdx.x * (EXPERTS_STAGE_THREADS / 32) + threadIdx.x / 32;
    const int tiles = load_activation(reinterpret_cast<const int*>(lists + Lists::COUNT_AT));
    if (tiles == 0 || row >= C::CAPACITY) return;
    const int2 last = load_activation(reinterpret_cast<const int2*>(lists + Lists::TILES_AT) + tiles - 1);
    if (row >= last.x + (last.y & 255)) return;
    float values[HELD][8];
    const auto load = [&](int from) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            stage_load<C>(values[i], x + size_t(row) * C::WIDTH, ((from + i) * 32 + lane) * 8, [](const auto* at) { return load_activation(at); });
    };
    float largest = 0;
#pragma unroll 1
    for (int from = 0; from < EACH; from += HELD) {
        load(from);
#pragma unroll
        for (int i = 0; i < HELD; i++) largest = largest_of(values[i], largest);
    }
    const HalfScale scale(__uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(largest))));
    if (lane == 0) stage_unscale<C>(out)[row] = scale.unscale;
#pragma unroll 1
    for (int from = 0; from < EACH; from += HELD) {
        if (EACH > HELD) load(from);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int column = ((from + i) * 32 + lane) * 8;
            if (column < staged_panels(C::WIDTH) * STAGED_PANEL) stage_store<C::CAPACITY>(out, row, column, values[i], scale.scale);
        }
    }
}

}  // namespace monomorph
