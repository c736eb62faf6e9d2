// What the tests and the bench of a mixture of experts for many tokens share: configurations, kernels, packed random weights, launches.
#pragma once

#include "core/staged_host.cuh"

#include "kernels/experts_batch_combine.cuh"
#include "kernels/experts_gemm_mma.cuh"
#include "kernels/experts_gemm_wgmma.cuh"
#include "kernels/experts_place.cuh"
#include "kernels/experts_rings.cuh"
#include "kernels/experts_rings_down.cuh"
#include "kernels/experts_sort.cuh"
#include "kernels/experts_stage.cuh"

using namespace monomorph;

enum class Engine { WGMMA, MMA, RINGS };

// How work is cut: height of a work tile, strips, panels of a step, depths of the rings of weights and of x, blocks a multiprocessor.
template <Engine E, int T, int STRIP_COUNT, int PANEL_COUNT, int W, int N, int R, bool NARROW_PRODUCTS = false>
struct Cut {
    static constexpr Engine ENGINE = E;
    static constexpr int TOKENS = T, STRIPS = STRIP_COUNT, STAGE_PANELS = PANEL_COUNT, WEIGHT_STAGES = W, STAGES = N, RESIDENT = R;
    static constexpr bool NARROW = NARROW_PRODUCTS;
};

// By warps with rings of their own: warps, stages of a ring, units of a stage, blocks. Of Cut only the height and the stages mean anything.
template <int WARPS, int N, int UNITS_OF_STAGE, int GRID = 132>
struct RingsCut : Cut<Engine::RINGS, 8, 1, 2, 2, N, 1> {
    static constexpr int CONSUMER_WARPS = WARPS, STAGE_BYTES = UNITS_OF_STAGE * UNIT_BYTES, BLOCKS = GRID;
};

// The mixture, on a step of at most ROWS tokens.
template <Format F, ScaleForm SCALE_FORM, int EXPERT_COUNT, int ACTIVE_COUNT, int H, int W, int ROWS, bool NORMALISED = true, bool SHARED_EXPERT = true>
struct Mixture {
    static constexpr Format FORMAT = F;
    static constexpr ScaleForm SCALES = SCALE_FORM;
    static constexpr int EXPERTS = EXPERT_COUNT, ACTIVE = ACTIVE_COUNT, HIDDEN = H, WIDTH = W, STEP_ROWS = ROWS;
    static constexpr bool RENORMALISE = NORMALISED, SHARED = SHARED_EXPERT, SHARED_GATE = SHARED_EXPERT;
    static constexpr int LOGITS = EXPERTS / 4 * 4 + 4, GATE_STRIDE = LOGITS;  // the shared expert's gate stands behind a token's logits
    static constexpr bool EXPERT_SCALES = false;
    static constexpr Activation ACTIVATION = Activation::SILU;
    static constexpr Limit LIMIT = Limit::TOKENS;
};

// With scales of experts behind a token's logits, and another activation.
template <class Base>
struct ScaledMixture : Base {
    static constexpr bool EXPERT_SCALES = true, SHARED = false, SHARED_GATE = false;
    static constexpr int LOGITS = RouterRow<false, true>::floats(Base::EXPERTS), GATE_STRIDE = LOGITS;
    static constexpr Activation ACTIVATION = Activation::GELU_TANH;
};

// Configs of the kernels: the gated product, the other, sorting and the sum.
template <class M, class T, bool GATE>
struct Product : M, T {
    static constexpr int OUTPUTS = GATE ? M::WIDTH : M::HIDDEN, INPUTS = GATE ? M::HIDDEN : M::WIDTH;
    static constexpr int CAPACITY = ExpertLists<M::EXPERTS, M::ACTIVE, M::STEP_ROWS, T::TOKENS>::ROWS;
    static constexpr bool GATHER = GATE, BIAS = false;
    static constexpr int X_ROWS = GATE ? round_up(M::STEP_ROWS, 8) : CAPACITY, MULTICAST = 1, SPLIT = 1;
    static constexpr Epilogue EPILOGUE = GATE ? Epilogue::GATED : Epilogue::STORE;
};

template <class C, Engine E = C::ENGINE>
struct Build : ExpertsWgmma<C> {
    static constexpr auto* KERNEL = experts_gemm_wgmma_kernel<C, Build::THREADS, Build::SHARED_BYTES, C::RESIDENT>;
    static constexpr bool ROUNDS = false;   // inner rows
    static int blocks(int multiprocessors) { return expert_blocks<C>(multiprocessors); }
};
template <class C>
struct Build<C, Engine::MMA> : ExpertsMma<C> {
    static constexpr auto* KERNEL = experts_gemm_mma_kernel<C, Build::THREADS, Build::SHARED_BYTES, C::RESIDENT>;
    static constexpr bool ROUNDS = false;
    static int blocks(int multiprocessors) { return expert_blocks<C>(multiprocessors); }
};
template <class C>
struct Build<C, Engine::RINGS> : RingsShape<C> {
    static constexpr int SHARED_BYTES = Build::SHARED;
    static constexpr bool ROUNDS = !C::GATHER;
    static constexpr auto kernel() {
        if constexpr (C::GATHER) return experts_rings_kernel<C, Build::THREADS, Build::SHARED>;
        else return experts_rings_down_kernel<C, Build::THREADS, Build::SHARED>;
    }
    static constexpr auto KERNEL = kernel();
    static int blocks(int) { return C::BLOCKS; }
};

// The weight of all experts: [EXPERTS] packed matrices, plane by plane, random.
template <class C>
struct Weights {
    using S = ExpertShape<C>;
    using U = Unit<C::FORMAT>;
    static constexpr int ROWS = S::TILES * 8, BLOCKS = ceil_div(C::INPUTS, 128);
    std::vector<float> decoded;  // [EXPERTS][ROWS][INPUTS]; row_scales not applied
    std::vector<uint8_t> codes, scales;
    std::vector<float> row_scales, block_scales;

    static int feature(int row) { return S::GATED ? row / 16 * 8 + row % 8 : row; }
    float value(int expert, int row, int k) const { return decoded[(size_t(expert) * ROWS + row) * C::INPUTS + k]; }
    double scale(int expert, int row) const { return row_scales[size_t(expert) * ROWS + row]; }
    const void* scale_plane(const float* blocks, const uint8_t* units) const {
        return C::SCALES == ScaleForm::BLOCK128 ? static_cast<const void*>(blocks) : static_cast<const void*>(units);
    }

    explicit Weights(test::Random& r)
        : decoded(size_t(C::EXPERTS) * ROWS * C::INPUTS, 0.0f), codes(C::EXPERTS * S::CODE_BYTES, 0),
          scales(size_t(C::EXPERTS) * S::TILES * S::UNITS * U::SCALE_BYTES + 16, 0), row_scales(size_t(C::EXPERTS) * ROWS, 0.0f),
          block_scales(size_t(C::EXPERTS) * S::TILES * BLOCKS) {
        for (auto& s : block_scales) s = float(0.2 + 0.4 * r.uniform());
        for (int expert = 0; expert < C::EXPERTS; expert++) {
            for (int row = 0; row < ROWS; row++) {
                if (feature(row) >= C::OUTPUTS) continue;
                row_scales[size_t(expert) * ROWS + row] = float(0.5 + r.uniform()) * 0.01f;
                for (int k = 0; k < C::INPUTS; k++) set(r, expert, row, k);
            }
        }
    }

    // By a block's scale: rings scale sums.
    static float scaled(float value, float scale) {
        return C::ENGINE == Engine::RINGS ? value * scale : test::round_f16(value * test::round_f16(scale));
    }

    void set(test::Random& r, int expert, int row, int k) {
        const size_t tile = size_t(expert) * S::TILES + row / 8, unit = tile * S::UNITS + k / U::COLUMNS;
        const int column = k % U::COLUMNS, element = U::element_of(column);
        uint8_t* lane = &codes[unit * UNIT_BYTES + (row % 8 * 4 + U::lane_of(column)) * 16];
        float& value = decoded[(size_t(expert) * ROWS + row) * C::INPUTS + k];
        if (C::FORMAT == Format::F16) {
            const uint16_t code = test::float_to_f16(16 * r.normal());
            std::memcpy(lane + element * 2, &code, 2);
            value = test::f16_to_float(code);
        } else if (C::FORMAT == Format::FP8_E4M3) {
            lane[element] = uint8_t((r.bits() & 0x80) | r.below(0x60));
            value = test::e4m3_to_float(lane[element]);
            if (C::SCALES == ScaleForm::BLOCK128) value = scaled(value, block_scales[tile * BLOCKS + k / 128]);
        } else {
            uint8_t& group = scales[unit * U::SCALE_BYTES + row % 8 * 8 + column / 16];
            if (group == 0) group = uint8_t(0x28 + r.below(0x18));
            const uint8_t code = uint8_t(r.below(16));
            reinterpret_cast<uint32_t*>(lane)[element / 8] |= U::place(element, code);
            value = test::e2m1_to_float(code) * test::e4m3_to_float(group);
        }
    }
};

// Device memory of one mixture's lists and activations.
template <class M, class T>
struct Workspace {
    using Lists = ExpertLists<M::EXPERTS, M::ACTIVE, M::STEP_ROWS, T::TOKENS>;
    test::Buffer<char> lists{size_t(Lists::BYTES)};
    test::Buffer<float> inner{size_t(Lists::ROWS) * M::WIDTH};
    test::Buffer<uint16_t> staged{staged_bytes(Lists::ROWS, M::WIDTH) / 2};
    test::Buffer<char> products{T::NARROW ? NarrowProducts<Lists::ROWS, M::HIDDEN>::BYTES : size_t(Lists::ROWS) * M::HIDDEN * 4};
    Workspace() { lists.zero(); }
};

// What the down products read.
template <class D, class Space>
const void* input(const Space& space) {
    if constexpr (Build<D>::ROUNDS) return space.inner.pointer;
    else return space.staged.pointer;
}

template <class C>
void launch_product(int multiprocessors, cudaStream_t stream, const char* lists, const void* x, const void* codes, const void* scales,
                    const float* row_scales, void* out) {
    test::launch(Build<C>::KERNEL, dim3(Build<C>::blocks(multiprocessors)), Build<C>::THREADS, Build<C>::SHARED_BYTES, stream, lists, x, codes, scales,
                 row_scales, out);
}

template <class C>
void launch_stage(cudaStream_t stream, const char* lists, const float* x, void* out) {
    test::launch(experts_stage_kernel<C, EXPERTS_STAGE_THREADS>, dim3(ceil_div(C::CAPACITY, EXPERTS_STAGE_THREADS / 32)), EXPERTS_STAGE_THREADS, 0, stream, lists, x, out);
}

template <class C>
void launch_sort(cudaStream_t stream, const Step* step, const float* logits, char* lists) {
    using S = SortShape<C>;
    test::launch(experts_sort_kernel<C, S::THREADS>, dim3(S::BLOCKS), S::THREADS, 0, stream, step, logits, lists);
    if constexpr (!S::ONE_CHUNK) test::launch(experts_place_kernel<C, S::PLACE_THREADS>, dim3(S::PLACE_BLOCKS), S::PLACE_THREADS, 0, stream, step, lists);
}

template <class C>
void launch_combine(cudaStream_t stream, const Step* step, const char* lists, const void* products, const float* shared, const float* logits, float* out) {
    using S = CombineShape<C>;
    test::launch(experts_batch_combine_kernel<C, S::THREADS>, dim3(C::STEP_ROWS, S::BLOCKS), S::THREADS, 0, stream, step, lists, products, shared, logits, out);
}
