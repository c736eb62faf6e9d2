// delta_prepare: the part of a delta-net prefill that does not depend on the state, all chunks at once (delta_chunk.cuh says what).
//
// Work: a unit is (chunk, key head); blocks of eight warps take every (number of blocks)-th. Convolution, silu and norm of 8 tokens a
// warp, a token's channels across its lanes: q, k and the first value head's v at once, the next head's v while the head before is solved.
// K K^T and Q K^T of 16 rows and 32 columns a warp, kept in registers for all value heads; per head A, T, W, P and U.
//
// Predicted, H200, 8,192 tokens of 16 key and 32 value heads of 128: reads 268 MB of q, k, v, writes 229 MB: 0.12 ms; 17 GFLOP on tensor
// cores are nothing beside it. Predicted 0.24, measured 0.257 (docs/performance-h200-kernels.md).
// Shared memory: DeltaPrepareShared, two blocks an SM of an H200, one of a GB10.
#pragma once

#include "delta_net/delta_chunk.cuh"

namespace monomorph {

constexpr int DELTA_PREPARE_THREADS = 256;

template <int RATIO>
struct DeltaPrepareShared {
    static constexpr int STRIDE = RECURRENT_STRIDE, A_STRIDE = 68, T_STRIDE = 72;
    alignas(16) unsigned short k[DELTA_CHUNK * STRIDE];
    alignas(16) unsigned short qv[2][DELTA_CHUNK * STRIDE];  // v of even heads; q, then v of odd heads
    alignas(16) float a[DELTA_CHUNK * A_STRIDE];             // A, then T
    alignas(16) unsigned short scaled[2][DELTA_CHUNK * T_STRIDE];  // T diag(beta), T diag(beta e^G)
    float g[RATIO][DELTA_CHUNK], beta[RATIO][DELTA_CHUNK];
};

template <class C>
constexpr size_t delta_prepare_shared_bytes() { return sizeof(DeltaPrepareShared<DeltaShape<C>::RATIO>); }

// T = (I + A)^-1 in place of A, in blocks: the inverse of [X 0; A Y] is [X^-1 0; -Y^-1 A X^-1, Y^-1]. Blocks of 16 on the diagonal a column a
// thread, then those of 32 and the whole of 64 by two products each. The product between stands above the diagonal, which nobody else reads.
// All threads; `meanwhile` is done by each, without a barrier in it, while 64 invert the blocks of 16. Ends with a barrier.
template <class F>
__device__ __forceinline__ void delta_solve(float* a, int thread, F meanwhile) {
    static_assert(DELTA_CHUNK == 64 && DELTA_PREPARE_THREADS == 256, "who computes what");
    constexpr int STRIDE = DeltaPrepareShared<1>::A_STRIDE;
    auto four = [&](int row, int column) { return *reinterpret_cast<const float4*>(a + row * STRIDE + column); };
    if (thread < 64) {
        float* block = a + thread / 16 * 16 * (STRIDE + 1);
        const int column = thread % 16;
        float x[16];
#pragma unroll
        for (int r = 0; r < 16; ++r) {
            x[r] = r == column ? 1.0f : 0.0f;
#pragma unroll
            for (int k = 0; k < r; k += 4) {
                const float4 by = *reinterpret_cast<const float4*>(block + r * STRIDE + k);
                x[r] = fmaf(-by.x, x[k], x[r]);
                if (k + 1 < r) x[r] = fmaf(-by.y, x[k + 1], x[r]);
                if (k + 2 < r) x[r] = fmaf(-by.z, x[k + 2], x[r]);
                if (k + 3 < r) x[r] = fmaf(-by.w, x[k + 3], x[r]);
            }
        }
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 16; ++r) block[r * STRIDE + column] = x[r];
    }
    meanwhile();
    __syncthreads();

    {   // two blocks of 32: 16 x 16 products, an element of two columns a thread
        const int at = thread / 128 * 32, row = thread % 128 / 8, column = thread % 8 * 2;
        auto product = [&](int left_row, int left_column, int right_row, int right_column) {
            float2 sum = {0.0f, 0.0f};
#pragma unroll
            for (int k = 0; k < 16; k += 4) {
                const float4 by = four(left_row + row, left_column + k);
                const float left[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 right = *reinterpret_cast<const float2*>(a + (right_row + k + i) * STRIDE + right_column + column);
                    sum.x = fmaf(left[i], right.x, sum.x), sum.y = fmaf(left[i], right.y, sum.y);
                }
            }
            return sum;
        };
        const float2 between = product(at + 16, at, at, at);
        *reinterpret_cast<float2*>(a + (at + row) * STRIDE + at + 16 + column) = between;
        __syncthreads();
        const float2 below = product(at + 16, at + 16, at, at + 16);
        *reinterpret_cast<float2*>(a + (at + 16 + row) * STRIDE + at + column) = make_float2(-below.x, -below.y);
        __syncthreads();
    }
    {   // the whole: 32 x 32 products, four columns a thread
        const int row = thread / 8, column = thread % 8 * 4;
        auto product = [&](int left_row, int left_column, int right_row, int right_column, int from, int to) {
            float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 2
            for (int k = from; k < to; k += 4) {
                const float4 by = four(left_row + row, left_column + k);
                const float left[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float4 right = four(right_row + k + i, right_column + column);
                    sum.x = fmaf(left[i], right.x, sum.x), sum.y = fmaf(left[i], right.y, sum.y);
                    sum.z = fmaf(left[i], right.z, sum.z), sum.w = fmaf(left[i], right.w, sum.w);
                }
            }
            return sum;
        };
        // What was between in the blocks of 32 is no part of them.
        const float4 between = product(32, 0, 0, 0, column < 16 ? 0 : 16, 32);
        *reinterpret_cast<float4*>(a + row * STRIDE + 32 + column) = between;
        __syncthreads();
        const float4 below = product(32, 32, 0, 32, 0, row < 16 ? 16 : 32);
        *reinterpret_cast<float4*>(a + (32 + row) * STRIDE + column) = make_float4(-below.x, -below.y, -below.z, -below.w);
        __syncthreads();
    }
}

// step; projected f32 [rows, PROJECTED]; gates f32 [rows, 2 VALUE_HEADS]: b, then a; weights, windows: of the layer; scratch: delta_scratch_bytes.
template <class C>
__device__ __forceinline__ void delta_prepare(const Step* step, const float* projected, const float* gates, DeltaWeights weights,
                                              const float* windows, unsigned char* scratch) {
    using D = DeltaShape<C>;
    using L = DeltaScratch<C>;
    using S = DeltaPrepareShared<D::RATIO>;
    constexpr int WARPS = DELTA_PREPARE_THREADS / 32;
    constexpr int K_STEPS = C::KEY_DIM / 16;
    constexpr float SCALE = 0.08838834764831845f;  // 1 / sqrt(128)
    MONOMORPH_DYNAMIC_SHARED(delta_shared, 128);
    S& shared = *reinterpret_cast<S*>(delta_shared);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int row_tile = warp / 2, part = warp % 2;  // two warps share 16 rows
    // ldmatrix lane addresses: rows as they lie for A (16 x 16) and for B (two n-tiles), and transposed ones.
    const int a_row = lane % 16, a_column = lane / 16 * 8, b_row = lane / 16 * 8 + lane % 8, b_column = lane / 8 % 2 * 8;
    auto at = [](const unsigned short* matrix, int stride, int row, int column) { return shared_address(matrix + row * stride + column); };

    const int chunks = recurrent_chunks_before(step, step->sequences, lane);
    for (int unit = blockIdx.x; unit < chunks * C::KEY_HEADS; unit += gridDim.x) {
        const int number = unit / C::KEY_HEADS, key_head = unit % C::KEY_HEADS;
        const RecurrentChunk chunk = recurrent_find_chunk(step, number, lane);
        // Eight rows at once take registers that are free until K K^T stands in them.
        using Four = std::integral_constant<int, 4>;
        using Eight = std::integral_constant<int, 8>;
        auto convolve = [&](auto norm, auto at_once, unsigned short* to, int channel) {
            recurrent_convolve<D, WARPS, decltype(at_once)::value, C::TAPS, C::PROJECTED, decltype(norm)::value, false>(
                to, projected, windows, weights.convolution, nullptr, chunk, channel, warp, lane);
        };
        auto convolve_values = [&](auto at_once, int index) {
            convolve(std::false_type(), at_once, shared.qv[index % 2], 2 * D::KEYS + (key_head * D::RATIO + index) * C::VALUE_DIM);
        };
        __syncthreads();  // everyone is done with the unit before
        for (int index = warp; index < D::RATIO; index += WARPS) {  // gates of tokens 2 lane, 2 lane + 1
            const int head = key_head * D::RATIO + index;
            float* factors = reinterpret_cast<float*>(L::p(scratch, number, head) + L::P);
            const float a_log = load_constant(weights.a_log + head), dt_bias = load_constant(weights.dt_bias + head);
            float decay[2], beta[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int token = 2 * lane + i;
                const float* from = gates + size_t(chunk.row + min(token, chunk.tokens - 1)) * 2 * C::VALUE_HEADS + head;
                beta[i] = token < chunk.tokens ? delta_beta(load_activation(from)) : 0.0f;
                decay[i] = token < chunk.tokens ? delta_log_decay(load_activation(from + C::VALUE_HEADS), a_log, dt_bias) : 0.0f;
            }
            float sum = decay[0] + decay[1];
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const float before = __shfl_up_sync(0xffffffffu, sum, distance);
                if (lane >= distance) sum += before;
            }
            const float all = __shfl_sync(0xffffffffu, sum, 31), first = sum - decay[1];
            reinterpret_cast<float2*>(shared.g[index])[lane] = make_float2(first, sum);
            reinterpret_cast<float2*>(shared.beta[index])[lane] = make_float2(beta[0], beta[1]);
            reinterpret_cast<float2*>(factors)[lane] = make_float2(__expf(first), __expf(sum));
            reinterpret_cast<float2*>(factors + DELTA_CHUNK)[lane] = make_float2(__expf(all - first), __expf(all - sum));
        }
        convolve(std::true_type(), Eight(), shared.qv[1], key_head * C::KEY_DIM);
        convolve(std::true_type(), Eight(), shared.k, D::KEYS + key_head * C::KEY_DIM);
        convolve_values(Eight(), 0);
        __syncthreads();

        // K K^T and Q K^T: rows 16 row_tile .., columns 32 part + 8n .., up to the diagonal.
        float kk[4][4] = {}, qk[4][4] = {};
#pragma unroll
        for (int s = 0; s < K_STEPS; ++s) {
            unsigned k_a[4], q_a[4], b[4];
            ldmatrix_4(k_a, at(shared.k, S::STRIDE, 16 * row_tile + a_row, 16 * s + a_column));
            ldmatrix_4(q_a, at(shared.qv[1], S::STRIDE, 16 * row_tile + a_row, 16 * s + a_column));
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                if (2 * part + n <= row_tile) {
                    ldmatrix_4(b, at(shared.k, S::STRIDE, 32 * part + 16 * n + b_row, 16 * s + b_column));
                    mma_f16(kk[2 * n], k_a[0], k_a[1], k_a[2], k_a[3], b[0], b[1]);
                    mma_f16(kk[2 * n + 1], k_a[0], k_a[1], k_a[2], k_a[3], b[2], b[3]);
                    mma_f16(qk[2 * n], q_a[0], q_a[1], q_a[2], q_a[3], b[0], b[1]);
                    mma_f16(qk[2 * n + 1], q_a[0], q_a[1], q_a[2], q_a[3], b[2], b[3]);
                }
            }
        }
        recurrent_store_keys<L, WARPS>(scratch, number, key_head, shared.qv[1], shared.k, warp, lane);

#pragma unroll 1
        for (int index = 0; index < D::RATIO; ++index) {
            const int head = key_head * D::RATIO + index;
            const float *growth = shared.g[index], *betas = shared.beta[index];
            uint4* p_out = reinterpret_cast<uint4*>(L::p(scratch, number, head)) + (part * 8 + 2 * row_tile) * 32 + lane;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int t = 16 * row_tile + 8 * half + g;
                const float g_t = growth[t], beta_t = betas[t];
                unsigned p[4];  // pairs of source tokens 32 part + 8n + 2c
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int source = 32 * part + 8 * n + 2 * c;
                    float a_pair[2], p_pair[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int s = source + i;
                        const float decay = __expf(fminf(g_t - growth[s], 0.0f));
                        a_pair[i] = s < t ? beta_t * kk[n][2 * half + i] * decay : 0.0f;
                        p_pair[i] = s <= t ? SCALE * qk[n][2 * half + i] * decay : 0.0f;
                    }
                    *reinterpret_cast<float2*>(&shared.a[t * S::A_STRIDE + source]) = make_float2(a_pair[0], a_pair[1]);
                    p[n] = pack_f16_finite(p_pair[0], p_pair[1]);
                }
                p_out[half * 32] = make_uint4(p[0], p[1], p[2], p[3]);
            }
            __syncthreads();  // and everyone is done with the v before and with q
            delta_solve(shared.a, thread, [&] {
                if (index + 1 < D::RATIO) convolve_values(Four(), index + 1);
            });
            {   // up to the block of 16 on the diagonal
                const int s = 2 * lane;
                const float2 beta = *reinterpret_cast<const float2*>(betas + s), g_s = *reinterpret_cast<const float2*>(growth + s);
                const float2 grown = make_float2(__expf(g_s.x), __expf(g_s.y));
#pragma unroll
                for (int i = 0; i < DELTA_CHUNK / WARPS; ++i) {
                    const int t = i * WARPS + warp;
                    if (s / 16 > t / 16) continue;
                    const float2 pair = *reinterpret_cast<const float2*>(&shared.a[t * S::A_STRIDE + s]);
                    const float low = pair.x * beta.x, high = pair.y * beta.y;
                    *reinterpret_cast<unsigned*>(&shared.scaled[0][t * S::T_STRIDE + s]) = pack_f16_finite(low, high);
                    *reinterpret_cast<unsigned*>(&shared.scaled[1][t * S::T_STRIDE + s]) = pack_f16_finite(low * grown.x, high * grown.y);
                }
            }
            __syncthreads();

            // W: rows 16 row_tile .., keys 64 part + 32 i ....
            uint4* w_out = reinterpret_cast<uint4*>(L::w(scratch, number, head)) + 2 * row_tile * 32 + lane;
#pragma unroll 1
            for (int i = part * (C::KEY_DIM / 64); i < (part + 1) * (C::KEY_DIM / 64); ++i) {
                float w[4][4] = {};
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    if (s <= row_tile) {
                        unsigned t[4], b[4];
                        ldmatrix_4(t, at(shared.scaled[1], S::T_STRIDE, 16 * row_tile + a_row, 16 * s + a_column));
#pragma unroll
                        for (int n = 0; n < 2; ++n) {
                            ldmatrix_4_transposed(b, at(shared.k, S::STRIDE, 16 * s + b_column + lane % 8, 32 * i + 16 * n + lane / 16 * 8));
                            mma_f16(w[2 * n], t[0], t[1], t[2], t[3], b[0], b[1]);
                            mma_f16(w[2 * n + 1], t[0], t[1], t[2], t[3], b[2], b[3]);
                        }
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    w_out[(i * 8 + half) * 32] = make_uint4(pack_f16_finite(w[0][2 * half], w[0][2 * half + 1]), pack_f16_finite(w[1][2 * half], w[1][2 * half + 1]),
                                                            pack_f16_finite(w[2][2 * half], w[2][2 * half + 1]), pack_f16_finite(w[3][2 * half], w[3][2 * half + 1]));
            }
            // U transposed: values 16 m .., tokens 16 n ...
#pragma unroll 1
            for (int m = warp; m < C::VALUE_DIM / 16; m += WARPS) {
                uint4* u_out = reinterpret_cast<uint4*>(L::u(scratch, number, head)) + m * 4 * 32 + lane;
                unsigned v[4][4];
#pragma unroll
                for (int s = 0; s < 4; ++s) ldmatrix_4_transposed(v[s], at(shared.qv[index % 2], S::STRIDE, 16 * s + b_row, 16 * m + b_column));
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    float u[2][4] = {};
#pragma unroll
                    for (int s = 0; s <= n; ++s) {
                        unsigned b[4];
                        ldmatrix_4(b, at(shared.scaled[0], S::T_STRIDE, 16 * n + b_row, 16 * s + b_column));
                        mma_f16(u[0], v[s][0], v[s][1], v[s][2], v[s][3], b[0], b[1]);
                        mma_f16(u[1], v[s][0], v[s][1], v[s][2], v[s][3], b[2], b[3]);
                    }
                    u_out[n * 32] = make_uint4(pack_f16_finite(u[0][0], u[0][1]), pack_f16_finite(u[0][2], u[0][3]),
                                               pack_f16_finite(u[1][0], u[1][1]), pack_f16_finite(u[1][2], u[1][3]));
                }
            }
        }
    }
}

}  // namespace monomorph
