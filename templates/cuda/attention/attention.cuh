// What the attention kernels share: the constants they are instantiated with, the K/V cache's addresses, its elements.
//
// A kernel's Config is a struct with those of these `static constexpr` members that its declaration names (tests derive from AttentionDefaults):
//   int HEADS, KV_HEADS, HEAD_DIM      query heads (a multiple of KV_HEADS), key and value heads, width of a head
//   int BLOCK_TOKENS                   tokens a K/V block holds, a multiple of 16
//   using Kv                           element of the cache: float, __nv_bfloat16, __half or E4m3; or a format of grouped.cuh
//   int ROTARY_PAIRS; bool ROTARY_HALVES   pairs a head turns (0 = none); pairs are (i, i + ROTARY_PAIRS), or (2i, 2i + 1)
//   HeadNorm Q_NORM, K_NORM; float Q_EPS, K_EPS   norms over a head before the rotation
//   float V_EPS                        optional: values are normed over a head, without a weight
//   bool KEYS_AS_VALUES                optional: values are what keys are made of, before norm and rotation: qkv has no value heads
//   int WINDOW                         optional: a query attends to so many positions at most, its own among them; blocks of the
//                                      cache that lie wholly behind the window of all of a step's queries are not read
//   bool SLIDES                        optional, of layers with a WINDOW: their blocks are in the step's table of such layers, which has
//                                      none that lie wholly behind the window of all of a step's queries (SlidingStarts)
//   float SCALE                        multiplies scores
//   bool GATED                         every element of the result is multiplied by the sigmoid of its gate (gate_context)
//   bool EXACT                         arithmetic of the reference interpreter (attention_write, attention_exact)
//   int SPLITS, DECODE_WARPS, MIN_CHUNK    attention_decode's division of the context
//   int TOKENS                         rows of a sequence that attention_decode meets in a step
//   bool CONTEXT_BEFORE_WAIT           attention_decode reads the step header and the K/V of earlier steps before it waits for
//                                      its predecessors. Only where those are complete before any kernel of the step starts:
//                                      the header uploaded, and the step before finished, by full dependencies, not dependent
//                                      launches (steps as graphs of one stream, the upload before the graph)
//   int PREFILL_KEYS                   keys of attention_prefill's tile
//
// Cache of a layer: [blocks][2: keys, values][KV_HEADS][BLOCK_TOKENS][HEAD_DIM] of Kv, or [blocks][2][KV_HEADS] units of grouped.cuh. Keys
// are stored after norm and rotary. A Kv with STATIC_SCALES has them end where the first block begins: f32 [2: keys, values][KV_HEADS]. In
// front of them are the bits of the largest magnitudes that were measured, in the same order. In front of these a word says whether
// something is being measured: by attention_write, so that a step of one token a sequence, which attention_decode writes, counts for nothing.
// qkv: f32 [rows, QKV_WIDTH]: query heads, GATED: as many heads of gates, key heads, value heads if there are such. Query head h
// reads K/V head h / GROUP, GROUP = HEADS / KV_HEADS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/grouped.cuh"
#include "attention/grouped_write.cuh"
#include "attention/rotary.cuh"
#include "attention/sliding.cuh"
#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/step.cuh"

namespace monomorph {

// An element of an fp8 cache: the code of an e4m3, which the static scale of its head multiplies. Codes are exact in f16; products are of
// codes, and scales multiply scores and sums of values. Stored are quotients by the scale, not products with its inverse: rounded once.
// A NaN is kept as the largest number, as all formats of codes keep it as some number.
struct E4m3 {
    unsigned char code;
    E4m3() = default;
    __device__ __forceinline__ explicit E4m3(float v) : code(pack_e4m3(fminf(v, 448.0f))) {}
};
template <class E>
constexpr bool STATIC_SCALES = std::is_same_v<E, E4m3> || groups_have_static_scales<E>();

struct AttentionDefaults {
    static constexpr HeadNorm Q_NORM = HeadNorm::None, K_NORM = HeadNorm::None;
    static constexpr float Q_EPS = 0.0f, K_EPS = 0.0f;
    static constexpr bool EXACT = false, CONTEXT_BEFORE_WAIT = false, GATED = false;
    static constexpr int SPLITS = 1, DECODE_WARPS = 8, MIN_CHUNK = 128, TOKENS = 1;
    static constexpr int PREFILL_KEYS = 64;
};

// The norm of value heads.
template <class C, class = void>
struct ValueNorm {
    static constexpr HeadNorm NORM = HeadNorm::None;
    static constexpr float EPS = 0.0f;
};
template <class C>
struct ValueNorm<C, decltype(void(C::V_EPS))> {
    static constexpr HeadNorm NORM = HeadNorm::Bare;
    static constexpr float EPS = C::V_EPS;
};

template <class C, class = void>
constexpr bool VALUES_ARE_KEYS = false;
template <class C>
constexpr bool VALUES_ARE_KEYS<C, decltype(void(C::KEYS_AS_VALUES))> = C::KEYS_AS_VALUES;

// The positions that a query attends to: first(its own) .. its own.
template <class C, class = void>
struct Window {
    static constexpr bool THERE = false;
    __host__ __device__ static constexpr int first(int) { return 0; }
    __device__ __forceinline__ static float finite(float largest) { return largest; }
};
template <class C>
struct Window<C, decltype(void(C::WINDOW))> {
    static_assert(C::WINDOW > 0, "a query attends to itself");
    static constexpr bool THERE = true;
    __host__ __device__ static constexpr int first(int position) { return position < C::WINDOW ? 0 : position + 1 - C::WINDOW; }
    // The largest score so far; where no key has been seen yet another number, so that differences from it are no NaN.
    __device__ __forceinline__ static float finite(float largest) { return largest == -INFINITY ? 0.0f : largest; }
};

template <class C, class = void>
constexpr bool HAS_SLIDING_TABLE = false;
template <class C>
constexpr bool HAS_SLIDING_TABLE<C, decltype(void(C::SLIDES))> = C::SLIDES;

// Where a sequence's table of blocks begins in the step's: block i of the sequence is blocks()[table_start + i]. With SLIDES that is
// so from the first block on that the sequence's rows attend to.
template <class C>
__device__ __forceinline__ int table_start(const Step* step, int sequence) {
    if constexpr (HAS_SLIDING_TABLE<C>) {
        static_assert(Window<C>::THERE, "blocks are given back behind a window");
        return reinterpret_cast<const SlidingStarts*>(step + 1)->start[sequence];
    } else {
        return step->sequence[sequence].block_start;
    }
}

// Elements from a head's keys in a block to the next head's, and from block to block; of grouped formats bytes.
template <class C, bool = GROUPED<typename C::Kv>>
struct CacheStrides {
    static constexpr size_t HEAD = static_cast<size_t>(C::BLOCK_TOKENS) * C::HEAD_DIM, BLOCK = 2 * C::KV_HEADS * HEAD;
};
template <class C>
struct CacheStrides<C, true> {
    static constexpr size_t HEAD = KeptRow<C, Side::Keys>::UNIT, BLOCK = GROUPED_BLOCK<C>;
};

// Constants that follow from a Config.
template <class C>
struct AttentionShape {
    static_assert(C::HEADS % C::KV_HEADS == 0, "query heads share K/V heads evenly");
    static_assert(C::BLOCK_TOKENS % 16 == 0, "a K/V block holds whole tiles of 16 tokens");
    static constexpr int GROUP = C::HEADS / C::KV_HEADS;
    static_assert(GROUP <= 16, "the query heads of a K/V head fill at most one tile of 16 rows");
    static constexpr int WIDTH = C::HEADS * C::HEAD_DIM;
    static constexpr int FIRST_KEY = C::GATED ? 2 * C::HEADS : C::HEADS;  // of the heads of a row of qkv
    static constexpr int FIRST_VALUE = VALUES_ARE_KEYS<C> ? FIRST_KEY : FIRST_KEY + C::KV_HEADS;
    static constexpr int QKV_WIDTH = (FIRST_VALUE + C::KV_HEADS) * C::HEAD_DIM;
    static constexpr int HEAD_DIM_16 = (C::HEAD_DIM + 15) / 16 * 16;  // width of a head of the q that attention_write leaves
    using Kv = typename C::Kv;
    static constexpr size_t HEAD_STRIDE = CacheStrides<C>::HEAD;  // from a head to the next
    static constexpr size_t VALUES = C::KV_HEADS * HEAD_STRIDE;   // from keys to values
    static constexpr size_t BLOCK_STRIDE = CacheStrides<C>::BLOCK;
    // What tensor cores multiply: f16 for a cache of f16 or of codes that are exact in it, bf16 for the others.
    static constexpr bool F16 = std::is_same_v<Kv, __half> || std::is_same_v<Kv, E4m3> || (GROUPED<Kv> && !groups_need_two_terms<Kv>());
    using Operand = std::conditional_t<F16, __half, __nv_bfloat16>;
};

template <class E>
__device__ __forceinline__ E round_to(float v) {
    if constexpr (std::is_same_v<E, float>)
        return v;
    else if constexpr (std::is_same_v<E, __half>)
        return __float2half_rn(v);
    else
        return __float2bfloat16_rn(v);
}

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float widen(E4m3 v) { return unpack_f16(unpack_e4m3_pair(v.code)).x; }  // without its scale

// What the cache keeps of a value, and what that means; `scale`: of a Kv that has static scales.
template <class E>
__device__ __forceinline__ E keep(float v, float scale) {
    if constexpr (STATIC_SCALES<E>)
        return E(__fdiv_rn(v, scale));
    else
        return round_to<E>(v);
}
template <class E>
__device__ __forceinline__ float kept(E v, float scale) {
    if constexpr (STATIC_SCALES<E>)
        return __fmul_rn(widen(v), scale);
    else
        return widen(v);
}

// Two values rounded to 16 bits in one register, the first in the low half.
template <class E>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
    if constexpr (std::is_same_v<E, __half>) {
        __half2 pair = __floats2half2_rn(first, second);
        return *reinterpret_cast<uint32_t*>(&pair);
    } else {
        __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
        return *reinterpret_cast<uint32_t*>(&pair);
    }
}

template <class E>
__device__ __forceinline__ float2 unpack_pair(uint32_t pair) {
    if constexpr (std::is_same_v<E, __half>)
        return __half22float2(*reinterpret_cast<__half2*>(&pair));
    else
        return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&pair));
}

// Two values as a pair rounded to 16 bits and a pair holding what the rounding lost.
template <class E>
__device__ __forceinline__ void split_pair(float first, float second, uint32_t& high, uint32_t& low) {
    high = pack_pair<E>(first, second);
    float2 rounded = unpack_pair<E>(high);
    low = pack_pair<E>(first - rounded.x, second - rounded.y);
}

// mma_bf16, or the same with f16 operands for Operand = __half.
template <class Operand>
__device__ __forceinline__ void mma_16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<Operand, __half>)
        mma_f16(d, a[0], a[1], a[2], a[3], b0, b1);
    else
        mma_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
}

// Context vectors, elements column .. column + N of a row of `out` (N a power of two up to 8, column a multiple of N).
template <class C, int N>
__device__ __forceinline__ void store_context(float* out, int row, int column, const float (&v)[N]) {
            float* to = out + static_cast<size_t>(row) * AttentionShape<C>::WIDTH + column;
            if constexpr (N % 4 == 0) {
    #pragma unroll
                for (int j = 0; j < N; j += 4) reinterpret_cast<float4*>(to)[j / 4] = make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]);
            } else {
    #pragma unroll
                for (int j = 0; j < N; ++j) to[j] = v[j];
            }
}

// The gates of elements column .. column + N of a row: read early, applied late.
template <class C, int N>
struct ContextGates {
    float gate[N];

    __device__ __forceinline__ void load(const float* qkv, int row, int column) {
        if constexpr (C::GATED) {
            using A = AttentionShape<C>;
            const float* from = qkv + static_cast<size_t>(row) * A::QKV_WIDTH + A::WIDTH + column;
            if constexpr (N % 4 == 0 && A::QKV_WIDTH % 4 == 0 && A::WIDTH % 4 == 0) {
#pragma unroll
                for (int j = 0; j < N; j += 4) *reinterpret_cast<float4*>(gate + j) = __ldcg(reinterpret_cast<const float4*>(from + j));
            } else {
#pragma unroll
                for (int j = 0; j < N; ++j) gate[j] = __ldcg(from + j);
            }
        }
    }
    __device__ __forceinline__ void apply(float (&v)[N]) const {
        if constexpr (C::GATED) {
#pragma unroll
            for (int j = 0; j < N; ++j) v[j] = __fdividef(v[j], 1.0f + __expf(-gate[j]));  // a denominator beyond 2^126 gives 0, which is right
        }
    }
};

// Elements of a context vector times the sigmoid of their gates.
template <class C, int N>
__device__ __forceinline__ void gate_context(const float* qkv, int row, int column, float (&v)[N]) {
    ContextGates<C, N> gates;
    gates.load(qkv, row, column);
    gates.apply(v);
}

// Where the cache keeps a token's key (plus AttentionShape::VALUES: its value) of one head.
template <class C, class Pointer>
__device__ __forceinline__ Pointer cached_row(Pointer layer, int block, int kv_head, int token_in_block) {
    using S = AttentionShape<C>;
    return layer + static_cast<size_t>(block) * S::BLOCK_STRIDE + kv_head * S::HEAD_STRIDE + token_in_block * C::HEAD_DIM;
}

// Where a head stands among [2: keys, values][KV_HEADS].
template <class C>
__device__ __forceinline__ int of_head(Side side, int kv_head) { return (side == Side::Values ? C::KV_HEADS : 0) + kv_head; }
// The static scale of a head's keys or values; 1 where the cache has none. It changes between steps only.
template <class C>
__device__ __forceinline__ float static_scale(const typename C::Kv* layer, Side side, int kv_head) {
    if constexpr (STATIC_SCALES<typename C::Kv>)
        return (reinterpret_cast<const float*>(layer) - 2 * C::KV_HEADS)[of_head<C>(side, kv_head)];
    else
        return 1.0f;
}

// Adds a head that a warp has to what is measured. Bits of magnitudes stand in their order; what is no number is above all others.
template <class C>
__device__ __forceinline__ void measure_head(typename C::Kv* layer, Side side, int kv_head, const HeadVector<C>& head, int lane) {
    if constexpr (STATIC_SCALES<typename C::Kv>) {
        unsigned* largest = reinterpret_cast<unsigned*>(layer) - 4 * C::KV_HEADS;
        if (largest[-1] == 0) return;
        unsigned bits = 0;
        head.each(lane, [&](int, float v) { bits = max(bits, __float_as_uint(v) & 0x7fffffffu); });
        bits = __reduce_max_sync(0xffffffffu, bits);
        if (lane == 0) atomicMax(largest + of_head<C>(side, kv_head), bits);
    }
}

// A context vector of values that a cache keeps rotated, in a warp: rotated back, times its gates, and stored from `column` of a row on.
template <class C>
__device__ __forceinline__ void store_rotated(float* out, const float* qkv, int row, int column, HeadVector<C>& head, int lane) {
    rotate_back(head, lane);
    head.each(lane, [&](int e, float v) {
        float one[1] = {v};
        gate_context<C>(qkv, row, column + e, one);
        store_context<C>(out, row, column + e, one);
    });
}

}  // namespace monomorph
