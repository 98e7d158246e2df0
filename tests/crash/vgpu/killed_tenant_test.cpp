#include <doctest/doctest.h>

#include "tests/support/mock_gpu/stage.hpp"

TEST_SUITE_BEGIN("vgpu.killed_tenant");

using fabricshm::kMiB;
using mock_gpu::slice;
using mock_gpu::Stage;

namespace {

constexpr std::uint64_t kQuota = 16 * kMiB;
constexpr std::uint64_t kSurvivors = 4 * kMiB;

// Where a process may die: with the ledger's lock, between two of its stores, with memory that the
// driver has and the charge tables have not, or the other way round.
constexpr const char* kPoints[] = {"vgpu.claim.filled", "vgpu.charge.locked", "vgpu.charge.slot",
                                   "vgpu.release.slot", "vgpu.reserved",      "vgpu.allocated",
                                   "vgpu.freed"};

std::string bytes(std::uint64_t count) {
    return std::to_string(count);
}

// Dies at the passage of the point, at work or already when it attaches.
void die_at(Stage& stage, const std::string& fault) {
    const auto victim = stage.player("half", {"FABRIC_FAULT=" + fault});
    victim->tell("race 7 400 3000000");
    CHECK(victim->answer() == "dead");
}

}  // namespace

TEST_CASE("killed at any point, a process leaves no quota taken and none given twice") {
    for (const char* point : kPoints) {
        for (const char* passage : {"1", "5"}) {
            if (std::string(point) == "vgpu.claim.filled" && passage[0] == '5') continue;
            CAPTURE(point);
            CAPTURE(passage);
            Stage stage({slice("half", kQuota)});
            const auto survivor = stage.player("half");
            CHECK(survivor->ask("alloc " + bytes(kSurvivors)) == "ok 0");
            die_at(stage, std::string(point) + ":kill:" + passage);
            CHECK(stage.settles_at("half", kSurvivors));
            CHECK(survivor->ask("alloc " + bytes(kQuota - kSurvivors)) == "ok 1");
            CHECK(survivor->ask("alloc 1") == "2");
            CHECK(stage.view("half").used_bytes == mock_gpu::used_by_all(stage.gpu()));
            CHECK(stage.gpu().peak.load() <= kQuota);
        }
    }
}

TEST_CASE("without a daemon the survivors reclaim what the dead held, and a lock they died with") {
    for (const char* point : {"vgpu.charge.locked", "vgpu.charge.slot", "vgpu.allocated"}) {
        CAPTURE(point);
        Stage stage({slice("half", kQuota)});
        const auto survivor = stage.player("half");
        const auto victim =
            stage.player("half", {std::string("FABRIC_FAULT=") + point + ":kill:4"});
        CHECK(victim->ask("alloc " + bytes(8 * kMiB)) == "ok 0");
        stage.stop_daemon();
        victim->tell("race 7 400 3000000");
        CHECK(victim->answer() == "dead");
        // Its pipe closes some time before it is gone; its slot must not be touched before that.
        victim->kill();
        CHECK(survivor->ask("alloc " + bytes(kQuota)) == "ok 0");
        CHECK(survivor->ask("alloc 1") == "2");
    }
}

TEST_CASE("a process that dies while it reclaims what the dead held leaves that to the next") {
    Stage stage({slice("half", kQuota)});
    const auto last = stage.player("half");
    const auto heir =
        stage.player("half", {std::string("FABRIC_FAULT=") + "vgpu.reclaim.pid" + ":kill"});
    {
        const auto victim = stage.player("half");
        CHECK(victim->ask("alloc " + bytes(12 * kMiB)) == "ok 0");
        stage.stop_daemon();
    }
    CHECK(heir->ask("alloc " + bytes(8 * kMiB)) == "dead");
    heir->kill();
    CHECK(last->ask("alloc " + bytes(kQuota)) == "ok 0");
    CHECK(last->ask("alloc 1") == "2");
}

TEST_SUITE_END();
