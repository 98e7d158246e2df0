#include "libfabricshm/os/lapack.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/support/lapack.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;

namespace {

template <typename T>
void check_small(const Lapack& lapack) {
    // L = (2 0 0; 1 3 0; -1 2 4), worked out by hand; what is above the diagonal is left alone.
    std::vector<T> matrix{4, 77, 77, 2, 10, 77, -2, 5, 21};
    CHECK(lapack.factorise(matrix.data(), 3));
    CHECK(matrix == std::vector<T>{2, 77, 77, 1, 3, 77, -1, 2, 4});
    std::reverse(matrix.begin(), matrix.end());
    CHECK(lapack.restore(matrix.data(), 3));
    std::reverse(matrix.begin(), matrix.end());
    CHECK(matrix == std::vector<T>{4, 77, 77, 2, 10, 77, -2, 5, 21});
}

}  // namespace

TEST_SUITE("os.lapack") {
    TEST_CASE("a matrix that lies row by row is factorised and restored") {
        const Lapack* lapack = test_support::some_lapack();
        if (lapack == nullptr) return test_support::skip("no LAPACK");
        check_small<double>(*lapack);
        check_small<float>(*lapack);
    }

    TEST_CASE("a matrix that is not positive definite has no factor") {
        const Lapack* lapack = test_support::some_lapack();
        if (lapack == nullptr) return test_support::skip("no LAPACK");
        std::vector<double> matrix{1, 0, 2, 1};
        CHECK_FALSE(lapack->factorise(matrix.data(), 2));
    }

    TEST_CASE("an empty matrix has an empty factor, and one that is too large has none") {
        const Lapack* lapack = test_support::some_lapack();
        if (lapack == nullptr) return test_support::skip("no LAPACK");
        double nothing = 1;
        CHECK(lapack->factorise(&nothing, 0));
        CHECK(lapack->restore(&nothing, 0));
        // Refused before the matrix is touched: its size would not fit into the routine's integer.
        CHECK_FALSE(lapack->factorise(&nothing, std::size_t{1} << 31));
        CHECK(nothing == 1);
    }

    TEST_CASE("a library that is not there, or has no such routines, is no LAPACK") {
        CHECK_FALSE(Lapack::open("/nonexistent/liblapack.so"));
        CHECK_FALSE(Lapack::open("libc.so.6"));
    }
}
