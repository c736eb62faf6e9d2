// What the products of experts for a few tokens (three to eight) share: a ring of weights for every warp, and the walk of a warp through it.
//
// Few tokens choose many experts, most of them one or two tokens each, so the work is a long list of small matrices. A warp that
// met all others at every one of them would wait more than it multiplies; here a warp has weights of its own. It multiplies what has come,
// then its first lane asks for what comes a ring later: no other warp takes part, so there is no feeder to signal and no barrier but the
// one on which the copied bytes count down. The warp that gathers the list of experts asks for the first piece of every ring, while the others stage
// x: more at once would stand in the queue before that x (and a warp's bulk copies for others are issued one after another). They ask for the rest.
//
// A piece is what is copied at once: at most PIECE units of one tile, and their scales. Units are those of formats.cuh.
#pragma once

#include "experts/route_choose.cuh"

namespace monomorph {

// Whether a step of experts goes this way.
template <class C>
constexpr bool FEW = C::COMPUTE == Compute::F16 && C::ROWS > 2;

// How SLICE adjacent units of a tile are cut into pieces of at most CAPACITY. ROW_SCALES: f32 of the tile's rows come with the piece.
template <Format F, ScaleForm SCALES, bool ROW_SCALES_, int SLICE_, int CAPACITY>
struct Pieces {
    using U = Unit<F>;
    static constexpr bool BLOCK_SCALES = SCALES == ScaleForm::BLOCK128, ROW_SCALES = ROW_SCALES_;
    static constexpr int SLICE = SLICE_, ROUND = BLOCK_SCALES ? 2 : 1;   // blocks of 128 columns are two units of fp8
    static constexpr int COUNT = ceil_div(SLICE, round_up(least(CAPACITY, SLICE), ROUND)), PIECE = round_up(ceil_div(SLICE, COUNT), ROUND);
    static constexpr int CODES = PIECE * UNIT_BYTES;
    static constexpr int SCALE_BYTES = ROW_SCALES ? TILE_ROWS * 4 : BLOCK_SCALES ? round_up(PIECE * 2 + 12, 16) : PIECE * U::SCALE_BYTES;
    static constexpr int STAGE = round_up(CODES + SCALE_BYTES, 128);
    // Whether a piece's i-th unit is the first, or the last, under its scale.
    __host__ __device__ static constexpr bool begins(int i) { return i % ROUND == 0; }
    __host__ __device__ static constexpr bool ends(int i) { return (i + 1) % ROUND == 0; }
};

// A warp's ring of STAGES pieces. Filled and emptied in one order, so one place serves both: a stage that was read is asked for again.
template <class P, int STAGES, bool EVICT_FIRST>
struct WarpRing {
    char* ring;
    Barrier* full;
    unsigned long long policy = 0;
    int stage = 0;
    unsigned parity = 0;

    // Of a warp: one a stage, and as many more for builds in which every lane arrives.
    static constexpr int BARRIERS = 2 * STAGES;

    __device__ __forceinline__ WarpRing(char* ring, Barrier* barriers) : ring(ring), full(barriers) {
        if constexpr (EVICT_FIRST) policy = evict_first_policy();
    }
    __device__ __forceinline__ static void init(Barrier* barriers) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(barriers + s, 1);
            if constexpr (WARP_ARRIVALS > 1) barrier_init(barriers + STAGES + s, WARP_ARRIVALS);
        }
    }
    __device__ __forceinline__ void copy(void* to, const void* from, int bytes) const {
        if constexpr (EVICT_FIRST) bulk_copy(to, from, bytes, full + stage, policy);
        else bulk_copy(to, from, bytes, full + stage);
    }
    // By one lane: `units` from unit `unit` on of all there are; `scales` as Pieces says, `first_scale` of BLOCK_SCALES and ROW_SCALES: the piece's
    // first. Of a slice that lies beyond a short tile there may be none: nothing is copied, but the scales of rows, by which its sum of 0 is multiplied.
    __device__ __forceinline__ void fill(const char* codes, const char* scales, long long unit, int units, long long first_scale) const {
        char* const at = ring + stage * P::STAGE;
        units = most(units, 0);
        int bytes = units * P::U::SCALE_BYTES;
        const char* from = scales + unit * P::U::SCALE_BYTES;
        if constexpr (P::ROW_SCALES) {
            bytes = TILE_ROWS * 4, from = scales + first_scale * 4;
        } else if constexpr (P::BLOCK_SCALES) {
            from = scales + (first_scale * 4 & ~15ll);
            bytes = units == 0 ? 0 : (static_cast<int>(first_scale % 4) * 4 + ceil_div(units, 2) * 4 + 15) & ~15;
        }
        barrier_expect(full + stage, units * UNIT_BYTES + bytes);
        if (bytes > 0) copy(at + P::CODES, from, bytes);
        if (units > 0) copy(at, codes + unit * UNIT_BYTES, units * UNIT_BYTES);
    }
    // The stages behind the first, which another warp has asked for: `next` asks for a piece, and says whether there was one.
    template <class Next>
    __device__ __forceinline__ void fill_others(const Next& next) {
#pragma unroll 1
        for (stage = 1; stage < STAGES && next(); stage++) {}
        stage = 0;
    }
    __device__ __forceinline__ const char* wait() const {
        barrier_wait(full + stage, parity);
        return ring + stage * P::STAGE;
    }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    // All lanes have read the stage, which `refill`, by the first lane, may fill again.
    template <class Refill>
    __device__ __forceinline__ void release(int lane, const Refill& refill) {
        __syncwarp();
        if constexpr (WARP_ARRIVALS > 1) barrier_arrive(full + STAGES + stage);
        if (lane == 0) {
            if constexpr (WARP_ARRIVALS > 1) barrier_wait(full + STAGES + stage, parity);
            refill();
        }
        advance();
    }
};

}  // namespace monomorph
