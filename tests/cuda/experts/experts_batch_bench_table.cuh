// The variants that `experts_batch bench` times. Names: engine, height of a work tile, panels of a step.
using M8 = H<8, 1, 2, 4, 4, 2>;
using M8Wide = H<8, 1, 1, 4, 4, 2>;  // 16-bit weights: a panel is as many bytes
using M8Narrow = H<8, 1, 2, 6, 4, 2>;
BATCHES(Qwen35, FP8, BLOCK, M8);
BATCHES(Qwen35, F16, ROWS, M8Wide);
BATCHES(Qwen35, FP4, ROWS, M8Narrow);
// By warps: of 8 and of 16.
using R8 = R<8, 2, 8>;
using R8Short = R<8, 2, 4>;
using R16 = R<16, 2, 4>;
using R16Short = R<16, 2, 2>;
BATCHES(Qwen35, FP8, BLOCK, R8);
BATCHES(Qwen35, FP4, ROWS, R16);
BATCHES(Qwen35, F16, ROWS, R8);
BATCHES(Qwen122, FP8, BLOCK, R8Short);
BATCHES(Qwen122, FP4, ROWS, R16Short);
BATCHES(Next, FP8, BLOCK, R8);
BATCHES(Qwen30, F16, ROWS, R8);
#ifndef NO_WGMMA
using W8 = G<8, 1, 2, 4, 4, 2>;
using W8Deep = G<8, 1, 2, 5, 4, 2>;
using W8Wide = G<8, 1, 1, 4, 4, 2>;
using W8Narrow = G<8, 1, 2, 8, 4, 2>;
using W16 = G<16, 1, 2, 4, 4, 2>;
using W128 = G<128, 2, 2, 2, 4, 1, true>;
using W128Narrow = G<128, 2, 2, 3, 4, 1, true>;
using W128Wide = G<128, 2, 1, 3, 4, 1, true>;
using W64 = G<64, 1, 2, 3, 3, 2, true>;
using W32 = G<32, 1, 2, 4, 3, 2, true>;
BATCHES(Qwen35, FP8, BLOCK, W8);
MEASURE(Qwen35, FP8, BLOCK, 128, W8Deep, 128);
MEASURE(Qwen35, FP8, BLOCK, 64, W16, 64);
MEASURE(Qwen35, FP8, BLOCK, 128, W16, 128);
BATCHES(Qwen35, F16, ROWS, W8Wide);
BATCHES(Qwen35, FP4, ROWS, W8Narrow);
PREFILLS(Qwen35, FP8, BLOCK, W128);
PREFILLS(Qwen35, F16, ROWS, W128Wide);
PREFILLS(Qwen35, FP4, ROWS, W128Narrow);
MEASURE(Qwen35, FP8, BLOCK, 8192, W64, 2048);
MEASURE(Qwen35, FP8, BLOCK, 8192, W32, 128);
BATCHES(Qwen122, FP8, BLOCK, W8);
PREFILLS(Qwen122, FP8, BLOCK, W128);
BATCHES(Qwen122, FP4, ROWS, W8Narrow);
PREFILLS(Qwen122, FP4, ROWS, W128Narrow);
MEASURE(Qwen122, F16, ROWS, 128, W8Wide, 128);
BATCHES(Next, FP8, BLOCK, W8);
PREFILLS(Next, FP8, BLOCK, W128);
MEASURE(Next, F16, ROWS, 128, W8Wide, 128);
MEASURE(Next, FP4, ROWS, 128, W8Narrow, 128);
BATCHES(Qwen30, F16, ROWS, W8Wide);
PREFILLS(Qwen30, F16, ROWS, W128Wide);
BATCHES(Qwen30, FP8, BLOCK, W8);
MEASURE(Qwen30, FP4, ROWS, 128, W8Narrow, 128);
#else
using M64 = H<64, 1, 1, 2, 3, 1, true>;
using M64Narrow = H<64, 1, 2, 2, 3, 1, true>;
PREFILLS(Qwen35, FP8, BLOCK, M64);
PREFILLS(Qwen35, F16, ROWS, M64);
PREFILLS(Qwen35, FP4, ROWS, M64Narrow);
BATCHES(Qwen30, F16, ROWS, M8Wide);
BATCHES(Qwen30, FP4, ROWS, M8Narrow);
BATCHES(Next, FP4, ROWS, M8Narrow);
BATCHES(Qwen122, FP4, ROWS, M8Narrow);
#endif
