// Attention kernels against the double-precision reference: decode (splits, formats, norms, odd widths, uneven batches), prefill
// (mixed sequences, cached prefixes), exact (both regimes); windows, tables that begin behind them, norms of values, keys as values, heads of
// 512, drafts; caches of fp8. nvcc as in common.cuh; PART selects a sixth of the instantiations, so that six compilers can work at once.
#include "attention/attention_checks.cuh"

using namespace test;

using Llama = Heads<32, 8, 128, bf16, 64, true>;
using Qwen = Heads<16, 2, 128, bf16, 64, true, HeadNorm::Plain>;
using Wide = Heads<16, 2, 256, bf16, 32, true, HeadNorm::OnePlus>;
using Small = Heads<9, 3, 64, bf16, 32, true>;
using Odd = Heads<5, 1, 6, f16, 3, true>;  // gates of a width that no vector divides
// Gemma 4's: those with a window, and those without.
using SlidingHeads = Heads<16, 8, 256, bf16, 128, true, HeadNorm::Plain>;
using Sliding = ValuesNormed<SlidingHeads>;
using Full = KeysAsValues<ValuesNormed<Heads<16, 2, 512, bf16, 256, true, HeadNorm::Plain>>>;
// The same with codes of fp8.
using Llama8 = Heads<32, 8, 128, E4m3, 64, true>;
using Qwen8 = Heads<16, 2, 128, E4m3, 64, true, HeadNorm::Plain>;
using Wide8 = Heads<16, 2, 256, E4m3, 32, true, HeadNorm::OnePlus>;
using Small8 = Heads<9, 3, 64, E4m3, 32, true>;
using Sliding8 = ValuesNormed<Heads<16, 8, 256, E4m3, 128, true, HeadNorm::Plain>>;
using Full8 = KeysAsValues<ValuesNormed<Heads<16, 2, 512, E4m3, 256, true, HeadNorm::Plain>>>;

#ifndef PART
#error "compile with -DPART=0, 1, 2, 3, 4 and 5"
#endif

int main() {
#if PART == 0
    check_decode<Decode<Llama, 1, 64>, 1>("decode 32/8x128 bf16, 1 split, 128 tokens", {127}, 1);
    check_decode<Decode<Llama, 16, 64>, 8>("decode 32/8x128 bf16, 16 splits, 0..1500 tokens, 7 of 8 rows", {0, 1, 15, 16, 63, 64, 1500}, 2);
    check_decode<BeforeWait<Decode<Llama, 16, 128, 8>>, 4>("decode 32/8x128 bf16, context before the wait", {0, 1500}, 9);
    check_decode<Decode<Llama, 2, 128>, 4>("decode 32/8x128 bf16, 2 splits", {127, 128, 1000}, 3);
    check_decode<Decode<Llama, 16, 64>, 1>("planted: a wrong key must be seen", {300}, 4, Plant::Key);
    check_decode<Decode<Qwen, 4, 64, 8>, 4>("decode 16/2x128 bf16 norm, 4 splits, 8 warps", {5, 700, 255, 256}, 5);
    check_decode<Decode<Wide, 3, 64>, 2>("decode 16/2x256 bf16 one-plus partial rotary, 3 splits", {777, 31}, 6);
    check_decode<Decode<Heads<24, 2, 128, bf16, 64, false>, 4, 64>, 2>("decode 24/2x128 bf16 adjacent, group 12", {300, 64}, 7);
    check_decode<Decode<Heads<16, 1, 64, f16, 16, false, HeadNorm::Plain>, 4, 64>, 4>("decode 16/1x64 f16 adjacent partial", {300, 64, 0}, 8);
    check_decode<Decode<Gated<Wide>, 3, 64>, 2>("decode 16/2x256 bf16 one-plus gated, 3 splits", {777, 31}, 60);
    check_decode<Decode<Gated<Qwen>, 1, 64, 8>, 4>("decode 16/2x128 bf16 norm gated, 1 split", {300, 0, 64}, 61);
#elif PART == 1
    check_decode<Decode<Heads<8, 8, 80, f16, 40, true>, 2, 64>, 4>("decode 8/8x80 f16, 2 splits", {300, 17}, 10);
    check_decode<Decode<Heads<12, 4, 96, bf16, 48, true, HeadNorm::Plain>, 2, 64>, 1>("decode 12/4x96 bf16", {130}, 11);
    check_decode<Decode<Heads<8, 2, 128, float, 64, true>, 4, 64>, 2>("decode 8/2x128 f32", {333, 2}, 12);
    check_decode<Decode<Odd, 2, 64>, 4>("decode 5/1x6 f16", {100, 0}, 13);
    check_decode<Decode<Heads<4, 2, 10, float, 4, false>, 2, 64>, 2>("decode 4/2x10 f32 partial adjacent", {65, 200}, 14);
    check_decode<Decode<Heads<6, 2, 12, bf16, 6, true, HeadNorm::OnePlus>, 1, 64>, 2>("decode 6/2x12 bf16", {40}, 15);
    check_decode<Decode<Heads<6, 3, 20, bf16, 8, false>, 2, 64>, 2>("decode 6/3x20 bf16", {79, 80}, 16);
    check_decode<Decode<Blocks<Heads<4, 1, 40, bf16, 20, true>, 32>, 2, 64>, 2>("decode 4/1x40 bf16, blocks of 32", {1000, 31}, 17);
    check_decode<Decode<Blocks<Small, 64>, 4, 64>, 4>("decode 9/3x64 bf16, blocks of 64", {1000, 64, 63}, 18);
    check_exact<Exact<Heads<9, 3, 64, bf16, 32, true>>>("exact 9/3x64 bf16, prefill", {{70, 0}, {1, 300}, {33, 100}}, 20);
    check_exact<Exact<Heads<9, 3, 64, f16, 32, true>>>("exact 9/3x64 f16, decode", {{1, 0}, {1, 300}, {1, 33}}, 21, true);
    check_exact<Exact<Heads<6, 2, 20, float, 8, false, HeadNorm::OnePlus>>>("exact 6/2x20 f32 one-plus adjacent", {{40, 0}, {3, 17}}, 22);
    check_exact<Exact<Heads<4, 1, 6, float, 3, true, HeadNorm::Plain>>>("exact 4/1x6 f32 plain", {{40, 3}}, 23);
    check_exact<Exact<Heads<2, 1, 80, float, 40, true>>>("exact 2/1x80 f32, values in place", {{20, 3}, {1, 300}}, 25);
    check_exact<Exact<Heads<2, 2, 96, bf16, 48, true, HeadNorm::Plain>>>("exact 2/2x96 bf16 plain", {{20, 3}}, 24);
    check_decode<Decode<Gated<Odd>, 2, 64>, 4>("decode 5/1x6 f16 gated", {100, 0}, 62);
    check_exact<Exact<Gated<Small>>>("exact 9/3x64 bf16 gated, prefill", {{70, 0}, {1, 300}, {33, 100}}, 63);
    check_exact<Exact<Gated<Heads<4, 1, 6, float, 3, true, HeadNorm::Plain>>>>("exact 4/1x6 f32 plain gated, decode", {{1, 0}, {1, 90}}, 64, true);
#elif PART == 2
    check_prefill<Prefill<Llama, 64>, true>("wgmma prefill 32/8x128 bf16, one prompt of 200", {{200, 0}}, 50);
    check_prefill<Prefill<Llama, 64>, true>("wgmma prefill 32/8x128 bf16, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 51);
    check_prefill<Prefill<Llama, 64>, true>("wgmma prefill 32/8x128 bf16, few blocks, long prefix", {{90, 700}, {1, 255}, {40, 31}, {1, 256}}, 52, 8);
    check_prefill<Prefill<Qwen, 64, 32>, true>("wgmma prefill 16/2x128 bf16 norm, blocks of 32", {{100, 60}, {17, 0}}, 53);
    check_prefill<Prefill<Small, 64, 64>, true>("wgmma prefill 9/3x64 bf16, blocks of 64", {{130, 0}, {1, 64}}, 54, 2);
    check_prefill<Prefill<Heads<4, 4, 64, bf16, 32, true>, 64>, true>("wgmma prefill 4/4x64 bf16, group 1", {{300, 3}}, 55, 4);
    check_prefill<Prefill<Heads<16, 1, 128, bf16, 64, true>, 64>, true>("wgmma prefill 16/1x128 bf16, group 16", {{50, 200}}, 56);
    check_prefill<Prefill<Heads<16, 2, 256, bf16, 16, true>, 64>, true>("wgmma prefill 16/2x256 bf16 norm", {{90, 0}, {1, 64}, {33, 100}}, 57, 3);
    check_prefill<Prefill<Heads<6, 2, 256, bf16, 64, true>, 64>, true>("wgmma prefill 6/2x256 bf16, blocks of 64", {{150, 70}, {2, 0}}, 58, 2);
    check_prefill<Prefill<Gated<Wide>, 64>, true>("wgmma prefill 16/2x256 bf16 one-plus gated", {{90, 0}, {1, 64}, {33, 100}}, 65, 3);
    check_prefill<Prefill<Gated<Qwen>, 64>, true>("wgmma prefill 16/2x128 bf16 norm gated", {{100, 60}, {17, 0}}, 66);
    check_prefill<Prefill<Windowed<Sliding, 100>, 64>, true>("wgmma prefill 16/8x256 bf16, a window of 100", {{190, 0}, {1, 64}, {33, 500}, {5, 95}}, 70, 3);
    check_prefill<Prefill<Windowed<Sliding, 1>, 64>, true>("wgmma prefill 16/8x256 bf16, a window of 1", {{90, 0}, {1, 64}}, 71);
    check_prefill<Prefill<Windowed<Llama, 300>, 64>, true>("wgmma prefill 32/8x128 bf16, a window of 300", {{200, 250}, {1, 700}}, 72, 2);
    check_prefill<Prefill<Windowed<Sliding, 40>, 64>, true, Prefill<Windowed<Sliding, 41>, 64>>("planted: a window of one more, wgmma prefill", {{90, 5}}, 73);
    check_prefill<Prefill<Slides<Windowed<Sliding, 100>>, 64>, true>("wgmma prefill 16/8x256 bf16, a table behind a window of 100", {{33, 500}, {190, 0}, {1, 64}, {5, 95}}, 74, 3);
    check_prefill<Prefill<Llama8, 64>, true>("wgmma prefill 32/8x128 fp8, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 75);
    check_prefill<Prefill<Qwen8, 64, 32>, true>("wgmma prefill 16/2x128 fp8 norm, blocks of 32, few blocks", {{90, 700}, {17, 0}}, 76, 8);
    check_prefill<Prefill<Small8, 64, 64>, true>("wgmma prefill 9/3x64 fp8, blocks of 64", {{130, 0}, {1, 64}}, 77, 2);
    check_prefill<Prefill<Gated<Wide8>, 64>, true>("wgmma prefill 16/2x256 fp8 one-plus gated", {{90, 0}, {1, 64}, {33, 100}}, 78, 3);
    check_prefill<Prefill<Windowed<Sliding8, 100>, 64>, true>("wgmma prefill 16/8x256 fp8, a window of 100", {{190, 0}, {1, 64}, {33, 500}, {5, 95}}, 79, 3);
    check_continuation<Prefill<Decode<Qwen, 4, 64>, 64>>("decode after prefill = prefill, 16/2x128", 190, 42);
    check_continuation<Prefill<Decode<Small, 2, 64>, 64>>("decode after prefill = prefill, 9/3x64", 77, 43);
#elif PART == 3
    check_prefill<Prefill<Llama, 64>>("prefill 32/8x128 bf16, one prompt of 200", {{200, 0}}, 30);
    check_prefill<Prefill<Llama, 64>>("prefill 32/8x128 bf16, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 31);
    check_prefill<Prefill<Llama, 32>>("prefill 32/8x128 bf16, keys 32, few blocks", {{90, 5}, {1, 200}, {40, 31}}, 32, 8);
    check_prefill<Prefill<Qwen, 64, 32>>("prefill 16/2x128 bf16 norm, blocks of 32", {{100, 60}, {17, 0}}, 33);
    check_prefill<Prefill<Wide, 32, 64>>("prefill 16/2x256 bf16, blocks of 64", {{70, 40}, {9, 0}}, 34);
    check_prefill<Prefill<Small, 64>>("prefill 9/3x64 bf16", {{130, 0}, {1, 64}}, 35);
    check_prefill<Prefill<Heads<8, 8, 80, f16, 40, true>, 64>>("prefill 8/8x80 f16, group 1", {{300, 3}}, 36);
    check_prefill<Prefill<Heads<8, 2, 128, float, 64, true>, 32>>("prefill 8/2x128 f32", {{60, 30}}, 37);
    check_prefill<Prefill<Odd, 64>>("prefill 5/1x6 f16", {{60, 30}, {3, 0}}, 38);
    check_prefill<Prefill<Heads<6, 3, 20, bf16, 8, false>, 32>>("prefill 6/3x20 bf16", {{60, 30}}, 39);
    check_prefill<Prefill<Heads<4, 1, 40, bf16, 20, true>, 64>>("prefill 4/1x40 bf16", {{60, 30}}, 40);
    check_prefill<Prefill<Heads<16, 1, 64, bf16, 32, true>, 64>>("prefill 16/1x64 bf16, group 16", {{50, 200}}, 41);
    check_prefill<Prefill<Gated<Wide>, 32>>("prefill 16/2x256 bf16 one-plus gated", {{70, 40}, {9, 0}}, 67);
    check_prefill<Prefill<Gated<Odd>, 64>>("prefill 5/1x6 f16 gated", {{60, 30}, {3, 0}}, 68);
#elif PART == 4
    check_decode<Decode<Windowed<Sliding, 100>, 5, 64>, 8>("decode 16/8x256 bf16, a window of 100", {0, 98, 99, 100, 101, 500, 1024}, 80);
    check_decode<BeforeWait<Decode<Windowed<Sliding, 1024>, 5, 256, 8>>, 2>("decode 16/8x256 bf16, a window of 1024, 8 warps", {3000, 1023}, 81);
    check_decode<Decode<Windowed<Small, 1>, 2, 64>, 4>("decode 9/3x64 bf16, a window of 1", {0, 15, 16, 300}, 82);
    check_decode<Decode<Windowed<Blocks<Small, 64>, 70>, 2, 64>, 2>("decode 9/3x64 bf16, blocks of 64, a window of 70", {300, 133}, 83);
    check_decode<Decode<Windowed<Sliding, 40>, 2, 64>, 1, Decode<Windowed<Sliding, 41>, 2, 64>>("planted: a window of one more, decode", {300}, 84);
    check_decode<Decode<Windowed<Sliding, 40>, 2, 64>, 1, Decode<Windowed<Sliding, 39>, 2, 64>>("planted: a window of one less, decode", {300}, 85);
    check_decode<Decode<Full, 4, 64>, 4>("decode 16/2x512 bf16, keys as values, 4 splits", {5, 700, 255, 256}, 86);
    check_decode<Decode<Full, 1, 64, 8>, 1>("decode 16/2x512 bf16, keys as values, 8 warps", {130}, 87);
    check_decode<Decode<ValuesNormed<Heads<8, 1, 512, f16, 32, true>>, 2, 64>, 2>("decode 8/1x512 f16, values normed", {77, 300}, 88);
    check_decode<Decode<Windowed<Sliding, 40>, 2, 64>, 1, Decode<Windowed<SlidingHeads, 40>, 2, 64>>("planted: values without their norm, decode", {300}, 89);
    check_decode<Decode<Full, 4, 64>, 1>("planted: a wrong key of 512 must be seen", {300}, 90, Plant::Key);
    check_decode<Verify<Decode<Llama, 3, 64>, 4>, 16>("decode of 4 tokens, 32/8x128 bf16", {60, 0, 500}, 103);
    check_decode<Verify<Decode<Full, 1, 64>, 8>, 24>("decode of 8 tokens, 16/2x512 bf16, head by head", {300, 0, 121}, 104);
    check_decode<BeforeWait<Verify<Decode<Full, 4, 64, 8>, 8>>, 8>("decode of 8 tokens, 16/2x512 bf16, 8 warps", {250}, 105);
    check_decode<Verify<Decode<Windowed<Sliding, 100>, 2, 64>, 8>, 16>("decode of 8 tokens, 16/8x256 bf16, a window of 100", {96, 500}, 106);
    check_decode<Verify<Decode<Windowed<Small, 5>, 1, 64>, 8>, 16>("decode of 8 tokens, 9/3x64 bf16, a window of 5", {250, 2}, 107);
    check_decode<Verify<Decode<Windowed<Sliding, 40>, 2, 64>, 8>, 8, Verify<Decode<Windowed<Sliding, 41>, 2, 64>, 8>>("planted: a window of one more, decode of 8 tokens", {300}, 108);
    check_prefill<Prefill<Windowed<Sliding, 100>, 32>>("prefill 16/8x256 bf16, a window of 100", {{190, 0}, {1, 64}, {33, 500}, {5, 95}}, 91, 3);
    check_prefill<Prefill<Windowed<Small, 1>, 64>>("prefill 9/3x64 bf16, a window of 1", {{90, 0}, {1, 64}}, 92);
    check_prefill<Prefill<Windowed<Small, 30>, 16, 64>>("prefill 9/3x64 bf16, blocks of 64, a window of 30", {{90, 100}, {3, 500}}, 93);
    check_prefill<Prefill<Windowed<Small, 40>, 64>, false, Prefill<Windowed<Small, 41>, 64>>("planted: a window of one more, prefill", {{90, 5}}, 94);
    check_decode<Decode<Slides<Windowed<Sliding, 100>>, 5, 64>, 8>("decode 16/8x256 bf16, a table behind a window of 100", {500, 0, 98, 100, 101, 1024}, 109);
    check_decode<Verify<Decode<Slides<Windowed<Small, 5>>, 1, 64>, 8>, 16>("decode of 8 tokens, 9/3x64 bf16, a table behind a window of 5", {250, 2}, 110);
    check_decode<Decode<Slides<Windowed<Sliding, 40>>, 2, 64>, 1, Decode<Windowed<Sliding, 40>, 2, 64>>("planted: the table of other layers, decode", {300}, 111);
    check_prefill<Prefill<Slides<Windowed<Small, 30>>, 16, 64>>("prefill 9/3x64 bf16, blocks of 64, a table behind a window of 30", {{3, 500}, {90, 100}}, 112);
    check_prefill<Prefill<Slides<Windowed<Sliding, 100>>, 32>>("prefill 16/8x256 bf16, a table behind a window of 100", {{33, 500}, {190, 0}, {1, 64}, {5, 95}}, 113, 3);
    check_prefill<Prefill<Slides<Windowed<Small, 40>>, 64>, false, Prefill<Windowed<Small, 40>, 64>>("planted: the table of other layers, prefill", {{90, 305}}, 114);
    check_exact<Exact<Slides<Windowed<ValuesNormed<Heads<6, 3, 12, float, 6, true, HeadNorm::Plain>>, 24>>>>("exact 6/3x12 f32, a table behind a window of 24", {{1, 300}, {70, 0}, {33, 100}}, 115);
    check_exact<Exact<Slides<Windowed<Small, 5>>>>("exact 9/3x64 bf16, a table behind a window of 5, decode", {{1, 300}, {1, 0}, {1, 33}}, 116, true);
    check_prefill<Prefill<Full, 16>>("prefill 16/2x512 bf16, keys as values", {{70, 40}, {9, 0}, {1, 130}}, 95);
    check_prefill<Prefill<Full, 32, 64>>("prefill 16/2x512 bf16, keys as values, blocks of 64", {{33, 100}}, 96, 2);
    check_prefill<Prefill<Heads<6, 2, 288, f16, 144, true>, 16>>("prefill 6/2x288 f16", {{40, 30}}, 97);
    check_exact<Exact<Windowed<ValuesNormed<Heads<6, 3, 12, float, 6, true, HeadNorm::Plain>>, 24>>>("exact 6/3x12 f32, a window of 24", {{70, 0}, {1, 300}, {33, 100}}, 98);
    check_exact<Exact<Windowed<KeysAsValues<ValuesNormed<Heads<6, 2, 20, bf16, 10, true, HeadNorm::Plain>>>, 5>>>("exact 6/2x20 bf16, a window of 5, keys as values, decode", {{1, 0}, {1, 300}, {1, 33}}, 99, true);
    check_exact<Exact<KeysAsValues<ValuesNormed<Heads<4, 2, 96, float, 48, true, HeadNorm::Plain>>>>>("exact 4/2x96 f32, keys as values", {{20, 3}, {1, 90}}, 100);
    check_continuation<Prefill<Decode<Windowed<Sliding, 50>, 4, 64>, 32>>("decode after prefill = prefill, 16/8x256, a window of 50", 190, 101);
    check_continuation<Prefill<Decode<Full, 2, 64>, 16>>("decode after prefill = prefill, 16/2x512", 77, 102);
#else
    check_decode<Decode<Llama8, 16, 64>, 8>("decode 32/8x128 fp8, 16 splits, 0..1500 tokens, 7 of 8 rows", {0, 1, 15, 16, 63, 64, 1500}, 200);
    check_decode<BeforeWait<Decode<Llama8, 16, 128, 8>>, 4>("decode 32/8x128 fp8, context before the wait", {0, 1500}, 201);
    check_decode<Decode<Qwen8, 1, 64, 8>, 4>("decode 16/2x128 fp8 norm, 1 split", {5, 700, 255, 256}, 202);
    check_decode<Decode<Gated<Wide8>, 3, 64>, 2>("decode 16/2x256 fp8 one-plus gated, 3 splits", {777, 31}, 203);
    check_decode<Decode<Heads<24, 2, 128, E4m3, 64, false>, 4, 64>, 2>("decode 24/2x128 fp8 adjacent, group 12", {300, 64}, 204);
    check_decode<Decode<Blocks<Small8, 32>, 4, 64>, 4>("decode 9/3x64 fp8, blocks of 32", {1000, 64, 63}, 205);
    check_decode<Decode<Heads<6, 3, 20, E4m3, 8, false>, 2, 64>, 2>("decode 6/3x20 fp8", {79, 80}, 206);
    check_decode<Decode<Heads<8, 8, 80, E4m3, 40, true>, 2, 64>, 4>("decode 8/8x80 fp8, 2 splits", {300, 17}, 207);
    check_decode<Decode<Windowed<Sliding8, 100>, 5, 64>, 8>("decode 16/8x256 fp8, a window of 100", {0, 98, 99, 100, 101, 500, 1024}, 208);
    check_decode<Decode<Full8, 4, 64>, 4>("decode 16/2x512 fp8, keys as values, 4 splits", {5, 700, 255, 256}, 209);
    check_decode<Verify<Decode<Llama8, 3, 64>, 4>, 16>("decode of 4 tokens, 32/8x128 fp8", {60, 0, 500}, 210);
    check_decode<Decode<Llama8, 4, 64>, 1>("planted: a wrong key of fp8 must be seen", {300}, 211, Plant::Key);
    check_decode<Decode<Llama8, 4, 64>, 1>("planted: scales of the other side must be seen", {300}, 212, Plant::Scales);
    check_prefill<Prefill<Llama8, 64>>("prefill 32/8x128 fp8, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 213);
    check_prefill<Prefill<Qwen8, 64, 32>>("prefill 16/2x128 fp8 norm, blocks of 32, few blocks", {{100, 60}, {17, 0}}, 214, 8);
    check_prefill<Prefill<Gated<Wide8>, 32>>("prefill 16/2x256 fp8 one-plus gated", {{70, 40}, {9, 0}}, 215);
    check_prefill<Prefill<Heads<6, 3, 20, E4m3, 8, false>, 32>>("prefill 6/3x20 fp8", {{60, 30}}, 216);
    check_prefill<Prefill<Windowed<Sliding8, 100>, 32>>("prefill 16/8x256 fp8, a window of 100", {{190, 0}, {1, 64}, {33, 500}, {5, 95}}, 217, 3);
    check_prefill<Prefill<Full8, 16>>("prefill 16/2x512 fp8, keys as values", {{70, 40}, {9, 0}, {1, 130}}, 218);
    check_exact<Exact<Small8>>("exact 9/3x64 fp8, prefill", {{70, 0}, {1, 300}, {33, 100}}, 219);
    check_exact<Exact<Heads<6, 2, 20, E4m3, 8, false, HeadNorm::OnePlus>>>("exact 6/2x20 fp8 one-plus adjacent", {{40, 0}, {3, 17}}, 220);
    check_exact<Exact<Gated<Full8>>>("exact 16/2x512 fp8 gated, values in place, decode", {{1, 0}, {1, 90}}, 221, true);
    check_kept_numbers<Exact<Small8>>("numbers are kept, 9/3x64 fp8", 226);
    check_measured<Exact<Small8>>("measured 9/3x64 fp8", {{70, 0}, {1, 300}, {33, 100}}, 224);
    check_measured<Exact<Full8>>("measured 16/2x512 fp8, keys as values", {{40, 3}}, 225);
    check_continuation<Prefill<Decode<Qwen8, 4, 64>, 64>>("decode after prefill = prefill, 16/2x128 fp8", 190, 222);
    check_continuation<Prefill<Decode<Windowed<Sliding8, 50>, 4, 64>, 32>>("decode after prefill = prefill, 16/8x256 fp8, a window of 50", 190, 223);
#endif
    std::printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures != 0;
}
