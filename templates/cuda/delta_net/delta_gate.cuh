// delta_gate: what follows delta_chunks and delta_plain. Norm and gate of every row's heads, y = o / rms(o) * norm * silu(z), and the
// step's last raw inputs into the windows, which the kernel before has read.
//
// Work: block of the grid (rows of the step, blocks beyond do nothing) owns a row, DELTA_GATE_THREADS threads; a warp takes every
// 8th head. Bytes: o and z read, y written; at 4.3 TB/s 8,192 rows of 32 heads of 128 took 0.08 ms with y in 16 bits.
#pragma once

#include "delta_net/delta.cuh"

namespace monomorph {

constexpr int DELTA_GATE_THREADS = 256;

// step; projected f32 [rows, PROJECTED]; o f32 [rows, VALUES]; norm f32 [VALUE_DIM]; windows of the layer; out f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void delta_gate(const Step* step, const float* projected, const float* o, const float* norm, float* windows,
                                           float* out) {
    using D = DeltaShape<C>;
    using Sum = std::conditional_t<C::EXACT, double, float>;
    launch_dependents();
    wait_for_predecessors();
    const int row = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (row >= step->tokens) return;
    const float* from = projected + size_t(row) * C::PROJECTED;
    for (int head = warp; head < C::VALUE_HEADS; head += DELTA_GATE_THREADS / 32) {
        const float* x = o + size_t(row) * D::VALUES + head * C::VALUE_DIM;
        const float* z = from + D::CHANNELS + head * C::VALUE_DIM;
        if constexpr (C::VALUE_DIM % 128 == 0 && C::PROJECTED % 4 == 0 && !C::EXACT) {
            constexpr int EACH = C::VALUE_DIM / 128;
            float4 v[EACH], gate[EACH];
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                v[i] = load_activation(reinterpret_cast<const float4*>(x) + lane + 32 * i);
                gate[i] = load_activation(reinterpret_cast<const float4*>(z) + lane + 32 * i);
                sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
            }
            const float inverse = 1.0f / sqrtf(recurrent_warp_sum(sum) / C::VALUE_DIM + C::NORM_EPS);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int column = (lane + 32 * i) * 4;
                const float4 w = load_constant(reinterpret_cast<const float4*>(norm + column));
                delta_store<C>(out, row, head * C::VALUE_DIM + column,
                               make_float4(v[i].x * inverse * w.x * recurrent_silu(gate[i].x), v[i].y * inverse * w.y * recurrent_silu(gate[i].y),
                                           v[i].z * inverse * w.z * recurrent_silu(gate[i].z), v[i].w * inverse * w.w * recurrent_silu(gate[i].w)));
            }
        } else {
            Sum sum = 0;
            for (int e = lane; e < C::VALUE_DIM; e += 32) sum += Sum(load_activation(x + e)) * Sum(load_activation(x + e));
            const Sum inverse = Sum(1) / sqrt(recurrent_warp_sum(sum) / Sum(C::VALUE_DIM) + Sum(C::NORM_EPS));
            for (int e = lane; e < C::VALUE_DIM; e += 32) {
                const float y = float(Sum(load_activation(x + e)) * inverse * Sum(load_constant(norm + e)));
                const float gated = y * recurrent_silu<C::EXACT>(load_activation(z + e));
                const int column = head * C::VALUE_DIM + e;
                out[size_t(row) * D::VALUES + column] = gated;
            }
        }
    }

    recurrent_keep_inputs<D, DELTA_GATE_THREADS>(step, row, from, windows, thread);
}

}  // namespace monomorph
