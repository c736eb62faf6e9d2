// mamba2_prepare: the part of a Mamba-2 prefill that does not depend on the state, all chunks at once (mamba2_chunk.cuh says what).
//
// Work: a unit is (chunk, group); blocks of four warps take every (number of blocks)-th. Convolution and silu of 16 tokens a warp, a
// token's channels across its lanes, once for B and C and once for each set of heads that are 128 columns together; C B^T of 16 rows a
// warp, kept in registers for all heads; per head the running sums of its log decays, P and U.
//
// Predicted, H200, 8,192 tokens of 64 heads of 64, 8 groups and a state of 128: reads 200 MB of x, B and C, writes 170 MB: 0.09 ms, with
// 64 exponentials a lane and head 0.1 ms.
// Shared memory: Mamba2PrepareShared, three blocks an SM of an H200, two of a GB10.
#pragma once

#include "mamba2/mamba2_chunk.cuh"

namespace monomorph {

constexpr int MAMBA2_PREPARE_THREADS = 128;

template <class C>
struct Mamba2PrepareShared {
    static constexpr int HEADS = 128 / C::HEAD_DIM;                              // that x holds
    alignas(16) unsigned short b[RECURRENT_CHUNK * RECURRENT_STRIDE];
    alignas(16) unsigned short cx[RECURRENT_CHUNK * RECURRENT_STRIDE];  // C, then x of one set of heads after another
    float g[HEADS][RECURRENT_CHUNK], time[HEADS][RECURRENT_CHUNK];
    static_assert(HEADS * C::HEAD_DIM == 128 && C::HEAD_DIM % 16 == 0 && C::STATE == 128, "other heads are mamba2_plain's");
    static_assert(Mamba2Shape<C>::RATIO % HEADS == 0 && C::PROJECTED % 4 == 0, "other heads are mamba2_plain's");
};

template <class C>
constexpr size_t mamba2_prepare_shared_bytes() { return sizeof(Mamba2PrepareShared<C>); }

// step; projected f32 [rows, PROJECTED]; weights, windows: of the layer; scratch: mamba2_scratch_bytes.
template <class C>
__device__ __forceinline__ void mamba2_prepare(const Step* step, const float* projected, Mamba2Weights weights, const float* windows,
                                               unsigned char* scratch) {
    using M = Mamba2Shape<C>;
    using L = Mamba2Scratch<C>;
    using S = Mamba2PrepareShared<C>;
    constexpr int CHUNK = RECURRENT_CHUNK;
    MONOMORPH_DYNAMIC_SHARED(mamba2_shared, 128);
    S& shared = *reinterpret_cast<S*>(mamba2_shared);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    // ldmatrix lane addresses: rows as they lie for A (16 x 16) and for B (two n-tiles), and transposed ones.
    const int a_row = lane % 16, a_column = lane / 16 * 8, b_row = lane / 16 * 8 + lane % 8, b_column = lane / 8 % 2 * 8;
    auto at = [](const unsigned short* matrix, int row, int column) { return shared_address(matrix + row * RECURRENT_STRIDE + column); };

    const int chunks = recurrent_chunks_before(step, step->sequences, lane);
    for (int unit = blockIdx.x; unit < chunks * C::GROUPS; unit += gridDim.x) {
        const int number = unit / C::GROUPS, group = unit % C::GROUPS;
        const RecurrentChunk chunk = recurrent_find_chunk(step, number, lane);
        auto convolve = [&](unsigned short* to, int channel) {
            recurrent_convolve<M, MAMBA2_PREPARE_THREADS / 32, 8, C::TAPS, C::PROJECTED, false, true>(to, projected + M::INPUTS, windows, weights.convolution,
                                                                      weights.convolution_bias, chunk, channel, warp, lane);
        };
        __syncthreads();  // everyone is done with the unit before
        convolve(shared.cx, M::VALUES + M::KEYS + group * C::STATE);
        convolve(shared.b, M::VALUES + group * C::STATE);
        __syncthreads();

        // C B^T: rows 16 warp .., columns 8n ... up to the diagonal.
        float cb[8][4] = {};
#pragma unroll
        for (int s = 0; s < C::STATE / 16; ++s) {
            unsigned a[4], b[4];
            ldmatrix_4(a, at(shared.cx, 16 * warp + a_row, 16 * s + a_column));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (n <= warp) {
                    ldmatrix_4(b, at(shared.b, 16 * n + b_row, 16 * s + b_column));
                    mma_f16(cb[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
                    mma_f16(cb[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                }
            }
        }
        recurrent_store_keys<L, MAMBA2_PREPARE_THREADS / 32>(scratch, number, group, shared.cx, shared.b, warp, lane);

#pragma unroll 1
        for (int first = group * M::RATIO; first < (group + 1) * M::RATIO; first += S::HEADS) {
            __syncthreads();  // C is read, or the heads before done
            convolve(shared.cx, first * C::HEAD_DIM);
            for (int i = warp; i < S::HEADS; i += MAMBA2_PREPARE_THREADS / 32) {  // tokens 2 lane, 2 lane + 1
                const int head = first + i;
                const float a_log = load_constant(weights.a_log + head), dt_bias = load_constant(weights.dt_bias + head);
                float decay[2], time[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int token = 2 * lane + j;
                    const float dt = load_activation(projected + size_t(chunk.row + min(token, chunk.tokens - 1)) * C::PROJECTED + M::TIMES + head);
                    time[j] = token < chunk.tokens ? recurrent_softplus(dt + dt_bias) : 0.0f;
                    decay[j] = mamba2_log_decay(time[j], a_log);
                }
                float sum = decay[0] + decay[1];
#pragma unroll
                for (int distance = 1; distance < 32; distance *= 2) {
                    const float before = __shfl_up_sync(0xffffffffu, sum, distance);
                    if (lane >= distance) sum += before;
                }
                const float all = __shfl_sync(0xffffffffu, sum, 31), earlier = sum - decay[1];
                reinterpret_cast<float2*>(shared.g[i])[lane] = make_float2(earlier, sum);
                reinterpret_cast<float2*>(shared.time[i])[lane] = make_float2(time[0], time[1]);
                float2* factors = reinterpret_cast<float2*>(L::p(scratch, number, head) + L::P) + lane;
                factors[0] = make_float2(__expf(earlier), __expf(sum));
                factors[CHUNK / 2] = make_float2(__expf(all - earlier) * time[0], __expf(all - sum) * time[1]);
            }
            __syncthreads();

#pragma unroll 1
            for (int i = 0; i < S::HEADS; ++i) {
                const float d = load_constant(weights.d + first + i);
                uint4* p_out = reinterpret_cast<uint4*>(L::p(scratch, number, first + i)) + 2 * warp * 32 + lane;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int t = 16 * warp + 8 * half + g;
                    const float g_t = shared.g[i][t];
                    unsigned p[8];  // pairs of source tokens 8n + 2c
#pragma unroll
                    for (int n = 0; n < 8; ++n) {
                        const int s = 8 * n + 2 * c;
                        const float2 g_s = *reinterpret_cast<const float2*>(&shared.g[i][s]);
                        const float2 time = *reinterpret_cast<const float2*>(&shared.time[i][s]);
                        float low = s <= t ? cb[n][2 * half] * __expf(fminf(g_t - g_s.x, 0.0f)) * time.x : 0.0f;
                        float high = s < t ? cb[n][2 * half + 1] * __expf(fminf(g_t - g_s.y, 0.0f)) * time.y : 0.0f;
                        if (s == t) low += d;
                        if (s + 1 == t) high += d;
                        p[n] = pack_f16_finite(low, high);
                    }
#pragma unroll
                    for (int k = 0; k < 2; ++k) p_out[(k * 8 + half) * 32] = make_uint4(p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]);
                }
            }
            // U transposed: columns 16 m .., tokens 16 n ...
#pragma unroll
            for (int m = 2 * warp; m < 2 * warp + 2; ++m) {
                const int head = first + 16 * m / C::HEAD_DIM;
                uint4* u_out = reinterpret_cast<uint4*>(L::u(scratch, number, head)) + m % (C::HEAD_DIM / 16) * 4 * 32 + lane;
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    unsigned x[4];
                    ldmatrix_4_transposed(x, at(shared.cx, 16 * n + b_row, 16 * m + b_column));
                    u_out[n * 32] = make_uint4(x[0], x[1], x[2], x[3]);
                }
            }
        }
    }
}

}  // namespace monomorph
