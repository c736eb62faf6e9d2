// Staged rows (staged.cuh) on the host.
#pragma once

#include "core/common.cuh"

#include "core/staged.cuh"

namespace test {

inline std::vector<uint16_t> staged(const std::vector<float>& x, int width, int capacity) {
    std::vector<uint16_t> out(monomorph::staged_bytes(capacity, width) / 2, 0xffff);  // rows beyond the step's: NaN
    for (size_t t = 0; t * width < x.size(); t++) {
        const float scale = half_scale(&x[t * width], width), unscale = 1 / scale;
        std::memcpy(&out[monomorph::staged_unscale_at(capacity, width) / 2 + 2 * t], &unscale, 4);
        for (int k = 0; k < monomorph::staged_panels(width) * 64; k++) {
            const size_t panel_row = size_t(k / 64) * capacity + t;
            out[panel_row * 64 + ((k % 64 / 8) ^ (t & 7)) * 8 + k % 8] = k < width ? float_to_f16(x[t * width + k] * scale) : 0;
        }
    }
    return out;
}
inline float from_staged(const std::vector<uint16_t>& out, int capacity, int width, int t, int k) {
    float unscale;
    std::memcpy(&unscale, &out[monomorph::staged_unscale_at(capacity, width) / 2 + 2 * t], 4);
    const uint16_t code = out[(size_t(k / 64) * capacity + t) * 64 + ((k % 64 / 8) ^ (t & 7)) * 8 + k % 8];
    return (code & 0x7c00) == 0x7c00 ? NAN : f16_to_float(code) * unscale;
}

}  // namespace test
