// Warpgroup matrix products of sm_90a: D[64, N] += A[64, 16] * B[16, N], A in registers (where not said otherwise), B in shared memory, both f16 or both bf16, D f32.
//
// A warp w of the four holds rows 16w .. 16w + 16 of A and D in the fragments of mma.m16n8k16: lane 4g + c has of A
// {row g, columns 2c 2c+1}, {row g+8, the same}, {row g, columns 2c+8 2c+9}, {row g+8, the same}, and of D for every eight
// columns n {(g, 2c), (g, 2c+1), (g+8, 2c), (g+8, 2c+1)}.
// B is [N][64 columns of K] with rows of 128 bytes in the 128-byte swizzle (staged.cuh), based on 1024 bytes.
//
// The products run asynchronously: A's and D's registers may not be touched between `wgmma_commit` and the `wgmma_wait`
// that covers it, and `wgmma_fence` stands between writing them and the first product that reads them.
#pragma once

#include <cstdint>

namespace monomorph {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING committed groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of a register across a fence or wait.
__device__ __forceinline__ void pin(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void pin(uint32_t& value) { asm volatile("" : "+r"(value)::"memory"); }

// Gives registers of this warpgroup back, or takes more; executed by all warps of a warpgroup. Multiples of 8.
template <int COUNT>
__device__ __forceinline__ void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void registers_acquire() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The descriptor of a B tile at a shared address (128-byte swizzle, 1024 bytes from eight rows to the next eight).
// Sixteen columns of K further on is 32 bytes further: add 2 to it.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared_address) {
    return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(1) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}

// The descriptor of what stands `bytes` further in shared memory: a sum of constants to one that is made once, a multiple of 16.
__device__ __forceinline__ uint64_t wgmma_further(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

// D of N columns is R = N / 2 registers a lane, the first operands of each product: their names, and what the compiler is told of them.
#define MONOMORPH_NAMES_4 "%0, %1, %2, %3"
#define MONOMORPH_NAMES_8 MONOMORPH_NAMES_4 ", %4, %5, %6, %7"
#define MONOMORPH_NAMES_16 MONOMORPH_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MONOMORPH_NAMES_32 \
    MONOMORPH_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MONOMORPH_NAMES_40 MONOMORPH_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MONOMORPH_NAMES_64 \
    MONOMORPH_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
                       ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MONOMORPH_NAMES_128 \
    MONOMORPH_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
                       ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
                       ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
                       ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MONOMORPH_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MONOMORPH_SUMS_8(i) MONOMORPH_SUMS_4(i), MONOMORPH_SUMS_4(i + 4)
#define MONOMORPH_SUMS_16(i) MONOMORPH_SUMS_8(i), MONOMORPH_SUMS_8(i + 8)
#define MONOMORPH_SUMS_32(i) MONOMORPH_SUMS_16(i), MONOMORPH_SUMS_16(i + 16)
#define MONOMORPH_SUMS_40(i) MONOMORPH_SUMS_32(i), MONOMORPH_SUMS_8(i + 32)
#define MONOMORPH_SUMS_64(i) MONOMORPH_SUMS_32(i), MONOMORPH_SUMS_32(i + 32)
#define MONOMORPH_SUMS_128(i) MONOMORPH_SUMS_64(i), MONOMORPH_SUMS_64(i + 64)

// A product with A in registers; A0 to A3, B and P are the numbers of the operands that follow D. `accumulate` false: D's old values do not count.
#define MONOMORPH_MULTIPLY(NAME, N, TYPE, R, A0, A1, A2, A3, B, P)                                                          \
    __device__ __forceinline__ void NAME(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate) {              \
        asm volatile(                                                                                                       \
            "{.reg .pred p; setp.ne.b32 p, %" #P ", 0;"                                                                     \
            "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" MONOMORPH_NAMES_##R "}, {%" #A0 ", %" #A1  \
            ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;}"                                                                  \
            : MONOMORPH_SUMS_##R(0)                                                                                         \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));                                    \
    }

// Of f16 operands.
template <int N>
struct WgmmaShape;
#define MONOMORPH_SHAPE(N, ...)                                     \
    template <>                                                     \
    struct WgmmaShape<N> {                                          \
        static MONOMORPH_MULTIPLY(multiply, N, "f16", __VA_ARGS__)  \
    };
MONOMORPH_SHAPE(8, 4, 4, 5, 6, 7, 8, 9)
MONOMORPH_SHAPE(16, 8, 8, 9, 10, 11, 12, 13)
MONOMORPH_SHAPE(32, 16, 16, 17, 18, 19, 20, 21)
MONOMORPH_SHAPE(64, 32, 32, 33, 34, 35, 36, 37)
MONOMORPH_SHAPE(128, 64, 64, 65, 66, 67, 68, 69)
MONOMORPH_SHAPE(256, 128, 128, 129, 130, 131, 132, 133)

// The same of bf16, of 128 columns.
MONOMORPH_MULTIPLY(multiply_bf16, 128, "bf16", 64, 64, 65, 66, 67, 68, 69)

// The same of 64 columns, A in shared memory too: rows of 128 bytes in the 128-byte swizzle, as B.
__device__ __forceinline__ void multiply_bf16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MONOMORPH_NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;}"
        : MONOMORPH_SUMS_32(0)
        : "l"(a), "l"(b), "r"(int(accumulate)));
}

// The same of f16.
__device__ __forceinline__ void multiply_f16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" MONOMORPH_NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;}"
        : MONOMORPH_SUMS_32(0)
        : "l"(a), "l"(b), "r"(int(accumulate)));
}

// D[64, 128] += A[64, 32] * B[32, 128] in e4m3, both in shared memory: rows of 128 columns, 128 bytes, in the 128-byte swizzle. Thirty-two
// columns of K further on is 32 bytes further: add 2 to both.
__device__ __forceinline__ void multiply_e4m3(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" MONOMORPH_NAMES_64 "}, %64, %65, p, 1, 1;}"
        : MONOMORPH_SUMS_64(0)
        : "l"(a), "l"(b), "r"(int(accumulate)));
}

// D[64, N] += A[64, 16] B[16, N] in bf16, or in f16, with B's rows of N columns as they lie: 128-byte rows of 64 columns in the 128-byte swizzle (eight rows
// are 1024 bytes), panels of 64 columns as far apart as the descriptor says.
#define MONOMORPH_ROWS(NAME, TYPE, N, R, A0, A1, A2, A3, B)                                                                 \
    __device__ __forceinline__ void NAME(float (&d)[R], const uint32_t (&a)[4], uint64_t b) {                               \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" MONOMORPH_NAMES_##R "}, {%" #A0   \
                     ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 1;"                                                \
                     : MONOMORPH_SUMS_##R(0)                                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                 \
    }
MONOMORPH_ROWS(multiply_rows, "bf16", 256, 128, 128, 129, 130, 131, 132)
MONOMORPH_ROWS(multiply_rows, "bf16", 128, 64, 64, 65, 66, 67, 68)
MONOMORPH_ROWS(multiply_rows, "bf16", 64, 32, 32, 33, 34, 35, 36)
MONOMORPH_ROWS(multiply_rows_f16, "f16", 256, 128, 128, 129, 130, 131, 132)
MONOMORPH_ROWS(multiply_rows_f16, "f16", 128, 64, 64, 65, 66, 67, 68)
MONOMORPH_ROWS(multiply_rows_f16, "f16", 80, 40, 40, 41, 42, 43, 44)
MONOMORPH_ROWS(multiply_rows_f16, "f16", 64, 32, 32, 33, 34, 35, 36)

// The descriptor for it: `panel_bytes` from 64 columns to the next 64.
__device__ __forceinline__ uint64_t wgmma_rows_descriptor(uint32_t shared_address, uint32_t panel_bytes) {
    return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(panel_bytes >> 4) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}

#undef MONOMORPH_MULTIPLY
#undef MONOMORPH_SHAPE
#undef MONOMORPH_ROWS

}  // namespace monomorph
