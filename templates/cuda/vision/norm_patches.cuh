// norm_patches: out = norm(x), each patch's row where it stands, or merged: the rows of a merge block's patches in one.
//
// Rows of a block's patches side by side are these rows as they stand: MERGED is 1 for them too. BY_CHANNEL: number c of patch p of a
// block of MERGED is number c MERGED + p of the block's row.
//
// Work: a block a patch, whose threads hold its row; bits of a row depend on no other. x and out may be the same rows but BY_CHANNEL.
//
// Config: WIDTH, NORM (PatchNorm), EPS, MERGED, BY_CHANNEL. Launch: grid = patches (blocks beyond the step's do nothing), block =
// PATCH_THREADS, no dynamic shared memory.
#pragma once

#include "vision/patches.cuh"

namespace monomorph {

constexpr int PATCH_THREADS = 256;

// x, out f32 [patches, WIDTH]; weight, bias f32 [WIDTH], null where the norm has none.
template <class C>
__device__ __forceinline__ void norm_patches(const Step* step, const float* x, const float* weight, const float* bias, float* out) {
    constexpr int EACH = ceil_div(C::WIDTH, PATCH_THREADS), WARPS = PATCH_THREADS / 32;
    MONOMORPH_SHARED(of_warps, float[2][WARPS]);
    launch_dependents();
    const auto column = [](int i) { return static_cast<int>(threadIdx.x) + i * PATCH_THREADS; };
    const auto live = [&](int i) { return column(i) < C::WIDTH; };
    float weights[EACH] = {}, biases[EACH] = {};
    if constexpr (C::NORM != PatchNorm::NONE) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (live(i)) weights[i] = load_constant(weight + column(i));
    }
    if constexpr (C::NORM == PatchNorm::LAYER) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (live(i)) biases[i] = load_constant(bias + column(i));
    }
    wait_for_predecessors();
    const int patch = blockIdx.x;
    if (patch >= step->tokens) return;

    const float* const from = x + static_cast<size_t>(patch) * C::WIDTH;
    float values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) values[i] = live(i) ? load_activation(from + column(i)) : 0.0f;
    norm_row<C::NORM, C::WIDTH, WARPS>(values, weights, biases, C::EPS, live, of_warps);
    float* const to = out + static_cast<size_t>(patch / C::MERGED) * C::MERGED * C::WIDTH;
    const int place = patch % C::MERGED;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (live(i)) to[C::BY_CHANNEL ? column(i) * C::MERGED + place : place * C::WIDTH + column(i)] = values[i];
}

}  // namespace monomorph
