// Quantised rows (quantised.cuh) on the host.
#pragma once

#include "core/common.cuh"

#include "core/quantised.cuh"

namespace test {

// Where an element's code is.
inline size_t quantised_at(int capacity, int t, int k) {
    using U = monomorph::Unit<monomorph::Format::FP8_E4M3>;
    const int within = k % 64, chunk = k % 128 / 64 * 4 + U::lane_of(within);
    return (size_t(k / 128) * capacity + t) * 128 + (chunk ^ (t & 7)) * 16 + U::element_of(within);
}

inline std::vector<uint8_t> quantised(const std::vector<float>& x, int width, int capacity) {
    std::vector<uint8_t> out(monomorph::quantised_bytes(capacity, width), 0xff);  // rows beyond the step's: NaN
    for (size_t t = 0; t * width < x.size(); t++) {
        for (int group = 0; group < width / 128; group++) {
            const float* own = &x[t * width + group * 128];
            float largest = 0;
            for (int k = 0; k < 128; k++) largest = std::max(largest, std::fabs(own[k]));
            const bool some = largest > 0x1p-100f;
            const float scale = some ? largest / 448.0f : 0.0f, inverse = some ? 448.0f / largest : 0.0f;
            for (int k = 0; k < 128; k++) out[quantised_at(capacity, int(t), group * 128 + k)] = float_to_e4m3(own[k] * inverse);
            std::memcpy(&out[monomorph::quantised_scales_at(capacity, width) + 4 * (size_t(group) * capacity + t)], &scale, 4);
        }
    }
    return out;
}
inline float from_quantised(const std::vector<uint8_t>& out, int capacity, int width, int t, int k) {
    float scale;
    std::memcpy(&scale, &out[monomorph::quantised_scales_at(capacity, width) + 4 * (size_t(k / 128) * capacity + t)], 4);
    const uint8_t code = out[quantised_at(capacity, t, k)];
    return (code & 0x7f) == 0x7f ? NAN : e4m3_to_float(code) * scale;
}

// How far sums may be off. The emulated card adds in f32; tensor cores add 32 products of e4m3 with about 14 bits, which cost some 2^-13 of the
// largest of 128 columns' sums.
#ifdef MONOMORPH_HOST
constexpr double OF_SUMS = 1e-5;
#else
constexpr double OF_SUMS = 1e-3;
#endif

}  // namespace test
