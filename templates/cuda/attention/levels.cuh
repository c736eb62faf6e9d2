// Printed from runtime/abi/src/kv.rs: `cargo xtask test --bless` does it again.
#pragma once

#include <cstdint>

namespace monomorph {

// Magnitudes of nvfp4: as e4m3, from the lowest byte of LOW on, and what lies midway between neighbours.
struct Nvfp4Levels {
    static constexpr int COUNT = 8;
    static constexpr uint32_t LOW = 0x3c383000u, HIGH = 0x4c484440u;
    __device__ static constexpr float magnitude(int at) {
        constexpr float OF[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
        return OF[at];
    }
    __device__ static constexpr float threshold(int at) {
        constexpr float ABOVE[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
        return ABOVE[at];
    }
};

// Magnitudes of turbo4: as e4m3, from the lowest byte of LOW on, and what lies midway between neighbours.
struct Turbo4Levels {
    static constexpr int COUNT = 8;
    static constexpr uint32_t LOW = 0x38332d21u, HIGH = 0x44413e3bu;
    __device__ static constexpr float magnitude(int at) {
        constexpr float OF[] = {0.140625f, 0.40625f, 0.6875f, 1.0f, 1.375f, 1.75f, 2.25f, 3.0f};
        return OF[at];
    }
    __device__ static constexpr float threshold(int at) {
        constexpr float ABOVE[] = {0.2734375f, 0.546875f, 0.84375f, 1.1875f, 1.5625f, 2.0f, 2.625f};
        return ABOVE[at];
    }
};

// Magnitudes of turbo3: as e4m3, from the lowest byte of LOW on, and what lies midway between neighbours.
struct Turbo3Levels {
    static constexpr int COUNT = 4;
    static constexpr uint32_t LOW = 0x4540392cu, HIGH = 0x00000000u;
    __device__ static constexpr float magnitude(int at) {
        constexpr float OF[] = {0.375f, 1.125f, 2.0f, 3.25f};
        return OF[at];
    }
    __device__ static constexpr float threshold(int at) {
        constexpr float ABOVE[] = {0.75f, 1.5625f, 2.625f};
        return ABOVE[at];
    }
};

// Bit b of word w: whether element 32w + b of a vector changes its sign before it is rotated.
__device__ constexpr uint32_t rotation_signs(int word) {
    constexpr uint32_t OF[] = {
        0x7b1dcdafu, 0xe220a839u, 0xa1b965f4u, 0x6e789e6au,
        0x8009454fu, 0x06c45d18u, 0x724c81ecu, 0xf88bb8a8u,
        0x51a8749bu, 0x1b39896au, 0x747ea2eau, 0x53cb9f0cu,
        0x1f4532e1u, 0x2c829abeu, 0xc916ab3cu, 0xc584133au,
    };
    return OF[word];
}

}  // namespace monomorph
