// mma.cuh of the library for a processor. Who holds what is written down from the PTX ISA; the last lane of a warp to come computes for
// all. Sums are f32, added in the order of k; a card's order and its roundings in between are its own.
#pragma once

#include "core/convert.cuh"

namespace monomorph {

namespace emulated {

struct Product {
    float* d;
    unsigned a[4], b[2];
};

// A [16][16], B [16][8].
template <float (*LOW)(unsigned), float (*HIGH)(unsigned)>
void multiply(card::Warp& w) {
    if (w.live != 32) card::fail("a matrix product of a warp with %d threads", w.live);
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const auto& p = *static_cast<const Product*>(w.lane[lane]->operands);
        const int g = lane / 4, c = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, k = 2 * c + i / 2 * 8;
            a[row][k] = LOW(p.a[i]), a[row][k + 1] = HIGH(p.a[i]);
            d[g + i / 2 * 8][2 * c + i % 2] = p.d[i];
        }
        for (int i = 0; i < 2; i++) b[2 * c + i * 8][g] = LOW(p.b[i]), b[2 * c + i * 8 + 1][g] = HIGH(p.b[i]);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++) d[row][n] += a[row][k] * b[k][n];
    for (int lane = 0; lane < 32; lane++) {
        auto& p = *static_cast<Product*>(w.lane[lane]->operands);
        for (int i = 0; i < 4; i++) p.d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}
inline float f16_low(unsigned pair) { return f16_value(pair & 0xffff); }
inline float f16_high(unsigned pair) { return f16_value(pair >> 16); }

struct Matrices {
    unsigned address;
    unsigned* r;
};

// Element e of row `row` of matrix m: rows are where lanes 8 m .. 8 m + 8 say.
inline unsigned short* element(card::Warp& w, int m, int row, int e) {
    const unsigned address = static_cast<const Matrices*>(w.lane[8 * m + row]->operands)->address;
    if (address % 16 != 0) card::fail("a row of a matrix is not aligned to 16 bytes");
    return static_cast<unsigned short*>(card::shared_at(address, 16)) + e;
}
template <bool TRANSPOSED>
void load_matrices(card::Warp& w) {
    if (w.live != 32) card::fail("matrices of a warp with %d threads", w.live);
    for (int lane = 0; lane < 32; lane++) {
        unsigned* r = static_cast<Matrices*>(w.lane[lane]->operands)->r;
        for (int m = 0; m < 4; m++)
            for (int half = 0; half < 2; half++) {
                const int g = lane / 4, column = lane % 4 * 2 + half;
                const unsigned short* at = TRANSPOSED ? element(w, m, column, g) : element(w, m, g, column);
                r[m] = half ? (r[m] & 0xffff) | unsigned(*at) << 16 : *at;
            }
    }
}

}  // namespace emulated

inline void mma_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    emulated::Product own = {d, {a0, a1, a2, a3}, {b0, b1}};
    card::meet("mma of bf16", &own, emulated::multiply<bf16_low, bf16_high>);
}
inline void mma_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    emulated::Product own = {d, {a0, a1, a2, a3}, {b0, b1}};
    card::meet("mma of f16", &own, emulated::multiply<emulated::f16_low, emulated::f16_high>);
}
inline void mma_f64(double (&d)[2], double a, double b) {
    struct Own {
        double *d, a, b;
    } own = {d, a, b};
    card::meet("mma of f64", &own, [](card::Warp& w) {
        if (w.live != 32) card::fail("a matrix product of a warp with %d threads", w.live);
        const auto at = [&](int lane) -> Own& { return *static_cast<Own*>(w.lane[lane]->operands); };
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 2; i++)
                for (int k = 0; k < 4; k++) at(lane).d[i] = std::fma(at(lane / 4 * 4 + k).a, at((lane % 4 * 2 + i) * 4 + k).b, at(lane).d[i]);
    });
}

inline void ldmatrix_4(unsigned (&r)[4], unsigned address) {
    emulated::Matrices own = {address, r};
    card::meet("ldmatrix", &own, emulated::load_matrices<false>);
}
inline void ldmatrix_4_transposed(unsigned (&r)[4], unsigned address) {
    emulated::Matrices own = {address, r};
    card::meet("ldmatrix", &own, emulated::load_matrices<true>);
}
inline unsigned transpose_8x8(unsigned pair) {
    struct Own {
        unsigned pair, turned;
    } own = {pair, 0};
    card::meet("movmatrix", &own, [](card::Warp& w) {
        if (w.live != 32) card::fail("a matrix of a warp with %d threads", w.live);
        const auto at = [&](int lane) -> Own& { return *static_cast<Own*>(w.lane[lane]->operands); };
        for (int lane = 0; lane < 32; lane++)
            for (int half = 0; half < 2; half++) {  // row 2c + half of column g
                const int row = lane % 4 * 2 + half, column = lane / 4;
                at(lane).turned |= (at(row * 4 + column / 2).pair >> (column % 2 * 16) & 0xffff) << (16 * half);
            }
    });
    return own.turned;
}

}  // namespace monomorph
