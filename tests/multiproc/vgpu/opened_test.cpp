// What ranks of a device group open of each other's memory, against a vGPU's quota: the shim is
// preloaded, the driver is the mock.

#include <doctest/doctest.h>

#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "tests/support/mock_gpu/stage.hpp"

using namespace mock_gpu;

TEST_SUITE("multiproc.vgpu.opened") {
    TEST_CASE("memory that is opened is charged once, and until it is closed") {
        constexpr fabricshm::Bytes kOpened = 8 * fabricshm::kMiB;
        const std::string open = "open " + std::to_string(kOpened);
        Stage stage({slice("a", 64 * fabricshm::kMiB)});
        const auto player = stage.player("a", {}, GPU_OPENER_PATH);
        const auto before = stage.view("a").used_bytes;
        REQUIRE(player->ask(open) == "ok");
        CHECK(stage.settles_at("a", before + kOpened));
        // As another group of the process does.
        REQUIRE(player->ask(open) == "ok");
        CHECK(stage.view("a").used_bytes == before + kOpened);
        REQUIRE(player->ask("close") == "ok");
        CHECK(stage.view("a").used_bytes == before + kOpened);
        // What the quota has no room for is closed again.
        CHECK(player->ask("open " + std::to_string(64 * fabricshm::kMiB)) ==
              std::to_string(static_cast<int>(fabricshm::Errc::kNoMemory)));
        CHECK(stage.view("a").used_bytes == before + kOpened);
        REQUIRE(player->ask("close") == "ok");
        CHECK(stage.settles_at("a", before));
        REQUIRE(player->ask("open " + std::to_string(32 * fabricshm::kMiB)) == "ok");
        CHECK(stage.settles_at("a", before + 32 * fabricshm::kMiB));
    }
}
