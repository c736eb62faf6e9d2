// wgmma.cuh of the library for a processor. Products happen when a wait covers them and not before: operands that are overwritten early,
// stages that are given back early, and sums that are read early are all seen in the result.
#pragma once

#include "core/convert.cuh"

namespace monomorph {

namespace emulated {

// Where the 128-byte swizzle puts a byte.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

// Element (k, n) of the B that a descriptor says (PTX ISA, matrix descriptor; bits 62 and 63: 128-byte swizzle).
inline unsigned address_of(uint64_t descriptor, bool rows, int bytes, int k, int n) {
    const unsigned start = unsigned(descriptor & 0x3fff) << 4, leading = unsigned(descriptor >> 16 & 0x3fff) << 4, stride = unsigned(descriptor >> 32 & 0x3fff) << 4;
    return card::cluster_rank() << 24 | swizzled(rows ? start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2 : start + n / 8 * stride + n % 8 * 128 + k * bytes);
}

// The value of the lower 16 bits.
inline float operand(const card::Product& p, unsigned bits) { return p.bf16 ? bf16_low(bits) : f16_value(bits & 0xffff); }

inline void multiply(card::Warp& w, size_t number) {
    const auto part = [&](int lane) -> const card::Product& { return w.lane[lane]->products.all[number]; };
    const card::Product& p = part(0);
    if (p.b >> 62 != 1) card::fail("a matrix descriptor without the 128-byte swizzle");
    const int depth = p.e4m3 ? 32 : 16, bytes = 32 / depth;
    float a[16][32], b[32][256], d[16][256];
    for (int lane = 0; lane < 32; lane++) {
        const card::Product& own = part(lane);
        if (own.b != p.b || own.columns != p.columns || own.accumulate != p.accumulate || own.bf16 != p.bf16 || own.rows != p.rows || own.e4m3 != p.e4m3 || own.a_at != p.a_at) card::fail("lanes of a warp multiply by different matrices");
        const int g = lane / 4, c = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, k = 2 * c + i / 2 * 8;
            if (p.a) a[row][k] = operand(p, own.a[i]), a[row][k + 1] = operand(p, own.a[i] >> 16);
        }
        for (int i = 0; i < p.columns / 2; i++) d[g + i / 2 % 2 * 8][i / 4 * 8 + 2 * c + i % 2] = p.accumulate ? own.d[i] : 0.0f;
    }
    const auto shared_operand = [&](uint64_t descriptor, bool rows, int k, int n) {
        unsigned short bits = 0;
        std::memcpy(&bits, card::shared_at(address_of(descriptor, rows, bytes, k, n), bytes), bytes);
        return p.e4m3 ? e4m3_value(bits) : operand(p, bits);
    };
    const int first_row = int(w.lane[0]->thread.x) / 32 % 4 * 16;
    for (int row = 0; row < 16 && !p.a; row++)
        for (int k = 0; k < depth; k++) a[row][k] = shared_operand(p.a_at, false, k, first_row + row);
    for (int k = 0; k < depth; k++)
        for (int n = 0; n < p.columns; n++) b[k][n] = shared_operand(p.b, p.rows, k, n);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < depth; k++)
            for (int n = 0; n < p.columns; n++) d[row][n] += a[row][k] * b[k][n];
    for (int lane = 0; lane < 32; lane++) {
        const card::Product& own = part(lane);
        for (int i = 0; i < p.columns / 2; i++) own.d[i] = d[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
    }
}

inline void finish(card::Warp& w) {
    if (w.live != 32) card::fail("matrix products of a warp with %d threads", w.live);
    const size_t until = *static_cast<size_t*>(w.lane[0]->operands);
    for (card::Fiber* lane : w.lane)
        if (*static_cast<size_t*>(lane->operands) != until || lane->products.done != w.lane[0]->products.done) card::fail("lanes of a warp wait for different products");
    for (size_t i = w.lane[0]->products.done; i < until; i++) multiply(w, i);
    for (card::Fiber* lane : w.lane) {
        lane->products.done = std::max(until, lane->products.done);
        if (lane->products.done == lane->products.all.size()) lane->products.clear();
    }
}

}  // namespace emulated

inline void wgmma_fence() {}
inline void wgmma_commit() { card::current->products.commit(); }
template <int PENDING>
inline void wgmma_wait() {
    size_t until = card::current->products.until(PENDING);
    // A product is one of four warps: it is done for none of them before all have asked for it, and none goes on, and gives a
    // stage back, before it is done for all.
    card::warpgroup_barrier();
    card::meet("a wait for products", &until, emulated::finish);
    card::warpgroup_barrier();
}
template <class T>
inline void pin(T&) {}
template <int COUNT>
inline void registers_release() {}
template <int COUNT>
inline void registers_acquire() {}

inline uint64_t wgmma_descriptor(uint32_t shared_address) {
    return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(1) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}
inline uint64_t wgmma_rows_descriptor(uint32_t shared_address, uint32_t panel_bytes) {
    return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(panel_bytes >> 4) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}
inline uint64_t wgmma_further(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

template <int N>
struct WgmmaShape {
    static void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        card::current->products.all.push_back({d, a, b, N, accumulate, false, false});
    }
};
inline void multiply_bf16(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    card::current->products.all.push_back({d, a, b, 128, accumulate, true, false});
}
inline void multiply_bf16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    card::current->products.all.push_back({d, nullptr, b, 64, accumulate, true, false, a});
}
inline void multiply_f16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    card::current->products.all.push_back({d, nullptr, b, 64, accumulate, false, false, a});
}
template <size_t HALF>
inline void multiply_rows_f16(float (&d)[HALF], const uint32_t (&a)[4], uint64_t b) {
    card::current->products.all.push_back({d, a, b, int(2 * HALF), true, false, true});
}
inline void multiply_e4m3(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
    card::current->products.all.push_back({d, nullptr, b, 128, accumulate, false, false, a, true});
}
template <size_t HALF>
inline void multiply_rows(float (&d)[HALF], const uint32_t (&a)[4], uint64_t b) {
    card::current->products.all.push_back({d, a, b, int(2 * HALF), true, true, true});
}

}  // namespace monomorph
