// Sequences of delta-net steps on a card (or on a processor in its place) beside a double-precision reference that knows no chunks,
// no windows and no journals: it keeps every raw input of a sequence and does one token at a time.
#pragma once
#include "core/common.cuh"

#include "kernels/delta_chunks.cuh"
#include "kernels/delta_decode.cuh"
#include "kernels/delta_gate.cuh"
#include "kernels/delta_plain.cuh"
#include "kernels/delta_prepare.cuh"

namespace test {
using namespace monomorph;

template <class C>
constexpr auto decode_kernel = delta_decode_kernel<C, C::THREADS, delta_decode_shared_bytes<C>(), DeltaDecode<C>::RESIDENT>;
template <class C>
constexpr auto plain_kernel = delta_plain_kernel<C, DELTA_PLAIN_THREADS, delta_plain_shared_bytes<C>()>;
template <class C>
constexpr auto gate_kernel = delta_gate_kernel<C, DELTA_GATE_THREADS>;
template <class C>
constexpr auto chunks_kernel = delta_chunks_kernel<C, DeltaChunks<C>::THREADS, delta_chunks_shared_bytes<C>()>;
// A build states what the scratch of its largest step takes; here every step has its own.
template <class C>
struct Prepared : C {
    static constexpr int ROWS = 1, SEQUENCES = 1;
    static constexpr size_t SCRATCH_BYTES = delta_scratch_bytes<C>(ROWS, SEQUENCES);
};
template <class C>
constexpr auto prepare_kernel = delta_prepare_kernel<Prepared<C>, DELTA_PREPARE_THREADS, delta_prepare_shared_bytes<C>(), 3>;

// Which kernels carry out a step.
enum class Way { DECODE, PLAIN, CHUNKS };

// A sequence of a step: it feeds `count` tokens, of which `kept` remain (all unless the step may be taken back).
struct Fed {
    int slot, count, kept;
    Fed(int slot, int count) : slot(slot), count(count), kept(count) {}
    Fed(int slot, int count, int kept) : slot(slot), count(count), kept(kept) {}
};

template <class C>
struct Tensors {
    std::vector<float> convolution, a_log, dt_bias, norm;
    Tensors(Random& random) {
        for (int i = 0; i < DeltaShape<C>::CHANNELS * C::TAPS; i++) convolution.push_back(0.5f * random.normal());
        for (int i = 0; i < C::VALUE_HEADS; i++) {
            a_log.push_back(float(std::log(0.02 + (i % 3) * random.uniform())));  // heads that keep, and heads that forget
            dt_bias.push_back(random.normal());
        }
        for (int i = 0; i < C::VALUE_DIM; i++) norm.push_back(1.0f + 0.2f * random.normal());
    }
};

// One sequence, in f64.
template <class C>
struct Reference {
    using D = DeltaShape<C>;
    std::vector<double> state = std::vector<double>(D::STATE);
    std::vector<std::vector<float>> inputs;  // of every position

    std::vector<double> token(const Tensors<C>& w, const float* projected, const float* gates) {
        inputs.emplace_back(projected, projected + D::CHANNELS);
        std::vector<double> u(D::CHANNELS), out(D::VALUES);
        for (int c = 0; c < D::CHANNELS; c++) {
            double sum = 0;
            for (int j = 0; j < C::TAPS && j < int(inputs.size()); j++)
                sum += double(w.convolution[c * C::TAPS + C::TAPS - 1 - j]) * inputs[inputs.size() - 1 - j][c];
            u[c] = sum / (1 + std::exp(-sum));
        }
        const int K = C::KEY_DIM, V = C::VALUE_DIM;
        for (int h = 0; h < C::VALUE_HEADS; h++) {
            std::vector<double> q(K), k(K), o(V);
            double qq = 1e-6, kk = 1e-6, squares = 0;
            for (int i = 0; i < K; i++) {
                q[i] = u[h / D::RATIO * K + i], k[i] = u[D::KEYS + h / D::RATIO * K + i];
                qq += q[i] * q[i], kk += k[i] * k[i];
            }
            for (int i = 0; i < K; i++) q[i] /= std::sqrt(qq * K), k[i] /= std::sqrt(kk);
            const double beta = 1 / (1 + std::exp(-double(gates[h])));
            const double decay = std::exp(-std::exp(double(w.a_log[h])) * std::log1p(std::exp(double(gates[C::VALUE_HEADS + h]) + w.dt_bias[h])));
            double* s = &state[h * D::HEAD_STATE];
            for (int v = 0; v < V; v++) {
                double predicted = 0;
                for (int i = 0; i < K; i++) s[i * V + v] *= decay, predicted += s[i * V + v] * k[i];
                const double delta = beta * (u[2 * D::KEYS + h * V + v] - predicted);
                for (int i = 0; i < K; i++) s[i * V + v] += k[i] * delta, o[v] += s[i * V + v] * q[i];
                squares += o[v] * o[v];
            }
            for (int v = 0; v < V; v++) {
                const double z = projected[D::CHANNELS + h * V + v];
                out[h * V + v] = o[v] / std::sqrt(squares / V + double(C::NORM_EPS)) * w.norm[v] * z / (1 + std::exp(-z));
            }
        }
        return out;
    }
};

template <class C>
std::vector<float> read_out(const std::vector<float>& raw, int rows) {
    return std::vector<float>(raw.begin(), raw.begin() + size_t(rows) * DeltaShape<C>::VALUES);
}
inline size_t differing(const std::vector<float>& a, const std::vector<float>& b, size_t from, size_t count) {
    size_t n = 0;
    for (size_t i = from; i < from + count; i++) n += std::memcmp(&a[i], &b[i], 4) != 0;
    return n;
}

// Slots on the device and the reference; steps that both take. C: the constants of the layer; each step names its kernels' own.
template <class C>
struct Session {
    using D = DeltaShape<C>;
    const char* name;
    int slots;
    Random random;
    Tensors<C> tensors;
    std::vector<Reference<C>> references;
    Buffer<float> convolution, a_log, dt_bias, norm, states, windows, journals;
    int steps = 0;
    bool defect = false;  // plants one
    bool alike = false;   // tokens that resemble one another
    bool failed = false;
    Difference worst;
    double worst_limit = 0;

    Session(const char* name, int slots, uint64_t seed)
        : name(name), slots(slots), random(seed), tensors(random), references(slots), convolution(tensors.convolution), a_log(tensors.a_log),
          dt_bias(tensors.dt_bias), norm(tensors.norm), states(slots * D::STATE), windows(slots * D::WINDOW_STRIDE),
          journals(size_t(slots) * D::JOURNAL_ROWS * D::JOURNAL_WIDTH + 1) {}

    ~Session() {
        if (!defect && !failed) report(name, worst, worst_limit);
    }
    // Says what failed at once, and keeps the worst of the rest for one line at the end.
    void settle(const std::string& label, const Difference& d, double limit, bool intact = true) {
        const bool passed = d.relative <= limit && d.largest <= 8 * limit && d.not_finite == 0 && intact;
        failed = failed || !passed;
        if (!passed) report(label.c_str(), d, limit, intact);
        else if (worst_limit == 0 || d.relative / limit > worst.relative / worst_limit) worst = d, worst_limit = limit;
    }

    DeltaWeights weights() const { return {convolution, a_log, dt_bias, norm}; }
    DeltaState state() const { return {states, windows, journals}; }

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
        std::vector<float> projected(size_t(capacity) * K::PROJECTED), gates(size_t(capacity) * 2 * C::VALUE_HEADS);
        for (float& x : projected) x = random.normal();
        // Keys (and all else) that hardly differ from token to token: (I + A)^-1 at its worst, and a state that is one big direction.
        if (alike)
            for (int row = 1; row < capacity; row++)
                for (int c = 0; c < D::CHANNELS; c++) {
                    float& x = projected[size_t(row) * K::PROJECTED + c];
                    x = projected[c] + 0.1f * x;
                }
        for (float& x : gates) x = random.normal();
        std::vector<double> expected;
        std::vector<Reference<C>> after;
        for (int s = 0, first = 0; s < sequences; first += fed[s++].count) {
            Reference<C> all = references[fed[s].slot], kept = all;
            for (int t = 0; t < fed[s].count; t++) {
                const size_t row = first + t;
                const auto y = all.token(tensors, &projected[row * K::PROJECTED], &gates[row * 2 * C::VALUE_HEADS]);
                expected.insert(expected.end(), y.begin(), y.end());
                if (t + 1 == fed[s].kept) kept = all;
            }
            after.push_back(kept);
        }
        if (defect) projected[D::KEYS + 1] += 0.5f;  // one element of the first key

        Buffer<Step> step(std::vector<Step>{header});
        Buffer<float> device_projected(projected), device_gates(gates), o(size_t(capacity) * D::VALUES);
        Buffer<float> out(size_t(capacity) * D::VALUES);
        const auto states_before = states.download(), windows_before = windows.download();
        run<K>(way, step, bucket, rows, grid, device_projected, device_gates, o, out);
        CHECK(cudaDeviceSynchronize());
        const auto raw = out.download();
        const std::string label = std::string(name) + " " + std::to_string(++steps);
        bool intact = out.intact() && o.intact() && states.intact() && windows.intact() && journals.intact();
        const Difference difference = compare(read_out<K>(raw, rows), expected);
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

    template <class K>
    void run(Way way, const Buffer<Step>& step, int bucket, int rows, int grid, const Buffer<float>& projected, const Buffer<float>& gates,
             const Buffer<float>& o, const Buffer<float>& out) {
        Step header;
        CHECK(cudaMemcpy(&header, step.pointer, sizeof header, cudaMemcpyDeviceToHost));
        if (way == Way::DECODE) {
            if constexpr (C::VALUE_DIM % 32 == 0)
                launch_clusters(decode_kernel<K>, dim3(K::SPLIT, C::VALUE_HEADS, bucket), K::SPLIT, K::THREADS, delta_decode_shared_bytes<K>(), 0,
                      step.pointer, projected.pointer, gates.pointer, weights().convolution, weights().a_log, weights().dt_bias,
                      weights().norm, state().states, state().windows, state().journals, out.pointer);
            return;
        }
        if (way == Way::PLAIN) {
            launch_clusters(plain_kernel<K>, dim3(C::VALUE_HEADS, std::max(header.sequences, 1)), 1, DELTA_PLAIN_THREADS, delta_plain_shared_bytes<K>(), 0,
                  step.pointer, projected.pointer, gates.pointer, weights().convolution, weights().a_log, weights().dt_bias,
                  state().states, state().windows, state().journals, o.pointer);
        } else if constexpr (C::KEY_DIM == 128 && C::VALUE_DIM == 128) {
            Buffer<unsigned char> scratch(delta_scratch_bytes<K>(rows, header.sequences));
            launch_clusters(prepare_kernel<K>, dim3(grid > 0 ? grid : C::KEY_HEADS * 2), 1, DELTA_PREPARE_THREADS, delta_prepare_shared_bytes<K>(), 0,
                  step.pointer, projected.pointer, gates.pointer, weights().convolution, weights().a_log, weights().dt_bias, windows.pointer, scratch.pointer);
            launch_clusters(chunks_kernel<K>, dim3(K::CHUNK_SPLIT * C::VALUE_HEADS, header.sequences), 1, DeltaChunks<K>::THREADS,
                  delta_chunks_shared_bytes<K>(), 0, step.pointer, scratch.pointer, state().states, state().journals, o.pointer);
            if (!scratch.intact()) std::printf("FAIL %s: the scratch ends too early\n", name), failures++;
        }
        launch_clusters(gate_kernel<K>, dim3(std::max(bucket, rows)), 1, DELTA_GATE_THREADS, 0, 0, step.pointer, projected.pointer, o.pointer,
              norm.pointer, windows.pointer, out.pointer);
    }
};

}  // namespace test
