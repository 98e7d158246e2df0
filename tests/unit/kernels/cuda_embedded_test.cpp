#include "kernels/cuda/embedded.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "tests/support/skip.hpp"

TEST_SUITE("kernels.cuda_embedded") {
    TEST_CASE("the kernels are in this program when the build had nvcc, else it says so") {
        const auto unknown = kernels::cuda::embedded_module("nothing");
        CHECK(unknown.data == nullptr);
        for (const char* name : {"reduce", "optimise"}) {
            const auto module = kernels::cuda::embedded_module(name);
            if (module.data == nullptr) {
                test_support::skip("the build had no nvcc, so that the CUDA kernels were left out");
                return;
            }
            // The magic number of a fatbin, then its names in the cubins within.
            std::uint32_t magic = 0;
            REQUIRE(module.bytes > 1000);
            std::memcpy(&magic, module.data, sizeof magic);
            CHECK(magic == 0xba55ed50);
        }
    }
}
