// delta_prepare: the part of a delta-net prefill that does not depend on the state, all chunks at once (delta_chunk.cuh says what).
//
// Work: a unit is (chunk, key head); blocks of four warps take every (number of blocks)-th. Convolution, silu and norm of 16 tokens a
// warp, a token's channels across its lanes, once for q and k and once for each value head's v; K K^T and Q K^T of 16 rows a warp,
// kept in registers for all value heads; per head the gates, A, T, W, P and U. T is solved a column a thread, in blocks of 16 rows
// that stay in registers.
//
// Predicted, H200, 8,192 tokens of 16 key and 32 value heads of 128: reads 268 MB of q, k, v, writes 229 MB: 0.12 ms; 17 GFLOP on tensor
// cores are nothing beside it, the solve's 2,700 instructions a warp and head 0.03 ms in the other blocks' shadow: 0.18 ms in all.
// Shared memory: DeltaPrepareShared, three blocks an SM of an H200, one of a GB10.
#pragma once

#include "delta_net/delta_chunk.cuh"

namespace monomorph {

constexpr int DELTA_PREPARE_THREADS = 128;

struct DeltaPrepareShared {
    static constexpr int STRIDE = RECURRENT_STRIDE, A_STRIDE = 68, T_STRIDE = 72;
    alignas(16) unsigned short k[DELTA_CHUNK * STRIDE];
    alignas(16) unsigned short qv[DELTA_CHUNK * STRIDE];  // q, then v of one head after another
    union {
        alignas(16) float a[DELTA_CHUNK * A_STRIDE];
        alignas(16) unsigned short scaled[2][DELTA_CHUNK * T_STRIDE];  // T diag(beta), T diag(beta e^G)
    };
    float t[DELTA_CHUNK * DELTA_CHUNK];
    float g[DELTA_CHUNK], beta[DELTA_CHUNK];
};

template <class C>
constexpr size_t delta_prepare_shared_bytes() { return sizeof(DeltaPrepareShared); }

// Column `column` of (I + A)^-1, by one thread.
__device__ __forceinline__ void delta_solve(float* t, const float* a, int column) {
    constexpr int STRIDE = DeltaPrepareShared::A_STRIDE;
#pragma unroll 1
    for (int i = 0; i < DELTA_CHUNK; i += 16) {
        float x[16];
#pragma unroll
        for (int r = 0; r < 16; ++r) x[r] = i + r == column ? 1.0f : 0.0f;
#pragma unroll 1
        for (int k = 0; k < i; k += 16) {
            float known[16];
#pragma unroll
            for (int c = 0; c < 16; ++c) known[c] = t[(k + c) * DELTA_CHUNK + column];
#pragma unroll
            for (int r = 0; r < 16; ++r)
#pragma unroll
                for (int c = 0; c < 16; c += 4) {
                    const float4 four = *reinterpret_cast<const float4*>(a + (i + r) * STRIDE + k + c);
                    x[r] = fmaf(-four.x, known[c], fmaf(-four.y, known[c + 1], fmaf(-four.z, known[c + 2], fmaf(-four.w, known[c + 3], x[r]))));
                }
        }
#pragma unroll
        for (int r = 0; r < 16; ++r) {
#pragma unroll
            for (int c = 0; c < r; ++c) x[r] = fmaf(-a[(i + r) * STRIDE + i + c], x[c], x[r]);
            t[(i + r) * DELTA_CHUNK + column] = x[r];
        }
    }
}

// step; projected f32 [rows, PROJECTED]; gates f32 [rows, 2 VALUE_HEADS]: b, then a; weights, windows: of the layer; scratch: delta_scratch_bytes.
template <class C>
__device__ __forceinline__ void delta_prepare(const Step* step, const float* projected, const float* gates, DeltaWeights weights,
                                              const float* windows, unsigned char* scratch) {
    using D = DeltaShape<C>;
    using L = DeltaScratch<C>;
    using S = DeltaPrepareShared;
    constexpr int K_STEPS = C::KEY_DIM / 16;
    constexpr float SCALE = 0.08838834764831845f;  // 1 / sqrt(128)
    MONOMORPH_DYNAMIC_SHARED(delta_shared, 128);
    S& shared = *reinterpret_cast<S*>(delta_shared);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    // ldmatrix lane addresses: rows as they lie for A (16 x 16) and for B (two n-tiles), and transposed ones.
    const int a_row = lane % 16, a_column = lane / 16 * 8, b_row = lane / 16 * 8 + lane % 8, b_column = lane / 8 % 2 * 8;
    auto at = [](const unsigned short* matrix, int stride, int row, int column) { return shared_address(matrix + row * stride + column); };

    const int chunks = recurrent_chunks_before(step, step->sequences, lane);
    for (int unit = blockIdx.x; unit < chunks * C::KEY_HEADS; unit += gridDim.x) {
        const int number = unit / C::KEY_HEADS, key_head = unit % C::KEY_HEADS;
        const RecurrentChunk chunk = recurrent_find_chunk(step, number, lane);
        auto convolve = [&](auto norm, unsigned short* to, int channel) {
            recurrent_convolve<D, C::TAPS, C::PROJECTED, decltype(norm)::value, false>(to, projected, windows, weights.convolution, nullptr,
                                                                                       chunk, channel, warp, lane);
        };
        __syncthreads();  // everyone is done with the unit before
        convolve(std::true_type(), shared.qv, key_head * C::KEY_DIM);
        convolve(std::true_type(), shared.k, D::KEYS + key_head * C::KEY_DIM);
        __syncthreads();

        // K K^T and Q K^T: rows 16 warp .., columns 8n ... up to the diagonal.
        float kk[8][4] = {}, qk[8][4] = {};
#pragma unroll
        for (int s = 0; s < K_STEPS; ++s) {
            unsigned k_a[4], q_a[4], b[4];
            ldmatrix_4(k_a, at(shared.k, S::STRIDE, 16 * warp + a_row, 16 * s + a_column));
            ldmatrix_4(q_a, at(shared.qv, S::STRIDE, 16 * warp + a_row, 16 * s + a_column));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (n <= warp) {
                    ldmatrix_4(b, at(shared.k, S::STRIDE, 16 * n + b_row, 16 * s + b_column));
                    mma_f16(kk[2 * n], k_a[0], k_a[1], k_a[2], k_a[3], b[0], b[1]);
                    mma_f16(kk[2 * n + 1], k_a[0], k_a[1], k_a[2], k_a[3], b[2], b[3]);
                    mma_f16(qk[2 * n], q_a[0], q_a[1], q_a[2], q_a[3], b[0], b[1]);
                    mma_f16(qk[2 * n + 1], q_a[0], q_a[1], q_a[2], q_a[3], b[2], b[3]);
                }
            }
        }
        recurrent_store_keys<L>(scratch, number, key_head, shared.qv, shared.k, warp, lane);

#pragma unroll 1
        for (int head = key_head * D::RATIO; head < (key_head + 1) * D::RATIO; ++head) {
            __syncthreads();  // q is read, or the head before done
            convolve(std::false_type(), shared.qv, 2 * D::KEYS + head * C::VALUE_DIM);
            float* factors = reinterpret_cast<float*>(L::p(scratch, number, head) + L::P);
            if (warp == 0) {  // tokens 2 lane, 2 lane + 1
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
                reinterpret_cast<float2*>(shared.g)[lane] = make_float2(first, sum);
                reinterpret_cast<float2*>(shared.beta)[lane] = make_float2(beta[0], beta[1]);
                reinterpret_cast<float2*>(factors)[lane] = make_float2(__expf(first), __expf(sum));
                reinterpret_cast<float2*>(factors + DELTA_CHUNK)[lane] = make_float2(__expf(all - first), __expf(all - sum));
            }
            __syncthreads();

            unsigned p[2][8];  // by row half: pairs of source tokens 8n + 2c
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int t = 16 * warp + 8 * half + g;
                const float g_t = shared.g[t], beta_t = shared.beta[t];
#pragma unroll
                for (int n = 0; n < 8; ++n) {
                    float a_pair[2], p_pair[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int s = 8 * n + 2 * c + i;
                        const float decay = __expf(fminf(g_t - shared.g[s], 0.0f));
                        a_pair[i] = s < t ? beta_t * kk[n][2 * half + i] * decay : 0.0f;
                        p_pair[i] = s <= t ? SCALE * qk[n][2 * half + i] * decay : 0.0f;
                    }
                    *reinterpret_cast<float2*>(&shared.a[t * S::A_STRIDE + 8 * n + 2 * c]) = make_float2(a_pair[0], a_pair[1]);
                    p[half][n] = pack_f16_finite(p_pair[0], p_pair[1]);
                }
                uint4* p_out = reinterpret_cast<uint4*>(L::p(scratch, number, head)) + (2 * warp + half) * 32 + lane;
#pragma unroll
                for (int i = 0; i < 2; ++i) p_out[i * 8 * 32] = make_uint4(p[half][4 * i], p[half][4 * i + 1], p[half][4 * i + 2], p[half][4 * i + 3]);
            }
            __syncthreads();
            if (thread < DELTA_CHUNK) delta_solve(shared.t, shared.a, thread);
            __syncthreads();
            for (int i = thread; i < DELTA_CHUNK * DELTA_CHUNK / 2; i += DELTA_PREPARE_THREADS) {
                const int t = i / (DELTA_CHUNK / 2), s = i % (DELTA_CHUNK / 2) * 2;
                const float2 pair = *reinterpret_cast<const float2*>(&shared.t[t * DELTA_CHUNK + s]);
                const float low = pair.x * shared.beta[s], high = pair.y * shared.beta[s + 1];
                *reinterpret_cast<unsigned*>(&shared.scaled[0][t * S::T_STRIDE + s]) = pack_f16_finite(low, high);
                *reinterpret_cast<unsigned*>(&shared.scaled[1][t * S::T_STRIDE + s]) =
                    pack_f16_finite(low * __expf(shared.g[s]), high * __expf(shared.g[s + 1]));
            }
            __syncthreads();

            // W: rows 16 warp .., keys 32 i ....
            uint4* w_out = reinterpret_cast<uint4*>(L::w(scratch, number, head)) + 2 * warp * 32 + lane;
#pragma unroll 1
            for (int i = 0; i < C::KEY_DIM / 32; ++i) {
                float w[4][4] = {};
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    if (s <= warp) {
                        unsigned t[4], b[4];
                        ldmatrix_4(t, at(shared.scaled[1], S::T_STRIDE, 16 * warp + a_row, 16 * s + a_column));
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
            for (int m = 2 * warp; m < 2 * warp + 2; ++m) {
                uint4* u_out = reinterpret_cast<uint4*>(L::u(scratch, number, head)) + m * 4 * 32 + lane;
                unsigned v[4][4];
#pragma unroll
                for (int s = 0; s < 4; ++s) ldmatrix_4_transposed(v[s], at(shared.qv, S::STRIDE, 16 * s + b_row, 16 * m + b_column));
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
