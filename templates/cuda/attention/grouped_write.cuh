// What is done to a head's vector before it is kept in groups, and to a context vector after: the rotation, and the codes. A warp has the
// head (HeadVector). All of it is the oracle's arithmetic (monomorph_formats::cached) in its order, each operation rounded to f32, so that
// codes and scales are the oracle's to the bit.
#pragma once

#include "attention/grouped.cuh"
#include "attention/rotary.cuh"

namespace monomorph {

template <class C>
__device__ __forceinline__ void change_signs(HeadVector<C>& head, int lane) {
#pragma unroll
    for (int j = 0; j < head.N; ++j) head.x[j] = __uint_as_float(__float_as_uint(head.x[j]) ^ (rotation_signs(j) >> lane & 1u) << 31);
}

// Sums and differences of elements 1, 2, 4 … apart, and the factor: elements within a warp's lanes, then within a lane's registers.
template <class C>
__device__ __forceinline__ void mix_elements(HeadVector<C>& head, int lane) {
    constexpr int D = C::HEAD_DIM, N = HeadVector<C>::N;
    static_assert(D >= 32 && (D & (D - 1)) == 0 && D <= 512, "a power of two is rotated");
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2)
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float other = __shfl_xor_sync(0xffffffffu, head.x[j], apart);
            head.x[j] = lane & apart ? __fsub_rn(other, head.x[j]) : __fadd_rn(head.x[j], other);
        }
#pragma unroll
    for (int apart = 1; apart < N; apart *= 2)
#pragma unroll
        for (int j = 0; j < N; ++j)
            if ((j & apart) == 0) {
                const float low = head.x[j], high = head.x[j + apart];
                head.x[j] = __fadd_rn(low, high), head.x[j + apart] = __fsub_rn(low, high);
            }
    constexpr float ODD = 0x1.6a09e6p-4f;  // 1 / sqrt(128), and what rounding the root makes of it
    constexpr float FACTOR = D == 32 ? 2 * ODD : D == 64 ? 0.125f : D == 128 ? ODD : D == 256 ? 0.0625f : ODD / 2;
#pragma unroll
    for (int j = 0; j < N; ++j) head.x[j] = __fmul_rn(head.x[j], FACTOR);
}

template <class C>
__device__ __forceinline__ void rotate_kept(HeadVector<C>& head, int lane) {
    change_signs(head, lane);
    mix_elements(head, lane);
}
template <class C>
__device__ __forceinline__ void rotate_back(HeadVector<C>& head, int lane) {
    mix_elements(head, lane);
    change_signs(head, lane);
}

// Codes of a group, two chunks, and its scale.
template <class E>
struct GroupCodes {
    uint32_t first[2][E::FIRST == 8 ? 2 : 1] = {}, second[2] = {}, scale = 0;

    // Element `at` of the group, of formats of levels.
    __device__ __forceinline__ void put(int at, uint32_t magnitude, uint32_t sign) {
        const int chunk = at / 8, i = at % 8;
        if constexpr (E::FIRST == 4) {
            first[chunk][0] |= magnitude << 4 * i | sign << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
        } else {
            first[chunk][0] |= magnitude << (i < 4 ? 4 * i : 4 * (i - 4) + 2);
            second[chunk] |= sign << i;
        }
    }
    template <class Row>
    __device__ __forceinline__ void store(const KeptPlace& to, int group) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int chunk = Row::chunk(2 * group + i);
            unsigned char* codes = to.codes + chunk * E::FIRST;
            if constexpr (E::FIRST == 8) *reinterpret_cast<uint2*>(codes) = make_uint2(first[i][0], first[i][1]);
            else if constexpr (E::FIRST == 4) *reinterpret_cast<uint32_t*>(codes) = first[i][0];
            else *reinterpret_cast<uint16_t*>(codes) = static_cast<uint16_t>(first[i][0]);
            if constexpr (E::SECOND > 0) to.codes[Row::SECOND_PLANE + chunk] = static_cast<unsigned char>(second[i]);
        }
        unsigned char* at = to.scales + Row::scale(group) * E::SCALE;
        if constexpr (E::SCALE == 2) *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(scale);
        else *at = static_cast<unsigned char>(scale);
    }
};

__device__ __forceinline__ uint32_t e4m3_of(float number) { return pack_e4m3(fminf(number, 448.0f)); }  // of a NaN too
__device__ __forceinline__ float e4m3_number(uint32_t code) { return unpack_f16(unpack_e4m3_pair(code)).x; }

// The codes of 16 values with the `candidate`-th of the scales that are searched, and the squares of what they miss, summed up in order.
// Candidate 0 is the smallest scale that clips nothing; the others are the next below it, as far as there are such.
template <class E>
__device__ __forceinline__ float try_scale(GroupCodes<E>& codes, const float* values, float largest, int candidate, float static_scale) {
    using Levels = typename E::Levels;
    constexpr int COUNT = Levels::COUNT;
    const float exact = __fdiv_rn(largest, __fmul_rn(Levels::magnitude(COUNT - 1), static_scale));
    const int nearest = pack_e4m3(exact), first = max(e4m3_number(nearest) >= exact ? nearest : min(nearest + 1, 0x7e), 1);
    codes = {};
    codes.scale = max(first - candidate, 1);
    const float by = __fmul_rn(e4m3_number(codes.scale), static_scale);
    float off = 0.0f;
#pragma unroll
    for (int at = 0; at < 16; ++at) {
        const float size = fabsf(values[at]);
        uint32_t code = 0;
        float level = Levels::magnitude(0);
#pragma unroll
        for (int i = 0; i + 1 < COUNT; ++i) {
            // Of two equally near the even one: thresholds grow, so it is the upper where it is even.
            const float threshold = __fmul_rn(Levels::threshold(i), by);
            if (i % 2 == 0 ? size > threshold : size >= threshold) code = i + 1, level = Levels::magnitude(i + 1);
        }
        codes.put(at, code, __float_as_uint(values[at]) >> 31);
        const float miss = __fsub_rn(size, __fmul_rn(level, by));
        off = __fadd_rn(off, __fmul_rn(miss, miss));
    }
    return first > candidate ? off : INFINITY;
}

// Calls put(group, codes) for every group of the head, in one lane each. `row`: HEAD_DIM floats of shared memory of the warp's own,
// aligned to 16 bytes. Four lanes have a group: each tries a scale, or makes four of a turbo8's codes.
template <class E, class C, class Put>
__device__ __forceinline__ void encode_groups(const HeadVector<C>& head, float static_scale, float* row, int lane, Put put) {
    constexpr int GROUPS = C::HEAD_DIM / 16;
    head.each(lane, [&](int e, float v) { row[e] = v; });
    __syncwarp();
    const int part = lane % 4, first_of_four = lane - part;
#pragma unroll 1
    for (int base = 0; base < GROUPS; base += 8) {
        const int group = base + lane / 4;
        const bool there = group < GROUPS;
        const float4* from = reinterpret_cast<const float4*>(row + (there ? group : 0) * 16);
        GroupCodes<E> codes;
        if constexpr (E::FIRST == 8) {
            const float4 v = from[part];
            float largest = fmaxf(fmaxf(fmaxf(fmaxf(0.0f, fabsf(v.x)), fabsf(v.y)), fabsf(v.z)), fabsf(v.w));  // 0 of none that are numbers
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            codes.scale = pack_bf16(__fdiv_rn(largest, 448.0f), 0.0f);
            const float by = bf16_low(codes.scale);
            uint32_t word = 0;
            if (by > 0.0f)
                word = e4m3_of(__fdiv_rn(v.x, by)) | e4m3_of(__fdiv_rn(v.y, by)) << 8 | e4m3_of(__fdiv_rn(v.z, by)) << 16 | e4m3_of(__fdiv_rn(v.w, by)) << 24;
#pragma unroll
            for (int i = 0; i < 4; ++i) codes.first[i / 2][i % 2] = __shfl_sync(0xffffffffu, word, first_of_four + i);
            if (there && part == 0) put(group, codes);
        } else {
            float values[16], largest = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 v = from[i];
                values[4 * i] = v.x, values[4 * i + 1] = v.y, values[4 * i + 2] = v.z, values[4 * i + 3] = v.w;
            }
#pragma unroll
            for (int i = 0; i < 16; ++i) largest = fmaxf(largest, fabsf(values[i]));
            float least = try_scale(codes, values, largest, part, static_scale);
            // The larger of two scales that are equally good; 0 of zeros.
            int best = 0;
            const float own = least;
            least = __shfl_sync(0xffffffffu, own, first_of_four);
#pragma unroll
            for (int i = 1; i < 4; ++i) {
                const float other = __shfl_sync(0xffffffffu, own, first_of_four + i);
                if (other < least) best = i, least = other;
            }
            if (largest == 0.0f) codes = {};
            if (there && part == best) put(group, codes);
        }
    }
    __syncwarp();  // before the row is another head's
}

// Stores a head, which is rotated if its format wants that.
template <class C, Side SIDE>
__device__ __forceinline__ void keep_groups(const HeadVector<C>& head, float static_scale, float* row, int lane, const KeptPlace& to) {
    using Row = KeptRow<C, SIDE>;
    encode_groups<typename Row::E>(head, static_scale, row, lane, [&](int group, const auto& codes) { codes.template store<Row>(to, group); });
}

}  // namespace monomorph
