// Checks templates/cuda/products/stream_pairs.cuh, products of eight rows whose tiles go in pairs, as stream.cu checks the others: shapes whose x fits registers, is
// parked, and is read twice, parts that end anywhere, shares of K. Exit code: the number of failures.
#include "core/common.cuh"
#include "products/stream.cuh"
#include "products/stream_check.cuh"

using namespace monomorph;

#define CASE(name, base, ...)      \
    struct name : base {           \
        __VA_ARGS__                \
    };
#define IS static constexpr

CASE(Eight, CheckDefaults, IS int OUTPUTS = 528, INPUTS = 2048, ROWS = 8, SPLIT = 1; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(EightAwkward, CheckDefaults, IS int OUTPUTS = 45, INPUTS = 57, ROWS = 8, ALL_ROWS = 13, SPLIT = 1; IS Limit LIMIT = Limit::TOKENS; IS Norm NORM = Norm::PLAIN; IS bool BIAS = true;)
CASE(EightFp8Block, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::BLOCK128; IS int INPUTS = 2048, ROWS = 8, SPLIT = 1; IS Norm NORM = Norm::ONE_PLUS; IS Epilogue EPILOGUE = Epilogue::GATED;)
CASE(EightWide, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS int OUTPUTS = 272, INPUTS = 5120, ROWS = 8, SPLIT = 1, BLOCKS = 5, STAGE_BYTES = 24576, STAGES = 3; IS Norm NORM = Norm::PLAIN; IS bool BIAS = true;)   // part of x is parked
CASE(EightWidest, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS int OUTPUTS = 144, INPUTS = 7168, ROWS = 8, SPLIT = 1, STAGES = 3, BLOCKS = 4; IS Norm NORM = Norm::ONE_PLUS;)   // x is read twice
CASE(EightParts, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::BLOCK128; IS int OUTPUTS = 272, INPUTS = 4096 + 64, ROWS = 8, SPLIT = 1, BLOCKS = 6;)   // the last part is half a block of scales
CASE(EightOdd, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::BLOCK128; IS int OUTPUTS = 264, INPUTS = 4096, ROWS = 8, SPLIT = 1;)   // no pairs
CASE(Split, CheckDefaults, IS Format FORMAT = Format::NVFP4; IS int OUTPUTS = 336, INPUTS = 17408, ROWS = 8, STAGE_BYTES = 24576, SPLIT = 4, BLOCKS = 8; IS Epilogue EPILOGUE = Epilogue::ADD;)
CASE(SplitFp8, CheckDefaults, IS Format FORMAT = Format::FP8_E4M3; IS ScaleForm SCALES = ScaleForm::BLOCK128; IS int OUTPUTS = 528, INPUTS = 4096 + 128 * 2, ROWS = 8, ALL_ROWS = 13, SPLIT = 2, BLOCKS = 14; IS Limit LIMIT = Limit::TOKENS;)
CASE(SplitF16, CheckDefaults, IS int OUTPUTS = 528, INPUTS = 6144, ROWS = 8, SPLIT = 4, BLOCKS = 12; IS Epilogue EPILOGUE = Epilogue::ADD;)

int main() {
#define RUN(name) check<name>(#name);
    RUN(Eight) RUN(EightAwkward) RUN(EightFp8Block) RUN(EightWide) RUN(EightWidest) RUN(EightParts) RUN(EightOdd) RUN(Split) RUN(SplitFp8) RUN(SplitF16)
    std::printf("%d failures\n", test::failures);
    return test::failures;
}
