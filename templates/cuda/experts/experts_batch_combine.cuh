// The end of a mixture of experts for more than a few tokens: out[token] += sum over slots s, in their order, of
// weight_s * product[row of (token, s)], then, SHARED, + scale * shared[token], all in f32. SHARED_GATE: scale = sigmoid(gate[token]), else 1.
// REPLACES, if there: out[token] = this sum, whatever it was.
//
// Config: HIDDEN, EXPERTS, ACTIVE, STEP_ROWS, TOKENS (of the work tiles), NARROW (products are NarrowProducts, not f32), SHARED, SHARED_GATE,
//   GATE_STRIDE (floats from one token's gate to the next's), LIMIT, ROUTED (experts_batch.cuh). gate: behind EXPERTS logits. world: of an Add
//   that sums over ranks (experts_batch_combine_sum.cuh).
// Launch: grid (STEP_ROWS, CombineShape<C>::BLOCKS), block THREADS, no dynamic shared memory.
#pragma once

#include "experts/experts_batch.cuh"
#include "experts/route_choose.cuh"

namespace monomorph {

struct World;   // exchange/world.cuh

template <class C>
struct CombineShape {
    static constexpr int VECTOR = C::HIDDEN % 4 == 0 ? 4 : 1;  // columns of a thread
    static constexpr int COLUMNS = ceil_div(C::HIDDEN, VECTOR);
    static constexpr int THREADS = COLUMNS >= 256 ? 256 : round_up(COLUMNS, 32);
    static constexpr int BLOCKS = ceil_div(COLUMNS, THREADS);
};

// VECTOR adjacent values of a row of f32 or f16.
template <int VECTOR, bool NARROW>
__device__ __forceinline__ void load_columns(float (&values)[VECTOR], const void* rows, size_t first) {
    if constexpr (NARROW && VECTOR == 4) {
        const uint2 pairs = load_activation(reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(rows) + first));
        const float2 low = unpack_f16(pairs.x), high = unpack_f16(pairs.y);
        values[0] = low.x, values[1] = low.y, values[2] = high.x, values[3] = high.y;
    } else if constexpr (NARROW) {
        values[0] = half_bits_to_float(load_activation(static_cast<const unsigned short*>(rows) + first));
    } else if constexpr (VECTOR == 4) {
        const float4 four = load_activation(reinterpret_cast<const float4*>(static_cast<const float*>(rows) + first));
        values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
    } else {
        values[0] = load_activation(static_cast<const float*>(rows) + first);
    }
}

// What becomes of a thread's columns: they are added to `out`, at its column `at`.
template <class C>
struct CombineAdd {
    __device__ __forceinline__ explicit CombineAdd(World*) {}
    __device__ __forceinline__ void begin() {}   // behind the wait
    __device__ __forceinline__ void no_part(int) {}   // of a block without a token; of how many in all
    template <int VECTOR>
    __device__ __forceinline__ void add(float* out, size_t at, const float (&residual)[VECTOR], const float (&sum)[VECTOR]) const {
        if constexpr (VECTOR == 4) {
            *reinterpret_cast<float4*>(out + at) = make_float4(residual[0] + sum[0], residual[1] + sum[1], residual[2] + sum[2], residual[3] + sum[3]);
        } else {
            out[at] = residual[0] + sum[0];
        }
    }
};

template <class C, class Add = CombineAdd<C>>
__device__ __forceinline__ void experts_combine(const Step* step, const char* lists, const void* products, const float* shared, const float* gate,
                                                float* out, World* world = nullptr) {
    using S = CombineShape<C>;
    using Lists = ListsOf<C>;
    launch_dependents();
    Add end(world);
    wait_for_predecessors();
    end.begin();
    const int token = blockIdx.x;
    const int own_column = (blockIdx.y * S::THREADS + threadIdx.x) * S::VECTOR, column = own_column < C::HIDDEN ? own_column : 0;
    const int tokens = gemm_rows<C>(step);
    if (token >= tokens) {
        end.no_part(tokens);
        return;
    }
    // A lane asks for one slot and the warp shares what came: two loads, then those of all products at once. Weights go by way of shared
    // memory and a barrier behind those loads: the assembler would otherwise use a product before it asks for the next, to save registers.
    MONOMORPH_SHARED(weights, float[C::ACTIVE]);
    const int slot = token * C::ACTIVE + min(static_cast<int>(threadIdx.x % 32), C::ACTIVE - 1);
    const int own_row = load_activation(reinterpret_cast<const int*>(lists + Lists::ROW_OF_PAIR_AT) + slot);
    const float own_weight = load_activation(reinterpret_cast<const float*>(lists + Lists::WEIGHTS_AT) + slot);
    int row[C::ACTIVE];
#pragma unroll
    for (int s = 0; s < C::ACTIVE; s++) row[s] = __shfl_sync(0xffffffff, own_row, s);
    const size_t own = size_t(token) * C::HIDDEN + column;
    if constexpr (SHARED_OUT<C>) gate += Routed<C>::COUNT - C::EXPERTS;   // it stands behind the logits of all
    float residual[S::VECTOR] = {}, shared_part[S::VECTOR], scale = 1.0f;
    if constexpr (!REPLACED<C>) load_columns<S::VECTOR, false>(residual, out, own);
    if constexpr (C::SHARED) {
        load_columns<S::VECTOR, false>(shared_part, shared, own);
        if constexpr (C::SHARED_GATE) scale = load_activation(gate + size_t(token) * C::GATE_STRIDE);
    }
    float products_of[C::ACTIVE][S::VECTOR];
#pragma unroll
    for (int s = 0; s < C::ACTIVE; s++) {
        // What another rank computes is 0 here, and nothing is read for it.
        for (float& product : products_of[s]) product = 0.0f;
        if (!SHARED_OUT<C> || row[s] >= 0) load_columns<S::VECTOR, C::NARROW>(products_of[s], products, size_t(row[s]) * C::HIDDEN + column);
    }

    float factor[C::ACTIVE];
    if constexpr (C::NARROW) {
        using Narrow = NarrowProducts<Lists::ROWS, C::HIDDEN>;
        const float* const scales = reinterpret_cast<const float*>(static_cast<const char*>(products) + Narrow::SCALES_AT);
#pragma unroll
        for (int s = 0; s < C::ACTIVE; s++)
            factor[s] = !SHARED_OUT<C> || row[s] >= 0 ? load_activation(scales + size_t(row[s]) * Narrow::SCALES + column / Narrow::SPAN) : 0.0f;
    }

    if (threadIdx.x < C::ACTIVE) weights[threadIdx.x] = own_weight;
    __syncthreads();
    float sum[S::VECTOR] = {};
#pragma unroll
    for (int s = 0; s < C::ACTIVE; s++) {
#pragma unroll
        for (int i = 0; i < S::VECTOR; i++) sum[i] += (C::NARROW ? weights[s] * factor[s] : weights[s]) * products_of[s][i];
    }
    if (own_column >= C::HIDDEN) return;
    if constexpr (C::SHARED) {
        if constexpr (C::SHARED_GATE) scale = 1.0f / (1.0f + expf(-scale));
#pragma unroll
        for (int i = 0; i < S::VECTOR; i++) sum[i] += scale * shared_part[i];
    }
    end.add(out, own, residual, sum);   // behind a barrier of the block
}

}  // namespace monomorph
