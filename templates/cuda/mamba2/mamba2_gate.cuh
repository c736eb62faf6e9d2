// mamba2_gate: what follows mamba2_chunks and mamba2_plain. Gate and norm of every row's groups, g = y silu(z), out = g / rms(g) * norm,
// and the step's last raw inputs into the windows, which the kernel before has read.
//
// Work: block of the grid (rows of the step, blocks beyond do nothing) owns a row, MAMBA2_GATE_THREADS threads; a warp takes every
// 8th group. Bytes: y and z read, out written.
#pragma once

#include "mamba2/mamba2.cuh"

namespace monomorph {

constexpr int MAMBA2_GATE_THREADS = 256;

// step; projected f32 [rows, PROJECTED]; y f32 [rows, VALUES]; norm f32 [VALUES]; windows of the layer; out f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void mamba2_gate(const Step* step, const float* projected, const float* y, const float* norm, float* windows,
                                            float* out) {
    using M = Mamba2Shape<C>;
    using Sum = std::conditional_t<C::EXACT, double, float>;
    constexpr int EACH = M::WIDTH / 128;
    launch_dependents();
    wait_for_predecessors();
    const int row = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (row >= step->tokens) return;
    const float* from = projected + size_t(row) * C::PROJECTED;
    for (int group = warp; group < C::GROUPS; group += MAMBA2_GATE_THREADS / 32) {
        const int first = group * M::WIDTH;
        const float *x = y + size_t(row) * M::VALUES + first, *z = from + first, *w = norm + first;
        float* to = out + size_t(row) * M::VALUES + first;
        if constexpr (M::WIDTH % 128 == 0 && EACH <= 8 && C::PROJECTED % 4 == 0 && !C::EXACT) {
            float4 g[EACH];
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const float4 value = load_activation(reinterpret_cast<const float4*>(x) + lane + 32 * i);
                const float4 gate = load_activation(reinterpret_cast<const float4*>(z) + lane + 32 * i);
                g[i] = make_float4(value.x * recurrent_silu(gate.x), value.y * recurrent_silu(gate.y), value.z * recurrent_silu(gate.z),
                                   value.w * recurrent_silu(gate.w));
                sum += g[i].x * g[i].x + g[i].y * g[i].y + g[i].z * g[i].z + g[i].w * g[i].w;
            }
            const float inverse = 1.0f / sqrtf(recurrent_warp_sum(sum) / M::WIDTH + C::NORM_EPS);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const float4 weight = load_constant(reinterpret_cast<const float4*>(w) + lane + 32 * i);
                reinterpret_cast<float4*>(to)[lane + 32 * i] = make_float4(g[i].x * inverse * weight.x, g[i].y * inverse * weight.y,
                                                                           g[i].z * inverse * weight.z, g[i].w * inverse * weight.w);
            }
        } else {
            auto gated = [&](int e) { return Sum(load_activation(x + e)) * Sum(recurrent_silu<C::EXACT>(load_activation(z + e))); };
            Sum sum = 0;
            for (int e = lane; e < M::WIDTH; e += 32) sum += gated(e) * gated(e);
            const Sum inverse = Sum(1) / sqrt(recurrent_warp_sum(sum) / Sum(M::WIDTH) + Sum(C::NORM_EPS));
            for (int e = lane; e < M::WIDTH; e += 32) to[e] = float(gated(e) * inverse * Sum(load_constant(w + e)));
        }
    }
    recurrent_keep_inputs<M, MAMBA2_GATE_THREADS>(step, row, from + M::INPUTS, windows, thread);
}

}  // namespace monomorph
