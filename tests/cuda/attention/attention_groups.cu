// Attention kernels over keys and values of formats with scales of groups, as attention.cu over others: decode (PART 0); prefill, exact, both
// in turn, and what is measured (PART 1); prefill on warpgroups (PART 2). nvcc as in common.cuh.
#include "attention/attention_checks.cuh"

using namespace test;

template <class Kv>
using LlamaIn = Heads<32, 8, 128, Kv, 64, true>;
template <class Kv>
using QwenIn = Heads<16, 2, 128, Kv, 64, true, HeadNorm::Plain>;
template <class Kv>
using WideIn = Heads<16, 2, 256, Kv, 32, true, HeadNorm::OnePlus>;
template <class Kv>
using SmallIn = Heads<9, 3, 64, Kv, 32, true>;
template <class Kv>
using SlidingIn = ValuesNormed<Heads<16, 8, 256, Kv, 128, true, HeadNorm::Plain>>;
template <class Kv>
using FullIn = KeysAsValues<ValuesNormed<Heads<16, 2, 512, Kv, 256, true, HeadNorm::Plain>>>;
using Turbo84 = GroupedPair<Turbo8, Turbo4>;
using Turbo43 = GroupedPair<Turbo4, Turbo3>;

#ifndef PART
#error "compile with -DPART=0, 1 and 2"
#endif

int main() {
#if PART == 0
    check_decode<Decode<LlamaIn<Nvfp4>, 16, 64>, 8>("decode 32/8x128 nvfp4, 16 splits, 0..1500 tokens, 7 of 8 rows", {0, 1, 15, 16, 63, 64, 1500}, 300);
    check_decode<Decode<LlamaIn<Turbo4>, 16, 64>, 8>("decode 32/8x128 turbo4, 16 splits, 0..1500 tokens, 7 of 8 rows", {0, 1, 15, 16, 63, 64, 1500}, 301);
    check_decode<BeforeWait<Decode<LlamaIn<Turbo8>, 16, 128, 8>>, 4>("decode 32/8x128 turbo8, context before the wait", {0, 1500}, 302);
    check_decode<Decode<QwenIn<Turbo3>, 1, 64, 8>, 4>("decode 16/2x128 turbo3 norm, 1 split", {5, 700, 255, 256}, 303);
    check_decode<Decode<Gated<WideIn<Nvfp4>>, 3, 64>, 2>("decode 16/2x256 nvfp4 one-plus gated, 3 splits", {777, 31}, 304);
    check_decode<Decode<Gated<WideIn<Turbo84>>, 3, 64>, 2>("decode 16/2x256 turbo8/turbo4 one-plus gated, 3 splits", {777, 31}, 305);
    check_decode<Decode<Heads<24, 2, 128, Turbo4, 64, false>, 4, 64>, 2>("decode 24/2x128 turbo4 adjacent, group 12", {300, 64}, 306);
    check_decode<Decode<Blocks<SmallIn<Turbo3>, 32>, 4, 64>, 4>("decode 9/3x64 turbo3, blocks of 32", {1000, 64, 63}, 307);
    check_decode<Decode<Blocks<SmallIn<Nvfp4>, 32>, 4, 64>, 4>("decode 9/3x64 nvfp4, blocks of 32", {1000, 64, 63}, 308);
    check_decode<Decode<Windowed<SlidingIn<Turbo4>, 100>, 5, 64>, 8>("decode 16/8x256 turbo4, a window of 100", {0, 98, 99, 100, 101, 500, 1024}, 309);
    check_decode<Decode<FullIn<Turbo43>, 4, 64>, 4>("decode 16/2x512 turbo4/turbo3, keys as values, 4 splits", {5, 700, 255, 256}, 310);
    check_decode<Verify<Decode<LlamaIn<Turbo4>, 3, 64>, 4>, 16>("decode of 4 tokens, 32/8x128 turbo4", {60, 0, 500}, 311);
    check_decode<Decode<LlamaIn<Turbo4>, 4, 64>, 1>("planted: a wrong key of turbo4 must be seen", {300}, 312, Plant::Key);
    check_decode<Decode<LlamaIn<Nvfp4>, 4, 64>, 1>("planted: scales of the other side, of nvfp4, must be seen", {300}, 313, Plant::Scales);
    check_decode<Decode<LlamaIn<Nvfp4>, 4, 64>, 1, Decode<LlamaIn<Turbo4>, 4, 64>>("planted: nvfp4 read as turbo4 must be seen", {300}, 314);
#elif PART == 1
    check_prefill<Prefill<LlamaIn<Nvfp4>, 64>>("prefill 32/8x128 nvfp4, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 320);
    check_prefill<Prefill<QwenIn<Turbo4>, 64, 32>>("prefill 16/2x128 turbo4 norm, blocks of 32, few blocks", {{100, 60}, {17, 0}}, 321, 8);
    check_prefill<Prefill<Gated<WideIn<Turbo84>>, 32>>("prefill 16/2x256 turbo8/turbo4 one-plus gated", {{70, 40}, {9, 0}}, 322);
    check_prefill<Prefill<Windowed<SmallIn<Turbo3>, 30>, 16, 64>>("prefill 9/3x64 turbo3, blocks of 64, a window of 30", {{90, 100}, {3, 500}}, 323);
    check_prefill<Prefill<Windowed<SlidingIn<Turbo8>, 100>, 32>>("prefill 16/8x256 turbo8, a window of 100", {{190, 0}, {1, 64}, {33, 500}, {5, 95}}, 324, 3);
    check_prefill<Prefill<Gated<FullIn<Turbo4>>, 16>>("prefill 16/2x512 turbo4 gated, keys as values", {{70, 40}, {9, 0}, {1, 130}}, 325);
    check_exact<Exact<SmallIn<Nvfp4>>>("exact 9/3x64 nvfp4, prefill", {{70, 0}, {1, 300}, {33, 100}}, 326);
    check_exact<Exact<Heads<6, 2, 128, Turbo4, 32, false, HeadNorm::OnePlus>>>("exact 6/2x128 turbo4 one-plus adjacent", {{40, 0}, {3, 17}}, 327);
    check_exact<Exact<SmallIn<Turbo3>>>("exact 9/3x64 turbo3, prefill", {{20, 0}, {3, 17}}, 328);
    check_exact<Exact<Gated<FullIn<Turbo84>>>>("exact 16/2x512 turbo8/turbo4 gated, decode", {{1, 0}, {1, 90}}, 329, true);
    check_kept_numbers<Exact<SmallIn<Nvfp4>>>("numbers are kept, 9/3x64 nvfp4", 335);
    check_kept_numbers<Exact<SmallIn<Turbo8>>>("numbers are kept, 9/3x64 turbo8", 336);
    check_measured<Exact<SmallIn<Turbo4>>>("measured 9/3x64 turbo4", {{70, 0}, {1, 300}, {33, 100}}, 330);
    check_continuation<Prefill<Decode<QwenIn<Nvfp4>, 4, 64>, 64>>("decode after prefill = prefill, 16/2x128 nvfp4", 190, 331);
    check_continuation<Prefill<Decode<QwenIn<Turbo4>, 4, 64>, 64>>("decode after prefill = prefill, 16/2x128 turbo4", 190, 332);
    check_continuation<Prefill<Decode<SmallIn<Turbo8>, 4, 64>, 64>>("decode after prefill = prefill, 9/3x64 turbo8", 190, 333);
    check_continuation<Prefill<Decode<Windowed<SlidingIn<Turbo43>, 50>, 4, 64>, 32>>("decode after prefill = prefill, 16/8x256 turbo4/turbo3, a window of 50", 190, 334);
#else
    check_prefill<Prefill<LlamaIn<Nvfp4>, 64>, true>("wgmma prefill 32/8x128 nvfp4, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 340);
    check_prefill<Prefill<QwenIn<Turbo4>, 64, 32>, true>("wgmma prefill 16/2x128 turbo4 norm, blocks of 32, few blocks", {{90, 700}, {17, 0}}, 341, 8);
    check_prefill<Prefill<SmallIn<Turbo3>, 64, 64>, true>("wgmma prefill 9/3x64 turbo3, blocks of 64", {{130, 0}, {1, 64}}, 342, 2);
    check_prefill<Prefill<Gated<WideIn<Turbo84>>, 64>, true>("wgmma prefill 16/2x256 turbo8/turbo4 one-plus gated", {{90, 0}, {1, 64}, {33, 100}}, 343, 3);
    check_prefill<Prefill<Windowed<SlidingIn<Turbo4>, 100>, 64>, true>("wgmma prefill 16/8x256 turbo4, a window of 100", {{190, 0}, {1, 64}, {33, 500}, {5, 95}}, 344, 3);
    check_prefill<Prefill<Windowed<SmallIn<Turbo3>, 40>, 64>, true, Prefill<Windowed<SmallIn<Turbo3>, 41>, 64>>("planted: a window of one more, wgmma prefill of turbo3", {{90, 5}}, 345);
#endif
    std::printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures != 0;
}
