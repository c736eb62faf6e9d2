// A mixture of experts as the tests see it: one struct of figures, and the Configs of the three phases made from it.
#pragma once
#include "core/common.cuh"
#include "experts/route.cuh"
#include "kernels/experts_stream.cuh"
#include "kernels/experts_stream_down.cuh"
#include "kernels/experts_stream_up.cuh"

// Bucket of ROWS rows, TOKENS of them in use.
struct ExpertsDefaults {
    static constexpr monomorph::Format FORMAT = monomorph::Format::F16, SHARED_FORMAT = monomorph::Format::F16, ROUTER = monomorph::Format::BF16;
    static constexpr monomorph::ScaleForm SCALES = monomorph::ScaleForm::ROWS, SHARED_SCALES = monomorph::ScaleForm::ROWS;
    static constexpr monomorph::Compute COMPUTE = monomorph::Compute::F16;
    static constexpr monomorph::Rounding ROUNDING = monomorph::Rounding::NONE;
    static constexpr int EXPERTS = 40, ACTIVE = 8, WIDTH = 96, SHARED_WIDTH = 64, HIDDEN = 256, ROWS = 1, TOKENS = ROWS;
    static constexpr bool RENORMALISE = true, UNGATED = false, REPLACES = false, EXPERT_SCALES = false;
    static constexpr float FACTOR = 1.0f;   // of what the router reads
    static constexpr monomorph::Norm NORM = monomorph::Norm::ONE_PLUS;
    static constexpr float EPS = 1e-6f;
    static constexpr monomorph::Activation ACTIVATION = monomorph::Activation::SILU;
    static constexpr int STAGES = 4, STAGE_BYTES = 16384, CONSUMER_WARPS = 8, FEW_STAGES = 2, FEW_STAGE_BYTES = 4096, BLOCKS = 132, SHARED_BLOCKS = 64, ROUTER_BLOCKS = 67;
};

// A ring of the block's, or one of each warp where a few rows are computed.
template <class K>
constexpr bool FEW_ROWS = K::COMPUTE == monomorph::Compute::F16 && K::ROWS > 2;
template <class K>
constexpr int STAGES_OF = FEW_ROWS<K> ? K::FEW_STAGES : K::STAGES;
template <class K>
constexpr int STAGE_BYTES_OF = FEW_ROWS<K> ? K::FEW_STAGE_BYTES : K::STAGE_BYTES;

// Whether both products can be one launch: blocks are on the card together.
template <class K>
constexpr bool ExpertsTogether = K::ROWS <= 2 && !K::REPLACES && K::FACTOR == 1.0f && K::COMPUTE == monomorph::Compute::F16 && K::ROWS * K::ACTIVE * K::WIDTH % 4 == 0 && K::BLOCKS <= 132;

template <class K>
struct RouteOf {
    static constexpr bool EXACT = K::COMPUTE == monomorph::Compute::EXACT;
    static constexpr monomorph::Format FORMAT = K::SHARED_FORMAT, ROUTER = K::ROUTER, SCALE = monomorph::Format::BF16;
    static constexpr monomorph::ScaleForm SCALES = K::SHARED_SCALES;
    static constexpr monomorph::Compute COMPUTE = K::COMPUTE;
    static constexpr monomorph::Rounding ROUNDING = K::ROUNDING;
    static constexpr int OUTPUTS = K::SHARED_WIDTH, INPUTS = K::HIDDEN, ROWS = EXACT ? K::ROWS : monomorph::least(K::ROWS, 4);
    static constexpr monomorph::Norm NORM = K::NORM;
    static constexpr float EPS = K::EPS;
    static constexpr monomorph::Epilogue EPILOGUE = monomorph::Epilogue::GATED;
    static constexpr monomorph::Activation ACTIVATION = K::ACTIVATION;
    static constexpr bool BIAS = false;
    static constexpr monomorph::Limit LIMIT = ROWS == K::ROWS ? monomorph::Limit::NONE : monomorph::Limit::TOKENS;
    static constexpr int STAGES = K::STAGES, STAGE_BYTES = K::STAGE_BYTES, CONSUMER_WARPS = K::CONSUMER_WARPS;
    static constexpr int BLOCKS = K::SHARED_WIDTH > 0 ? K::SHARED_BLOCKS : 0, MULTIPROCESSORS = 132, LOOKAHEAD = 0, PACE = 2;
    static constexpr bool EVICT_FIRST = ROWS == K::ROWS;
    static constexpr bool EXPERT_SCALES = K::EXPERT_SCALES;
    static constexpr float FACTOR = K::FACTOR;
    static constexpr int EXPERTS = K::EXPERTS, ROUTER_BLOCKS = K::ROUTER_BLOCKS, ARRIVING = ExpertsTogether<K> ? K::ROWS * K::ACTIVE * K::WIDTH : 0;
};
template <class K>
struct UpOf {
    static constexpr monomorph::Format FORMAT = K::FORMAT;
    static constexpr monomorph::Compute COMPUTE = K::COMPUTE;
    static constexpr monomorph::Rounding ROUNDING = K::ROUNDING;
    static constexpr monomorph::ScaleForm SCALES = K::SCALES;
    static constexpr int EXPERTS = K::EXPERTS, ACTIVE = K::ACTIVE, WIDTH = K::WIDTH, INPUTS = K::HIDDEN, ROWS = K::ROWS;
    static constexpr bool RENORMALISE = K::RENORMALISE, UNGATED = K::UNGATED, EXPERT_SCALES = K::EXPERT_SCALES, EVICT_FIRST = true;
    static constexpr monomorph::Norm NORM = K::NORM;
    static constexpr float EPS = K::EPS;
    static constexpr monomorph::Activation ACTIVATION = K::ACTIVATION;
    static constexpr monomorph::Limit LIMIT = K::ROWS == 1 ? monomorph::Limit::NONE : monomorph::Limit::TOKENS;
    static constexpr int STAGES = STAGES_OF<K>, STAGE_BYTES = STAGE_BYTES_OF<K>, CONSUMER_WARPS = K::CONSUMER_WARPS, BLOCKS = K::BLOCKS, AHEAD = 1 << 20;
};
template <class K>
struct DownOf {
    static constexpr monomorph::Compute COMPUTE = K::COMPUTE;
    static constexpr monomorph::Rounding ROUNDING = K::ROUNDING;
    static constexpr monomorph::Format FORMAT = K::FORMAT, SHARED_FORMAT = K::SHARED_FORMAT;
    static constexpr monomorph::ScaleForm SCALES = K::SCALES, SHARED_SCALES = K::SHARED_SCALES;
    static constexpr int EXPERTS = K::EXPERTS, ACTIVE = K::ACTIVE, WIDTH = K::WIDTH, SHARED_WIDTH = K::SHARED_WIDTH, OUTPUTS = K::HIDDEN, ROWS = K::ROWS;
    static constexpr monomorph::Limit LIMIT = UpOf<K>::LIMIT;
    static constexpr int STAGES = STAGES_OF<K>, STAGE_BYTES = STAGE_BYTES_OF<K>, CONSUMER_WARPS = K::CONSUMER_WARPS, BLOCKS = K::BLOCKS;
    static constexpr bool EVICT_FIRST = true, REPLACES = K::REPLACES;
};

// Both products in one launch.
template <class K>
struct BothOf : UpOf<K> {
    static constexpr monomorph::Format DOWN_FORMAT = K::FORMAT, SHARED_FORMAT = K::SHARED_FORMAT;
    static constexpr monomorph::ScaleForm DOWN_SCALES = K::SCALES, SHARED_SCALES = K::SHARED_SCALES;
    static constexpr int DOWN_STAGES = K::STAGES, DOWN_STAGE_BYTES = K::STAGE_BYTES, SHARED_WIDTH = K::SHARED_WIDTH;
};

// By hand, for the row of the scale stands alone: a build keeps it behind the router's, whose experts then fill whole tiles.
template <class C>
__global__ void __launch_bounds__(monomorph::RouteShape<C>::THREADS, monomorph::RouteShape<C>::RESIDENT)
route_kernel(const monomorph::Step* step, const float* x, const float* norm, const void* router, const void* scale_row, const void* codes, const void* scales,
             const float* row_scales, float* logits, float* scale, float* inner, float* arriving, const float* expert_scales) {
    monomorph::route<C>(step, x, norm, router, scale_row, codes, scales, row_scales, logits, scale, inner, arriving, nullptr, expert_scales);
}
// Floats of a row of the router's results.
template <class K>
constexpr int ROUTER_ROW = monomorph::RouterRow<false, K::EXPERT_SCALES>::floats(K::EXPERTS);
// What the phases read: device addresses. Planes of a matrix: codes, scales, row_scales.
struct Planes {
    const void* codes = nullptr;
    const void* scales = nullptr;
    const float* row_scales = nullptr;
};
struct Layer {
    const void *router = nullptr, *scale_row = nullptr;
    const float* norm = nullptr;
    const float* expert_scales = nullptr;
    Planes shared_up, up, down, shared_down;
};

template <class K>
void launch_route(cudaStream_t stream, const void* step, const float* x, const Layer& layer, float* logits, float* scale, float* inner, float* arriving) {
    using C = RouteOf<K>;
    using P = monomorph::RouteShape<C>;
    test::launch(route_kernel<C>, dim3(P::GRID, (K::ROWS + C::ROWS - 1) / C::ROWS), P::THREADS, P::SHARED, stream, static_cast<const monomorph::Step*>(step), x, layer.norm, layer.router,
                 layer.scale_row, layer.shared_up.codes, layer.shared_up.scales, layer.shared_up.row_scales, logits, scale, inner, arriving, layer.expert_scales);
}
template <class K>
void launch_up(cudaStream_t stream, const void* step, const float* x, const float* logits, const Layer& layer, float* inner, float* routing) {
    using P = monomorph::UpShape<UpOf<K>>;
    test::launch(monomorph::experts_stream_up_kernel<UpOf<K>, P::THREADS, P::SHARED, P::RESIDENT>, dim3(K::BLOCKS), P::THREADS, P::SHARED, stream, static_cast<const monomorph::Step*>(step), x, layer.norm, logits, layer.up.codes, layer.up.scales,
                 layer.up.row_scales, inner, routing);
}
template <class K>
void launch_down(cudaStream_t stream, const void* step, const float* inner, const float* routing, const float* shared_inner, const float* scale, const Layer& layer, float* residual) {
    using P = monomorph::DownShape<DownOf<K>>;
    test::launch(monomorph::experts_stream_down_kernel<DownOf<K>, P::THREADS, P::SHARED, P::RESIDENT>, dim3(K::BLOCKS), P::THREADS, P::SHARED, stream, static_cast<const monomorph::Step*>(step), inner, routing, shared_inner, scale, layer.down.codes,
                 layer.down.scales, layer.down.row_scales, layer.shared_down.codes, layer.shared_down.scales, layer.shared_down.row_scales, residual);
}
// Rings as in the two kernels where the card has the room, else shallower ones. `residual` is x too.
template <class K, int STAGES_>
struct Shallower : K {
    static constexpr int STAGES = STAGES_;
};
template <class K>
void launch_both(cudaStream_t stream, const void* step, const float* logits, const float* shared_inner, const float* scale, const Layer& layer, float* inner, float* residual) {
    using namespace monomorph;
    using Deep = ExpertsStream<UpOf<K>, DownOf<K>>;
    using K2 = std::conditional_t<Deep::SHARED <= 227 * 1024, K, Shallower<K, 2>>;
    using Both = ExpertsStream<UpOf<K2>, DownOf<K2>>;
    static_assert(Both::SHARED <= 227 * 1024, "two stages each fit");
    test::launch(experts_stream_kernel<BothOf<K2>, Both::THREADS, Both::SHARED>, dim3(K::BLOCKS), Both::THREADS, Both::SHARED, stream, static_cast<const Step*>(step), layer.norm, logits, shared_inner, scale,
                 layer.up.codes, layer.up.scales, layer.up.row_scales, layer.down.codes, layer.down.scales, layer.down.row_scales, layer.shared_down.codes, layer.shared_down.scales,
                 layer.shared_down.row_scales, layer.up.codes, static_cast<const char*>(layer.up.codes) + 512 * 264, inner, residual);
}
