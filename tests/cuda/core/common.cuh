// Helpers of the standalone CUDA test programs: checked calls, random data, device buffers with guard and poison, comparison with
// a double-precision reference, timing of captured graphs with programmatic dependent launch. Build a program with
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I templates/cuda -I tests/cuda tests/cuda/FOLDER/NAME.cu -o NAME
//       -I target/cuda-programs/printed
// where the last holds the kernels as templates (kernels/NAME.cuh), which `cargo xtask gpu` prints from their declarations.
#pragma once
#ifdef MONOMORPH_HOST
#include "core/host.cuh"
#endif
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                                                           \
    do {                                                                                                      \
        cudaError_t error_ = (call);                                                                          \
        if (error_ != cudaSuccess) {                                                                          \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));            \
            std::exit(2);                                                                                     \
        }                                                                                                     \
    } while (0)

namespace test {

inline int failures = 0;   // what main returns (0 = all passed)

// splitmix64: the same numbers everywhere; seeds differ from check to check, so that no result can be stale.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15ull + 1) {}
    uint64_t bits() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    double uniform() { return double(bits() >> 11) / 9007199254740992.0; }   // [0, 1)
    int below(int n) { return int(bits() % uint64_t(n)); }
    float normal() {   // Box-Muller
        double a = 1.0 - uniform(), b = uniform();
        return float(std::sqrt(-2.0 * std::log(a)) * std::cos(6.283185307179586 * b));
    }
};

// A device buffer; `poison` fills it with 0xff bytes (NaN in every float format, -1 in integers). 256 guard bytes behind the end
// are checked by `intact`.
template <class T>
struct Buffer {
    T* pointer = nullptr;
    size_t count = 0;
    static constexpr size_t GUARD = 256;
    explicit Buffer(size_t n) : count(n) {
        CHECK(cudaMalloc(&pointer, bytes() + GUARD));
        poison();
    }
    explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) { upload(host); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { cudaFree(pointer); }
    size_t bytes() const { return count * sizeof(T); }
    void poison() { CHECK(cudaMemset(pointer, 0xff, bytes() + GUARD)); }
    void zero() { CHECK(cudaMemset(pointer, 0, bytes())); }
    void upload(const std::vector<T>& host) {
        CHECK(cudaMemcpy(pointer, host.data(), std::min(host.size(), count) * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> download() const {
        std::vector<T> host(count);
        CHECK(cudaMemcpy(host.data(), pointer, bytes(), cudaMemcpyDeviceToHost));
        return host;
    }
    bool intact() const {
        std::vector<unsigned char> guard(GUARD);
        CHECK(cudaMemcpy(guard.data(), reinterpret_cast<const char*>(pointer) + bytes(), GUARD, cudaMemcpyDeviceToHost));
        return std::all_of(guard.begin(), guard.end(), [](unsigned char b) { return b == 0xff; });
    }
    operator T*() const { return pointer; }
};

inline float bf16_to_float(uint16_t bits) {
    uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}
inline uint16_t float_to_bf16(float value) {   // to nearest even; no NaN expected
    uint32_t word;
    std::memcpy(&word, &value, 4);
    return uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}
inline float round_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

inline float f16_to_float(uint16_t bits) {
    int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    double value = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return float(bits & 0x8000 ? -value : value);
}
inline uint16_t float_to_f16(float value) {   // to nearest even; nothing beyond the range
    const double magnitude = std::fabs(double(value));
    const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
    const int steps = int(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));   // up to 2048: the next exponent's first
    return uint16_t((std::signbit(value) ? 0x8000 : 0) | ((exponent + 14) * 1024 + steps));
}
inline float round_f16(float value) { return f16_to_float(float_to_f16(value)); }
// What a row is multiplied by before it is rounded to f16: the power of two that brings its largest magnitude into [2^14, 2^15).
inline float half_scale(const float* row, int width) {
    float largest = 0;
    for (int k = 0; k < width; k++) largest = std::max(largest, std::fabs(row[k]));
    return largest == 0 ? 0x1p126f : float(std::ldexp(1.0, 14 - std::ilogb(largest)));
}
inline float e4m3_to_float(uint8_t bits) {
    int exponent = (bits >> 3) & 15, mantissa = bits & 7;
    double value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return float(bits & 0x80 ? -value : value);
}
inline uint8_t float_to_e4m3(float value) {   // to nearest even, at most the largest; no NaN expected
    const double magnitude = std::fabs(double(value));
    const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
    const int steps = magnitude >= 464 ? 14 : int(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));   // up to 16: the next exponent's first
    return uint8_t((std::signbit(value) ? 0x80 : 0) | ((magnitude >= 464 ? 14 : exponent + 6) * 8 + steps));
}
inline float e2m1_to_float(uint8_t nibble) {
    static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return nibble & 8 ? -magnitudes[nibble & 7] : magnitudes[nibble & 7];
}

// |out - reference| / |reference| in the 2-norm, and the largest single error over the largest reference value. NaN never passes.
struct Difference {
    double relative = 0, largest = 0;
    size_t at = 0, not_finite = 0, unequal = 0;
};
inline Difference compare(const std::vector<float>& out, const std::vector<double>& reference) {
    Difference d;
    double error = 0, size = 0, top = 0, worst = 0;
    for (size_t i = 0; i < reference.size(); i++) {
        double e = double(out[i]) - reference[i];
        if (!std::isfinite(out[i])) { d.not_finite++; d.at = i; continue; }
        if (out[i] != float(reference[i])) d.unequal++;
        error += e * e;
        size += reference[i] * reference[i];
        top = std::max(top, std::fabs(reference[i]));
        if (std::fabs(e) > worst) { worst = std::fabs(e); d.at = i; }
    }
    d.relative = std::sqrt(error / std::max(size, 1e-300));
    d.largest = worst / std::max(top, 1e-300);
    return d;
}

// Prints one line; counts a failure unless relative <= limit, everything is finite, and `intact`.
inline bool report(const char* name, const Difference& d, double limit, bool intact = true) {
    bool passed = d.relative <= limit && d.largest <= 8 * limit && d.not_finite == 0 && intact;
    std::printf("%s %-58s relative %.2e (limit %.0e) largest %.2e unequal %zu not finite %zu%s\n", passed ? "ok  " : "FAIL", name,
                d.relative, limit, d.largest, d.unequal, d.not_finite, intact ? "" : "  WROTE BEHIND THE END");
    if (!passed) failures++;
    return passed;
}

// A launch with programmatic dependent launch on its incoming edge (as every kernel of a decode graph has), whose blocks are in clusters
// of `cluster` in x.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), dim3 grid, int cluster, int threads, size_t shared, cudaStream_t stream, Arguments... arguments) {
#ifdef MONOMORPH_HOST
    monomorph::host::run_grid(grid, cluster, threads, shared, [=] { kernel(static_cast<Parameters>(arguments)...); });
    (void)stream;
#else
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
    // The same carve-out for every kernel of a graph: blocks of kernels whose carve-outs differ cannot share a multiprocessor.
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
#endif
}
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared, cudaStream_t stream, Arguments... arguments) {
    launch_clusters(kernel, grid, 1, threads, shared, stream, arguments...);
}

// Captures what `enqueue` launches and returns the median milliseconds of `repeats` replays.
inline float time_graph(cudaStream_t stream, const std::function<void()>& enqueue, int repeats = 20) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    std::vector<float> times;
    for (int i = 0; i < repeats + 3; i++) {
        CHECK(cudaEventRecord(from, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaEventSynchronize(to));
        float milliseconds;
        CHECK(cudaEventElapsedTime(&milliseconds, from, to));
        if (i >= 3) times.push_back(milliseconds);
    }
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // namespace test
