// Checks and times the mixture of experts for few tokens (templates/cuda/experts/route.cuh, experts_stream_up.cuh, experts_stream_down.cuh,
// experts_stream.cuh), and checks the router for many (route_batch.cuh).
// `experts_stream`: formats, numbers of tokens and awkward shapes against a host reference in double precision, each with planted defects.
// `experts_stream bench`: the phases alone, the chain of three and that of two in a graph with dependent launch, at the shapes of real models.
// Exit code: the number of failures.
#ifndef SUITE
#define SUITE 0   // 0: everything; 1, 2: halves of the checks; 3: bench
#endif
#if SUITE != 3
#include "experts/route_batch_check.cuh"
#endif
#if SUITE == 0 || SUITE == 3
#include "experts/experts_stream_bench.cuh"
#endif

using namespace monomorph;

#define CASE(name, base, ...)      \
    struct name : base {           \
        __VA_ARGS__                \
    };
#define IS static constexpr
#define FP8_BLOCK IS Format FORMAT = Format::FP8_E4M3, SHARED_FORMAT = FORMAT; IS ScaleForm SCALES = ScaleForm::BLOCK128, SHARED_SCALES = SCALES;
#define FP8_TENSOR IS Format FORMAT = Format::FP8_E4M3, SHARED_FORMAT = FORMAT; IS ScaleForm SCALES = ScaleForm::ROWS, SHARED_SCALES = SCALES;
#define NVFP4_BOTH IS Format FORMAT = Format::NVFP4, SHARED_FORMAT = FORMAT; IS ScaleForm SCALES = ScaleForm::ROWS, SHARED_SCALES = SCALES;

// ---- One token ----
CASE(One, ExpertsDefaults)
CASE(OneFp8, ExpertsDefaults, FP8_BLOCK IS int WIDTH = 256, SHARED_WIDTH = 128, HIDDEN = 384;)
CASE(OneFp8Tensor, ExpertsDefaults, FP8_TENSOR IS Activation ACTIVATION = Activation::GELU_TANH;)
CASE(OneNvfp4, ExpertsDefaults, NVFP4_BOTH IS int WIDTH = 256, HIDDEN = 512; IS bool RENORMALISE = false;)
CASE(OneMixed, ExpertsDefaults, IS Format FORMAT = Format::NVFP4; IS ScaleForm SCALES = ScaleForm::ROWS; IS int WIDTH = 128; IS Norm NORM = Norm::PLAIN;)
CASE(OneFewBlocks, ExpertsDefaults, IS int HIDDEN = 640, WIDTH = 200, BLOCKS = 7, SHARED_BLOCKS = 3, ROUTER_BLOCKS = 2, STAGES = 3;)
// The hidden size of a toy, fewer tiles than blocks, an expert of three tiles; all experts chosen.
CASE(Awkward, ExpertsDefaults, IS int EXPERTS = 5, ACTIVE = 5, HIDDEN = 40, WIDTH = 24, SHARED_WIDTH = 20; IS int CONSUMER_WARPS = 4, STAGE_BYTES = 8192;)
CASE(AwkwardAlone, ExpertsDefaults, IS int EXPERTS = 33, ACTIVE = 1, HIDDEN = 57, WIDTH = 21, SHARED_WIDTH = 0; IS Format ROUTER = Format::F32; IS int ROUTER_BLOCKS = 9;)
// Without gates; inner rows of whole pairs of tiles.
#define UNGATED_EXPERTS IS bool UNGATED = true; IS Activation ACTIVATION = Activation::RELU2;
CASE(Ungated, ExpertsDefaults, UNGATED_EXPERTS)
CASE(UngatedNvfp4, ExpertsDefaults, NVFP4_BOTH UNGATED_EXPERTS IS bool REPLACES = true; IS int WIDTH = 272, HIDDEN = 512, SHARED_WIDTH = 0;)
CASE(UngatedFp8, ExpertsDefaults, FP8_TENSOR UNGATED_EXPERTS IS int HIDDEN = 640, BLOCKS = 7, STAGES = 3;)
// Gemma 4's: a factor of what the router reads, and scales of experts, whose rows fill whole vectors or not.
#define GEMMA IS bool EXPERT_SCALES = true, REPLACES = true; IS float FACTOR = 0.01884f; IS int SHARED_WIDTH = 0; IS Norm NORM = Norm::PLAIN; IS Activation ACTIVATION = Activation::GELU_TANH;
CASE(Scaled, ExpertsDefaults, GEMMA)
CASE(ScaledNvfp4, ExpertsDefaults, GEMMA IS Format FORMAT = Format::NVFP4; IS int EXPERTS = 12, WIDTH = 704, HIDDEN = 2816;)
CASE(ScaledMany, ExpertsDefaults, GEMMA IS int EXPERTS = 128, WIDTH = 24, HIDDEN = 64;)
CASE(ScaledAwkward, ExpertsDefaults, GEMMA IS int EXPERTS = 5, ACTIVE = 2, HIDDEN = 44, WIDTH = 20; IS Format ROUTER = Format::F32; IS bool RENORMALISE = false; IS int ROUTER_BLOCKS = 3;)
CASE(ScaledTogether, ExpertsDefaults, IS bool EXPERT_SCALES = true; IS int SHARED_WIDTH = 0, EXPERTS = 39;)
// ---- More ----
CASE(Two, ExpertsDefaults, FP8_BLOCK IS int ROWS = 2, TOKENS = 2, WIDTH = 256, SHARED_WIDTH = 128, HIDDEN = 384;)
CASE(Three, ExpertsDefaults, NVFP4_BOTH IS int ROWS = 4, TOKENS = 3, WIDTH = 256, HIDDEN = 512, BLOCKS = 48, SHARED_BLOCKS = 32, ROUTER_BLOCKS = 15, STAGES = 3;)
CASE(Four, ExpertsDefaults, IS int ROWS = 4, TOKENS = 4, ACTIVE = 3;)
CASE(Eight, ExpertsDefaults, IS int ROWS = 8, TOKENS = 8, HIDDEN = 520, WIDTH = 72;)
CASE(EightFp8, ExpertsDefaults, FP8_TENSOR IS int ROWS = 8, TOKENS = 8, WIDTH = 192, STAGES = 3;)
CASE(EightNvfp4, ExpertsDefaults, NVFP4_BOTH IS int ROWS = 8, TOKENS = 8, EXPERTS = 12, ACTIVE = 4, WIDTH = 128, SHARED_WIDTH = 0, HIDDEN = 256;)
// One unit a tile: the second warp of a team has none.
CASE(EightShort, ExpertsDefaults, IS int ROWS = 8, TOKENS = 6, HIDDEN = 32, WIDTH = 24, SHARED_WIDTH = 20;)
CASE(FourShort, ExpertsDefaults, NVFP4_BOTH IS int ROWS = 4, TOKENS = 4, EXPERTS = 12, ACTIVE = 4, WIDTH = 128, SHARED_WIDTH = 0, HIDDEN = 128;)
CASE(FiveOfEight, ExpertsDefaults, FP8_BLOCK IS int ROWS = 8, TOKENS = 5, WIDTH = 128, SHARED_WIDTH = 128, HIDDEN = 256, BLOCKS = 5;)
CASE(AwkwardEight, ExpertsDefaults, IS int ROWS = 8, TOKENS = 7, EXPERTS = 9, ACTIVE = 7, HIDDEN = 40, WIDTH = 24, SHARED_WIDTH = 20; IS Format ROUTER = Format::F32;)
CASE(UngatedTwo, ExpertsDefaults, FP8_BLOCK UNGATED_EXPERTS IS int ROWS = 2, TOKENS = 2, WIDTH = 256, SHARED_WIDTH = 128, HIDDEN = 384;)
CASE(UngatedSix, ExpertsDefaults, NVFP4_BOTH UNGATED_EXPERTS IS int ROWS = 8, TOKENS = 6, EXPERTS = 12, ACTIVE = 6, WIDTH = 144, SHARED_WIDTH = 0, HIDDEN = 256;)
CASE(ScaledEight, ExpertsDefaults, GEMMA IS int ROWS = 8, TOKENS = 6, EXPERTS = 33;)
// ---- Real widths, few experts ----
CASE(Wide, ExpertsDefaults, IS int EXPERTS = 9, HIDDEN = 2048, WIDTH = 512, SHARED_WIDTH = 512, STAGES = 6;)
CASE(WideFp8, Wide, FP8_BLOCK)
CASE(WideNvfp4, Wide, NVFP4_BOTH IS int ROWS = 4, TOKENS = 4;)
CASE(WiderFp8, Wide, FP8_BLOCK IS int HIDDEN = 3072, WIDTH = 1024, SHARED_WIDTH = 1024, STAGES = 5;)
CASE(WideUngated, Wide, NVFP4_BOTH UNGATED_EXPERTS IS int HIDDEN = 2688, WIDTH = 1856, SHARED_WIDTH = 0, ACTIVE = 6, STAGES = 4;)
CASE(WiderF16, Wide, IS int HIDDEN = 3072, WIDTH = 1024, SHARED_WIDTH = 1024, STAGES = 5;)
// ---- Exact ----
CASE(Exact, ExpertsDefaults, IS Compute COMPUTE = Compute::EXACT; IS ScaleForm SCALES = ScaleForm::NONE, SHARED_SCALES = SCALES; IS Format FORMAT = Format::F32, SHARED_FORMAT = Format::F32, ROUTER = Format::F32; IS int HIDDEN = 40, WIDTH = 24, SHARED_WIDTH = 20, EXPERTS = 5, ACTIVE = 3;)
CASE(ExactEight, Exact, IS int ROWS = 8, TOKENS = 6, EXPERTS = 40, ACTIVE = 8; IS Norm NORM = Norm::PLAIN;)
CASE(ExactScaled, Exact, IS bool EXPERT_SCALES = true, REPLACES = true; IS float FACTOR = 0.15f; IS int SHARED_WIDTH = 0;)
CASE(ExactUngated, Exact, UNGATED_EXPERTS IS int WIDTH = 48;)
CASE(ExactBf16, Exact, IS Format FORMAT = Format::BF16, SHARED_FORMAT = FORMAT; IS int ROWS = 2, TOKENS = 2, SHARED_WIDTH = 0;)
CASE(ExactQ8, Exact, IS Format FORMAT = Format::Q8_0, SHARED_FORMAT = Format::Q4_1; IS Rounding ROUNDING = Rounding::INT8_BLOCK32; IS int HIDDEN = 96, WIDTH = 64, SHARED_WIDTH = 32, ROWS = 4, TOKENS = 4;)

int main(int count, char** arguments) {
    const bool bench = count > 1 && std::string(arguments[1]) == "bench";
#define RUN(name) check_experts<name>(#name);
    if (!bench) {
#if SUITE == 0 || SUITE == 1
        RUN(One) RUN(OneFp8) RUN(OneFp8Tensor) RUN(OneNvfp4) RUN(OneMixed) RUN(OneFewBlocks) RUN(Awkward) RUN(AwkwardAlone)
        RUN(Ungated) RUN(UngatedNvfp4) RUN(UngatedFp8)
        RUN(Scaled) RUN(ScaledNvfp4) RUN(ScaledMany) RUN(ScaledAwkward) RUN(ScaledTogether)
        RUN(Two) RUN(Three) RUN(Four) RUN(Eight) RUN(EightShort) RUN(FourShort) RUN(EightFp8)
#endif
#if SUITE == 0 || SUITE == 2
        RUN(EightNvfp4) RUN(FiveOfEight) RUN(AwkwardEight) RUN(Exact) RUN(ExactEight) RUN(ExactBf16) RUN(ExactQ8)
        RUN(ScaledEight) RUN(ExactScaled) RUN(UngatedTwo) RUN(UngatedSix) RUN(ExactUngated) RUN(WideUngated)
        RUN(Wide) RUN(WideFp8) RUN(WideNvfp4) RUN(WiderFp8) RUN(WiderF16)
        check_route_batches();
#endif
        std::printf("%d failures\n", test::failures);
        return test::failures;
    }
#if SUITE == 0 || SUITE == 3
    bench_experts();
#endif
    return test::failures;
}
