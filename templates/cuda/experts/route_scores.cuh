// Rows of results of a router, which the kernel that makes logits leaves for those that choose.
//
// A row has *keys* first, by which experts are chosen, and behind them what weighs them, if the keys alone do not, each an array of an
// element an expert:
//   scores   of routers that score: sigmoids choose after a correction of each expert's own is added, and weigh without it; keys are
//            score + correction. Without them keys are logits, whose softmax weighs.
//   scales   of experts that have such: they multiply the weight.
// (compiler/src/blocks/experts/graph.rs.) So those that choose read nothing but the row, and a sigmoid is taken once.
//
// Config of a kernel that chooses: `static constexpr float SCORE_SCALE`, what multiplies the weights, where rows have scores; of one that
// chooses or makes rows: `static constexpr bool EXPERT_SCALES`, where they have scales. Both are optional.
#pragma once

#include "core/async.cuh"

namespace monomorph {

// What experts have of their own: f32 [experts] each, or null.
struct OfExperts {
    const float* correction = nullptr;
    const float* scales = nullptr;
};

template <bool WITH_SCORES = false, bool WITH_SCALES = false>
struct RouterRow {
    static constexpr bool SCORED = WITH_SCORES, SCALED = WITH_SCALES;
    static constexpr int ARRAYS = 1 + SCORED + SCALED;
    // Floats of a row; of several arrays whole vectors.
    __host__ __device__ static constexpr int floats(int experts) { return ARRAYS == 1 ? experts : (ARRAYS * experts + 3) / 4 * 4; }
    // Where an expert's score and its scale stand.
    __device__ __forceinline__ static int score_at(int experts, int expert) { return experts + expert; }
    __device__ __forceinline__ static int scale_at(int experts, int expert) { return (ARRAYS - 1) * experts + expert; }

    // Leaves what a row has of an expert.
    __device__ __forceinline__ static void store(float* row, int experts, int expert, float logit, const OfExperts& own) {
        if constexpr (SCORED) {
            const float score = 1.0f / (1.0f + expf(-logit));
            row[expert] = score + load_constant(own.correction + expert);
            row[score_at(experts, expert)] = score;
        } else {
            row[expert] = logit;
        }
        if constexpr (SCALED) row[scale_at(experts, expert)] = load_constant(own.scales + expert);
    }
};

template <class C, class = void>
constexpr bool EXPERTS_SCALED = false;
template <class C>
constexpr bool EXPERTS_SCALED<C, decltype(void(C::EXPERT_SCALES))> = C::EXPERT_SCALES;

// How a kernel chooses. `void`: by logits.
template <class C, class = void>
struct Scored {
    using Row = RouterRow<false, EXPERTS_SCALED<C>>;
    static constexpr float SCALE = 1.0f;
};
template <class C>
struct Scored<C, decltype(void(C::SCORE_SCALE))> {
    using Row = RouterRow<true, EXPERTS_SCALED<C>>;
    static constexpr float SCALE = C::SCORE_SCALE;
};

}  // namespace monomorph
