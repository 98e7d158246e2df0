// Programs of the CUDA runtime, as NVIDIA ships it, over the mock driver: shared and static, with
// whichever version CMake has found.

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <optional>

#include "tests/support/mock_gpu/stage.hpp"
#include "tests/support/skip.hpp"

TEST_SUITE_BEGIN("vgpu.runtime");

using fabricshm::kMiB;
using mock_gpu::Player;
using mock_gpu::slice;
using mock_gpu::Stage;

namespace {

constexpr std::uint64_t kQuota = 32 * kMiB;
constexpr auto kMemoryAllocation = "2";  // cudaErrorMemoryAllocation
constexpr auto kNoProof = "103";         // cudaErrorSoftwareValidityNotEstablished

std::vector<std::string> programs() {
    auto found = mock_gpu::runtime_programs();
    if (found.empty()) {
        test_support::skip(
            "no CUDA toolkit was found to link with, or this is a sanitizer's build");
    }
    return found;
}

std::string bytes(std::uint64_t count) {
    return std::to_string(count);
}

// Those of docs/vgpu.md. What others need of the driver is unknown.
bool is_tried() {
    for (const char* tried : {"10.1.", "11.2.", "11.8.", "13.0."}) {
        if (mock_gpu::runtime_version().rfind(tried, 0) == 0) return true;
    }
    return false;
}

// What its start came to. Nothing: the program ended, since a runtime that was never tried calls a
// slot of the driver's tables which the mock does not have (tables.cpp). No fault of the shim's.
std::optional<std::string> start_of(Player& player) {
    const std::string started = player.ask("init");
    if (started != "dead" || is_tried()) return started;
    static const std::string reason = "CUDA " + mock_gpu::runtime_version() +
                                      " was never tried, and needs more than the mock driver has";
    test_support::skip(reason.c_str());
    return std::nullopt;
}

using Play = std::function<void(Stage&, Player&, const std::string&)>;

// Plays with each program that starts over the mock driver.
void with_each(const Play& play) {
    for (const std::string& program : programs()) {
        CAPTURE(program);
        Stage stage({slice("half", kQuota)});
        const auto player = stage.player("half", {}, program);
        const auto started = start_of(*player);
        if (!started) continue;
        if (*started == kNoProof) {
            test_support::skip(
                "a CUDA runtime before 11.2; a later one starts over no driver but NVIDIA's own");
            continue;
        }
        REQUIRE(*started == "ok");
        play(stage, *player, program);
    }
}

std::uint64_t launches(Stage& stage) {
    std::uint64_t sum = 0;
    for (const auto& process : stage.gpu().processes) sum += process.launches.load();
    return sum;
}

}  // namespace

TEST_CASE("a program of the CUDA runtime gets its vGPU's quota and no more") {
    with_each([](Stage& stage, Player& player, const std::string&) {
        CHECK(player.numbers("info") == std::vector<std::uint64_t>{kQuota, kQuota});
        CHECK(player.numbers("properties") == std::vector<std::uint64_t>{kQuota});
        CHECK(player.ask("alloc " + bytes(40 * kMiB)) == kMemoryAllocation);
        CHECK(player.ask("alloc " + bytes(20 * kMiB)) == "ok 0");
        CHECK(player.ask("copy 0") == "ok");
        CHECK(player.ask("alloc " + bytes(14 * kMiB)) == kMemoryAllocation);
        CHECK(player.ask("managed " + bytes(14 * kMiB)) == kMemoryAllocation);
        CHECK(player.ask("rows " + bytes(14 * 1024)) == kMemoryAllocation);
        CHECK(player.ask("rows " + bytes(4 * 1024)) == "ok 1");
        CHECK(player.numbers("info") == std::vector<std::uint64_t>{8 * kMiB, kQuota});
        CHECK(stage.view("half").used_bytes == 24 * kMiB);
        CHECK(player.ask("free 0") == "ok");
        CHECK(stage.view("half").used_bytes == 4 * kMiB);
        CHECK(player.ask("managed " + bytes(14 * kMiB)) == "ok 2");
        CHECK(stage.view("half").used_bytes == 18 * kMiB);
        REQUIRE(stage.limits().resize("half", 64 * kMiB).ok());
        CHECK(player.ask("alloc " + bytes(40 * kMiB)) == "ok 3");
        CHECK(player.numbers("properties") == std::vector<std::uint64_t>{kQuota});  // of the start
    });
}

TEST_CASE("what a killed program of the CUDA runtime held is free again") {
    with_each([](Stage& stage, Player& player, const std::string& program) {
        CHECK(player.ask("alloc " + bytes(30 * kMiB)) == "ok 0");
        player.kill();
        CHECK(stage.settles_at("half", 0));
        const auto next = stage.player("half", {}, program);
        CHECK(next->ask("alloc " + bytes(30 * kMiB)) == "ok 0");
        // And what one held that let go of the device.
        CHECK(next->ask("reset") == "ok");
        CHECK(stage.view("half").used_bytes == 0);
        CHECK(next->ask("alloc " + bytes(30 * kMiB)) == "ok 1");
    });
}

TEST_CASE("streams, events and stream-ordered memory of the CUDA runtime work under a quota") {
    with_each([](Stage& stage, Player& player, const std::string&) {
        CHECK(player.ask("stream") == "ok");
        CHECK(player.ask("event") == "ok");
        if (player.numbers("version").at(0) >= 11020) {
            CHECK(player.ask("async " + bytes(40 * kMiB)) == kMemoryAllocation);
            CHECK(player.ask("async " + bytes(20 * kMiB)) == "ok 0");
            CHECK(stage.view("half").used_bytes == 20 * kMiB);
            CHECK(player.ask("free-async 0") == "ok");
        }
        CHECK(player.ask("end-stream") == "ok");
    });
}

TEST_CASE("kernels and graphs that the CUDA runtime launches are seen") {
    if (!mock_gpu::has_kernel()) return test_support::skip("no nvcc that works with this compiler");
    with_each([](Stage& stage, Player& player, const std::string&) {
        CHECK(!stage.view("half").busy_known);
        CHECK(player.ask("launch 4 32 3") == "ok");
        CHECK(launches(stage) == 3);
        CHECK(stage.view("half").busy_known);
        CHECK(stage.view("half").used_bytes == 4 * kMiB);  // its code
        CHECK(player.ask("stream") == "ok");
        CHECK(player.ask("graph 4 32 3") == "ok");
        CHECK(launches(stage) == 4);
        // Work of 0.4 s of the GPU alone: with a fifth of the time it can't be done in that.
        REQUIRE(stage.limits().set_share("half", 20).ok());
        const auto begin = std::chrono::steady_clock::now();
        CHECK(player.ask("launch 1000 1000 400") == "ok");
        CHECK(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(500));
    });
}

TEST_CASE("the CUDA runtime asks the driver for its functions through the shim alone") {
    for (const std::string& program : programs()) {
        CAPTURE(program);
        Stage stage({slice("half", kQuota)});
        const std::string log = stage.folder() + "/asked";
        const auto player = stage.player("half", {"FABRIC_MOCK_ASKED=" + log}, program);
        const auto started = start_of(*player);
        if (!started) continue;
        REQUIRE(*started != "dead");
        // Older ones resolve every function by its symbol; from which version on, only 11.2
        // and 11.8 are known to differ.
        if (player->numbers("version").at(0) < 11080) continue;
        std::ifstream file(log);
        int asked = 0;
        bool asked_to_allocate = false;
        bool asked_to_launch = false;
        for (std::string what, who; file >> what >> who; ++asked) {
            CAPTURE(what);
            CHECK(who == "libfabricvgpu.so");
            asked_to_allocate |= what == "cuMemAlloc:3020:0";
            asked_to_launch |= what == "cuLaunchKernel:7000:2";
        }
        CHECK(asked > 100);
        CHECK(asked_to_allocate);
        CHECK(asked_to_launch);
    }
}

TEST_SUITE_END();
