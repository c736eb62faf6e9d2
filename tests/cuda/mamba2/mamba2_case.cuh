// Mamba-2's weights, its reference and its kernels, for sessions of steps.
#pragma once
#include "core/recurrent_case.cuh"

#include "kernels/mamba2_chunks.cuh"
#include "kernels/mamba2_decode.cuh"
#include "kernels/mamba2_gate.cuh"
#include "kernels/mamba2_plain.cuh"
#include "kernels/mamba2_prepare.cuh"

namespace test {
using namespace monomorph;

template <class C>
constexpr auto decode_kernel = mamba2_decode_kernel<C, C::THREADS, mamba2_decode_shared_bytes<C>(), Mamba2Decode<C>::RESIDENT>;
template <class C>
constexpr auto plain_kernel = mamba2_plain_kernel<C, MAMBA2_PLAIN_THREADS, mamba2_plain_shared_bytes<C>()>;
template <class C>
constexpr auto gate_kernel = mamba2_gate_kernel<C, MAMBA2_GATE_THREADS>;
template <class C>
constexpr auto chunks_kernel = mamba2_chunks_kernel<C, Mamba2Chunks<C>::THREADS, mamba2_chunks_shared_bytes<C>()>;
// A build states what the scratch of its largest step takes; here every step has its own.
template <class C>
struct Prepared : C {
    static constexpr int ROWS = 1, SEQUENCES = 1;
    static constexpr size_t SCRATCH_BYTES = mamba2_scratch_bytes<C>(ROWS, SEQUENCES);
};
template <class C>
constexpr auto prepare_kernel = mamba2_prepare_kernel<Prepared<C>, MAMBA2_PREPARE_THREADS, mamba2_prepare_shared_bytes<C>(), 3>;

template <class C>
struct Tensors {
    std::vector<float> convolution, convolution_bias, a_log, dt_bias, d, norm;
    Tensors(Random& random) {
        for (int i = 0; i < Mamba2Shape<C>::CHANNELS * C::TAPS; i++) convolution.push_back(0.5f * random.normal());
        for (int i = 0; i < Mamba2Shape<C>::CHANNELS; i++) convolution_bias.push_back(0.3f * random.normal());
        for (int i = 0; i < C::HEADS; i++) {
            a_log.push_back(float(std::log(0.02 + (i % 3) * random.uniform())));  // heads that keep, and heads that forget
            dt_bias.push_back(random.normal() - 1.0f);
            d.push_back(1.0f + 0.5f * random.normal());
        }
        for (int i = 0; i < Mamba2Shape<C>::VALUES; i++) norm.push_back(1.0f + 0.2f * random.normal());
    }
};

// One sequence, in f64.
template <class C>
struct Reference {
    using M = Mamba2Shape<C>;
    std::vector<double> state = std::vector<double>(M::STATE);
    std::vector<std::vector<float>> inputs;  // of every position

    std::vector<double> token(const Tensors<C>& w, const float* projected, const float*) {
        inputs.emplace_back(projected + M::INPUTS, projected + M::INPUTS + M::CHANNELS);
        std::vector<double> u(M::CHANNELS), out(M::VALUES);
        for (int c = 0; c < M::CHANNELS; c++) {
            double sum = w.convolution_bias[c];
            for (int j = 0; j < C::TAPS && j < int(inputs.size()); j++)
                sum += double(w.convolution[c * C::TAPS + C::TAPS - 1 - j]) * inputs[inputs.size() - 1 - j][c];
            u[c] = sum / (1 + std::exp(-sum));
        }
        const int N = C::STATE, V = C::HEAD_DIM;
        for (int h = 0; h < C::HEADS; h++) {
            const double *b = &u[M::VALUES + h / M::RATIO * N], *c = b + M::KEYS, *x = &u[h * V];
            const double time = std::log1p(std::exp(double(projected[M::TIMES + h]) + w.dt_bias[h]));
            const double decay = std::exp(-std::exp(double(w.a_log[h])) * time);
            double* s = &state[h * M::HEAD_STATE];
            for (int v = 0; v < V; v++) {
                double y = double(w.d[h]) * x[v];
                for (int n = 0; n < N; n++) {
                    double& element = s[n * V + v];
                    element = decay * element + b[n] * time * x[v];
                    y += element * c[n];
                }
                const double z = projected[h * V + v];
                out[h * V + v] = y * z / (1 + std::exp(-z));
            }
        }
        for (int group = 0; group < C::GROUPS; group++) {
            double* g = &out[group * M::WIDTH];
            double squares = 0;
            for (int i = 0; i < M::WIDTH; i++) squares += g[i] * g[i];
            for (int i = 0; i < M::WIDTH; i++) g[i] *= w.norm[group * M::WIDTH + i] / std::sqrt(squares / M::WIDTH + double(C::NORM_EPS));
        }
        return out;
    }
};

// The layer under test.
template <class C>
struct Mamba2Layer : Tensors<C> {
    using Config = C;
    using Shape = Mamba2Shape<C>;
    using Reference = test::Reference<C>;
    static constexpr int INPUTS = Shape::INPUTS, GATES = 0;
    static constexpr int DEFECT = Shape::INPUTS + Shape::VALUES + 1;  // an element of the first B
    // Whether heads are the fast kernels'.
    template <class K>
    static constexpr bool DECODES = C::HEAD_DIM % 4 == 0 && 32 % (C::HEAD_DIM / 4) == 0 && C::STATE % (K::THREADS / (C::HEAD_DIM / 4)) == 0;
    static constexpr bool CHUNKED = C::STATE == 128 && C::HEAD_DIM % 16 == 0 && Shape::WIDTH % 128 == 0 && C::PROJECTED % 4 == 0;
    Buffer<float> convolution, convolution_bias, a_log, dt_bias, d, norm;

    Mamba2Layer(Random& random)
        : Tensors<C>(random), convolution(Tensors<C>::convolution), convolution_bias(Tensors<C>::convolution_bias), a_log(Tensors<C>::a_log),
          dt_bias(Tensors<C>::dt_bias), d(Tensors<C>::d), norm(Tensors<C>::norm) {}

    template <class K>
    void run(Way way, const Step* step, int sequences, int bucket, int rows, int grid, const Buffer<float>& projected, const Buffer<float>&,
             RecurrentState state, const Buffer<float>& y, const Buffer<float>& out) {
        if (way == Way::DECODE) {
            if constexpr (DECODES<K>)
                launch_clusters(decode_kernel<K>, dim3(K::SPLIT, C::GROUPS, bucket), K::SPLIT, K::THREADS, mamba2_decode_shared_bytes<K>(), 0,
                      step, projected.pointer, convolution.pointer, convolution_bias.pointer, a_log.pointer, dt_bias.pointer, d.pointer,
                      norm.pointer, state.states, state.windows, state.journals, out.pointer);
            return;
        }
        if (way == Way::PLAIN) {
            launch_clusters(plain_kernel<K>, dim3(C::HEADS, std::max(sequences, 1)), 1, MAMBA2_PLAIN_THREADS, mamba2_plain_shared_bytes<K>(), 0,
                  step, projected.pointer, convolution.pointer, convolution_bias.pointer, a_log.pointer, dt_bias.pointer, d.pointer,
                  state.states, state.windows, state.journals, y.pointer);
        } else if constexpr (CHUNKED) {
            Buffer<unsigned char> scratch(mamba2_scratch_bytes<K>(rows, sequences));
            launch_clusters(prepare_kernel<K>, dim3(grid > 0 ? grid : C::GROUPS * 2), 1, MAMBA2_PREPARE_THREADS, mamba2_prepare_shared_bytes<K>(), 0,
                  step, projected.pointer, convolution.pointer, convolution_bias.pointer, a_log.pointer, dt_bias.pointer, d.pointer,
                  state.windows, scratch.pointer);
            launch_clusters(chunks_kernel<K>, dim3(C::HEADS, sequences), 1, Mamba2Chunks<K>::THREADS, mamba2_chunks_shared_bytes<K>(), 0,
                  step, scratch.pointer, state.states, state.journals, y.pointer);
            if (!scratch.intact()) std::printf("FAIL the scratch ends too early\n"), failures++;
        }
        launch_clusters(gate_kernel<K>, dim3(std::max(bucket, rows)), 1, MAMBA2_GATE_THREADS, 0, 0, step, projected.pointer, y.pointer,
              norm.pointer, state.windows, out.pointer);
    }
};

template <class C>
using Session = RecurrentSession<Mamba2Layer<C>>;

}  // namespace test
