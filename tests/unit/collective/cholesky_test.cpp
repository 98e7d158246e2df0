// Factors of matrices that were made here from a known L, and matrices that have none. Without a
// LAPACK most of it is skipped.

#include "libfabricshm/collective/cholesky.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/symmetric.hpp"
#include "tests/support/lapack.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;
using test_support::some_lapack;

namespace {

bool has_lapack() {
    if (some_lapack() != nullptr) return true;
    test_support::skip("no LAPACK");
    return false;
}

// The lower factor that the matrices are made of: its diagonal dominates.
double factor_at(std::size_t i, std::size_t j) {
    return i == j ? 2.0 + static_cast<double>(i % 3) : 0.5 / (1.0 + static_cast<double>(i - j));
}

template <typename T>
std::vector<T> definite(std::size_t n) {
    std::vector<T> full(n * n);
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::size_t k = 0; k <= std::min(i, j); ++k)
                sum += factor_at(i, k) * factor_at(j, k);
            full[i * n + j] = static_cast<T>(sum);
        }
    }
    return full;
}

struct Encoded {
    CholeskyOutcome outcome;
    std::vector<double> packed;
    std::vector<double> restored;  // the lower triangle; 0 above
};

Encoded encode(const std::vector<double>& full, std::size_t n, double max_error = 0) {
    Encoded encoded;
    encoded.packed.resize(kernels::packed_count(n));
    encoded.restored.resize(n * n);
    const auto cholesky = Cholesky::make(kernels::DType::kF64, n, *some_lapack());
    REQUIRE(cholesky != nullptr);
    encoded.outcome = cholesky->encode(full.data(), encoded.packed.data(), max_error);
    if (encoded.outcome.obstacle == CholeskyObstacle::kNone) {
        cholesky->add(nullptr, encoded.restored.data(), true);
    }
    return encoded;
}

CholeskyObstacle obstacle_of(const std::vector<double>& full, std::size_t n) {
    return encode(full, n).outcome.obstacle;
}

template <typename T>
void check_factor(kernels::DType type, double tolerance) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{65}}) {
        CAPTURE(n);
        const std::vector<T> full = definite<T>(n);
        std::vector<T> packed(kernels::packed_count(n));
        const auto cholesky = Cholesky::make(type, n, *some_lapack());
        REQUIRE(cholesky != nullptr);
        const CholeskyOutcome outcome = cholesky->encode(full.data(), packed.data(), 0);
        CHECK(outcome.obstacle == CholeskyObstacle::kNone);
        CHECK(outcome.jitter == 0);
        CHECK(outcome.error < tolerance);
        // The own matrix, and twice what another rank restores from the same factor.
        std::vector<T> sum(n * n, 77);
        cholesky->add(packed.data(), sum.data(), true);
        cholesky->add(nullptr, sum.data(), false);
        double worst_factor = 0;
        double worst_sum = 0;
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t j = 0; j <= i; ++j) {
                const double l = packed[i * (i + 1) / 2 + j];
                worst_factor = std::max(worst_factor, std::abs(l - factor_at(i, j)));
                const double a = full[i * n + j];
                worst_sum = std::max(worst_sum, std::abs(sum[i * n + j] - 2 * a) / (1 + a));
            }
        }
        CHECK(worst_factor < 10 * tolerance);
        CHECK(worst_sum < 10 * tolerance);
    }
}

}  // namespace

TEST_SUITE("collective.cholesky") {
    TEST_CASE("the factor of a positive definite matrix is found, and gives the matrix back") {
        if (!has_lapack()) return;
        check_factor<double>(kernels::DType::kF64, 1e-14);
        check_factor<float>(kernels::DType::kF32, 1e-5);
    }

    TEST_CASE("an empty matrix has an empty factor") {
        if (!has_lapack()) return;
        const Encoded encoded = encode({}, 0);
        CHECK(encoded.outcome.obstacle == CholeskyObstacle::kNone);
        CHECK(encoded.outcome.error == 0);
    }

    TEST_CASE("only the lower triangle is read") {
        if (!has_lapack()) return;
        std::vector<double> full = definite<double>(9);
        const Encoded whole = encode(full, 9);
        for (std::size_t i = 0; i < 9; ++i) {
            for (std::size_t j = i + 1; j < 9; ++j) full[i * 9 + j] = std::nan("");
        }
        CHECK(encode(full, 9).packed == whole.packed);
    }

    TEST_CASE("a matrix of rank one is factorised with a jitter that the error shows") {
        if (!has_lapack()) return;
        const std::size_t n = 6;
        // Its rounded values are a little off, to the side that has no factor.
        std::vector<double> full(n * n, 1.0);
        for (std::size_t i = 0; i < n; ++i) full[i * n + i] -= 1e-9;
        const Encoded encoded = encode(full, n);
        CHECK(encoded.outcome.obstacle == CholeskyObstacle::kNone);
        CHECK(encoded.outcome.jitter == doctest::Approx(1e-6));
        // ||1e-6 I|| / ||A|| with ||I|| = sqrt(6) and ||A|| = 6.
        CHECK(encoded.outcome.error == doctest::Approx(1e-6 * std::sqrt(6.0) / 6).epsilon(0.01));
        CHECK(encoded.restored[0] - full[0] == doctest::Approx(1e-6).epsilon(0.01));
        CHECK(std::abs(encoded.restored[n] - full[n]) < 1e-12);
    }

    TEST_CASE("the jitter grows by ten at most five times") {
        if (!has_lapack()) return;
        // Eigenvalues are 1 + c and 1 - c.
        const auto jitter_of = [](double c) {
            const Encoded encoded = encode({1, c, c, 1}, 2);
            const bool found = encoded.outcome.obstacle == CholeskyObstacle::kNone;
            return found ? encoded.outcome.jitter : -1;
        };
        CHECK(jitter_of(0.999) == 0);
        CHECK(jitter_of(1 + 0.5e-6) == doctest::Approx(1e-6));
        CHECK(jitter_of(1 + 0.5e-5) == doctest::Approx(1e-5));
        CHECK(jitter_of(1 + 0.5e-1) == doctest::Approx(1e-1));
        CHECK(jitter_of(1.2) == -1);
    }

    TEST_CASE("matrices without a factor are named by what they lack") {
        if (!has_lapack()) return;
        const double infinity = std::numeric_limits<double>::infinity();
        CHECK(obstacle_of({1, 2, 2, 1}, 2) == CholeskyObstacle::kNotDefinite);
        CHECK(obstacle_of({-1}, 1) == CholeskyObstacle::kNotDefinite);
        CHECK(obstacle_of({0, 0, 0, 0}, 2) == CholeskyObstacle::kNotDefinite);
        CHECK(obstacle_of({1, 0, std::nan(""), 1}, 2) == CholeskyObstacle::kNotFinite);
        CHECK(obstacle_of({1, 0, 0, infinity}, 2) == CholeskyObstacle::kNotFinite);
    }

    TEST_CASE("a factor with a larger error than is asked for is an obstacle") {
        if (!has_lapack()) return;
        const std::vector<double> full{1, 1 + 0.5e-1, 1 + 0.5e-1, 1};
        CHECK(encode(full, 2, 1e-3).outcome.obstacle == CholeskyObstacle::kInaccurate);
        CHECK(encode(full, 2, 0.5).outcome.obstacle == CholeskyObstacle::kNone);
    }

    TEST_CASE("the error of values whose squares overflow or vanish is measured") {
        if (!has_lapack()) return;
        for (const double scale : {1e200, 1e-200}) {
            std::vector<double> full = definite<double>(5);
            for (double& value : full) value *= scale;
            const Encoded encoded = encode(full, 5);
            CHECK(encoded.outcome.obstacle == CholeskyObstacle::kNone);
            CHECK(encoded.outcome.error < 1e-14);
        }
    }
}
