// Tensor-core products of many rows, out[T, OUTPUTS] = epilogue(W[OUTPUTS, K] x[T, K]^T): what gemm_wgmma (sm_90a) and gemm_mma
// (every card) share: constants, shared memory, the copying warp and the order of work.
//
// The product is computed transposed: weights are the row operand, taken from the packed tiles straight into registers, tokens
// are the column operand in shared memory. A block owns BLOCK_ROWS packed rows x TOKENS tokens at a time. Eight consumer warps
// (two warpgroups) hold the sums: warpgroup v owns rows 64 (v STRIPS + s) .. + 64 for strips s < STRIPS, its warp w rows
// 16w .. 16w + 16 of each. K goes by *steps* of STAGE_PANELS * 64 columns through two rings:
//   weights (gemm_weights.cuh): WEIGHT_STAGES deep; every consumer lane copies its own 16 bytes of every unit.
//   x: STAGES deep; a copying warp brings each panel with one bulk copy (staged.cuh: already swizzled).
//     full[stage]: completes when the step's bytes have landed;   empty[stage]: when every consumer warp has used them.
// Blocks are persistent: cluster i of n takes pieces of work i, i + n, …; both rings run ahead into the next piece.
//
// Clusters (sm_90a): MULTICAST blocks with adjacent rows and the same tokens each fetch a part of x and multicast it to all.
// SPLIT blocks with the same rows each take a part of K; their sums meet through distributed shared memory, in order of rank.
// Rank in the cluster = split part * MULTICAST + row part.
//
// Config:
//   FORMAT        F16, FP8_E4M3 or NVFP4
//   SCALES        ScaleForm: ROWS, or fp8's BLOCK128, which are multiplied into the codes before these are rounded to f16 (11 bits: the scales
//                 of a matrix are held below 2^7). With both come row_scales f32 [packed rows], multiplied into the sums
//   OUTPUTS       rows of the matrix, or features (gate and up rows are interleaved by tiles of eight, `Packing::Gated`)
//   INPUTS        K
//   CAPACITY      rows of x and out; the stride of staged panels
//   TOKENS        columns of a block's product: 8, 16, 32, 64, 128 (256 with wgmma and STRIPS 1)
//   STRIPS        1 or 2
//   STAGE_PANELS  panels of a step: 1 or even, whole units of the format
//   WEIGHT_STAGES, STAGES   steps the rings hold
//   RESIDENT      blocks a multiprocessor holds at a time, 1 or 2 (two: the next kernel's weights stream while this one ends)
//   MULTICAST, SPLIT   1 where there are no clusters
//   EVEN          optional: the blocks among which work is cut evenly (GemmCut), or 0; MULTICAST and SPLIT 1, one block of tokens, all blocks on the card together
//   EPILOGUE      Epilogue::STORE, ADD, ACTIVATED, SUM (f32 [CAPACITY, OUTPUTS]) or GATED (f32 [CAPACITY, OUTPUTS]); SUM: see gemm_sum.cuh
//   ACTIVATION    of GATED and ACTIVATED
//   BIAS          f32 [OUTPUTS] added (GATED: to gate and up, two vectors)
//   LIMIT         Limit::TOKENS or OUTPUTS: the field of the step that bounds the rows written
// Launch: block = GemmWgmma<C>::THREADS or GemmMma<C>::THREADS, dynamic shared memory = SHARED_BYTES, grid = CLUSTER *
// gemm_clusters<C>(multiprocessors), cluster dimension CLUSTER, launch bounds (THREADS, RESIDENT).
#pragma once

#include "core/async.cuh"
#include "core/formats.cuh"
#include "core/mma.cuh"
#include "core/staged.cuh"
#include "core/step.cuh"
#include "exchange/inbox.cuh"
#include "products/stream_epilogue.cuh"

namespace monomorph {

// What a sum over ranks keeps in shared memory (gemm_sum.cuh).
template <class C, bool SUMS = C::EPILOGUE == Epilogue::SUM>
struct GemmPieces {
    static constexpr int BYTES = 0;
};
template <class C>
struct GemmPieces<C, true> {
    using Pieces = Inbox<C::RANKS, float4, C::OUTPUTS / 4, C::INBOX_ROWS>;
    static constexpr int BYTES = sizeof(Pieces);
};

template <class C, class = void>
constexpr bool EVEN = false;
template <class C>
constexpr bool EVEN<C, decltype(void(C::EVEN))> = C::EVEN > 0;

template <class C>
struct GemmShape {
    using W = Unit<C::FORMAT>;
    static_assert(C::FORMAT == Format::F16 || C::FORMAT == Format::FP8_E4M3 || C::FORMAT == Format::NVFP4, "no tensor-core product of this format");
    static_assert(C::SCALES != ScaleForm::NONE, "weights have scales of rows");
    static_assert(C::LIMIT != Limit::NONE, "the step bounds the rows");
    static_assert(C::SCALES != ScaleForm::BLOCK128 || C::FORMAT == Format::FP8_E4M3, "blocks of 128 columns are scaled in fp8 only");
    static constexpr bool GATED = C::EPILOGUE == Epilogue::GATED;
    static constexpr int CONSUMER_WARPS = 8;
    // Work.
    static constexpr int TILES = ceil_div(C::OUTPUTS, 8) * (GATED ? 2 : 1);  // of eight packed rows
    static constexpr int BLOCK_ROWS = 128 * C::STRIPS;
    static constexpr int BLOCK_TILES = BLOCK_ROWS / 8;
    static constexpr int ROW_BLOCKS = ceil_div(TILES, BLOCK_TILES);
    static constexpr int ROW_PIECES = ceil_div(ROW_BLOCKS, C::MULTICAST);  // a cluster's rows
    static constexpr int CLUSTER = C::MULTICAST * C::SPLIT;
    static constexpr bool ONE_TOKEN_BLOCK = C::CAPACITY <= C::TOKENS;
    static constexpr int TOKEN_BLOCKS = ceil_div(C::CAPACITY, C::TOKENS);
    // K.
    static constexpr int PANELS = staged_panels(C::INPUTS);
    static constexpr int STEPS = ceil_div(PANELS, C::STAGE_PANELS);
    static constexpr int UNITS = ceil_div(C::INPUTS, W::COLUMNS);
    static constexpr int STAGE_UNITS = C::STAGE_PANELS * STAGED_PANEL / W::COLUMNS;
    static_assert(STAGE_UNITS * W::COLUMNS == C::STAGE_PANELS * STAGED_PANEL, "a stage holds whole units");
    static_assert(C::SPLIT <= STEPS, "every part of K needs a step");
    static_assert(C::SPLIT == 1 || ONE_TOKEN_BLOCK, "split products are for one block of tokens");
    static_assert(!EVEN<C> || (CLUSTER == 1 && ONE_TOKEN_BLOCK && C::EPILOGUE != Epilogue::SUM), "what is cut evenly has no clusters and one block of tokens");
    static_assert(C::STAGE_PANELS == 1 || C::STAGE_PANELS % 2 == 0, "steps are half a scale block or whole ones");
    static_assert(C::STAGE_PANELS <= 32, "one lane a panel");
    static_assert(C::TOKENS % 8 == 0 && (C::TOKENS / C::MULTICAST) % 8 == 0, "tokens by eights");
    // Shared memory: x stages, weight stages, sums, barriers, pieces of a sum over ranks.
    static constexpr bool BLOCK_SCALED = C::SCALES == ScaleForm::BLOCK128;
    static constexpr int STAGE_BYTES = C::STAGE_PANELS * C::TOKENS * STAGED_ROW_BYTES;
    static constexpr int WEIGHT_STAGE_BYTES = BLOCK_TILES * STAGE_UNITS * (UNIT_BYTES + W::SCALE_BYTES);
    static constexpr int WEIGHTS_OFFSET = C::STAGES * STAGE_BYTES;
    // Sums pass through shared memory [tokens][64 rows, the multiplier of the token, 3 more so that no two lanes of a warp meet in a bank] to be written in rows:
    // a few tokens at a time beside the ring, or, split, all of them where the ring was.
    static constexpr int SUM_STRIDE = 68;
    static constexpr int SUM_AT_ONCE = C::RESIDENT == 1 ? 32 : 16;
    static constexpr int SUM_TOKENS = C::SPLIT > 1 || C::TOKENS < SUM_AT_ONCE ? C::TOKENS : SUM_AT_ONCE;
    static constexpr int SUM_BYTES = SUM_TOKENS * SUM_STRIDE * 4;  // of a strip
    static constexpr int RING_BYTES = WEIGHTS_OFFSET + C::WEIGHT_STAGES * WEIGHT_STAGE_BYTES;
    static constexpr int SUMS_OFFSET = C::SPLIT > 1 ? 0 : RING_BYTES;
    static constexpr int SUMS_END = SUMS_OFFSET + SUM_BYTES * 2 * (C::SPLIT > 1 ? C::STRIPS : 1);
    static constexpr int BARRIERS_OFFSET = SUMS_END > RING_BYTES ? SUMS_END : RING_BYTES;
    static constexpr int PIECES_OFFSET = BARRIERS_OFFSET + 16 * C::STAGES;
    static constexpr int SHARED_BYTES = PIECES_OFFSET + GemmPieces<C>::BYTES;
};

// Clusters to launch: all work at once, or as many as the card holds.
template <class C>
constexpr int gemm_clusters(int multiprocessors) {
    if constexpr (EVEN<C>) return C::EVEN;
    const int work = GemmShape<C>::ROW_PIECES * GemmShape<C>::TOKEN_BLOCKS;
    const int held = multiprocessors * C::RESIDENT / GemmShape<C>::CLUSTER;
    return C::SPLIT > 1 || work < held ? work : held;
}

// Work that is cut evenly: of all steps of all blocks of rows, in order, a block has a contiguous share, so that none is idle while a last few blocks of rows
// are multiplied. A block of rows whose steps several blocks have is the first one's, which adds what the others left in memory, in their order. It has nothing to wait
// for: the others begin with those steps, and it ends with its own.
//   parts: [blocks][vectors of a thread][256 threads] float4, then a flag a block, 0 between launches.
template <class C>
struct GemmCut {
    using S = GemmShape<C>;
    static constexpr int ALL = S::ROW_BLOCKS * S::STEPS;
    static constexpr int THREADS = 32 * S::CONSUMER_WARPS, VECTORS = C::STRIPS * C::TOKENS / 8;   // of a thread
    static constexpr int BYTES = VECTORS * THREADS * 16;
    __host__ __device__ static constexpr int first(int block, int blocks) { return static_cast<int>(static_cast<long long>(ALL) * block / blocks); }
};

template <class C>
constexpr std::size_t gemm_parts_bytes() { return std::size_t(C::EVEN) * (GemmCut<C>::BYTES + 4); }

struct GemmArguments {
    const Step* step;
    const char* x;          // staged
    const float* unscale;   // of its rows
    const char* codes;
    const char* scales;     // of blocks, or null
    const float* row_scales;
    const float* bias;
    const float* up_bias;
    float* out;
    World* world;           // of SUM
    float* own;
    float* parts;           // of EVEN
};

// Where the multipliers of staged rows stand.
template <class C>
__device__ __forceinline__ const float* gemm_unscale(const void* x, int capacity) {
    return reinterpret_cast<const float*>(static_cast<const char*>(x) + staged_unscale_at(capacity, C::INPUTS));
}

// Which rows and tokens a piece of work is. Eight row pieces go through all tokens before the next eight: what the card works on
// at one time is then about as wide as high, and its operands stay in the second-level cache.
template <class C>
struct GemmWork {
    int row_block, token_block;
    __device__ __forceinline__ GemmWork(int piece, int token_blocks, int row_part) {
        constexpr int GROUP = 8;
        using S = GemmShape<C>;
        int row_piece = piece;
        token_block = 0;
        if constexpr (!S::ONE_TOKEN_BLOCK) {
            const int group = piece / (GROUP * token_blocks);
            const int within = piece - group * GROUP * token_blocks;
            const int height = min(GROUP, S::ROW_PIECES - group * GROUP);
            token_block = within / height;
            row_piece = group * GROUP + within % height;
        }
        row_block = row_piece * C::MULTICAST + row_part;
    }
};

// A position in the ring.
template <int STAGES>
struct RingPosition {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// A block's place, and its share of K.
template <class C>
struct GemmPlace {
    using S = GemmShape<C>;
    int row_part = 0, split_part = 0, cluster = blockIdx.x, clusters = gridDim.x, first_step = 0, last_step = S::STEPS;
    __device__ __forceinline__ explicit GemmPlace(int rank) {
        if constexpr (S::CLUSTER > 1) {
            row_part = rank % C::MULTICAST;
            split_part = rank / C::MULTICAST;
            cluster = blockIdx.x / S::CLUSTER;
            clusters = gridDim.x / S::CLUSTER;
            first_step = S::STEPS * split_part / C::SPLIT;
            last_step = S::STEPS * (split_part + 1) / C::SPLIT;
        }
    }
};

template <class C>
__device__ __forceinline__ int gemm_rows(const Step* step) {
    return C::LIMIT == Limit::OUTPUTS ? step->outputs : step->tokens;
}

// Pieces of work of the whole grid. With one block of tokens it does not depend on the step, so that weights may be fetched
// before the predecessor has finished.
template <class C>
__device__ __forceinline__ int gemm_work(int token_blocks) {
    return GemmShape<C>::ROW_PIECES * (GemmShape<C>::ONE_TOKEN_BLOCK ? 1 : token_blocks);
}

}  // namespace monomorph
