// Routers that score: sigmoids choose after a correction of each expert's own is added, and weigh without it
// (compiler/src/blocks/experts/graph.rs).
//
// The kernel that makes logits makes scores of them. A row of its results has keys first, score + correction, by
// which experts are chosen as by logits, and scores behind: [EXPERTS keys | EXPERTS scores], padded to whole
// vectors. So those that choose need no correction, and a sigmoid is taken once.
//
// Config of a kernel that chooses: `static constexpr float SCORE_SCALE`, what multiplies the weights; without it,
// rows are logits.
#pragma once

#include "core/async.cuh"

namespace monomorph {

// `void`: no Config, hence no scores.
template <class C, class = void>
struct Scored {
    static constexpr bool SCORES = false;
    static constexpr float SCALE = 1.0f;
};
template <class C>
struct Scored<C, decltype(void(C::SCORE_SCALE))> {
    static constexpr bool SCORES = true;
    static constexpr float SCALE = C::SCORE_SCALE;
};

// Floats of a row of keys and scores, or of logits.
__host__ __device__ constexpr int router_row(bool scored, int experts) { return scored ? (2 * experts + 3) / 4 * 4 : experts; }

// Leaves the logit of an expert, or with SCORED key and score, in its row of results.
template <bool SCORED>
__device__ __forceinline__ void store_logit(float* row, int experts, int expert, float logit, const float* correction) {
    if constexpr (SCORED) {
        const float score = 1.0f / (1.0f + expf(-logit));
        row[expert] = score + load_constant(correction + expert);
        row[experts + expert] = score;
    } else {
        row[expert] = logit;
    }
}

}  // namespace monomorph
