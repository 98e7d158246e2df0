// The loop moves a shard to the device that reads it, and its pages to that device's node. In a
// guest with memory on two nodes: docs/testing.md.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <fabricshm/shard.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/multiproc/fabricd/on_device.hpp"
#include "tests/support/temporary_directory.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::becomes_true;
using test_support::ctl;
using test_support::OnDevice;
using test_support::Output;
using test_support::two_devices;

namespace {

/// Where the page lies, as the kernel says; negative: an error.
int node_of(const void* at) {
    constexpr std::uintptr_t kPage = 4096;
    void* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(at) / kPage * kPage);
    int node = -1;
    const long done = ::syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &node, 0);
    return done == 0 ? node : -1;
}

}  // namespace

TEST_SUITE("vm.shard_nodes") {
    TEST_CASE(
        "a shard goes to the device that reads it, once, and its pages to that device's node") {
        const test_support::TemporaryDirectory directory;
        const Daemon daemon({"--devices-file", two_devices(directory, true), "--control-mode=on",
                             "--control-window=100ms", "--control-actions=placement",
                             "--control-cool-down=5", "--telemetry-interval=20ms",
                             "--pool-backend=emu"});
        const OnDevice owner(daemon, "near");
        const OnDevice reader(daemon, "far");
        constexpr std::int64_t kElements = 64 * 1024;
        fabricshm_shard* made = nullptr;
        REQUIRE(fabricshm_shard_create(owner.arena, "experts", FABRICSHM_F32, 1, &kElements,
                                       &made) == 0);
        fabricshm_shard_view view{};
        REQUIRE(fabricshm_shard_write(made, &view) == 0);
        std::fill_n(static_cast<float*>(view.data), kElements, 7.0F);
        REQUIRE(fabricshm_shard_publish(made, nullptr) == 0);
        fabricshm_shard* opened = nullptr;
        REQUIRE(fabricshm_shard_open(reader.arena, "experts", 60'000, &opened) == 0);
        int first_node = -1, last_node = -1;
        const auto read = [&](int times) {
            for (int i = 0; i < times; ++i) {
                REQUIRE(fabricshm_shard_read(opened, 1, 60'000, &view) == 0);
                const auto* data = static_cast<const float*>(view.data);
                CHECK(data[kElements - 1] == 7.0F);
                if (i == 0) {
                    CHECK(data[0] == 7.0F);  // present in this process, or the kernel knows no node
                    first_node = node_of(data);
                    last_node = node_of(data + kElements - 1);
                }
                REQUIRE(fabricshm_shard_release(opened, &view) == 0);
            }
        };
        const auto shard = [&] {
            const Output output = ctl(daemon, {"shards", "--json"});
            REQUIRE(output.code == 0);
            return json::parse(output.out)["shards"].at(0);
        };
        const auto decisions = [&] {
            const Output output = ctl(daemon, {"decisions", "--json"});
            REQUIRE(output.code == 0);
            return json::parse(output.out)["decisions"];
        };
        CHECK(shard()["home_device"] == "near");
        read(1);
        CHECK(first_node == 0);
        REQUIRE(becomes_true([&] {
            read(1000);
            return shard()["home_device"] == "far";
        }));
        // No job trains that could judge it, so it ends without a verdict, some windows later; by
        // then the shard has rested, and could be moved again.
        REQUIRE(becomes_true([&] {
            read(1000);
            return decisions()[0]["outcome"] == "not judged";
        }));
        CHECK(shard()["moves"] == 1);
        read(1);
        CHECK(first_node == 1);
        CHECK(last_node == 1);
        const json all = decisions();
        CHECK(all.size() == 1);
        CHECK(all[0]["kind"] == "placement");
        CHECK(ctl(daemon, {"why", "1"}).out.find("S213") != std::string::npos);
        fabricshm_shard_close(opened);
        fabricshm_shard_close(made);
    }
}
