// Norms of rows that ranks have parts of (attention/attention_norm_ranks.cuh), between sums of the same inboxes, beside the host in f64.
#pragma once

#include "exchange/exchange_case.cuh"
#include "kernels/attention_norm.cuh"
#include "kernels/attention_norm_ranks.cuh"

// Heads are a rank's. SHARED: keys are parts, too; else every rank has the same ones.
template <class Sums_, int HEADS_, int KV_HEADS_, int HEAD_DIM_, int BLOCKS_, bool EXACT_, bool SHARED_ = true>
struct NormOfRanks : AttentionDefaults {
    using Sums = Sums_;
    using Kv = float;
    static constexpr int HEADS = HEADS_, KV_HEADS = KV_HEADS_, HEAD_DIM = HEAD_DIM_, BLOCK_TOKENS = 16, ROTARY_PAIRS = 0;
    static constexpr bool ROTARY_HALVES = true, EXACT = EXACT_, KEYS_SHARED = SHARED_;
    static constexpr HeadNorm Q_NORM = HeadNorm::Plain, K_NORM = HeadNorm::Plain;
    static constexpr float SCALE = 1.0f, Q_EPS = 1e-6f, K_EPS = 1e-6f;
    static constexpr int RANKS = ::RANKS, INBOX_WIDTH = Sums::WIDTH, INBOX_ROWS = Sums::CAPACITY, ROWS = Sums::ROWS, BLOCKS = BLOCKS_;
    static constexpr int RESIDENT = 2;
};

// From -1 to 1.
inline float evenly(unsigned exchange, unsigned rank, unsigned at) { return static_cast<float>(mixed(exchange, rank + 100, at) & 0xffffff) / (1 << 23) - 1; }

// What a rank has of an exchange's rows. Rows differ in size; keys that are no parts are the same on all ranks.
template <class C>
float part_of(unsigned exchange, unsigned rank, unsigned at) {
    constexpr unsigned WIDTH = AttentionShape<C>::QKV_WIDTH, FIRST = C::HEADS * C::HEAD_DIM;
    const unsigned row = at / WIDTH, column = at % WIDTH;
    const bool own = column < FIRST || C::KEYS_SHARED;
    return evenly(exchange, own ? rank : 0, at) * static_cast<float>(1u << row % 7) * (rank == 1 && own ? 3.0f : 1.0f);
}
inline float weight_of(unsigned rank, unsigned keys, unsigned at) { return 1.0f + 0.5f * evenly(7000 + keys, rank, at); }

// The largest difference from the norm in f64 of a rank's rows, relative to each value; values stay as they are.
template <class C>
double norm_error(const std::vector<float>& found, unsigned exchange, int rows, unsigned rank) {
    constexpr unsigned WIDTH = AttentionShape<C>::QKV_WIDTH;
    constexpr unsigned WIDTHS[2] = {C::HEADS * C::HEAD_DIM, C::KV_HEADS * C::HEAD_DIM}, FIRST[2] = {0, WIDTHS[0]};
    double worst = 0;
    for (unsigned row = 0; row < unsigned(rows); row++) {
        for (unsigned keys = 0; keys < 2; keys++) {
            double squares = 0;
            for (unsigned r = 0; r < RANKS; r++)
                for (unsigned i = 0; i < WIDTHS[keys]; i++) {
                    const double value = part_of<C>(exchange, r, row * WIDTH + FIRST[keys] + i);
                    squares += value * value;
                }
            const double inverse = 1 / std::sqrt(squares / (double(RANKS) * WIDTHS[keys]) + double(C::Q_EPS));
            for (unsigned i = 0; i < WIDTHS[keys]; i++) {
                const unsigned at = row * WIDTH + FIRST[keys] + i;
                const double wanted = part_of<C>(exchange, rank, at) * inverse * weight_of(C::KEYS_SHARED || keys == 0 ? rank : 0, keys, i);
                if (wanted != 0) worst = std::max(worst, std::abs(found[at] - wanted) / std::abs(wanted));
                else if (found[at] != 0) worst = 1;
            }
        }
        for (unsigned i = WIDTHS[0] + WIDTHS[1]; i < WIDTH; i++)
            if (found[row * WIDTH + i] != part_of<C>(exchange, rank, row * WIDTH + i)) worst = 1;
    }
    return worst;
}

template <class C>
void norm(Rank& rank, const Step* step, float* qkv, const float* q_norm, const float* k_norm) {
    launch(rank, attention_norm_ranks_kernel<C, ATTENTION_NORM_THREADS, 0, C::RESIDENT>, C::BLOCKS, ATTENTION_NORM_THREADS, step, rank.world->pointer, qkv, q_norm,
           k_norm);
}

// A sum and a norm of each of `rows` in turn; K is C, or C with a defect. Returns whether all is as it should be.
template <class C, class K = C>
bool norms_hold(const std::vector<int>& rows, double bound, unsigned long long deadline) {
    using S = typename C::Sums;
    Ranks ranks = Ranks::of<S, Exchange<4, 1>>(rows, deadline);
    constexpr size_t WIDTH = AttentionShape<C>::QKV_WIDTH;
    const size_t values = size_t(S::ROWS) * S::WIDTH, parts = size_t(S::ROWS) * WIDTH;
    std::vector<std::vector<float*>> qkv(RANKS);
    std::vector<float*> partials, residuals, weights[2];
    for (Rank& rank : ranks.all) {
        partials.push_back(rank.buffer(values)), residuals.push_back(rank.buffer(values));
        for (unsigned keys = 0; keys < 2; keys++) {
            std::vector<float> weight((keys == 1 ? C::KV_HEADS : C::HEADS) * C::HEAD_DIM);
            for (size_t i = 0; i < weight.size(); i++) weight[i] = weight_of(C::KEYS_SHARED || keys == 0 ? rank.rank : 0, keys, unsigned(i));
            weights[keys].push_back(rank.buffer(weight.size()));
            CHECK(cudaMemcpy(weights[keys].back(), weight.data(), weight.size() * 4, cudaMemcpyHostToDevice));
        }
        for (unsigned k = 0; k < rows.size(); k++) {
            std::vector<float> part(parts);
            for (size_t i = 0; i < parts; i++) part[i] = part_of<C>(k, rank.rank, unsigned(i));
            qkv[rank.rank].push_back(rank.buffer(parts));
            CHECK(cudaMemcpy(qkv[rank.rank].back(), part.data(), parts * 4, cudaMemcpyHostToDevice));
        }
    }
    ranks.launch(ranks.record([&](Rank& rank) {
        for (unsigned k = 0; k < rows.size(); k++) {
            const Step* const step = rank.steps->pointer + k;
            const int r = rank.rank;
            launch(rank, produce, 16, 256, step, partials[r], S::WIDTH, k, r, true, rank.wrong->pointer);
            sum<S>(rank, step, partials[r], residuals[r]);
            norm<K>(rank, step, qkv[r][k], weights[0][r], weights[1][r]);
        }
    }));
    if (!ranks.finished()) return false;
    std::vector<float> expected(values);
    unsigned turns = 0;
    for (unsigned k = 0; k < rows.size(); k++) {
        turns += rows[k] > 0 ? 2 : 0;
        for (unsigned i = 0; i < unsigned(rows[k]) * S::WIDTH; i++) {
            float all = value_of(k, 0, i);
            for (unsigned r = 1; r < RANKS; r++) all += value_of(k, r, i);
            expected[i] += all;
        }
    }
    size_t unequal = 0;
    double worst = 0;
    for (Rank& rank : ranks.all) {
        std::vector<float> found(values), part(parts);
        rank.enter();
        CHECK(cudaMemcpy(found.data(), residuals[rank.rank], values * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < values; i++) unequal += std::memcmp(&found[i], &expected[i], 4) != 0;
        unequal += rank.wrongs();
        for (unsigned k = 0; k < rows.size(); k++) {
            CHECK(cudaMemcpy(part.data(), qkv[rank.rank][k], parts * 4, cudaMemcpyDeviceToHost));
            worst = std::max(worst, norm_error<C>(part, k, rows[k], rank.rank));
            for (size_t i = rows[k] * WIDTH; i < parts; i++) unequal += part[i] != part_of<C>(k, rank.rank, unsigned(i));
        }
    }
    const bool settled = ranks.settled(turns, 0);
    std::printf("     %zu steps: norms differ by %.1e at most, %zu sums or rows beyond the step's are wrong%s\n", rows.size(), worst, unequal,
                settled ? "" : "; TURNS, INBOXES OR GUARDS ARE NOT AS THEY SHOULD BE");
    return unequal == 0 && worst <= bound && settled;
}
