#include "libfabricshm/cuda/registration.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/cuda/device_arena.hpp"
#include "tests/support/mock_gpu/mock_driver.hpp"

using namespace fabricshm;

namespace {

constexpr Bytes kChunk = 64 * kKiB;
constexpr Bytes kMapped = 3 * kChunk + 4096;  // three whole chunks and a rest
const char kImage[] = "code";

struct Fixture {
    mock_gpu::HostState& host = mock_gpu::fresh_host();
    const gpu::Driver& driver = mock_gpu::mock_driver();
    std::vector<std::byte> memory = std::vector<std::byte>(kMapped);
    std::shared_ptr<gpu::DeviceContext> device =
        gpu::DeviceContext::open(driver, 0, {kImage, kImage}).value();

    Result<gpu::Registration> make() {
        return gpu::Registration::make(driver, device->context(), memory.data(), kMapped, kChunk);
    }
};

}  // namespace

TEST_SUITE("cuda.registration") {
    TEST_CASE_FIXTURE(Fixture,
                      "a mapping is registered in chunks that cover it, portable and mapped") {
        const auto made = make();
        REQUIRE(made.ok());
        CHECK(made.value().chunks() == 4);
        CHECK(made.value().bytes() == kMapped);
        CHECK(host.flags == std::vector<unsigned int>(4, 1 | 2));  // CUDA's PORTABLE and DEVICEMAP
        std::byte* next = memory.data();
        for (const auto& [base, bytes] : host.registered) {  // in the order of addresses
            CHECK(base == next);
            CHECK(bytes <= kChunk);
            next += bytes;
        }
        CHECK(next == memory.data() + kMapped);
        CHECK(host.contexts == 0);  // the thread's context is again what it was
    }

    TEST_CASE_FIXTURE(Fixture, "a chunk that fails undoes those before it") {
        for (int failing = 0; failing < 4; ++failing) {
            CAPTURE(failing);
            host.unregistered.clear();
            host.fail_registration = failing;
            const auto made = make();
            REQUIRE_FALSE(made.ok());
            CHECK(made.error().code == Errc::kUnsupported);
            CHECK(host.registered.empty());
            CHECK(host.unregistered.size() == static_cast<std::size_t>(failing));
            CHECK(std::is_sorted(host.unregistered.rbegin(), host.unregistered.rend()));
        }
        CHECK(host.contexts == 0);
    }

    TEST_CASE_FIXTURE(Fixture, "memory that is registered already is not registered twice") {
        const auto first = make();
        REQUIRE(first.ok());
        const auto second = make();
        REQUIRE_FALSE(second.ok());
        CHECK(second.error().code == Errc::kExists);
        CHECK(host.registered.size() == 4);  // the first one's are whole
    }

    TEST_CASE_FIXTURE(Fixture,
                      "the end of a registration undoes it, once, also when it was moved") {
        {
            auto made = make();
            REQUIRE(made.ok());
            const gpu::Registration moved = std::move(made).value();
            CHECK(host.registered.size() == 4);
        }
        CHECK(host.registered.empty());
        CHECK(host.unregistered.size() == 4);
    }

    TEST_CASE_FIXTURE(Fixture,
                      "the device's address of a byte is the base and its offset, across chunks") {
        host.device_offset = 0x1000000;
        const auto made = make();
        REQUIRE(made.ok());
        const auto start = reinterpret_cast<gpu::Pointer>(memory.data());
        CHECK(made.value().base() == start + host.device_offset);
    }

    TEST_CASE_FIXTURE(Fixture, "chunks that are apart on the device are refused and undone") {
        host.gap = 0x100000;
        const auto made = make();
        REQUIRE_FALSE(made.ok());
        CHECK(made.error().code == Errc::kUnsupported);
        CHECK(explanation_of(made.error()).find("not next to the one before") != std::string::npos);
        CHECK(host.registered.empty());
    }

    TEST_CASE_FIXTURE(Fixture, "a context that is gone has taken its registrations along") {
        auto made = make();
        REQUIRE(made.ok());
        // As cudaDeviceReset() does it: the context ends, however often it was retained.
        driver.primary_release(0);
        { const gpu::Registration gone = std::move(made).value(); }
        CHECK(host.unregistered.empty());  // and nothing was asked of a context that is not there
        gpu::Handle again = nullptr;
        REQUIRE(driver.primary_retain(&again, 0) == 0);  // which the fixture's device gives back
    }

    TEST_CASE_FIXTURE(Fixture, "a child of fork() undoes nothing") {
        auto made = make();
        REQUIRE(made.ok());
        const pid_t child = ::fork();
        if (child == 0) {
            { const gpu::Registration copy = std::move(made).value(); }
            ::_exit(host.unregistered.empty() ? 0 : 1);
        }
        int status = -1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK(host.registered.size() == 4);
    }

    TEST_CASE_FIXTURE(Fixture,
                      "an arena finds its bytes by the host's and by the device's addresses") {
        host.device_offset = 0x40000000000;
        auto made = gpu::DeviceArena::make(device, memory.data(), kMapped, kChunk);
        REQUIRE(made.ok());
        const gpu::DeviceArena& arena = *made.value();
        CHECK(arena.offset_of(memory.data() + 100, 8) == 100);
        CHECK(arena.offset_of(memory.data(), kMapped) == 0);
        CHECK(arena.offset_of(reinterpret_cast<void*>(arena.base() + kChunk - 4), 8) == kChunk - 4);
        CHECK_FALSE(arena.offset_of(memory.data(), kMapped + 1));
        CHECK_FALSE(arena.offset_of(memory.data() + kMapped - 4, 8));
        CHECK_FALSE(arena.offset_of(memory.data() - 1, 1));
        CHECK_FALSE(arena.offset_of(&made, 1));
    }

    TEST_CASE_FIXTURE(Fixture, "kernels that this device can't run name its compute capability") {
        host.module_status = 209;  // no binary for this GPU
        const auto other = gpu::DeviceContext::open(driver, 0, {kImage, kImage});
        REQUIRE_FALSE(other.ok());
        CHECK(other.error().code == Errc::kUnsupported);
        CHECK(explanation_of(other.error()).find("compute capability 9.0") != std::string::npos);
        CHECK(host.contexts == 0);
    }

    TEST_CASE_FIXTURE(Fixture,
                      "without kernels, or with a number that no device has, there is no context") {
        CHECK(gpu::DeviceContext::open(driver, 0, {}).error().code == Errc::kUnsupported);
        CHECK(gpu::DeviceContext::open(driver, 1, {kImage, kImage}).error().code == Errc::kInvalid);
        CHECK(gpu::DeviceContext::open(driver, -1, {kImage, kImage}).error().code ==
              Errc::kInvalid);
    }
}
