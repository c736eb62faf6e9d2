// Tests of tensor-core products whose work is cut evenly (GemmCut in gemm.cuh), as gemm.cu tests the others: more blocks than blocks of rows, and fewer; shares that
// begin and end within one block of rows. Every case runs twice at least, so that flags are seen to be left as they were found.
// With the argument `defect` one weight code of the first case is wrong: the program must then fail.
#include "products/gemm_check.cuh"

int main(int count, char** arguments) {
    plant_defect = count > 1 && std::strcmp(arguments[1], "defect") == 0;
    check<Case<Evened<G<32, 1, 2, 4, 3, 1, 1, 2>, 20>, FP4, ROWS, 900, 4480, 32, GATED>>("wgmma nvfp4 900x4480 gated", {32, 5});
    check<Case<Evened<G<32, 1, 2, 4, 3, 1, 1, 2>, 13>, FP8, BLOCK, 900, 4500, 32, GATED>>("wgmma fp8 block 900x4500 gated", {32, 5});
    check<Case<Evened<G<64, 1, 2, 3, 2, 1, 1, 2>, 31>, FP8, ROWS, 640, 4096, 64, ADD, true>>("wgmma fp8 640x4096 add bias", {64, 33});
    check<Case<Evened<G<16, 1, 1, 4, 4, 1, 1, 2>, 5>, F16, ROWS, 640, 2048, 16, STORE>>("wgmma f16 640x2048 store", {16, 1});
    check<Case<Evened<G<128, 2, 2, 4, 2>, 9>, FP8, BLOCK, 1800, 4500, 128, GATED>>("wgmma fp8 block 1800x4500 gated, strips 2", {128, 77});
    check<Case<Evened<G<128, 1, 2, 4, 4>, 23>, FP4, ROWS, 640, 2048, 128, ADD>>("wgmma nvfp4 640x2048 add", {128, 77});
    std::printf("%d failures\n", test::failures);
    return test::failures != 0;
}
