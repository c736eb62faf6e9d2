// Keys and values of grouped formats on the host, as monomorph_formats::cached defines them: codes and scales of a vector, where they stand
// (templates/cuda/attention/grouped.cuh), and the rotation. Written apart from what the kernels do, which is compared with it.
#pragma once

#include "attention/attention.cuh"
#include "core/common.cuh"

namespace test {

using namespace monomorph;

// Rotates a vector of a power of two, in the oracle's order; `back`: the inverse.
template <class T>
void rotate_host(std::vector<T>& x, bool back) {
    const int width = int(x.size());
    const auto sign = [&] {
        uint64_t state = 0, word = 0;
        for (int e = 0; e < width; e++) {
            if (e % 64 == 0) {
                uint64_t z = state += 0x9e3779b97f4a7c15ull;
                z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
                z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
                word = z ^ (z >> 31);
            }
            if (word >> e % 64 & 1) x[e] = -x[e];
        }
    };
    if (!back) sign();
    for (int apart = 1; apart < width; apart *= 2)
        for (int e = 0; e < width; e++)
            if ((e & apart) == 0) {
                const T low = x[e], high = x[e + apart];
                x[e] = low + high, x[e + apart] = low - high;
            }
    for (auto& v : x) v *= T(1) / std::sqrt(T(width));
    if (back) sign();
}

// A format's magnitudes; none of e4m3.
template <class E>
std::vector<float> magnitudes() {
    if (std::is_same_v<E, Nvfp4>) return {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    if (std::is_same_v<E, Turbo4>) return {9 / 64.0f, 13 / 32.0f, 11 / 16.0f, 1, 11 / 8.0f, 7 / 4.0f, 9 / 4.0f, 3};
    if (std::is_same_v<E, Turbo3>) return {3 / 8.0f, 9 / 8.0f, 2, 13 / 4.0f};
    return {};
}

// Codes (magnitude, and a sign above it) and the scale of 16 values.
struct HostGroup {
    uint8_t codes[16] = {};
    uint16_t scale = 0;
};
template <class E>
HostGroup encode_host(const float* values, float static_scale) {
    HostGroup best;
    float largest = 0;
    for (int i = 0; i < 16; i++) largest = std::max(largest, std::fabs(values[i]));
    if (largest == 0) return best;
    const std::vector<float> levels = magnitudes<E>();
    if (levels.empty()) {
        best.scale = float_to_bf16(largest / 448.0f);
        const float by = bf16_to_float(best.scale);
        for (int i = 0; i < 16; i++) best.codes[i] = float_to_e4m3(values[i] / by);
        return best;
    }
    const float exact = largest / (levels.back() * static_scale);
    int first = float_to_e4m3(exact);
    if (e4m3_to_float(uint8_t(first)) < exact) first = std::min(first + 1, 0x7e);
    float least = INFINITY;
    for (int scale = std::max(first, 1); scale >= 1 && scale > first - 4; scale--) {
        HostGroup tried;
        tried.scale = uint16_t(scale);
        const float by = e4m3_to_float(uint8_t(scale)) * static_scale;
        float off = 0;
        for (int i = 0; i < 16; i++) {
            const float size = std::fabs(values[i]);
            size_t code = 0;
            while (code + 1 < levels.size()) {
                const float midway = (levels[code] + levels[code + 1]) / 2 * by;
                if (size < midway || (size == midway && code % 2 == 0)) break;
                code++;
            }
            volatile float miss = size - levels[code] * by, square = miss * miss;
            off += square;
            tried.codes[i] = uint8_t(code + (std::signbit(values[i]) ? levels.size() : 0));
        }
        if (off < least) best = tried, least = off;
    }
    return best;
}
template <class E>
void decode_host(const HostGroup& group, float static_scale, float* values) {
    const std::vector<float> levels = magnitudes<E>();
    for (int i = 0; i < 16; i++) {
        if (levels.empty()) values[i] = e4m3_to_float(group.codes[i]) * bf16_to_float(group.scale);
        else {
            const float level = levels[group.codes[i] % levels.size()];
            values[i] = (group.codes[i] < levels.size() ? level : -level) * (e4m3_to_float(uint8_t(group.scale)) * static_scale);
        }
    }
}

// Group `group` of a token's codes and scales, read or written.
template <class Row>
void place_group(uint8_t* codes, uint8_t* scales, int group, HostGroup& it, bool write) {
    using E = typename Row::E;
    const int count = int(magnitudes<E>().size());
    const auto bit = [&](uint8_t* bytes, int at, int number, uint8_t& code) {  // bit `number` of a code at bit `at`
        if (write) bytes[at / 8] = uint8_t((bytes[at / 8] & ~(1 << at % 8)) | (code >> number & 1) << at % 8);
        else code = uint8_t(code | (bytes[at / 8] >> at % 8 & 1) << number);
    };
    if (!write) it = {};
    for (int i = 0; i < 16; i++) {
        const int chunk = 2 * group + i / 8, j = i % 8, place = chunk % Row::LANES * Row::STEPS + chunk / Row::LANES;
        uint8_t* at = codes + place * E::FIRST;
        if (E::FIRST == 8) {
            for (int b = 0; b < 8; b++) bit(at, 8 * j + b, b, it.codes[i]);
        } else if (count == 8) {
            for (int b = 0; b < 3; b++) bit(at, 4 * j + b, b, it.codes[i]);
            bit(at, j < 4 ? 8 * j + 7 : 8 * (j - 4) + 3, 3, it.codes[i]);
        } else {
            for (int b = 0; b < 2; b++) bit(at, j < 4 ? 4 * j + b : 4 * (j - 4) + 2 + b, b, it.codes[i]);
            bit(codes + Row::SECOND_PLANE + place, j, 2, it.codes[i]);
        }
    }
    uint8_t* scale = scales + (group % (Row::LANES / 2) * Row::STEPS + group / (Row::LANES / 2)) * E::SCALE;
    for (int b = 0; b < E::SCALE; b++) {
        if (write) scale[b] = uint8_t(it.scale >> 8 * b);
        else it.scale = uint16_t(it.scale | scale[b] << 8 * b);
    }
}

}  // namespace test
