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

// D of N columns: N / 2 registers a lane. Operands are f16. `accumulate` false: D's old values do not count.
template <int N>
struct WgmmaShape;

#define MONOMORPH_ACCUMULATE_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MONOMORPH_ACCUMULATE_16(i) \
    MONOMORPH_ACCUMULATE_4(i), MONOMORPH_ACCUMULATE_4(i + 4), MONOMORPH_ACCUMULATE_4(i + 8), MONOMORPH_ACCUMULATE_4(i + 12)

template <>
struct WgmmaShape<8> {
    static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %9, 0;"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
            "%0, %1, %2, %3"
            "}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;}"
            : MONOMORPH_ACCUMULATE_4(0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
    }
};

template <>
struct WgmmaShape<16> {
    static __device__ __forceinline__ void multiply(float (&d)[8], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %13, 0;"
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7"
            "}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;}"
            : MONOMORPH_ACCUMULATE_4(0), MONOMORPH_ACCUMULATE_4(4)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
    }
};

template <>
struct WgmmaShape<32> {
    static __device__ __forceinline__ void multiply(float (&d)[16], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %21, 0;"
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
            "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
            : MONOMORPH_ACCUMULATE_16(0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
    }
};

template <>
struct WgmmaShape<64> {
    static __device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %37, 0;"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
            : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
    }
};

template <>
struct WgmmaShape<128> {
    static __device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %69, 0;"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
            "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
            : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16), MONOMORPH_ACCUMULATE_16(32), MONOMORPH_ACCUMULATE_16(48)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
    }
};

template <>
struct WgmmaShape<256> {
    static __device__ __forceinline__ void multiply(float (&d)[128], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %133, 0;"
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
            "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0;}"
            : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16), MONOMORPH_ACCUMULATE_16(32), MONOMORPH_ACCUMULATE_16(48),
              MONOMORPH_ACCUMULATE_16(64), MONOMORPH_ACCUMULATE_16(80), MONOMORPH_ACCUMULATE_16(96), MONOMORPH_ACCUMULATE_16(112)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
    }
};

// The same of bf16, of 128 columns.
__device__ __forceinline__ void multiply_bf16(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
        : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16), MONOMORPH_ACCUMULATE_16(32), MONOMORPH_ACCUMULATE_16(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
}

// The same of 64 columns, A in shared memory too: rows of 128 bytes in the 128-byte swizzle, as B.
__device__ __forceinline__ void multiply_bf16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;}"
        : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16)
        : "l"(a), "l"(b), "r"(int(accumulate)));
}

// D[64, N] += A[64, 16] B[16, N] in bf16 with B's rows of N columns as they lie: 128-byte rows of 64 columns in the 128-byte swizzle (eight rows
// are 1024 bytes), panels of 64 columns as far apart as the descriptor says.
__device__ __forceinline__ void multiply_rows(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
        : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16), MONOMORPH_ACCUMULATE_16(32), MONOMORPH_ACCUMULATE_16(48),
          MONOMORPH_ACCUMULATE_16(64), MONOMORPH_ACCUMULATE_16(80), MONOMORPH_ACCUMULATE_16(96), MONOMORPH_ACCUMULATE_16(112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_rows(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16), MONOMORPH_ACCUMULATE_16(32), MONOMORPH_ACCUMULATE_16(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_rows(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : MONOMORPH_ACCUMULATE_16(0), MONOMORPH_ACCUMULATE_16(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The descriptor for it: `panel_bytes` from 64 columns to the next 64.
__device__ __forceinline__ uint64_t wgmma_rows_descriptor(uint32_t shared_address, uint32_t panel_bytes) {
    return uint64_t((shared_address & 0x3ffff) >> 4) | (uint64_t(panel_bytes >> 4) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}

#undef MONOMORPH_ACCUMULATE_4
#undef MONOMORPH_ACCUMULATE_16

}  // namespace monomorph
