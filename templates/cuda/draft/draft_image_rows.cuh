// draft_image_rows: behind draft_embed, in a prefill: out[.., first HIDDEN columns] = norm(row of an image), where the token that follows a row stands for
// a part of one. Of the next token fed it is that token's row (ImageRow), of what follows a sequence's last DraftImages::following.
//
// Config: draft_embed's. kept f32 [.., HIDDEN], embedding_norm f32 [HIDDEN], out f32 [rows, 2 HIDDEN].
// Launch: a block of THREADS a row, rows beyond step->tokens are passed over; dynamic shared memory: a row, f32.
#pragma once

#include "draft/draft_embed.cuh"
#include "vision/draft_images.cuh"

namespace monomorph {

template <class C>
constexpr int draft_image_rows_shared_bytes() { return 4 * C::HIDDEN; }

template <class C>
__device__ __forceinline__ void draft_image_rows(const Step* step, const TokenRow* tokens, const ImageRow* images, const float* kept,
                                                 const float* embedding_norm, float* out) {
    MONOMORPH_DYNAMIC_SHARED(draft_shared, 16);
    float* const followed = reinterpret_cast<float*>(draft_shared);
    launch_dependents();
    wait_for_predecessors();
    const int row = blockIdx.x;
    if (row >= step->tokens) return;
    const int of = tokens[row].sequence;
    const Sequence& sequence = step->sequence[of];
    const int at = row + 1 < sequence.first_token + sequence.count ? images[row + 1].row : draft_images(step).following[of];
    if (at < 0) return;
    for (int i = threadIdx.x; i < C::HIDDEN; i += C::THREADS) followed[i] = load_activation(kept + static_cast<size_t>(at) * C::HIDDEN + i);
    __syncthreads();
    const auto inverse = draft_inverse_rms<C>(followed);
    float* const to = out + static_cast<size_t>(row) * 2 * C::HIDDEN;
    for (int i = threadIdx.x; i < C::HIDDEN; i += C::THREADS) to[i] = draft_normed<C>(followed[i], inverse, embedding_norm + i);
}

}  // namespace monomorph
