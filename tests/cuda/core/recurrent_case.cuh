// Steps of sequences of a recurrent layer, on a card (or on a processor in its place) beside a double-precision reference that knows no
// chunks, no windows and no journals: it keeps every raw input of a sequence and does one token at a time.
#pragma once
#include "core/common.cuh"
#include "core/recurrent.cuh"

namespace test {
using namespace monomorph;

// Which kernels carry out a step.
enum class Way { DECODE, PLAIN, CHUNKS };

// A sequence of a step: it feeds `count` tokens, of which `kept` remain (all unless the step may be taken back).
struct Fed {
    int slot, count, kept;
    Fed(int slot, int count) : slot(slot), count(count), kept(count) {}
    Fed(int slot, int count, int kept) : slot(slot), count(count), kept(kept) {}
};

inline size_t differing(const std::vector<float>& a, const std::vector<float>& b, size_t from, size_t count) {
    size_t n = 0;
    for (size_t i = from; i < from + count; i++) n += std::memcmp(&a[i], &b[i], 4) != 0;
    return n;
}

// Slots on the device and the reference; steps that both take. Layer: the layer under test with its constants Config, its Shape, its
// Reference of a sequence, its weights and its kernels; INPUTS is where a row's channels begin, GATES what a row of `gates` has. Each step
// names its kernels' own constants.
template <class Layer>
struct RecurrentSession {
    using C = typename Layer::Config;
    using D = typename Layer::Shape;
    using Reference = typename Layer::Reference;
    const char* name;
    int slots;
    Random random;
    Layer layer;
    std::vector<Reference> references;
    Buffer<float> states, windows, journals;
    int steps = 0;
    bool defect = false;  // plants one
    bool alike = false;   // tokens that resemble one another
    bool failed = false;
    Difference worst;
    double worst_limit = 0;

    RecurrentSession(const char* name, int slots, uint64_t seed)
        : name(name), slots(slots), random(seed), layer(random), references(slots), states(slots * D::STATE),
          windows(slots * D::WINDOW_STRIDE), journals(size_t(slots) * D::JOURNAL_ROWS * D::JOURNAL_WIDTH + 1) {}

    ~RecurrentSession() {
        if (!defect && !failed) report(name, worst, worst_limit);
    }
    // Says what failed at once, and keeps the worst of the rest for one line at the end.
    void settle(const std::string& label, const Difference& d, double limit, bool intact = true) {
        const bool passed = d.relative <= limit && d.largest <= 8 * limit && d.not_finite == 0 && intact;
        failed = failed || !passed;
        if (!passed) report(label.c_str(), d, limit, intact);
        else if (worst_limit == 0 || d.relative / limit > worst.relative / worst_limit) worst = d, worst_limit = limit;
    }

    RecurrentState state() const { return {states, windows, journals}; }

    // K: a Config with C's layer constants. `bucket`: sequences (DECODE) or rows that the launch is made for.
    template <class K>
    void step(Way way, std::vector<Fed> fed, int bucket, double limit, double state_limit = 0, int grid = 0) {
        Step header = {};
        int rows = 0;
        for (const Fed& f : fed) {
            const int position = int(references[f.slot].inputs.size());
            for (int t = 0; K::APART && t < f.count; t++)
                header.sequence[header.sequences++] = {rows + t, 1, position + t, 0, 0, f.slot, -1, 0};
            if (!K::APART) header.sequence[header.sequences++] = {rows, f.count, position, 0, 0, f.slot, -1, 0};
            rows += f.count;
        }
        const int sequences = int(fed.size());
        header.tokens = rows;
        const int capacity = std::max(bucket, rows);
        std::vector<float> projected(size_t(capacity) * K::PROJECTED), gates(size_t(capacity) * Layer::GATES + 1);
        for (float& x : projected) x = random.normal();
        // Keys (and all else) that hardly differ from token to token: a state that is one big direction.
        if (alike)
            for (int row = 1; row < capacity; row++)
                for (int c = Layer::INPUTS; c < Layer::INPUTS + D::CHANNELS; c++) {
                    float& x = projected[size_t(row) * K::PROJECTED + c];
                    x = projected[c] + 0.1f * x;
                }
        for (float& x : gates) x = random.normal();
        std::vector<double> expected;
        std::vector<Reference> after;
        for (int s = 0, first = 0; s < sequences; first += fed[s++].count) {
            Reference all = references[fed[s].slot], kept = all;
            for (int t = 0; t < fed[s].count; t++) {
                const size_t row = first + t;
                const auto y = all.token(layer, &projected[row * K::PROJECTED], &gates[row * Layer::GATES]);
                expected.insert(expected.end(), y.begin(), y.end());
                if (t + 1 == fed[s].kept) kept = all;
            }
            after.push_back(kept);
        }
        if (defect) projected[Layer::DEFECT] += 0.5f;

        Buffer<Step> step(std::vector<Step>{header});
        Buffer<float> device_projected(projected), device_gates(gates), o(size_t(capacity) * D::VALUES);
        Buffer<float> out(size_t(capacity) * D::VALUES);
        const auto states_before = states.download(), windows_before = windows.download();
        layer.template run<K>(way, step.pointer, header.sequences, bucket, rows, grid, device_projected, device_gates, state(), o, out);
        CHECK(cudaDeviceSynchronize());
        const auto raw = out.download();
        const std::string label = std::string(name) + " " + std::to_string(++steps);
        bool intact = out.intact() && o.intact() && states.intact() && windows.intact() && journals.intact();
        const Difference difference = compare(std::vector<float>(raw.begin(), raw.begin() + size_t(rows) * D::VALUES), expected);
        if (defect) {
            const bool seen = difference.relative > limit;
            std::printf("%s %-58s relative %.2e (must exceed %.0e)\n", seen ? "ok  " : "FAIL", label.c_str(), difference.relative, limit);
            failures += !seen;
            return;
        }
        settle(label, difference, limit, intact);

        const auto states_after = states.download(), windows_after = windows.download();
        std::vector<bool> touched(slots);
        for (int s = 0; s < sequences; s++) {
            const int slot = fed[s].slot;
            touched[slot] = true;
            references[slot] = after[s];
            if (K::TOKENS == 1) {
                const std::vector<float> own(states_after.begin() + slot * D::STATE, states_after.begin() + (slot + 1) * D::STATE);
                settle(label + " state of slot " + std::to_string(slot), compare(own, after[s].state), state_limit > 0 ? state_limit : limit);
            }
            const int end = int(after[s].inputs.size());
            for (int p = std::max(0, end - (C::TAPS - 1)); p < end; p++)
                for (int c = 0; c < D::CHANNELS; c++)
                    if (windows_after[slot * D::WINDOW_STRIDE + size_t(p % C::WINDOW) * D::CHANNELS + c] != after[s].inputs[p][c]) {
                        std::printf("FAIL %s: window of slot %d, position %d, channel %d\n", label.c_str(), slot, p, c), failures++;
                        c = D::CHANNELS;
                    }
        }
        for (int slot = 0; slot < slots; slot++)
            if (!touched[slot] && (differing(states_before, states_after, slot * D::STATE, D::STATE) != 0 ||
                                   differing(windows_before, windows_after, slot * D::WINDOW_STRIDE, D::WINDOW_STRIDE) != 0))
                std::printf("FAIL %s: slot %d is nobody's and has changed\n", label.c_str(), slot), failures++;
    }
};

}  // namespace test
