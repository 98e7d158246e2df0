#include "kernels/symmetric.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace kernels;

namespace {

constexpr std::size_t kSizes[] = {0, 1, 2, 3, 31, 32, 33, 64, 65, 97};
constexpr double kUntouched = -1234.5;

double value_at(std::size_t i, std::size_t j) {
    return static_cast<double>(i * 1000 + j);
}

// Not symmetric: only the lower triangle has the values that count.
template <typename T>
std::vector<T> lower_and_rubbish(std::size_t n) {
    std::vector<T> full(n * n + 1, static_cast<T>(kUntouched));
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
            full[i * n + j] = static_cast<T>(j <= i ? value_at(i, j) : -1);
        }
    }
    return full;
}

template <typename T>
bool is_mirrored(const std::vector<T>& full, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
            const double wanted = j <= i ? value_at(i, j) : value_at(j, i);
            if (full[i * n + j] != static_cast<T>(wanted)) return false;
        }
    }
    return full[n * n] == static_cast<T>(kUntouched);
}

template <typename T>
void check_type(DType type) {
    for (const std::size_t n : kSizes) {
        CAPTURE(n);
        const std::vector<T> full = lower_and_rubbish<T>(n);
        std::vector<T> packed(packed_count(n) + 1, static_cast<T>(kUntouched));
        pack_lower(type, full.data(), n, packed.data());
        std::size_t k = 0;
        bool in_order = true;
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t j = 0; j <= i; ++j) {
                in_order = in_order && packed[k++] == static_cast<T>(value_at(i, j));
            }
        }
        CHECK(in_order);
        CHECK(k == packed_count(n));
        CHECK(packed[k] == static_cast<T>(kUntouched));

        std::vector<T> restored(n * n + 1, static_cast<T>(kUntouched));
        unpack_symmetric(type, packed.data(), n, restored.data());
        CHECK(is_mirrored(restored, n));

        std::vector<T> mirrored = full;
        mirror_lower(type, mirrored.data(), n);
        CHECK(is_mirrored(mirrored, n));
    }
}

}  // namespace

TEST_SUITE("kernels.symmetric") {
    TEST_CASE("a packed matrix has n (n + 1) / 2 elements") {
        CHECK(packed_count(0) == 0);
        CHECK(packed_count(1) == 1);
        CHECK(packed_count(5) == 15);
        CHECK(packed_count(std::uint64_t{1} << 20) == ((std::uint64_t{1} << 40) + (1 << 20)) / 2);
    }

    TEST_CASE("what was packed is unpacked to both triangles, and nothing behind it is touched") {
        check_type<float>(DType::kF32);
        check_type<double>(DType::kF64);
    }
}
