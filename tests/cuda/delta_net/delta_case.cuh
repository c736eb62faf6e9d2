// The delta-net's weights, its reference and its kernels, for sessions of steps.
#pragma once
#include "core/recurrent_case.cuh"

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
constexpr auto prepare_kernel = delta_prepare_kernel<Prepared<C>, DELTA_PREPARE_THREADS, delta_prepare_shared_bytes<C>(), 2>;

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

// The layer under test.
template <class C>
struct DeltaLayer : Tensors<C> {
    using Config = C;
    using Shape = DeltaShape<C>;
    using Reference = test::Reference<C>;
    static constexpr int INPUTS = 0, GATES = 2 * C::VALUE_HEADS;
    static constexpr int DEFECT = Shape::KEYS + 1;  // an element of the first key
    Buffer<float> convolution, a_log, dt_bias, norm;

    DeltaLayer(Random& random)
        : Tensors<C>(random), convolution(Tensors<C>::convolution), a_log(Tensors<C>::a_log), dt_bias(Tensors<C>::dt_bias), norm(Tensors<C>::norm) {}

    template <class K>
    void run(Way way, const Step* step, int sequences, int bucket, int rows, int grid, const Buffer<float>& projected,
             const Buffer<float>& gates, RecurrentState state, const Buffer<float>& o, const Buffer<float>& out) {
        if (way == Way::DECODE) {
            if constexpr (C::VALUE_DIM % 32 == 0)
                launch_clusters(decode_kernel<K>, dim3(K::SPLIT, C::VALUE_HEADS, bucket), K::SPLIT, K::THREADS, delta_decode_shared_bytes<K>(), 0,
                      step, projected.pointer, gates.pointer, convolution.pointer, a_log.pointer, dt_bias.pointer,
                      norm.pointer, state.states, state.windows, state.journals, out.pointer);
            return;
        }
        if (way == Way::PLAIN) {
            launch_clusters(plain_kernel<K>, dim3(C::VALUE_HEADS, std::max(sequences, 1)), 1, DELTA_PLAIN_THREADS, delta_plain_shared_bytes<K>(), 0,
                  step, projected.pointer, gates.pointer, convolution.pointer, a_log.pointer, dt_bias.pointer,
                  state.states, state.windows, state.journals, o.pointer);
        } else if constexpr (C::KEY_DIM == 128 && C::VALUE_DIM == 128) {
            Buffer<unsigned char> scratch(delta_scratch_bytes<K>(rows, sequences));
            launch_clusters(prepare_kernel<K>, dim3(grid > 0 ? grid : C::KEY_HEADS * 2), 1, DELTA_PREPARE_THREADS, delta_prepare_shared_bytes<K>(), 0,
                  step, projected.pointer, gates.pointer, convolution.pointer, a_log.pointer, dt_bias.pointer, state.windows, scratch.pointer);
            launch_clusters(chunks_kernel<K>, dim3(K::CHUNK_SPLIT * C::VALUE_HEADS, sequences), 1, DeltaChunks<K>::THREADS,
                  delta_chunks_shared_bytes<K>(), 0, step, scratch.pointer, state.states, state.journals, o.pointer);
            if (!scratch.intact()) std::printf("FAIL the scratch ends too early\n"), failures++;
        }
        launch_clusters(gate_kernel<K>, dim3(std::max(bucket, rows)), 1, DELTA_GATE_THREADS, 0, 0, step, projected.pointer, o.pointer,
              norm.pointer, state.windows, out.pointer);
    }
};

template <class C>
using Session = RecurrentSession<DeltaLayer<C>>;

}  // namespace test
