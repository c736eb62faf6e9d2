// Warp-level matrix products and the shared-memory loads that feed them (PTX ISA: mma.sync, ldmatrix).
//
// Lane = 4*g + c, g in 0..8, c in 0..4, in every fragment below. "pair" = two 16-bit elements in one register, lower column (or
// row, for B) in the lower half.
#pragma once

#include "core/convert.cuh"

namespace monomorph {

// D[16 x 8] += A[16 x 16] * B[16 x 8], bf16 operands, f32 sums.
//   a0: row g, columns 2c, 2c+1     a1: row g+8, same columns     a2: row g, columns 2c+8, 2c+9     a3: row g+8, those
//   b0: rows 2c, 2c+1 of column g   b1: rows 2c+8, 2c+9 of column g
//   d0, d1: row g, columns 2c, 2c+1;   d2, d3: row g+8
__device__ __forceinline__ void mma_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of f16 operands.
__device__ __forceinline__ void mma_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// D[8 x 8] += A[8 x 4] * B[4 x 8] in f64.
//   a: row g, column c     b: row c, column g     d0, d1: row g, columns 2c, 2c+1
__device__ __forceinline__ void mma_f64(double (&d)[2], double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
}

// Four 8 x 8 matrices of 16-bit elements: lane l of each group of eight gives the address of a row (16 bytes, 16-byte
// aligned; lanes 0..8 matrix 0, 8..16 matrix 1, ...); lane (g, c) gets elements 2c, 2c+1 of row g of each matrix.
// `transposed`: it gets elements g of rows 2c and 2c+1.
__device__ __forceinline__ void ldmatrix_4(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_4_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// An 8 x 8 matrix of 16-bit elements, held as ldmatrix_4 leaves one, transposed (PTX ISA: movmatrix).
__device__ __forceinline__ unsigned transpose_8x8(unsigned pair) {
    unsigned turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
}

}  // namespace monomorph
