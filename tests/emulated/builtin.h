// What nvcc declares by itself, for kernels that g++ compiles. Included before a module's text.
//
// Approximate functions of a card are computed correctly rounded here, or nearly so.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "card.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __launch_bounds__
#undef __cluster_dims__
#undef __syncthreads
#undef __shared__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ shared_variables_are_declared_with_MONOMORPH_SHARED

#define threadIdx (::card::current->thread)
#define blockIdx (::card::current->block->index)

namespace card {
template <uint3 (*WHOLE)(), unsigned uint3::*MEMBER>
struct Extent {
    operator unsigned() const { return WHOLE().*MEMBER; }
};
template <uint3 (*WHOLE)()>
struct Extents {
    Extent<WHOLE, &uint3::x> x;
    Extent<WHOLE, &uint3::y> y;
    Extent<WHOLE, &uint3::z> z;
};
}  // namespace card
// No macros: launch configurations have members of these names.
inline constexpr card::Extents<card::grid> gridDim = {};
inline constexpr card::Extents<card::block> blockDim = {};

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

namespace card {
template <class T>
struct Same {
    using Type = T;
};
}  // namespace card

template <class To, class From>
inline To card_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned v) { return card_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return card_bits<unsigned>(v); }
inline int __float_as_int(float v) { return card_bits<int>(v); }
inline float __int_as_float(int v) { return card_bits<float>(v); }
inline double __longlong_as_double(long long v) { return card_bits<double>(v); }
inline long long __double_as_longlong(double v) { return card_bits<long long>(v); }
inline double __hiloint2double(int high, int low) { return card_bits<double>(uint64_t(unsigned(high)) << 32 | unsigned(low)); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f ? 0.0f : a / b; }
inline float __expf(float v) { return std::exp(v); }
inline float rsqrtf(float v) { return float(1.0 / std::sqrt(double(v))); }

inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(unsigned(v)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = uint64_t(high) << 32 | low;
    unsigned chosen = 0;
    for (int i = 0; i < 4; i++) chosen |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return chosen;
}

template <class T>
inline T __ldg(const T* p) { return *p; }
template <class T>
inline T __ldcg(const T* p) { return *p; }
template <class T>
inline void __stcg(T* p, typename card::Same<T>::Type v) { *p = v; }
[[noreturn]] inline void __trap() { card::fail("a trap"); }
inline void __threadfence() {}
inline long long clock64() { return card::clock(); }

// One processor thread runs everything.
template <class T>
inline T atomicAdd(T* p, typename card::Same<T>::Type v) { T old = *p; *p = old + v; return old; }
template <class T>
inline T atomicMax(T* p, typename card::Same<T>::Type v) { T old = *p; *p = std::max(old, v); return old; }
template <class T>
inline T atomicMin(T* p, typename card::Same<T>::Type v) { T old = *p; *p = std::min(old, v); return old; }
template <class T>
inline T atomicOr(T* p, typename card::Same<T>::Type v) { T old = *p; *p = old | v; return old; }

inline void __syncthreads() { card::block_barrier(0, 0, true); }
inline void __syncwarp() { card::meet("__syncwarp", nullptr, [](card::Warp&) {}); }

namespace card {

template <class T>
struct Exchanged {
    T mine, theirs;
    int from;
};
// Every lane gets the value of lane `from`; of one that has ended, its own.
template <class T>
T exchange(T value, int from) {
    Exchanged<T> own = {value, value, from};
    meet("a shuffle", &own, [](Warp& w) {
        for (Fiber* lane : w.lane) {
            if (!lane) continue;
            auto& e = *static_cast<Exchanged<T>*>(lane->operands);
            if (Fiber* other = w.lane[e.from]) e.theirs = static_cast<Exchanged<T>*>(other->operands)->mine;
        }
    });
    return own.theirs;
}
inline int lane() { return current->thread.x % 32; }

// What all lanes' values come to.
template <class T, T (*F)(T, T)>
T reduce(T value) {
    T own = value;
    meet("a reduction", &own, [](Warp& w) {
        bool first = true;
        T all = {};
        for (Fiber* lane : w.lane)
            if (lane) all = first ? *static_cast<T*>(lane->operands) : F(all, *static_cast<T*>(lane->operands)), first = false;
        for (Fiber* lane : w.lane)
            if (lane) *static_cast<T*>(lane->operands) = all;
    });
    return own;
}
template <class T> T larger(T a, T b) { return a < b ? b : a; }
template <class T> T sum(T a, T b) { return a + b; }
template <class T> T either(T a, T b) { return a | b; }

}  // namespace card

template <class T>
inline T __shfl_sync(unsigned, T v, int lane) { return card::exchange(v, lane & 31); }
template <class T>
inline T __shfl_xor_sync(unsigned, T v, int mask) { return card::exchange(v, card::lane() ^ mask); }
template <class T>
inline T __shfl_up_sync(unsigned, T v, int distance) { return card::exchange(v, card::lane() < distance ? card::lane() : card::lane() - distance); }
template <class T>
inline T __shfl_down_sync(unsigned, T v, int distance) { return card::exchange(v, card::lane() + distance > 31 ? card::lane() : card::lane() + distance); }
inline unsigned __ballot_sync(unsigned, bool v) { return card::reduce<unsigned, card::either<unsigned>>(unsigned(v) << card::lane()); }
inline int __any_sync(unsigned mask, bool v) { return __ballot_sync(mask, v) != 0; }
inline int __all_sync(unsigned mask, bool v) { return __ballot_sync(mask, v) == ~0u; }
inline unsigned __reduce_max_sync(unsigned, unsigned v) { return card::reduce<unsigned, card::larger<unsigned>>(v); }
inline int __reduce_max_sync(unsigned, int v) { return card::reduce<int, card::larger<int>>(v); }
inline unsigned __reduce_add_sync(unsigned, unsigned v) { return card::reduce<unsigned, card::sum<unsigned>>(v); }
inline int __reduce_add_sync(unsigned, int v) { return card::reduce<int, card::sum<int>>(v); }
