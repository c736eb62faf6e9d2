// Exchanges between cards of one host beside the host, to the bit; on a machine with fewer cards all ranks are on one.
//
// A kernel that waits for its deadline takes its card's context with it, so each part is a process of its own, which this program starts:
//
//   sums, gathers        many exchanges back to back in graphs, with pauses of random length between them and different rows from step to step
//   slow                 the same with pauses of random length inside the exchange, between pushing and asking
//   not-emptied          planted: the same, and places are not made empty again; the values of the last exchange but one must be seen
//   one-half             planted: the same, and all exchanges use one half of the inboxes; values that come too early must be seen
//   norms                norms of rows that all ranks have a part of, between sums
//   keys-alone           planted: the same, and of keys each rank takes its own part's mean
//   missing-sum, -gather a peer that does not come: the kernel ends within its deadline and names it
//   times                how long exchanges take
#include "exchange/norm_case.cuh"

#include <chrono>
#include <sys/wait.h>

// Far longer than any exchange here: only a fault takes so long.
constexpr unsigned long long DEADLINE = 3'000'000'000;

static void expect(bool good, const char* what) {
    std::printf("%s %s\n", good ? "ok  " : "FAIL", what);
    if (!good) test::failures++;
}

static const Step* step_of(const Rank& rank, size_t exchange) { return rank.steps->pointer + exchange % rank.steps->count; }

// What a rank waits before an exchange, in nanoseconds: not what the other does.
static unsigned pause_of(const Rank& rank, unsigned exchange) {
    const unsigned bits = mixed(exchange, 77, rank.rank);
    return bits % 4 == 0 ? bits / 4 % 30'000 : 0;
}

enum class Defect { NONE, NOT_EMPTIED, ONE_HALF };

// sum.cuh with a pause between pushing and asking, in which a peer may come an exchange further.
template <class C, Defect D>
__global__ void __launch_bounds__(C::THREADS, C::RESIDENT) slow_sum(const Step* step, World* world, float* partial, float* residual, unsigned exchange) {
    launch_dependents();
    Packets<C> packets(world, &world->sums);
    wait_for_predecessors();
    packets.begin();
    const int pieces = exchange_pieces<C>(step);
    if (pieces == 0) return;
    float4* const partials = reinterpret_cast<float4*>(partial);
    float4* const sums = reinterpret_cast<float4*>(residual);
    for (int piece = packets.first_piece(); piece < pieces; piece += packets.stride()) packets.push(piece, as_pushed(partials[piece]));
    if (D != Defect::ONE_HALF) packets.end_turn();
    spin(mixed(exchange, blockIdx.x, packets.rank) % 4 == 0 ? mixed(exchange, blockIdx.x, packets.rank + 9) % 30'000 : 0);
    for (int piece = packets.first_piece(); piece < pieces; piece += packets.stride()) {
        typename Packets<C>::Arrived peers;
        packets.collect(piece, pieces, peers);
        sums[piece] = plus(sums[piece], packets.sum(as_pushed(partials[piece]), peers[0]));
        partials[piece] = make_float4(0, 0, 0, 0);
        if (D != Defect::NOT_EMPTIED) packets.empty(piece, pieces);
    }
}

enum class Kernel { OWN, SLOW };

// Runs of a graph of exchanges. Graphs have fewer than 200 kernels: under compute-sanitizer the launch of one of 270 returns only once they
// run (of 180 it does not wait), so the other rank's never begins, and the first traps at its deadline.
constexpr int RUNS = 10;

// Exchanges of the rows of `rows` in turn, `repeats` times in each run of a graph. Sums that take the place of parts are each looked at.
template <class C, Kernel K = Kernel::OWN, Defect D = Defect::NONE>
void check_sums(const char* name, const std::vector<int>& rows, int repeats) {
    using Gather = Exchange<4, 1>;
    Ranks ranks = Ranks::of<C, Gather>(rows, DEADLINE);
    const size_t values = size_t(C::ROWS) * C::WIDTH;
    const unsigned exchanges = unsigned(rows.size()) * repeats;
    std::vector<float> expected(values);
    for (size_t i = 0; i < values; i++) expected[i] = value_of(RESIDUAL, 0, unsigned(i));
    std::vector<float*> residuals, partials;
    for (Rank& rank : ranks.all) {
        partials.push_back(rank.buffer(values));
        residuals.push_back(REPLACED<C> ? partials.back() : rank.buffer(values));
        CHECK(cudaMemcpy(residuals.back(), expected.data(), values * 4, cudaMemcpyHostToDevice));
    }
    const auto graphs = ranks.record([&](Rank& rank) {
        float *const partial = partials[rank.rank], *const residual = residuals[rank.rank];
        for (unsigned k = 0; k < exchanges; k++) {
            const Step* const step = step_of(rank, k);
            launch(rank, produce, 16, 256, step, partial, C::WIDTH, k, rank.rank, !REPLACED<C>, rank.wrong->pointer);
            if constexpr (K == Kernel::OWN) {
                if (pause_of(rank, k) > 0) launch(rank, pause, 1, 32, pause_of(rank, k));
                sum<C>(rank, step, partial, residual);
            } else {
                launch(rank, slow_sum<C, D>, blocks_of<C>(), C::THREADS, step, rank.world->pointer, partial, residual, k);
            }
            if (REPLACED<C>) launch(rank, inspect_sums, 16, 256, step, residual, C::WIDTH, k, rank.wrong->pointer);
        }
    });
    for (int run = 0; run < RUNS; run++) ranks.launch(graphs);
    if (!ranks.finished()) return expect(false, name);
    unsigned turns = 0;
    for (int run = 0; run < RUNS; run++) {
        for (unsigned k = 0; k < exchanges; k++) {
            const int n = rows[k % rows.size()];
            turns += n > 0;
            for (unsigned i = 0; i < unsigned(n) * C::WIDTH; i++) {
                float sum = value_of(k, 0, i);
                for (unsigned r = 1; r < RANKS; r++) sum += value_of(k, r, i);
                expected[i] = REPLACED<C> ? sum : expected[i] + sum;
            }
        }
    }
    size_t unequal = 0, not_zero = 0;
    for (Rank& rank : ranks.all) {
        std::vector<float> found(values), partial(values);
        rank.enter();
        CHECK(cudaMemcpy(found.data(), residuals[rank.rank], values * 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(partial.data(), partials[rank.rank], values * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < values; i++) unequal += std::memcmp(&found[i], &expected[i], 4) != 0, not_zero += !REPLACED<C> && partial[i] != 0;
        not_zero += rank.wrongs();
    }
    const bool settled = ranks.settled(turns, 0);
    std::printf("     %u exchanges: %zu of %zu sums differ, %zu partial sums are not as they should be%s\n", turns, unequal, RANKS * values, not_zero,
                settled ? "" : "; TURNS, INBOXES OR GUARDS ARE NOT AS THEY SHOULD BE");
    expect(unequal == 0 && not_zero == 0 && settled, name);
}

template <class C>
void check_gathers(const char* name, const std::vector<int>& rows, int repeats) {
    using Sum = Exchange<4, 1>;
    Ranks ranks = Ranks::of<Sum, C>(rows, DEADLINE);
    const size_t values = size_t(C::ROWS) * C::WIDTH;
    const unsigned exchanges = unsigned(rows.size()) * repeats;
    std::vector<float*> parts, outs;
    for (Rank& rank : ranks.all) parts.push_back(rank.buffer(values)), outs.push_back(rank.buffer(RANKS * values));
    const auto graphs = ranks.record([&](Rank& rank) {
        for (unsigned k = 0; k < exchanges; k++) {
            const Step* const step = step_of(rank, k);
            launch(rank, produce, 16, 256, step, parts[rank.rank], C::WIDTH, k, rank.rank, false, rank.wrong->pointer);
            if (pause_of(rank, k) > 0) launch(rank, pause, 1, 32, pause_of(rank, k));
            gather<C>(rank, step, parts[rank.rank], outs[rank.rank]);
            launch(rank, inspect, 16, 256, step, outs[rank.rank], C::WIDTH, k, rank.wrong->pointer);
        }
    });
    for (int run = 0; run < RUNS; run++) ranks.launch(graphs);
    if (!ranks.finished()) return expect(false, name);
    unsigned turns = 0, wrong = 0, last = 0;
    for (unsigned k = 0; k < exchanges; k++)
        if (rows[k % rows.size()] > 0) turns += RUNS, last = k;
    size_t unequal = 0;
    for (Rank& rank : ranks.all) {
        const int n = rows[last % rows.size()];
        std::vector<float> found(size_t(n) * RANKS * C::WIDTH);
        rank.enter();
        CHECK(cudaMemcpy(found.data(), outs[rank.rank], found.size() * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < found.size(); i++) {
            const float value = value_of(last, unsigned(i / C::WIDTH % RANKS), unsigned(i / C::WIDTH / RANKS * C::WIDTH + i % C::WIDTH));
            unequal += std::memcmp(&found[i], &value, 4) != 0;
        }
        wrong += rank.wrongs();
    }
    const bool settled = ranks.settled(0, turns);
    std::printf("     %u exchanges: the host finds %zu wrong, the cards %u%s\n", turns, unequal, wrong,
                settled ? "" : "; TURNS, INBOXES OR GUARDS ARE NOT AS THEY SHOULD BE");
    expect(unequal == 0 && wrong == 0 && settled, name);
}

// Values that are NOT_YET, other NaN and infinities: all of them arrive.
static void check_nans() {
    using C = Exchange<8, 1>;
    Ranks ranks = Ranks::of<C, C>({1}, DEADLINE);
    const unsigned bits[8] = {NOT_YET, 0x7fc00000u, 0x7f800000u, 0xff800000u, 0, 0x80000000u, NOT_YET, 0x3f800000u};
    const unsigned other[8] = {0x3f800000u, 0, 0, 0, 0x80000000u, 0x80000000u, NOT_YET, 0x3f800000u};
    const unsigned sums[8] = {0x7fffffffu, 0x7fffffffu, 0x7f800000u, 0xff800000u, 0, 0, 0x7fffffffu, 0x40000000u};
    std::vector<float*> partials, residuals, outs;
    for (Rank& rank : ranks.all) {
        partials.push_back(rank.buffer(8)), residuals.push_back(rank.buffer(8)), outs.push_back(rank.buffer(8 * RANKS));
        // What further ranks have is zero.
        if (rank.rank < 2) CHECK(cudaMemcpy(partials.back(), rank.rank == 0 ? bits : other, sizeof bits, cudaMemcpyHostToDevice));
    }
    ranks.launch(ranks.record([&](Rank& rank) {
        const int r = rank.rank;
        gather<C>(rank, step_of(rank, 0), partials[r], outs[r]);
        sum<C>(rank, step_of(rank, 0), partials[r], residuals[r]);
    }));
    if (!ranks.finished()) return expect(false, "NaN and infinities");
    bool good = ranks.settled(1, 1);
    for (Rank& rank : ranks.all) {
        unsigned found[16];
        rank.enter();
        CHECK(cudaMemcpy(found, residuals[rank.rank], sizeof bits, cudaMemcpyDeviceToHost));
        const auto is_nan = [](unsigned it) { return (it & 0x7fffffffu) > 0x7f800000u; };
        for (int i = 0; i < 8; i++) good = good && (found[i] == sums[i] || (is_nan(found[i]) && is_nan(sums[i]) && found[i] != NOT_YET));
        CHECK(cudaMemcpy(found, outs[rank.rank], sizeof found, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 16; i++) {
            const unsigned pushed = i < 8 ? bits[i] : other[i - 8];
            good = good && found[i] == (pushed == NOT_YET ? 0x7fffffffu : pushed);
        }
    }
    expect(good, "NaN and infinities");
}

static void check_all_sums() {
    check_nans();
    check_sums<Exchange<2048, 1>>("sums, 1 x 2048", {1}, 80);
    check_sums<Exchange<5120, 1, 128>>("sums, 1 x 5120", {1}, 80);
    check_sums<Exchange<2048, 3>>("sums, 3 x 2048", {3}, 40);
    check_sums<Exchange<5120, 32>>("sums, 32 x 5120", {32}, 10);
    check_sums<Exchange<2048, 32, 256, 2, Limit::TOKENS, 40>>("sums, 0 to 32 x 2048", {1, 32, 0, 7, 3, 0, 0, 31, 1, 1, 16}, 4);
    check_sums<Exchange<2048, 32, 256, 1, Limit::TOKENS, 32, true>>("sums of decode, 0 to 32 x 2048", {1, 32, 0, 7, 31}, 4);
    check_sums<Replacing<Exchange<5376, 32, 256, 1, Limit::TOKENS, 32, true>>>("sums of decode in place, 0 to 32 x 5376", {1, 32, 0, 7, 31}, 4);
    check_sums<Replacing<Exchange<2816, 300, 256, 2>>>("sums in place, up to 300 x 2816", {300, 17, 299}, 1);
    check_sums<Exchange<2048, 512, 256, 2>>("sums, 512 x 2048", {512, 511, 1}, 1);
    check_sums<Exchange<5120, 512, 256, 4>>("sums, 512 x 5120", {512, 300}, 1);
}

static void check_all_gathers() {
    check_gathers<Exchange<124160, 1, 256, 1, Limit::OUTPUTS>>("gathers, 1 x 124160", {1}, 12);
    check_gathers<Exchange<1028, 32, 256, 1, Limit::OUTPUTS, 128>>("gathers, 0 to 32 x 1028", {1, 32, 0, 7, 3, 0, 31, 1, 16}, 6);
    check_gathers<Exchange<75968, 8, 256, 2, Limit::OUTPUTS>>("gathers, 8 x 75968", {8, 5}, 2);
}

// As MiniMax-M2's rows on two ranks, and sizes that no warp divides.
template <int ROWS>
using Wide = Exchange<3072, ROWS, 256, 1, Limit::TOKENS, (ROWS < 64 ? 64 : ROWS), (ROWS < 64)>;
using Odd = NormOfRanks<Exchange<52, 40, 256, 1, Limit::TOKENS, 48, true>, 5, 1, 14, 7, true>;
using Same = NormOfRanks<Odd::Sums, 5, 1, 14, 7, true, false>;
// Planted.
struct Alone : Odd {
    static constexpr bool KEYS_SHARED = false;
};

static void check_norms() {
    const std::vector<int> few = {1, 4, 0, 3, 1, 1}, rows = {40, 1, 7, 0, 33, 40, 8};
    expect(norms_hold<NormOfRanks<Wide<4>, 24, 4, 128, 4, false>>(few, 5e-7, DEADLINE), "norms of decode, 1 to 4 rows");
    expect(norms_hold<NormOfRanks<Wide<300>, 24, 4, 128, 16, false>>({300, 17, 299}, 5e-7, DEADLINE), "norms of prompts, up to 300 rows");
    expect(norms_hold<Odd>(rows, 2e-7, DEADLINE), "exact norms of odd sizes");
    expect(norms_hold<Same>(rows, 2e-7, DEADLINE), "norms of keys that every rank has");
}

static void check_keys_alone() {
    expect(norms_hold<Odd, Alone>({40, 1, 7}, 2e-7, DEADLINE), "planted: means of a rank's own keys");
}

// One rank exchanges twice with the other, and then alone.
static void check_missing(bool gathers) {
    using C = Exchange<2048, 3>;
    constexpr unsigned long long SHORT = 300'000'000;
    const char* const name = gathers ? "a missing part is reported" : "missing partial sums are reported";
    Ranks ranks = Ranks::of<C, C>({3}, SHORT);
    std::vector<float*> rows, outs;
    for (Rank& rank : ranks.all) rows.push_back(rank.buffer(3 * 2048)), outs.push_back(rank.buffer(3 * 2048 * RANKS));
    const auto graphs = ranks.record([&](Rank& rank) {
        if (gathers) gather<C>(rank, step_of(rank, 0), rows[rank.rank], outs[rank.rank]);
        else sum<C>(rank, step_of(rank, 0), rows[rank.rank], outs[rank.rank]);
    });
    ranks.launch(graphs);
    ranks.launch(graphs);
    if (!ranks.finished()) return expect(false, name);
    Rank& alone = ranks.all[1];
    alone.enter();
    const auto began = std::chrono::steady_clock::now();
    CHECK(cudaGraphLaunch(graphs[1], alone.stream));
    const cudaError_t error = cudaStreamSynchronize(alone.stream);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const MissingPeer& why = *alone.report;
    std::printf("     after %.3f s: %s; rank %d waited for rank %d, %s %u, row %u\n", seconds, cudaGetErrorString(error), why.rank, why.peer,
                why.gathers ? "gather" : "sum", why.turn, why.row);
    expect(error != cudaSuccess && seconds > 0.25 && seconds < 2 && why.written == 1 && why.rank == 1 && why.peer != 1 && why.gathers == unsigned(gathers) &&
               why.turn == 2 && why.row < 3,
           name);
}

// Microseconds of an exchange: the median of graphs of 100, which follow others of the same.
static float time_of(Ranks& ranks, const std::vector<cudaGraphExec_t>& graphs, int exchanges) {
    cudaEvent_t from, to;
    ranks.all[0].enter();
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    std::vector<float> times;
    for (int i = 0; i < 15; i++) {
        ranks.launch(graphs);
        for (const bool first : {true, false}) {
            ranks.all[0].enter();
            CHECK(cudaEventRecord(first ? from : to, ranks.all[0].stream));
            if (first) ranks.launch(graphs);
        }
        if (!ranks.finished()) return NAN;
        ranks.all[0].enter();
        float milliseconds;
        CHECK(cudaEventElapsedTime(&milliseconds, from, to));
        times.push_back(1000 * milliseconds / float(exchanges));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class C>
void time_sum() {
    using Gather = Exchange<4, 1>;
    constexpr int COUNT = C::ROWS > 1000 ? 10 : 100;
    Ranks ranks = Ranks::of<C, Gather>({C::ROWS}, DEADLINE);
    const size_t values = size_t(C::ROWS) * C::WIDTH;
    std::vector<float*> partials, residuals;
    for (Rank& rank : ranks.all) partials.push_back(rank.buffer(values)), residuals.push_back(rank.buffer(values));
    const float us = time_of(ranks, ranks.record([&](Rank& rank) {
        for (int k = 0; k < COUNT; k++) sum<C>(rank, step_of(rank, k), partials[rank.rank], residuals[rank.rank]);
    }), COUNT);
    std::printf("     sum    %5d x %6d  %3d threads x %4d blocks, %d pieces: %8.2f us, %6.1f GB/s each way (at 330: %.2f us)\n", C::ROWS, C::WIDTH, C::THREADS,
                blocks_of<C>(), C::PIECES, us, values * 4e-3 / us, values * 4e-3 / 330);
    if (us != us) test::failures++;
}

template <class C>
void time_gather() {
    using Sum = Exchange<4, 1>;
    constexpr int COUNT = 100;
    Ranks ranks = Ranks::of<Sum, C>({C::ROWS}, DEADLINE);
    const size_t values = size_t(C::ROWS) * C::WIDTH;
    std::vector<float*> parts, outs;
    for (Rank& rank : ranks.all) parts.push_back(rank.buffer(values)), outs.push_back(rank.buffer(RANKS * values));
    const float us = time_of(ranks, ranks.record([&](Rank& rank) {
        for (int k = 0; k < COUNT; k++) gather<C>(rank, step_of(rank, k), parts[rank.rank], outs[rank.rank]);
    }), COUNT);
    std::printf("     gather %5d x %6d  %3d threads x %4d blocks, %d pieces: %8.2f us, %6.1f GB/s each way (at 330: %.2f us)\n", C::ROWS, C::WIDTH, C::THREADS,
                blocks_of<C>(), C::PIECES, us, values * 4e-3 / us, values * 4e-3 / 330);
    if (us != us) test::failures++;
}

// As `time_sum`; beside it stands the time of the norm alone, of a rank's own part.
template <class C>
void time_norm() {
    using S = typename C::Sums;
    constexpr int COUNT = 100;
    Ranks ranks = Ranks::of<S, Exchange<4, 1>>({S::ROWS}, DEADLINE);
    const size_t values = size_t(S::ROWS) * AttentionShape<C>::QKV_WIDTH, width = C::HEADS * C::HEAD_DIM;
    const std::vector<float> ones(std::max(values, width), 1.0f);
    std::vector<float*> rows, weights;
    for (Rank& rank : ranks.all) {
        rows.push_back(rank.buffer(values)), weights.push_back(rank.buffer(width));
        CHECK(cudaMemcpy(rows.back(), ones.data(), values * 4, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(weights.back(), ones.data(), width * 4, cudaMemcpyHostToDevice));
    }
    float us[2];
    for (const bool alone : {false, true})
        us[alone] = time_of(ranks, ranks.record([&](Rank& rank) {
            float *const x = rows[rank.rank], *const weight = weights[rank.rank];
            for (int k = 0; k < COUNT; k++) {
                if (alone)
                    test::launch(attention_norm_kernel<C, ATTENTION_NORM_THREADS>, dim3(S::ROWS, 2), ATTENTION_NORM_THREADS, 0, rank.stream, step_of(rank, k), x, weight, weight);
                else
                    norm<C>(rank, step_of(rank, k), x, weight, weight);
            }
        }), COUNT);
    std::printf("     norm   %5d x %6zu  %4d blocks: %8.2f us, of a part alone %.2f us\n", S::ROWS, width, C::BLOCKS, us[0], us[1]);
    if (us[0] != us[0] || us[1] != us[1]) test::failures++;
}

template <int WIDTH, int ROWS>
void time_split() {
    time_sum<Exchange<WIDTH, ROWS, 128, 1, Limit::TOKENS, ROWS, true>>();
    time_sum<Exchange<WIDTH, ROWS, 256, 1, Limit::TOKENS, ROWS, true>>();
    time_sum<Exchange<WIDTH, ROWS, 512, 1, Limit::TOKENS, ROWS, true>>();
    if constexpr (ROWS > 1) {
        time_sum<Exchange<WIDTH, ROWS, 256, 2, Limit::TOKENS, ROWS, true>>();
        time_sum<Exchange<WIDTH, ROWS, 256, 4, Limit::TOKENS, ROWS, true>>();
    }
    if constexpr (ROWS > 1 && RANKS > 2) {
        std::printf("     in two shots:\n");
        time_sum<Exchange<WIDTH, ROWS, 128>>();
        time_sum<Exchange<WIDTH, ROWS, 256>>();
        time_sum<Exchange<WIDTH, ROWS, 512>>();
    }
}

static void time_all() {
    if (one_card()) {
        std::printf("     one card: nothing to time\n");
        return;
    }
    time_split<2048, 1>();
    time_split<4096, 1>();
    time_split<5120, 1>();
    time_split<2048, 32>();
    time_split<2048, 128>();
    time_split<2048, 8192>();
    time_split<5120, 8192>();
    time_norm<NormOfRanks<Wide<1>, 24, 4, 128, 1, false>>();
    time_norm<NormOfRanks<Wide<32>, 24, 4, 128, 32, false>>();
    time_norm<NormOfRanks<Wide<128>, 24, 4, 128, 128, false>>();
    time_norm<NormOfRanks<Wide<8192>, 24, 4, 128, 264, false>>();
    time_gather<Exchange<124160, 1, 128, 1, Limit::OUTPUTS>>();
    time_gather<Exchange<124160, 1, 256, 1, Limit::OUTPUTS>>();
    time_gather<Exchange<124160, 1, 256, 2, Limit::OUTPUTS>>();
    time_gather<Exchange<124160, 1, 512, 1, Limit::OUTPUTS>>();
    time_gather<Exchange<124160, 128, 256, 2, Limit::OUTPUTS>>();
}

// Runs a part; 2 is a call that failed, and no part plants that.
static void run(const char* program, const char* part, bool planted) {
    std::printf("---- %s\n", part);
    std::fflush(stdout);
    const int status = std::system((std::string(program) + " " + part).c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    const std::string what = std::string(part) + (planted ? ": the planted defect is seen" : " passes");
    expect(code == (planted ? 1 : 0), what.c_str());
}

int main(int arguments, char** argument) {
    std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    // No kernel is loaded while another polls.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    const std::string part = arguments > 1 ? argument[1] : "";
    using Small = Exchange<2048, 32, 256, 1, Limit::TOKENS, 32, true>;
    const std::vector<int> rows = {32, 1, 9, 32, 2};
    if (part == "sums") check_all_sums();
    else if (part == "gathers") check_all_gathers();
    else if (part == "slow") check_sums<Small, Kernel::SLOW>("slow sums", rows, 4);
    else if (part == "not-emptied") check_sums<Small, Kernel::SLOW, Defect::NOT_EMPTIED>("planted: places are not emptied", rows, 4);
    else if (part == "one-half") check_sums<Small, Kernel::SLOW, Defect::ONE_HALF>("planted: one half of the inboxes", rows, 4);
    else if (part == "norms") check_norms();
    else if (part == "keys-alone") check_keys_alone();
    else if (part == "missing-sum") check_missing(false);
    else if (part == "missing-gather") check_missing(true);
    else if (part == "times") time_all();
    else if (part.empty()) {
        for (const char* it : {"sums", "gathers", "slow", "norms", "missing-sum", "missing-gather"}) run(argument[0], it, false);
        for (const char* it : {"not-emptied", "one-half", "keys-alone"}) run(argument[0], it, true);
        if (test::failures == 0) run(argument[0], "times", false);
    } else {
        std::printf("no part %s\n", part.c_str());
        return 2;
    }
    std::printf("%s\n", test::failures == 0 ? "all passed" : "FAILED");
    return test::failures != 0;
}
