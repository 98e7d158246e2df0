// Processes in a pid namespace of their own, as in a container: what they call themselves is not
// what NVML and the daemon call them.

#include <doctest/doctest.h>

#include "tests/support/mock_gpu/stage.hpp"
#include "tests/support/skip.hpp"

TEST_SUITE_BEGIN("vgpu.namespace");

using fabricshm::kMiB;
using mock_gpu::slice;
using mock_gpu::Stage;

namespace {

constexpr std::uint64_t kQuota = 32 * kMiB;

// A player there; nullptr where this machine allows no such namespaces.
std::unique_ptr<mock_gpu::Player> contained(Stage& stage) {
    auto player = stage.player("half", {}, GPU_IN_NAMESPACE_PATH);
    if (player->ask("init") != "dead") return player;
    test_support::skip("pid namespaces of a user's own");
    return nullptr;
}

}  // namespace

TEST_CASE("in a container a process's code and time count for it, and the daemon shows its pid") {
    Stage stage({slice("half", kQuota)});
    const auto player = contained(stage);
    if (player == nullptr) return;
    CHECK(player->ask("alloc " + std::to_string(2 * kMiB)) == "ok 0");
    CHECK(player->ask("hidden-module") == "ok");
    CHECK(player->ask("launch 1000") == "ok");
    CHECK(stage.view("half").used_bytes == 6 * kMiB);
    REQUIRE(stage.view("half").tenants.size() == 1);
    // Number 1 in there; here it is the child of what the stage has started.
    const auto pid = stage.view("half").tenants.at(0).pid;
    CHECK(pid == static_cast<std::int32_t>(stage.gpu().processes[0].pid.load()));
    CHECK(pid != 1);
    // Until a window of NVML's is over.
    REQUIRE(stage.limits().set_share("half", 50).ok());
    for (int i = 0; i < 100 && stage.view("half").busy_ns == 0; ++i) {
        CHECK(player->ask("launch-for 100 100000") == "ok");
    }
    CHECK(stage.view("half").busy_ns > 0);
    CHECK(stage.view("half").busy_ns == stage.view("half").tenants.at(0).busy_ns);
}

TEST_CASE("a daemon that is started again sees whether processes in containers are alive") {
    Stage stage({slice("half", kQuota)});
    auto stays = contained(stage);
    if (stays == nullptr) return;
    auto goes = contained(stage);
    CHECK(stays->ask("alloc " + std::to_string(2 * kMiB)) == "ok 0");
    CHECK(goes->ask("alloc " + std::to_string(4 * kMiB)) == "ok 0");
    stage.stop_daemon();
    goes->kill();
    stage.start_daemon();
    CHECK(stage.settles_at("half", 2 * kMiB));
    CHECK(stays->ask("alloc " + std::to_string(kQuota - 2 * kMiB)) == "ok 1");
    stays->kill();
    CHECK(stage.settles_at("half", 0));
}

TEST_SUITE_END();
