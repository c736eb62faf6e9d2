// A packed matrix on both sides: filled on the device, and decoded on the host by the packed layout's definition.
#pragma once

#include "core/common.cuh"

#include "kernels/fill_matrix.cuh"

namespace test {

using namespace monomorph;

// Most threads of a block that fills.
constexpr int FILL_THREADS = 256;

template <Format F, ScaleForm S>
struct FilledMatrix {
    static constexpr Format FORMAT = F;
    static constexpr ScaleForm SCALES = S;
    int rows, columns, parts, tiles, units;
    Buffer<uint8_t> codes, scales;
    Buffer<float> row_scales;
    std::vector<uint8_t> host_codes, host_scales;
    std::vector<float> host_row_scales;

    static size_t scale_bytes(int tiles, int units, int columns) {
        if (F == Format::FP8_E4M3 && S == ScaleForm::BLOCK128) return size_t(tiles) * ((columns + 127) / 128) * 4;
        return size_t(tiles) * units * Unit<F>::SCALE_BYTES;
    }
    FilledMatrix(int rows, int columns, bool gated, float deviation)
        : rows(rows), columns(columns), parts(gated ? 2 : 1), tiles((rows + 7) / 8 * parts), units((columns + Unit<F>::COLUMNS - 1) / Unit<F>::COLUMNS),
          codes(size_t(tiles) * units * 512), scales(scale_bytes(tiles, units, columns)), row_scales(size_t(tiles) * 8) {
        fill(64, FILL_THREADS, deviation);
        host_codes = codes.download(), host_scales = scales.download(), host_row_scales = row_scales.download();
    }
    void fill(int blocks, int threads, float deviation) {
        launch(fill_matrix_kernel<FilledMatrix, FILL_THREADS>, dim3(blocks), threads, 0, nullptr, codes.pointer, scales.pointer, row_scales.pointer,
               FillShape{rows, columns, parts == 2, deviation, 42});
        CHECK(cudaDeviceSynchronize());
    }
    static float half(const uint8_t* at) { return f16_to_float(uint16_t(at[0] | at[1] << 8)); }
    static float word(const uint8_t* at) {
        float value;
        std::memcpy(&value, at, 4);
        return value;
    }
    // Of the packed row (tile * 8 + g), by the table of formats in words: no helper of the device library.
    float value(int row, int column) const {
        const int tile = row / 8, g = row % 8;
        const int width = F == Format::F32 ? 16 : F == Format::BF16 || F == Format::F16 ? 32 : F == Format::FP8_E4M3 || F == Format::Q8_0 ? 64 : 128;
        const int unit = column / width, within = column % width;
        const size_t at = size_t(tile) * units + unit;
        int c, j;
        if (F == Format::F32) c = within / 4, j = within % 4;
        else if (F == Format::Q8_0 || F == Format::Q4_1) c = within % 32 / 8, j = within / 32 * 8 + within % 8;
        else c = within % 8 / 2, j = within / 16 * 4 + within % 16 / 8 * 2 + within % 2;
        const uint8_t* lane = &host_codes[at * 512 + (4 * g + c) * 16];
        const uint8_t* scale = host_scales.empty() ? nullptr : &host_scales[0];
        switch (F) {
            case Format::F32: return word(lane + 4 * j);
            case Format::BF16: return bf16_to_float(uint16_t(lane[2 * j] | lane[2 * j + 1] << 8));
            case Format::F16: return half(lane + 2 * j) * (S == ScaleForm::ROWS ? host_row_scales[row] : 1.0f);
            case Format::FP8_E4M3: {
                const float by = S == ScaleForm::BLOCK128 ? word(scale + (size_t(tile) * ((columns + 127) / 128) + column / 128) * 4) : 1.0f;
                return e4m3_to_float(lane[j]) * (by * host_row_scales[row]);
            }
            case Format::NVFP4: {
                const float block = e4m3_to_float(scale[at * 64 + g * 8 + within / 16]);
                // Of two neighbours the first has the lower half of their word; magnitude and sign stand where decode_nvfp4 says.
                constexpr int AT[4][2] = {{9, 15}, {6, 12}, {3, 14}, {0, 13}};
                const unsigned bits = lane[j / 8 * 4 + j % 2 * 2] | lane[j / 8 * 4 + j % 2 * 2 + 1] << 8, p = j % 8 / 2;
                return e2m1_to_float((bits >> AT[p][0] & 7) | (bits >> AT[p][1] & 1) << 3) * block * host_row_scales[row];
            }
            case Format::Q8_0: return half(scale + at * 32 + (within / 32 * 8 + g) * 2) * float(int8_t(lane[j]));
            default: {
                const uint8_t* pair = scale + at * 128 + (within / 32 * 8 + g) * 4;
                const volatile float product = half(pair) * float(lane[j / 2] >> (j % 2 * 4) & 15);  // rounded before the sum
                return product + half(pair + 2);
            }
        }
    }
};

}  // namespace test
