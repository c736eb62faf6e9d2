// Times attention of patches on warpgroups and without them, and what turns heads before it, at the sizes of the Qwen towers' heads, for a
// picture of 448 x 448, one of 1024 x 1024, one of 1920 x 1056, and five of the first in one pass. Products of heads without their padding
// are counted. nvcc as in common.cuh, for sm_90a.
#include <climits>

#include "core/common.cuh"

#include "kernels/attend_patches.cuh"
#include "kernels/attend_patches_wgmma.cuh"
#include "kernels/turn_patches.cuh"

using namespace monomorph;

struct Heads {
    static constexpr int HEADS = 16, HEAD_DIM = 72, MERGE = 2;
    static constexpr PatchPairs PAIRS = PatchPairs::HALVES;
    static constexpr bool ROWS_FIRST = true, EXACT = false;
    static constexpr HeadNorm Q_NORM = HeadNorm::None, K_NORM = HeadNorm::None;
    static constexpr float Q_EPS = 0, K_EPS = 0, SCALE = 0.11785113f;
};

struct Seen {
    Step step;
    PatchGrids grids;
};

// A step over so many such images.
static void measure(cudaStream_t stream, PatchGrid grid, int images) {
    constexpr int ROW = 3 * Heads::HEADS * Heads::HEAD_DIM;
    const int each = grid.rows * grid.columns, patches = images * each, sides = std::max(grid.rows, grid.columns);
    test::Random random(patches);
    std::vector<float> qkv(size_t(patches) * ROW), angles(size_t(sides) * Heads::HEAD_DIM);
    for (float& v : qkv) v = float(random.normal());
    for (float& v : angles) v = float(random.normal());
    Seen host = {};
    host.step.tokens = patches;
    for (PatchGrid& it : host.grids.image) it = {0, 0, 0, INT_MAX};
    for (int i = 0; i < images; i++) host.grids.image[i] = {1, grid.rows, grid.columns, i * each};
    test::Buffer<Seen> header(std::vector<Seen>{host});
    test::Buffer<float> rows(qkv), turns(angles), out(size_t(patches) * Heads::HEADS * Heads::HEAD_DIM);
    test::Buffer<__half> turned(turned_bytes<Heads>(patches) / 2);
    const Step* step = &header.pointer->step;
    const __half* const in = turned.pointer;
    const float turn = test::time_graph(stream, [&] {
        test::launch(turn_patches_kernel<Heads, TURN_THREADS>, dim3(ceil_div(patches, TURN_WARPS), TURN_SHARES<Heads>), TURN_THREADS, 0, stream, step, rows.pointer, static_cast<const float*>(nullptr),
                     static_cast<const float*>(nullptr), static_cast<const float*>(turns.pointer), turned.pointer);
    });
    const float plain = test::time_graph(stream, [&] {
        test::launch(attend_patches_kernel<Heads, ATTEND_THREADS<Heads>, int(attend_shared_bytes<Heads>())>, dim3(264), ATTEND_THREADS<Heads>, attend_shared_bytes<Heads>(), stream, step, in, out.pointer);
    });
    const float warpgroups = test::time_graph(stream, [&] {
        test::launch(attend_patches_wgmma_kernel<Heads, WGMMA_THREADS, int(attend_wgmma_shared_bytes<Heads>())>, dim3(132), WGMMA_THREADS, attend_wgmma_shared_bytes<Heads>(), stream, step, in, out.pointer);
    });
    const double products = 4.0 * patches * each * Heads::HEADS * Heads::HEAD_DIM;
    std::printf("%d patches of %d images: turned in %.1f us; attention %.1f us (%.0f TFLOP/s), on warpgroups %.1f us (%.0f TFLOP/s)\n", patches, images, 1e3 * turn, 1e3 * plain, products / plain * 1e-9,
                1e3 * warpgroups, products / warpgroups * 1e-9);
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (PatchGrid grid : {PatchGrid{1, 28, 28, 0}, PatchGrid{1, 64, 64, 0}, PatchGrid{1, 66, 120, 0}}) measure(stream, grid, 1);
    measure(stream, {1, 28, 28, 0}, 5);
    return 0;
}
