// Whole rows (templates/cuda/rows) against double precision: sums of normed rows with every choice of their Config, bounds and scales of
// elements, at widths that vectors, warps and blocks do not divide; rows beyond the step are left alone, and rows do not depend on others.
// With the argument "planted" one weight of every norm, one bound and one factor differ on the host, which must be seen.
#include "core/common.cuh"

#include "kernels/add_normed.cuh"
#include "kernels/cap_rows.cuh"
#include "kernels/scale_rows.cuh"

using namespace monomorph;

static bool planted = false;
static int unseen = 0;   // planted defects

template <int W, Norm N, Norm O, bool S, Limit L = Limit::TOKENS>
struct Sum {
    static constexpr int WIDTH = W;
    static constexpr Norm NORM = N, OWN = O;
    static constexpr float EPS = 1e-6f, OWN_EPS = 1e-5f;
    static constexpr bool SCALED = S;
    static constexpr Limit LIMIT = L;
};
template <int W, Limit L = Limit::OUTPUTS>
struct Each {
    static constexpr int WIDTH = W, THREADS = 256;
    static constexpr float CAP = 30.0f;
    static constexpr Limit LIMIT = L;
};

static test::Buffer<Step> header(Limit limit, int rows) {
    Step host = {};
    (limit == Limit::OUTPUTS ? host.outputs : host.tokens) = rows;
    return test::Buffer<Step>(std::vector<Step>{host});
}

static std::vector<float> normals(size_t count, double size, double centre, test::Random& random) {
    std::vector<float> values(count);
    for (auto& v : values) v = float(centre + size * random.normal());
    return values;
}

// Compares the rows in use; the others must be as they were.
static void judge(const char* name, const std::vector<float>& out, const std::vector<float>& before, const std::vector<double>& expected, double limit, bool intact) {
    const std::vector<float> used(out.begin(), out.begin() + expected.size());
    const auto difference = test::compare(used, expected);
    intact = intact && std::memcmp(out.data() + used.size(), before.data() + used.size(), (out.size() - used.size()) * 4) == 0;
    if (!planted) return (void)test::report(name, difference, limit, intact);
    std::printf("%s %s: relative %.2e, planted\n", difference.relative > limit ? "FAIL" : "ok  ", name, difference.relative);
    unseen += difference.relative <= limit;
}

template <class C>
void check_sum(const char* name, int capacity, int rows) {
    using S = AddNormedShape<C>;
    constexpr int W = C::WIDTH;
    test::Random random(W + rows);
    auto norm = normals(W, 0.3, 1, random), own = normals(W, 0.3, 1, random);
    const auto x = normals(size_t(capacity) * W, 40, 3, random), before = normals(size_t(capacity) * W, 2, 0, random);
    const float factor = 0.37f;
    auto step = header(C::LIMIT, rows);
    test::Buffer<float> x_at(x), norm_at(norm), own_at(own), factor_at(std::vector<float>{factor}), out(before);
    const auto run = [&] {
        out.upload(before);
        test::launch(add_normed_kernel<C, S::THREADS>, dim3(capacity), S::THREADS, 0, nullptr, static_cast<const Step*>(step.pointer), static_cast<const float*>(x_at.pointer),
                     static_cast<const float*>(norm_at.pointer), static_cast<const float*>(own_at.pointer), static_cast<const float*>(factor_at.pointer), out.pointer);
        CHECK(cudaDeviceSynchronize());
        return out.download();
    };
    const auto first = run();
    if (planted) norm[W / 2] += 1.0f;
    std::vector<double> expected;
    for (int t = 0; t < rows; t++) {
        double of_x = 0, of_own = 0;
        for (int i = 0; i < W; i++) of_x += double(x[size_t(t) * W + i]) * x[size_t(t) * W + i], of_own += double(before[size_t(t) * W + i]) * before[size_t(t) * W + i];
        for (int k = 0; k < W; k++) {
            const auto weight = [&](Norm form, const std::vector<float>& weights) { return form == Norm::ONE_PLUS ? 1.0 + weights[k] : double(weights[k]); };
            const double a = x[size_t(t) * W + k] / std::sqrt(of_x / W + double(C::EPS)) * weight(C::NORM, norm);
            double b = before[size_t(t) * W + k];
            if (C::OWN != Norm::NONE) b = b / std::sqrt(of_own / W + double(C::OWN_EPS)) * weight(C::OWN, own);
            expected.push_back((a + b) * (C::SCALED ? double(factor) : 1.0));
        }
    }
    judge(name, first, before, expected, 3e-7, out.intact());
    const auto again = run();
    if (std::memcmp(first.data(), again.data(), first.size() * 4) != 0) std::printf("FAIL %s: second run differs\n", name), test::failures++;
    if (rows > 1) {   // the first row's neighbours change
        auto other = x;
        for (size_t i = W; i < other.size(); i++) other[i] *= -0.5f;
        x_at.upload(other);
        const auto changed = run();
        if (std::memcmp(first.data(), changed.data(), W * 4) != 0) std::printf("FAIL %s: a row depends on its neighbours\n", name), test::failures++;
    }
}

template <class C>
void check_each(const char* name, int capacity, int rows) {
    constexpr int W = C::WIDTH;
    test::Random random(W);
    auto x = normals(size_t(capacity) * W, 25, 0, random);
    x[0] = 1e30f, x[1] = -1e30f, x[2] = 0.0f;
    auto step = header(C::LIMIT, rows);
    const float factor = -1.75f;
    test::Buffer<float> factor_at(std::vector<float>{factor}), at(x);
    const dim3 grid(each_blocks<C>(), capacity);
    const auto used = size_t(rows) * W;
    test::launch(cap_rows_kernel<C, C::THREADS>, grid, C::THREADS, 0, nullptr, static_cast<const Step*>(step.pointer), at.pointer);
    CHECK(cudaDeviceSynchronize());
    std::vector<double> capped, scaled;
    const double cap = planted ? 31 : C::CAP, by = planted ? -1.7 : double(factor);
    for (size_t i = 0; i < used; i++) capped.push_back(cap * std::tanh(x[i] / cap));
    judge((std::string(name) + " bounded").c_str(), at.download(), x, capped, 3e-7, at.intact());
    x[0] = 3.0f, x[1] = -2.0f;
    at.upload(x);
    test::launch(scale_rows_kernel<C, C::THREADS>, grid, C::THREADS, 0, nullptr, static_cast<const Step*>(step.pointer), static_cast<const float*>(factor_at.pointer), at.pointer);
    CHECK(cudaDeviceSynchronize());
    for (size_t i = 0; i < used; i++) scaled.push_back(by * x[i]);
    judge((std::string(name) + " scaled").c_str(), at.download(), x, scaled, 1e-7, at.intact());
}

int main(int arguments, char** argument) {
    planted = arguments > 1 && !std::strcmp(argument[1], "planted");
    constexpr Norm PLAIN = Norm::PLAIN, ONE_PLUS = Norm::ONE_PLUS, NONE = Norm::NONE;
    check_sum<Sum<2816, PLAIN, NONE, false>>("sum of 2816", 8, 8);
    check_sum<Sum<2816, PLAIN, NONE, true>>("sum of 2816, scaled", 8, 5);
    check_sum<Sum<5376, PLAIN, NONE, true>>("sum of 5376, scaled", 4, 3);
    check_sum<Sum<2816, PLAIN, PLAIN, false>>("sum of two normed of 2816", 8, 7);
    check_sum<Sum<44, ONE_PLUS, ONE_PLUS, true>>("sum of two normed of 44, scaled", 3, 2);
    check_sum<Sum<57, ONE_PLUS, NONE, false>>("sum of 57", 3, 3);
    check_sum<Sum<613, PLAIN, ONE_PLUS, true>>("sum of two normed of 613, scaled", 2, 1);
    check_sum<Sum<2048, PLAIN, NONE, false, Limit::OUTPUTS>>("sum of 2048, of outputs", 6, 4);
    check_each<Each<262144>>("262144 elements", 3, 2);
    check_each<Each<1000>>("1000 elements", 5, 5);
    check_each<Each<83, Limit::TOKENS>>("83 elements", 4, 3);
    if (planted) return unseen == 0;
    std::printf("%s\n", test::failures == 0 ? "all passed" : "FAILED");
    return test::failures != 0;
}
