// Where a pass of a draft head begins: out = [norm(embedding of the token that follows) | norm(norm(x))], the second the hidden state of the row.
//
//   norm:  y = v / sqrt(mean(v^2) + EPS) * w   (ONE_PLUS: * (1 + w)); a hidden state is x after the norm of its head, and is normed again
//
// Config: HIDDEN, THREADS, FORMAT and SCALES of the embedding (embed.cuh); NORM (PLAIN or ONE_PLUS), EPS, of all three; EXACT: sums in f64, rounded once, as the
// reference interpreter does; DECODE: ids[row] follows row; otherwise rows are `tokens`, the next of them follows, and behind a sequence's last
// Sequence::following or, where that is -1, the id last sampled for its slot (`ids` by slot).
// x f32 [rows, HIDDEN], embedding_norm, norm, hidden_norm f32 [HIDDEN], out f32 [rows, 2 HIDDEN].
//
// Launch: a block of THREADS a row, rows beyond step->tokens are passed over; dynamic shared memory: both vectors, f32. A row costs 16 bytes a
// column, and four barriers: a boundary and 1.5 us for few rows.
#pragma once

#include "ends/embed.cuh"
#include "products/stage.cuh"

namespace monomorph {

template <class C>
constexpr int draft_embed_shared_bytes() { return 8 * C::HIDDEN; }

// 1 / rms of HIDDEN values, in every thread of the block; behind a barrier of those who wrote them.
template <class C>
__device__ __forceinline__ auto draft_inverse_rms(const float* values) {
    using Sum = std::conditional_t<C::EXACT, double, float>;
    MONOMORPH_SHARED(sums, Sum[C::THREADS / 32]);
    Sum sum = 0;
    for (int i = threadIdx.x; i < C::HIDDEN; i += C::THREADS) sum += Sum(values[i]) * Sum(values[i]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    __syncthreads();  // whoever read the sums before is done
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < C::THREADS / 32; ++i) sum += sums[i];
    return Sum(1) / sqrt(sum / Sum(C::HIDDEN) + Sum(C::EPS));
}

template <class C, class Sum>
__device__ __forceinline__ float draft_normed(float value, Sum inverse, const float* weight) {
    const float w = load_constant(weight);
    return static_cast<float>(Sum(value) * inverse * Sum(C::NORM == Norm::ONE_PLUS ? 1.0f + w : w));
}

template <class C>
__device__ __forceinline__ void draft_embed(const Step* step, const TokenRow* tokens, const int* ids, const void* codes, const void* scales,
                                            const float* row_scales, const float* embedding_norm, const float* x, const float* norm,
                                            const float* hidden_norm, float* out) {
    using U = Unit<C::FORMAT>;
    static_assert(C::NORM != Norm::NONE, "a draft head's inputs are normed");
    MONOMORPH_DYNAMIC_SHARED(draft_shared, 16);
    float* const embedding = reinterpret_cast<float*>(draft_shared);
    float* const hidden = embedding + C::HIDDEN;
    launch_dependents();
    wait_for_predecessors();
    const int row = blockIdx.x;
    if (row >= step->tokens) return;
    int id;
    if constexpr (C::DECODE) {
        id = ids[row];
    } else {
        const Sequence& sequence = step->sequence[tokens[row].sequence];
        id = row + 1 < sequence.first_token + sequence.count ? tokens[row + 1].id : sequence.following;
        if (id < 0) id = ids[sequence.slot];
    }
    for (int i = threadIdx.x; i < C::HIDDEN; i += C::THREADS) hidden[i] = load_activation(x + static_cast<size_t>(row) * C::HIDDEN + i);
    for (int piece = threadIdx.x; piece < EmbedShape<C>::PIECES; piece += C::THREADS) {
        float values[U::ELEMENTS];
        embed_piece<C>(codes, scales, row_scales, id, piece, values);
#pragma unroll
        for (int j = 0; j < U::ELEMENTS; ++j) {
            const int column = piece / 4 * U::COLUMNS + U::column(j, piece % 4);
            if (column < C::HIDDEN) embedding[column] = values[j];
        }
    }
    __syncthreads();
    float* const to = out + static_cast<size_t>(row) * 2 * C::HIDDEN;
    const auto of_embedding = draft_inverse_rms<C>(embedding), of_x = draft_inverse_rms<C>(hidden);
    for (int i = threadIdx.x; i < C::HIDDEN; i += C::THREADS) {
        to[i] = draft_normed<C>(embedding[i], of_embedding, embedding_norm + i);
        hidden[i] = draft_normed<C>(hidden[i], of_x, norm + i);
    }
    __syncthreads();
    const auto of_hidden = draft_inverse_rms<C>(hidden);
    for (int i = threadIdx.x; i < C::HIDDEN; i += C::THREADS) to[C::HIDDEN + i] = draft_normed<C>(hidden[i], of_hidden, hidden_norm + i);
}

}  // namespace monomorph
