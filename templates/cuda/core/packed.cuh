// Printed from runtime/abi/src/packed.rs: `cargo xtask test --bless` does it again.
#pragma once

namespace monomorph {

enum class Format { F32, BF16, F16, FP8_E4M3, NVFP4, Q8_0, Q4_1 };

constexpr int UNIT_BYTES = 512;  // 32 lanes of 16 bytes
constexpr int TILE_ROWS = 8;

// Bits of a code, and bytes of the block scales of a unit.
template <Format F>
struct Packed;
template <>
struct Packed<Format::F32> {
    static constexpr int BITS = 32, SCALE_BYTES = 0;
};
template <>
struct Packed<Format::BF16> {
    static constexpr int BITS = 16, SCALE_BYTES = 0;
};
template <>
struct Packed<Format::F16> {
    static constexpr int BITS = 16, SCALE_BYTES = 0;
};
template <>
struct Packed<Format::FP8_E4M3> {
    static constexpr int BITS = 8, SCALE_BYTES = 0;
};
template <>
struct Packed<Format::NVFP4> {
    static constexpr int BITS = 4, SCALE_BYTES = 64;
};
template <>
struct Packed<Format::Q8_0> {
    static constexpr int BITS = 8, SCALE_BYTES = 32;
};
template <>
struct Packed<Format::Q4_1> {
    static constexpr int BITS = 4, SCALE_BYTES = 128;
};

}  // namespace monomorph
