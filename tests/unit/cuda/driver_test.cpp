#include "libfabricshm/cuda/driver.hpp"

#include <doctest/doctest.h>

#include <string>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/mock_gpu/mock_driver.hpp"

using namespace fabricshm;

TEST_SUITE("cuda.driver") {
    TEST_CASE("a driver that is not there is an error with its name, and nothing else") {
        const auto opened = gpu::Driver::open("libcuda_of_no_machine.so.1");
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.error().code == Errc::kUnsupported);
        const std::string why = explanation_of(opened.error());
        CHECK(why.find("no CUDA driver") != std::string::npos);
        CHECK(why.find("libcuda_of_no_machine.so.1") != std::string::npos);
    }

    TEST_CASE("a library without the driver's functions names the first that is missing") {
        const auto opened = gpu::Driver::open("libm.so.6");
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.error().code == Errc::kUnsupported);
        CHECK(explanation_of(opened.error()) == "the driver libm.so.6 has no cuInit");
    }

    TEST_CASE("a driver without a device is refused") {
        mock_gpu::fresh_host().has_device = false;
        const auto opened = gpu::Driver::open(mock_gpu::mock_library().c_str());
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.error().code == Errc::kUnsupported);
        CHECK(explanation_of(opened.error()).find("has no device") != std::string::npos);
    }

    TEST_CASE("a driver that is too old says which version it is of and which is needed") {
        mock_gpu::fresh_host().version = 11080;
        const auto opened = gpu::Driver::open(mock_gpu::mock_library().c_str());
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.error().code == Errc::kVersion);
        const std::string why = explanation_of(opened.error());
        CHECK(why.find("CUDA 11.8") != std::string::npos);
        CHECK(why.find("12.0 is needed") != std::string::npos);
    }

    TEST_CASE("the mock has every function of the table") {
        mock_gpu::fresh_host();
        const auto opened = gpu::Driver::open(mock_gpu::mock_library().c_str());
        REQUIRE(opened.ok());
        CHECK(opened.value()->version == 13000);
        CHECK(opened.value()->devices == 1);
    }

    TEST_CASE("a status becomes the code that says what to do, with CUDA's own name") {
        mock_gpu::fresh_host();
        const gpu::Driver& driver = mock_gpu::mock_driver();
        CHECK(driver.check(0, "try").ok());
        CHECK(driver.check(2, "try").error().code == Errc::kNoMemory);
        CHECK(driver.check(801, "try").error().code == Errc::kUnsupported);
        CHECK(driver.check(712, "try").error().code == Errc::kExists);
        CHECK(driver.check(700, "try").error().code == Errc::kBroken);
        const auto full = driver.check(2, "try");
        CHECK(explanation_of(full.error()) == "try: CUDA_ERROR_OUT_OF_MEMORY (2)");
    }
}
