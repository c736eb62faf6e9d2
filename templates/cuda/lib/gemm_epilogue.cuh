// What becomes of the sums of a tensor-core product (gemm.cuh).
//
// A lane's fragments hold features along rows, memory wants them side by side. So a warpgroup writes a strip of 64 packed rows for
// SUM_TOKENS tokens to shared memory as [token][row], and reads it back in rows: 16 lanes x 4 features of f32 (256 bytes of a token)
// or 8 lanes x 4 features of bf16 (64 bytes).
#pragma once

#include "cluster.cuh"
#include "gemm.cuh"

namespace monomorph {

__device__ __forceinline__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

template <class C>
struct GemmEpilogue {
    using S = GemmShape<C>;
    using Sums = float[C::STRIPS][C::TOKENS / 2];
    static constexpr int LANES = S::GATED ? 8 : 16;     // that write one token
    static constexpr int AT_ONCE = 32 / LANES;          // tokens of a warp
    static constexpr int WIDTH = S::GATED ? staged_panels(C::OUTPUTS) * STAGED_PANEL : C::OUTPUTS;

    const GemmArguments& arguments;
    float* strips;                  // shared memory: SUM_BYTES a strip
    const GemmPlace<C>& place;
    int warpgroup, warp, lane;      // of the consumers, of the warpgroup
    // Of the strip in hand: this lane's first feature, scales and biases of its four (gated: gate; then up).
    int feature;
    float4 scale[2], bias[2];

    __device__ __forceinline__ static float4 four(const float* values, int first, int count, float otherwise) {
        return make_float4(first < count ? load_constant(values + first) : otherwise, first + 1 < count ? load_constant(values + first + 1) : otherwise,
                           first + 2 < count ? load_constant(values + first + 2) : otherwise, first + 3 < count ? load_constant(values + first + 3) : otherwise);
    }

    // Row of the strip where this lane's four features (gates) start.
    __device__ __forceinline__ int lane_row() const {
        const int first = lane % LANES * 4;
        return S::GATED ? first / 8 * 16 + first % 8 : first;
    }

    __device__ __forceinline__ void begin_strip(int row_block, int strip) {
        const int row = row_block * S::BLOCK_ROWS + (warpgroup * C::STRIPS + strip) * 64;
        feature = (S::GATED ? row / 2 : row) + lane % LANES * 4;
        if constexpr (S::ROW_SCALES) {
            scale[0] = four(arguments.row_scales, row + lane_row(), S::TILES * 8, 0.0f);
            if constexpr (S::GATED) scale[1] = four(arguments.row_scales, row + lane_row() + 8, S::TILES * 8, 0.0f);
            const float4 undo = {S::SUM_SCALE, S::SUM_SCALE, S::SUM_SCALE, S::SUM_SCALE};
#pragma unroll
            for (int part = 0; part < (S::GATED ? 2 : 1); part++) scale[part] = multiply(scale[part], undo);
        }
        if constexpr (C::BIAS) {
            bias[0] = four(arguments.bias, feature, C::OUTPUTS, 0.0f);
            if constexpr (S::GATED) bias[1] = four(arguments.up_bias, feature, C::OUTPUTS, 0.0f);
        }
    }

    __device__ __forceinline__ float4 finished(float4 sum, int part) const {
        if constexpr (S::ROW_SCALES) sum = multiply(sum, scale[part]);  // SUM_SCALE is in it
        if constexpr (C::BIAS) sum = add(sum, bias[part]);
        return sum;
    }

    // Added where the memory is, so that no one waits for it. One addition an element in a launch: no order to depend on.
    static __device__ __forceinline__ void add_in_memory(float4* out, float4 v) {
        add_global(out, v);
    }

    // Four features of a token.
    __device__ __forceinline__ void write(int token, float4 sum, float4 up) const {
        if (feature >= WIDTH) return;
        sum = finished(sum, 0);
        if constexpr (S::GATED) {
            up = finished(up, 1);
            const auto gated = [&](float gate, float up, int i) {
                return feature + i < C::OUTPUTS ? activate<C::ACTIVATION, float>(gate) * up : 0.0f;
            };
            const uint2 packed = {pack_bf16(gated(sum.x, up.x, 0), gated(sum.y, up.y, 1)),
                                  pack_bf16(gated(sum.z, up.z, 2), gated(sum.w, up.w, 3))};
            *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(arguments.out) + staged_index<C::CAPACITY>(token, feature)) = packed;
        } else {
            float* out = static_cast<float*>(arguments.out) + size_t(token) * C::OUTPUTS + feature;
            if constexpr (C::OUTPUTS % 4 == 0) {
                float4* four = reinterpret_cast<float4*>(out);
                if constexpr (C::EPILOGUE == Epilogue::ADD) {
                    add_in_memory(four, sum);
                } else {
                    *four = sum;
                }
            } else {
                const float values[4] = {sum.x, sum.y, sum.z, sum.w};
                for (int i = 0; i < 4 && feature + i < C::OUTPUTS; i++) {
                    out[i] = C::EPILOGUE == Epilogue::ADD ? load_activation(out + i) + values[i] : values[i];
                }
            }
        }
    }

    // Fragments of tokens `first` .. `first` + SUM_TOKENS (constants after unrolling) to shared memory.
    __device__ __forceinline__ void scatter(float* strip, const float (&sums)[C::TOKENS / 2], int first) const {
        float* own = strip + lane % 4 * 2 * S::SUM_STRIDE + warp * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < S::SUM_TOKENS / 8; j++) {
            const int from = (first / 8 + j) * 4;
            own[8 * j * S::SUM_STRIDE] = sums[from];
            own[(8 * j + 1) * S::SUM_STRIDE] = sums[from + 1];
            own[8 * j * S::SUM_STRIDE + 8] = sums[from + 2];
            own[(8 * j + 1) * S::SUM_STRIDE + 8] = sums[from + 3];
        }
    }

    // All consumer warps. `rows`: tokens of the step; `first_token`: of the block.
    __device__ __forceinline__ void run(const Sums& sums, int row_block, int first_token, int rows) {
        float* strip = strips + warpgroup * (S::SUM_BYTES / 4);
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
            begin_strip(row_block, s);
#pragma unroll
            for (int first = 0; first < C::TOKENS; first += S::SUM_TOKENS) {
                named_barrier(1 + warpgroup, 128);
                scatter(strip, sums[s], first);
                named_barrier(1 + warpgroup, 128);
                constexpr int ROUNDS = ceil_div(S::SUM_TOKENS, 4 * AT_ONCE);
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) {
                    const int within = (i * 4 + warp) * AT_ONCE + lane / LANES;
                    const int token = first_token + first + within;
                    if (within < S::SUM_TOKENS && token < rows) {
                        const float* from = strip + within * S::SUM_STRIDE + lane_row();
                        write(token, *reinterpret_cast<const float4*>(from), *reinterpret_cast<const float4*>(from + (S::GATED ? 8 : 0)));
                    }
                }
            }
        }
    }

    // Split products: first every block leaves its sums in its shared memory (the ring is free: all consumers have passed a
    // barrier after their last read of it) …
    __device__ __forceinline__ void leave(const Sums& sums) {
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) scatter(strips + (warpgroup * C::STRIPS + s) * (S::SUM_BYTES / 4), sums[s], 0);
    }
    // … then, after a barrier of the cluster, block k of SPLIT adds and writes tokens k, k + SPLIT, ….
    __device__ __forceinline__ void gather(int row_block, int rows) {
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
            begin_strip(row_block, s);
            const float* strip = strips + (warpgroup * C::STRIPS + s) * (S::SUM_BYTES / 4);
            const int tokens = min(C::TOKENS, rows);
            for (int i = warp * AT_ONCE + lane / LANES; i * C::SPLIT + place.split_part < tokens; i += 4 * AT_ONCE) {
                const int token = i * C::SPLIT + place.split_part;
                const unsigned from = shared_address(strip + token * S::SUM_STRIDE + lane_row());
                float4 sum = {0, 0, 0, 0}, up = {0, 0, 0, 0};
#pragma unroll
                for (int part = 0; part < C::SPLIT; part++) {
                    const unsigned there = cluster_address(from, part * C::MULTICAST + place.row_part);
                    sum = add(sum, load_cluster(there));
                    if constexpr (S::GATED) up = add(up, load_cluster(there + 32));
                }
                write(token, sum, up);
            }
        }
    }
};

}  // namespace monomorph
