// What the programs that time recurrent layers share: memory full of numbers, and steps.
#pragma once
#include "core/common.cuh"
#include "core/step.cuh"

namespace test {
using namespace monomorph;

__global__ void fill(float* to, size_t count, float scale, float shift) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const unsigned mixed = (unsigned(i) * 2654435761u) ^ (unsigned(i >> 7) * 2246822519u);
        to[i] = shift + scale * ((int(mixed >> 8 & 0xffff) - 32768) / 32768.0f);
    }
}
struct Filled : Buffer<float> {
    explicit Filled(size_t n, float scale = 1.0f, float shift = 0.0f) : Buffer<float>(n) { fill<<<1024, 256>>>(pointer, n, scale, shift); }
};

inline std::vector<Step> steps(std::vector<int> counts, int position) {
    Step header = {};
    for (int count : counts) {
        header.sequence[header.sequences] = {header.tokens, count, position, 0, 0, header.sequences, -1, 0};
        header.sequences++, header.tokens += count;
    }
    return {header};
}

}  // namespace test
