// The cases of experts_batch.cu, the first with every expert chosen (the defect is in expert 0): shapes that fill nothing, odd numbers of
// panels, blocks that do several pieces of work, and real widths with fewer experts.
check<Mixture<F16, ROWS, 5, 5, 40, 24, 17, false>, H<16, 1, 1, 3, 3, 2>>("mma f16 5 experts top 5, 40x24", {17, 3}, 1);
check<Mixture<F16, ROWS, 5, 1, 40, 24, 9>, H<8, 1, 2, 2, 3, 2>>("mma f16 5 experts top 1, 40x24", {9, 1, 0});
check<Mixture<FP8, ROWS, 5, 3, 40, 24, 16, true, false>, H<8, 1, 1, 4, 4, 2>>("mma fp8 5 experts top 3, 40x24", {16, 11}, 1);
check<Mixture<FP8, BLOCK, 5, 2, 40, 24, 150>, H<8, 1, 2, 4, 3, 2>>("mma fp8 block 5 experts top 2, 40x24", {150, 129, 5}, 2);
check<Mixture<FP4, ROWS, 5, 4, 40, 24, 33>, H<32, 1, 2, 3, 3, 2, true>>("mma nvfp4 5 experts top 4, 40x24", {33, 8}, 1);
check<Mixture<FP8, BLOCK, 40, 6, 328, 200, 100>, H<8, 1, 2, 4, 4, 2>>("mma fp8 block 40 experts top 6, 328x200", {100, 77}, 6);
check<Mixture<FP4, ROWS, 12, 4, 328, 200, 128>, H<64, 1, 2, 3, 3, 1>>("mma nvfp4 12 experts top 4, 328x200", {128, 100}, 3);
check<Mixture<F16, ROWS, 7, 3, 322, 130, 300, false>, H<128, 1, 1, 2, 3, 1, true>>("mma f16 7 experts top 3, 322x130", {300, 257}, 2);
check<ScaledMixture<Mixture<F16, ROWS, 5, 3, 40, 24, 17, false>>, H<16, 1, 1, 3, 3, 2>>("mma f16 5 scaled experts top 3, 40x24", {17, 3}, 1);
check<ScaledMixture<Mixture<FP4, ROWS, 39, 8, 328, 200, 128>>, H<64, 1, 2, 3, 3, 1>>("mma nvfp4 39 scaled experts top 8, 328x200", {128, 100}, 3);
check<Mixture<FP8, BLOCK, 6, 2, 2184, 584, 20>, H<8, 1, 2, 4, 4, 2>>("mma fp8 block 6 experts top 2, 2184x584", {20, 9}, 2);
check<Mixture<F16, ROWS, 5, 5, 40, 24, 17, false>, R<4, 2, 2, 1>>("rings f16 5 experts top 5, 40x24", {17, 3}, 1);
check<Mixture<FP8, ROWS, 5, 3, 40, 24, 16, true, false>, R<8, 2, 1, 1>>("rings fp8 5 experts top 3, 40x24", {16, 11}, 1);
check<Mixture<FP8, BLOCK, 40, 6, 328, 200, 100>, R<8, 2, 4, 6>>("rings fp8 block 40 experts top 6, 328x200", {100, 77}, 6);
check<Mixture<F16, ROWS, 9, 2, 322, 129, 33, false>, R<8, 2, 4, 3>>("rings f16 9 experts top 2, 322x129", {33, 1, 0}, 3);
check<Mixture<FP4, ROWS, 12, 4, 328, 200, 128>, R<8, 3, 2, 7>>("rings nvfp4 12 experts top 4, 328x200", {128, 100}, 3);
check<ScaledMixture<Mixture<FP4, ROWS, 39, 8, 328, 200, 128>>, R<16, 2, 2, 9>>("rings nvfp4 39 scaled experts top 8, 328x200", {128, 100}, 3);
check<Mixture<FP8, BLOCK, 6, 2, 2184, 584, 20>, R<8, 2, 8, 3>>("rings fp8 block 6 experts top 2, 2184x584", {20, 9}, 2);
#ifndef NO_WGMMA
check<Mixture<F16, ROWS, 5, 5, 40, 24, 17, false>, G<8, 1, 2, 3, 3, 2>>("wgmma f16 5 experts top 5, 40x24", {17, 3}, 1);
check<Mixture<FP8, ROWS, 5, 3, 40, 24, 16, true, false>, G<16, 1, 1, 4, 4, 2>>("wgmma fp8 5 experts top 3, 40x24", {16, 11}, 1);
check<Mixture<FP8, BLOCK, 40, 6, 328, 200, 100>, G<8, 1, 2, 4, 4, 2>>("wgmma fp8 block 40 experts top 6, 328x200", {100, 77}, 6);
check<Mixture<FP4, ROWS, 12, 4, 328, 200, 128>, G<32, 1, 2, 4, 4, 2>>("wgmma nvfp4 12 experts top 4, 328x200", {128, 100}, 3);
check<ScaledMixture<Mixture<FP4, ROWS, 39, 8, 328, 200, 128>>, G<32, 1, 2, 4, 4, 2>>("wgmma nvfp4 39 scaled experts top 8, 328x200", {128, 100}, 3);
check<Mixture<FP8, BLOCK, 6, 2, 2184, 584, 20>, G<8, 1, 2, 4, 4, 2>>("wgmma fp8 block 6 experts top 2, 2184x584", {20, 9}, 2);
check<Mixture<FP8, BLOCK, 6, 2, 328, 200, 400>, G<128, 2, 2, 3, 3, 1, true>>("wgmma fp8 block 6 experts top 2, 328x200", {400, 300}, 2);
check<Mixture<F16, ROWS, 7, 3, 322, 130, 300, false>, G<128, 2, 1, 3, 3, 1, true>>("wgmma f16 7 experts top 3, 322x130", {300, 257}, 2);
#endif
#ifndef SMALL
check<Mixture<FP8, BLOCK, 24, 8, 2048, 512, 128>, R<8, 2, 8>>("rings fp8 block 24 experts top 8, 2048x512", {128, 31, 1}, 20);
check<Mixture<F16, ROWS, 12, 8, 2048, 768, 64>, R<8, 2, 8>>("rings f16 12 experts top 8, 2048x768", {64, 0}, 20);
check<Mixture<FP4, ROWS, 20, 10, 3072, 1024, 64>, R<16, 2, 2>>("rings nvfp4 20 experts top 10, 3072x1024", {64, 9}, 20);
check<Mixture<FP8, BLOCK, 24, 8, 2048, 512, 128>, H<8, 1, 2, 4, 4, 2>>("mma fp8 block 24 experts top 8, 2048x512", {128, 31}, 20);
check<Mixture<F16, ROWS, 12, 8, 2048, 768, 64>, H<16, 1, 1, 4, 4, 2>>("mma f16 12 experts top 8, 2048x768", {64}, 20);
check<Mixture<FP4, ROWS, 20, 10, 3072, 1024, 64>, H<8, 1, 2, 6, 4, 2>>("mma nvfp4 20 experts top 10, 3072x1024", {64, 9}, 20);
#ifndef NO_WGMMA
check<Mixture<FP8, BLOCK, 24, 8, 3072, 512, 128>, G<8, 1, 2, 4, 4, 2>>("wgmma fp8 block 24 experts top 8, 3072x512", {128, 31}, 20);
check<Mixture<FP8, BLOCK, 16, 8, 3072, 512, 1024>, G<128, 2, 2, 3, 3, 1, true>>("wgmma fp8 block 16 experts top 8, 3072x512", {1000}, 20);
check<Mixture<FP4, ROWS, 16, 8, 2048, 512, 512>, G<64, 1, 2, 4, 4, 1>>("wgmma nvfp4 16 experts top 8, 2048x512", {400}, 20);
#endif
#endif
