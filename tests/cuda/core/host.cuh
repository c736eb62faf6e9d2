// The card that kernels see when a program is built for a processor (MONOMORPH_HOST): the emulated one of tests/emulated, with which it is
// linked. LIBRARY is templates/cuda with tests/emulated/core put over its core, and the rest of tests/emulated
// stands beside it, as tests/src/emulated.rs has them.
//
//   g++ -x c++ -std=c++17 -O1 -ffp-contract=off -fno-strict-aliasing -DMONOMORPH_HOST -I LIBRARY -I LIBRARY/.. -I tests/cuda -I CUDA/include
//       tests/cuda/delta_net/delta.cu LIBRARY/../{engine,launch,memory}.cpp -o delta
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>

#include <cuda_runtime.h>

extern "C" {  // device memory is memory
inline cudaError_t cudaMalloc(void** p, size_t n) { *p = std::aligned_alloc(256, (n + 255) / 256 * 256); return cudaSuccess; }
inline cudaError_t cudaFree(void* p) { std::free(p); return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "failed"; }
inline cudaError_t cudaMemset(void* p, int v, size_t n) { std::memset(p, v, n); return cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { std::memcpy(to, from, n); return cudaSuccess; }
}

#include "builtin.h"

namespace monomorph::host {

// One kernel: clusters of `cluster` blocks in x.
inline void run_grid(dim3 grid, int cluster, int threads, size_t shared, const std::function<void()>& body) {
    const std::function<void()>* pointer = &body;
    const card::Kernel kernel = {"of the test", threads, cluster, 0, nullptr, nullptr,
                                 [](void* const* arguments) { (**static_cast<const std::function<void()>* const*>(arguments[0]))(); }};
    const auto* bytes = reinterpret_cast<const unsigned char*>(&pointer);
    const card::Prepared prepared = {&kernel, {grid, dim3(threads), shared}, {{bytes, bytes + sizeof pointer}}, false};
    card::run({&prepared});
}

}  // namespace monomorph::host
