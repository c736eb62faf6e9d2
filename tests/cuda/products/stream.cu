// Checks and times templates/cuda/products/stream.cuh. `stream check`: every format, epilogue and awkward shape against a host
// reference in double precision, each with a planted defect that must be seen. `stream bench`: chains of a whole decode step's
// products in one graph, several variants. Exit code: the number of failures.
#ifndef SUITE
#define SUITE 0   // 0: everything; 1..4 let a build be spread over processes
#endif
#include "core/common.cuh"
#include "products/stream.cuh"
#include "products/stream_bench.cuh"
#include "products/stream_check.cuh"

using namespace monomorph;

#define CASE(name, base, ...)      \
    struct name : base {           \
        __VA_ARGS__                \
    };
#define IS static constexpr

// ---- f16 compute ----
CASE(Plain, CheckDefaults)
CASE(Awkward, CheckDefaults, IS int OUTPUTS = 45, INPUTS = 57, ROWS = 4; IS Norm NORM = Norm::PLAIN; IS int CONSUMER_WARPS = 4, STAGE_BYTES = 8192;)
CASE(AwkwardGated, CheckDefaults, IS int OUTPUTS = 45, INPUTS = 57, ROWS = 2; IS Norm NORM = Norm::ONE_PLUS; IS Epilogue EPILOGUE = Epilogue::GATED; IS bool BIAS = true;)
CASE(OneRow, CheckDefaults, IS int ROWS = 1; IS Norm NORM = Norm::PLAIN; IS bool BIAS = true;)
CASE(EightRows, CheckDefaults, IS int ALL_ROWS = 8, INPUTS = 2048; IS Epilogue EPILOGUE = Epilogue::ADD; IS bool EVICT_FIRST = true;)
CASE(Deep, CheckDefaults, IS int OUTPUTS = 300, INPUTS = 14336, ROWS = 4, STAGES = 4; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(Wide, CheckDefaults, IS int OUTPUTS = 9000, INPUTS = 1000, ROWS = 1; IS Norm NORM = Norm::PLAIN; IS Epilogue EPILOGUE = Epilogue::GATED;)
CASE(ManyTiles, CheckDefaults, IS int OUTPUTS = 20001, INPUTS = 256, ROWS = 2; IS int BLOCKS = 264;)
CASE(ThreeBlocks, CheckDefaults, IS int OUTPUTS = 2048, INPUTS = 2080, ROWS = 1; IS int BLOCKS = 396, CONSUMER_WARPS = 4, STAGE_BYTES = 8192; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(TwoGroups, CheckDefaults, IS int ROWS = 4, ALL_ROWS = 7; IS Limit LIMIT = Limit::TOKENS; IS Norm NORM = Norm::PLAIN;)
CASE(Gelu, CheckDefaults, IS Epilogue EPILOGUE = Epilogue::GATED; IS Activation ACTIVATION = Activation::GELU;)
CASE(Fp8, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::ROWS; IS Norm NORM = Norm::PLAIN; IS Epilogue EPILOGUE = Epilogue::GATED; IS Activation ACTIVATION = Activation::GELU_TANH;)
CASE(Fp8Deep, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::ROWS; IS int INPUTS = 14336, ROWS = 1; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(Fp8Awkward, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::ROWS; IS int OUTPUTS = 45, INPUTS = 57; IS Norm NORM = Norm::PLAIN;)
CASE(Fp8Block, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::BLOCK128; IS int INPUTS = 4096 + 64; IS Norm NORM = Norm::PLAIN; IS bool BIAS = true;)
CASE(Fp8BlockSmall, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::BLOCK128; IS int OUTPUTS = 5000, INPUTS = 320; IS Epilogue EPILOGUE = Epilogue::GATED; IS Activation ACTIVATION = Activation::RELU;)
CASE(Nvfp4, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS ScaleForm SCALES = ScaleForm::ROWS; IS int INPUTS = 4096; IS Norm NORM = Norm::PLAIN; IS Epilogue EPILOGUE = Epilogue::GATED;)
CASE(Nvfp4Awkward, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS ScaleForm SCALES = ScaleForm::ROWS; IS int OUTPUTS = 45, INPUTS = 176, ROWS = 1; IS Norm NORM = Norm::PLAIN;)
CASE(Nvfp4Narrow, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS int INPUTS = 512, ROWS = 2;)   // warps share tiles out
CASE(Fp8Narrow, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS int INPUTS = 192, ROWS = 4; IS Norm NORM = Norm::PLAIN;)
// Eight rows in two groups.
CASE(EightFp8Deep, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS int INPUTS = 4096, ROWS = 8, CONSUMER_WARPS = 16; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(EightNvfp4, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS int INPUTS = 5120, ROWS = 8, CONSUMER_WARPS = 16; IS Norm NORM = Norm::ONE_PLUS; IS Epilogue EPILOGUE = Epilogue::GATED;)
CASE(EightNarrow, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS int INPUTS = 512, ROWS = 8;)   // warps share tiles out
CASE(Beside, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS int OUTPUTS = 1000, INPUTS = 2048, ROWS = 2, BLOCKS = 124; IS Norm NORM = Norm::ONE_PLUS;
     IS Format BESIDE_FORMAT = Format::F16; IS ScaleForm BESIDE_SCALES = ScaleForm::ROWS; IS int BESIDE_OUTPUTS = 60, BESIDE_BLOCKS = 8, BESIDE_STAGES = 6, BESIDE_PACE = 2;)
// ---- exact compute ----
CASE(Exact, CheckDefaults, IS Compute COMPUTE = Compute::EXACT; IS ScaleForm SCALES = ScaleForm::NONE;)
CASE(ExactF32, Exact, IS Format FORMAT = Format::F32; IS int OUTPUTS = 45, INPUTS = 57; IS Norm NORM = Norm::PLAIN; IS bool BIAS = true;)
CASE(ExactBf16, Exact, IS Format FORMAT = Format::BF16; IS Norm NORM = Norm::ONE_PLUS; IS Epilogue EPILOGUE = Epilogue::GATED; IS Activation ACTIVATION = Activation::GELU;)
CASE(ExactF16, Exact, IS Format FORMAT = Format::F16; IS int ROWS = 8, ALL_ROWS = 19; IS Limit LIMIT = Limit::TOKENS; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(ExactQ8, Exact, IS Format FORMAT = Format::Q8_0; IS Rounding ROUNDING = Rounding::INT8_BLOCK32; IS int OUTPUTS = 576, INPUTS = 1536, ROWS = 8, ALL_ROWS = 13; IS Limit LIMIT = Limit::OUTPUTS; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(ExactQ8Small, Exact, IS Format FORMAT = Format::Q8_0; IS Rounding ROUNDING = Rounding::INT8_BLOCK32; IS int OUTPUTS = 45, INPUTS = 96, ROWS = 1; IS Norm NORM = Norm::PLAIN;)
CASE(ExactQ41, Exact, IS Format FORMAT = Format::Q4_1; IS Rounding ROUNDING = Rounding::INT8_BLOCK32; IS int OUTPUTS = 1536, INPUTS = 576, ROWS = 8; IS Norm NORM = Norm::PLAIN; IS Epilogue EPILOGUE = Epilogue::GATED;)
CASE(ExactQ41One, Exact, IS Format FORMAT = Format::Q4_1; IS Rounding ROUNDING = Rounding::INT8_BLOCK32; IS int OUTPUTS = 960, INPUTS = 576, ROWS = 1; IS Norm NORM = Norm::PLAIN;)
CASE(ExactQ41Float, Exact, IS Format FORMAT = Format::Q4_1; IS int OUTPUTS = 5000, INPUTS = 2048, ROWS = 2; IS Norm NORM = Norm::PLAIN;)
CASE(ExactNvfp4, Exact, IS Format FORMAT = Format::NVFP4; IS ScaleForm SCALES = ScaleForm::ROWS; IS int INPUTS = 512;)
CASE(ExactBeside, Exact, IS Format FORMAT = Format::BF16; IS int OUTPUTS = 96, INPUTS = 57, ROWS = 8, BLOCKS = 5; IS Norm NORM = Norm::PLAIN;
     IS Format BESIDE_FORMAT = Format::F32; IS ScaleForm BESIDE_SCALES = ScaleForm::NONE; IS int BESIDE_OUTPUTS = 6, BESIDE_BLOCKS = 1, BESIDE_STAGES = 2, BESIDE_PACE = 1;)

int main(int count, char** arguments) {
    const bool bench = count > 1 && std::string(arguments[1]) == "bench";
    if (!bench) {
#define RUN(name) check<name>(#name);
#if SUITE == 0 || SUITE == 1
        RUN(Plain) RUN(Awkward) RUN(AwkwardGated) RUN(OneRow) RUN(EightRows) RUN(Deep) RUN(Wide) RUN(ManyTiles) RUN(ThreeBlocks)
        RUN(EightFp8Deep) RUN(EightNvfp4) RUN(EightNarrow)
        RUN(TwoGroups) RUN(Gelu) RUN(Nvfp4Narrow) RUN(Fp8Narrow) RUN(Fp8) RUN(Fp8Deep) RUN(Fp8Awkward) RUN(Fp8Block) RUN(Fp8BlockSmall) RUN(Nvfp4) RUN(Nvfp4Awkward)
        check_beside<Beside>("Beside");
#endif
#if SUITE == 0 || SUITE == 2
        RUN(ExactF32) RUN(ExactBf16) RUN(ExactF16) RUN(ExactQ8) RUN(ExactQ8Small) RUN(ExactQ41) RUN(ExactQ41One) RUN(ExactQ41Float)
        RUN(ExactNvfp4)
        check_beside<ExactBeside>("ExactBeside");
#endif
        std::printf("%d failures\n", test::failures);
        return test::failures;
    }
#if SUITE == 0 || SUITE == 3
    bench_llama_1b();
#endif
#if SUITE == 0 || SUITE == 4
    bench_llama_8b();
#endif
    return 0;
}
