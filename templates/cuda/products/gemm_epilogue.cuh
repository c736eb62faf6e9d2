// What becomes of the sums of a tensor-core product (gemm.cuh).
//
// A lane's fragments hold features along rows, memory wants them side by side. So a warpgroup writes a strip of 64 packed rows for
// SUM_TOKENS tokens to shared memory as [token][row], and reads it back in rows: 16 lanes x 4 features of f32 (256 bytes of a token)
// or, gated, 8 lanes x 4 features (128 bytes).
#pragma once

#include "core/cluster.cuh"
#include "products/gemm.cuh"
#include "products/gemm_sum.cuh"

namespace monomorph {

__device__ __forceinline__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

template <class C>
struct GemmEpilogue {
    using S = GemmShape<C>;
    using Sums = float[C::STRIPS][C::TOKENS / 2];
    static constexpr int LANES = S::GATED ? 8 : 16;     // that write one token
    static constexpr int AT_ONCE = 32 / LANES;          // tokens of a warp
    // Sums of nvfp4 come scaled (formats.cuh).
    static constexpr float SUM_SCALE = C::FORMAT == Format::NVFP4 ? NVFP4_UNSCALE : 1.0f;

    const GemmArguments& arguments;
    float* strips;                  // shared memory: SUM_BYTES a strip
    const GemmPlace<C>& place;
    int warpgroup, warp, lane;      // of the consumers, of the warpgroup
    // Of the strip in hand: this lane's first feature, scales and biases of its four (gated: gate; then up).
    int feature;
    float4 scale[2], bias[2];
    // Multipliers of the block's tokens i, i + 128, …, which thread i of the warpgroup has. AHEAD: there are registers to hold them while
    // products run, so that the epilogue does not wait for them. (Codes of 16 bits leave none beside two strips.)
    static constexpr bool AHEAD = C::TOKENS * C::STRIPS == 256 && (C::STRIPS == 1 || Unit<C::FORMAT>::BITS < 16);
    float unscales[ceil_div(C::TOKENS, 128)];
    GemmSum<C> ranks = GemmSum<C>(arguments, strips);

    __device__ __forceinline__ static float4 four(const float* values, int first, int count, float otherwise) {
        return make_float4(first < count ? load_constant(values + first) : otherwise, first + 1 < count ? load_constant(values + first + 1) : otherwise,
                           first + 2 < count ? load_constant(values + first + 2) : otherwise, first + 3 < count ? load_constant(values + first + 3) : otherwise);
    }

    // Row of the strip where this lane's four features (gates) start.
    __device__ __forceinline__ int lane_row() const {
        const int first = lane % LANES * 4;
        return S::GATED ? first / 8 * 16 + first % 8 : first;
    }

    // Packed row at which a strip starts, and this lane's first feature of it.
    __device__ __forceinline__ int row_of(int row_block, int strip) const { return row_block * S::BLOCK_ROWS + (warpgroup * C::STRIPS + strip) * 64; }
    __device__ __forceinline__ int feature_of(int row_block, int strip) const {
        const int row = row_of(row_block, strip);
        return (S::GATED ? row / 2 : row) + lane % LANES * 4;
    }

    __device__ __forceinline__ void begin_strip(int row_block, int strip) {
        const int row = row_of(row_block, strip);
        feature = feature_of(row_block, strip);
        scale[0] = four(arguments.row_scales, row + lane_row(), S::TILES * 8, 0.0f);
        if constexpr (S::GATED) scale[1] = four(arguments.row_scales, row + lane_row() + 8, S::TILES * 8, 0.0f);
        if constexpr (C::BIAS) {
            bias[0] = four(arguments.bias, feature, C::OUTPUTS, 0.0f);
            if constexpr (S::GATED) bias[1] = four(arguments.up_bias, feature, C::OUTPUTS, 0.0f);
        }
    }

    // What sums of a row of x are multiplied by.
    __device__ __forceinline__ float unscale_of(int row) const { return load_activation(arguments.unscale + row) * SUM_SCALE; }

    __device__ __forceinline__ float4 finished(float4 sum, int part, float unscale) const {
        sum = multiply(multiply(sum, make_float4(unscale, unscale, unscale, unscale)), scale[part]);
        if constexpr (C::BIAS) sum = add(sum, bias[part]);
        return sum;
    }

    // Added where the memory is, so that no one waits for it. One addition an element in a launch: no order to depend on.
    static __device__ __forceinline__ void add_in_memory(float4* out, float4 v) {
        add_global(out, v);
    }

    // Four features of a token. `unscale`: of its x.
    __device__ __forceinline__ void write(int token, float4 sum, float4 up, float unscale) const {
        if (feature >= C::OUTPUTS) return;
        sum = finished(sum, 0, unscale);
        if constexpr (S::GATED) {
            up = finished(up, 1, unscale);
            sum = make_float4(activate<C::ACTIVATION, float>(sum.x) * up.x, activate<C::ACTIVATION, float>(sum.y) * up.y,
                              activate<C::ACTIVATION, float>(sum.z) * up.z, activate<C::ACTIVATION, float>(sum.w) * up.w);
        } else if constexpr (C::EPILOGUE == Epilogue::ACTIVATED) {
            sum = make_float4(activate<C::ACTIVATION, float>(sum.x), activate<C::ACTIVATION, float>(sum.y),
                              activate<C::ACTIVATION, float>(sum.z), activate<C::ACTIVATION, float>(sum.w));
        }
        float* out = arguments.out + size_t(token) * C::OUTPUTS + feature;
        if constexpr (C::EPILOGUE == Epilogue::SUM) {
            ranks.push(token, feature, sum);
        } else if constexpr (C::OUTPUTS % 4 == 0) {
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

    // Multipliers of tokens `first` .. + SUM_TOKENS of `tokens` stand behind the sums: a thread asks for one before the barriers.
    template <class Load>
    __device__ __forceinline__ float own_unscale(int first, int tokens, const Load& load) const {
        const int own = warp * 32 + lane;
        return own < S::SUM_TOKENS && first + own < tokens ? load(first + own) : 0.0f;
    }
    __device__ __forceinline__ void leave_unscale(float* strip, float unscale) const {
        const int own = warp * 32 + lane;
        if (own < S::SUM_TOKENS) strip[own * S::SUM_STRIDE + 64] = unscale;
    }
    // The same of all of the block's `tokens` at once, and of those from `first` on (a constant after unrolling).
    template <class Load>
    __device__ __forceinline__ void hold_unscales(int tokens, const Load& load) {
#pragma unroll
        for (int i = 0; i < ceil_div(C::TOKENS, 128); i++) {
            const int own = i * 128 + warp * 32 + lane;
            unscales[i] = own < least(C::TOKENS, tokens) ? load(own) : 0.0f;
        }
    }
    __device__ __forceinline__ void leave_held_unscales(float* strip, int first) const {
        const int own = warp * 32 + lane - first % 128;
        if (own >= 0 && own < S::SUM_TOKENS) strip[own * S::SUM_STRIDE + 64] = unscales[first / 128];
    }
    __device__ __forceinline__ static float unscale_at(const float* strip, int within) { return strip[within * S::SUM_STRIDE + 64]; }

    // Before the products of a block's tokens, from `first_token` on, of the step's `rows`.
    __device__ __forceinline__ void begin(int first_token, int rows) {
        if constexpr (AHEAD) hold_unscales(rows - first_token, [&](int token) { return unscale_of(first_token + token); });
    }

    // All consumer warps, behind `begin` and the products. `rows`: tokens of the step; `first_token`: of the block.
    __device__ __forceinline__ void run(const Sums& sums, int row_block, int first_token, int rows) {
        float* strip = strips + warpgroup * (S::SUM_BYTES / 4);
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
            begin_strip(row_block, s);
#pragma unroll
            for (int first = 0; first < C::TOKENS; first += S::SUM_TOKENS) {
                float unscale;
                if constexpr (!AHEAD) unscale = own_unscale(first, rows - first_token, [&](int token) { return unscale_of(first_token + token); });
                named_barrier(1 + warpgroup, 128);
                scatter(strip, sums[s], first);
                if constexpr (AHEAD) leave_held_unscales(strip, first);
                else leave_unscale(strip, unscale);
                named_barrier(1 + warpgroup, 128);
                constexpr int ROUNDS = ceil_div(S::SUM_TOKENS, 4 * AT_ONCE);
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) {
                    const int within = (i * 4 + warp) * AT_ONCE + lane / LANES;
                    const int token = first_token + first + within;
                    if (within < S::SUM_TOKENS && token < rows) {
                        const float* from = strip + within * S::SUM_STRIDE + lane_row();
                        write(token, *reinterpret_cast<const float4*>(from), *reinterpret_cast<const float4*>(from + (S::GATED ? 8 : 0)), unscale_at(strip, within));
                    }
                }
            }
        }
    }

    // Work that is cut evenly: what a block has of a block of rows that is another's, to memory …
    __device__ __forceinline__ float4* part_of(int block) const {
        return reinterpret_cast<float4*>(arguments.parts) + size_t(block) * (GemmCut<C>::BYTES / 16) + (warpgroup * 4 + warp) * 32 + lane;
    }
    __device__ __forceinline__ unsigned* flag_of(int block) const {
        return reinterpret_cast<unsigned*>(reinterpret_cast<char*>(arguments.parts) + size_t(place.clusters) * GemmCut<C>::BYTES) + block;
    }
    __device__ __forceinline__ void leave_part(const Sums& sums) const {
        float4* const to = part_of(place.cluster);
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++)
#pragma unroll
            for (int i = 0; i < C::TOKENS / 8; i++)
                to[(s * (C::TOKENS / 8) + i) * GemmCut<C>::THREADS] = make_float4(sums[s][4 * i], sums[s][4 * i + 1], sums[s][4 * i + 2], sums[s][4 * i + 3]);
        named_barrier(3, GemmCut<C>::THREADS);
        if (warpgroup + warp + lane == 0) arrive_release(flag_of(place.cluster));
    }
    // … from where the one whose it is adds them, in order.
    __device__ __forceinline__ void add_parts(Sums& sums, int row_block) const {
        for (int block = place.cluster + 1; GemmCut<C>::first(block, place.clusters) < (row_block + 1) * S::STEPS; block++) {
            if (warpgroup + warp + lane == 0) {
                while (arrivals(flag_of(block)) == 0) {}
                *flag_of(block) = 0;
            }
            named_barrier(3, GemmCut<C>::THREADS);
            const float4* const from = part_of(block);
#pragma unroll
            for (int s = 0; s < C::STRIPS; s++)
#pragma unroll
                for (int i = 0; i < C::TOKENS / 8; i++) {
                    const float4 part = load_activation(from + (s * (C::TOKENS / 8) + i) * GemmCut<C>::THREADS);
                    sums[s][4 * i] += part.x, sums[s][4 * i + 1] += part.y, sums[s][4 * i + 2] += part.z, sums[s][4 * i + 3] += part.w;
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
                const float unscale = unscale_of(token);
                const unsigned from = shared_address(strip + token * S::SUM_STRIDE + lane_row());
                float4 sum = {0, 0, 0, 0}, up = {0, 0, 0, 0};
#pragma unroll
                for (int part = 0; part < C::SPLIT; part++) {
                    const unsigned there = cluster_address(from, part * C::MULTICAST + place.row_part);
                    sum = add(sum, load_cluster(there));
                    if constexpr (S::GATED) up = add(up, load_cluster(there + 32));
                }
                write(token, sum, up, unscale);
            }
        }
    }
};

}  // namespace monomorph
