// fabricctl shards, migrate and quota as a user calls them, against the real fabricd and a session
// of it.

#include <doctest/doctest.h>
#include <fabricshm/shard.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/support/job.hpp"
#include "tests/support/temporary_directory.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::becomes_true;
using test_support::ctl;
using test_support::has;
using test_support::Job;
using test_support::Output;
using test_support::TemporaryDirectory;

namespace {

constexpr std::int64_t kElements = 256 * 1024;  // 1 MiB of float32

std::string device_file(const TemporaryDirectory& folder) {
    std::string path = folder.file("devices.toml");
    std::ofstream(path)
        << "[[device]]\nname = 'npu0'\nkind = 'npu'\ngflops = 3\n"
           "memory = '1GiB'\nvgpu_memory = '4MiB'\nlink_gbytes_per_s = 8\nnuma_node = 0\n"
           "[[device]]\nname = 'label'\nkind = 'npu'\ngflops = 3\n"
           "memory = '1GiB'\nlink_gbytes_per_s = 8\n"
           "[[device]]\nname = 'tiny'\nkind = 'npu'\ngflops = 3\n"
           "memory = '1GiB'\nvgpu_memory = '64KiB'\nlink_gbytes_per_s = 8\nnuma_node = 0\n";
    return path;
}

/// The shard job/s, published once.
struct Owner {
    explicit Owner(const Daemon& daemon) : job(daemon.socket(), 8 << 20) {
        REQUIRE(job.ok);
        REQUIRE(fabricshm_shard_create(job.arena, "s", FABRICSHM_F32, 1, &kElements, &shard) == 0);
        fabricshm_shard_view view{};
        REQUIRE(fabricshm_shard_write(shard, &view) == 0);
        static_cast<float*>(view.data)[kElements - 1] = 7;
        REQUIRE(fabricshm_shard_publish(shard, nullptr) == 0);
    }
    ~Owner() { fabricshm_shard_close(shard); }
    /// Whether the last element is what it was.
    bool intact() const {
        fabricshm_shard_view view{};
        if (fabricshm_shard_read(shard, 1, 10'000, &view) != 0) return false;
        const bool same = static_cast<const float*>(view.data)[kElements - 1] == 7;
        return fabricshm_shard_release(shard, &view) == 0 && same;
    }

    Job job;
    fabricshm_shard* shard = nullptr;
};

json parsed(const Output& output) {
    INFO(output.error);
    REQUIRE(output.code == 0);
    return json::parse(output.out);
}

json shard_of(const Daemon& daemon) {
    return parsed(ctl(daemon, {"shards", "--json"}))["shards"].at(0);
}

/// Moves job/s; the last move's old copy may be there for a moment yet.
Output migrate(const Daemon& daemon, const std::string& target) {
    REQUIRE(becomes_true([&] { return shard_of(daemon)["state"] != "draining"; }));
    return ctl(daemon, {"migrate", "job/s", target, "--json"});
}

/// One line that begins with the program's name, and this exit code.
void check_refused(const Output& output, int code, const std::string& part) {
    CAPTURE(output.error);
    CHECK(output.code == code);
    CHECK(output.out.empty());
    CHECK(has(output.error, "fabricctl: "));
    CHECK(has(output.error, part));
    CHECK(output.error.find('\n') == output.error.size() - 1);
}

fabricshm_quota quotas_of(fabricshm_session* session) {
    fabricshm_quota quota{};
    quota.struct_size = sizeof quota;
    CHECK(fabricshm_quotas(session, &quota) == 0);
    return quota;
}

}  // namespace

TEST_SUITE("fabricd.shards") {
    TEST_CASE("shards are shown and moved, to people and to programs") {
        const TemporaryDirectory folder;
        const Daemon daemon({"--devices-file", device_file(folder)});
        const Owner owner(daemon);
        const json before = shard_of(daemon);
        CHECK(before["name"] == "job/s");
        CHECK(before["bytes"] == kElements * 4);
        CHECK(before["home_arena"] == "job");
        CHECK(before["readers"] == 1);
        CHECK(before["state"] == "here");
        const Output table = ctl(daemon, {"shards"});
        CHECK(has(table.out, "SHARD"));
        CHECK(has(table.out, "job/s"));
        CHECK(has(table.out, "1 MiB"));

        const json moved = parsed(migrate(daemon, "here"));
        CHECK(moved == json{{"shard", "job/s"}, {"target", "here"}, {"bytes", kElements * 4}});
        CHECK(shard_of(daemon)["offset"] != before["offset"]);
        CHECK(shard_of(daemon)["moves"] == 1);
        CHECK(owner.intact());

        const Output given = migrate(daemon, "device:npu0");
        if (given.code == 0) {
            CHECK(parsed(given)["target"] == "device:npu0");
            CHECK(shard_of(daemon)["home_device"] == "npu0");
        } else {  // a container may forbid memory policies
            check_refused(given, 1, "place on node: permission denied");
        }
        fabricshm_arena* far = nullptr;
        REQUIRE(fabricshm_arena_open(owner.job.session, "far", 4 << 20, 0, &far) == 0);
        REQUIRE(becomes_true([&] { return shard_of(daemon)["state"] == "here"; }));
        const Output text = ctl(daemon, {"migrate", "job/s", "arena:far", "--limit", "1G"});
        CHECK(text.code == 0);
        CHECK(text.out == "job/s (1 MiB) is at arena:far\n");
        CHECK(shard_of(daemon)["home_arena"] == "far");
        CHECK(owner.intact());

        const Output node = migrate(daemon, "node:0");
        if (node.code != 0) check_refused(node, 1, "place on node: permission denied");
        CHECK(owner.intact());
    }

    TEST_CASE("what can't be moved is refused in one line, and stays where it is") {
        const TemporaryDirectory folder;
        const Daemon daemon({"--devices-file", device_file(folder)});
        const Owner owner(daemon);
        const Job other(daemon.socket(), 4 << 20, "others");
        const json before = shard_of(daemon);
        const auto refused = [&](std::vector<std::string> words, int code, const char* part) {
            words.insert(words.begin(), "migrate");
            check_refused(ctl(daemon, words), code, part);
        };
        refused({"job/none", "here"}, 1, "there is no shard 'job/none' (fabricctl shards");
        refused({"none/s", "here"}, 1, "there is no shard 'none/s'");
        refused({"s", "here"}, 1, "there is no shard 's'");
        refused({"job/s", "arena:none"}, 1, "there is no arena 'none'");
        refused({"job/s", "arena:others"}, 1, "the owner has not opened the target's arena");
        refused({"job/s", "device:none"}, 1, "there is no device 'none'");
        refused({"job/s", "device:tiny"}, 1, "of its quota of");
        refused({"job/s", "device:label"}, 1,
                "no numa_node in the device file: the bytes would not move");
        refused({"job/s", "node:1000"}, 1, "NUMA node of the target: no such object");
        refused({"job/s", "node:1024"}, 1, "node: invalid argument");
        refused({"job/s", "node:-1"}, 1, "node: invalid argument");
        refused({"job/s", "node:0x"}, 1, "node: invalid argument");
        refused({"job/s", "there"}, 1, "target: here, arena:NAME, device:NAME or node:N");
        refused({"job/s", "here", "--limit", "fast"}, 2, "--limit: not a size: fast");
        refused({"job/s"}, 2, "TARGET");
        CHECK(shard_of(daemon) == before);
        CHECK(owner.intact());
    }

    TEST_CASE("a shard of memory that is not coherent says so, and is not moved") {
        const Daemon daemon;
        ::setenv("FABRIC_VISIBILITY", "clflush", 1);
        const Owner owner(daemon);
        ::unsetenv("FABRIC_VISIBILITY");
        CHECK(shard_of(daemon)["state"] == "fixed");
        check_refused(ctl(daemon, {"migrate", "job/s", "here"}), 1,
                      "the shard's memory is not coherent with the daemon's: not supported");
        CHECK(fabricshm_shard_move(owner.shard, "here", 0) == FABRICSHM_EUNSUPPORTED);
        CHECK(shard_of(daemon)["moves"] == 0);
        CHECK(owner.intact());
    }

    TEST_CASE("a quota that shrinks is announced to its sessions, and cut when they gave back") {
        const TemporaryDirectory folder;
        const Daemon daemon({"--devices-file", device_file(folder)});
        ::setenv("FABRIC_DEVICE", "npu0", 1);
        const Job job(daemon.socket(), 8 << 20);
        ::unsetenv("FABRIC_DEVICE");
        fabricshm_region region{};
        REQUIRE(fabricshm_region_create(job.arena, 3 << 20, &region) == 0);
        const auto sees = [&](std::uint64_t limit, std::uint64_t target) {
            return becomes_true([&] {
                const fabricshm_quota now = quotas_of(job.session);
                return now.device.limit_bytes == limit && now.device.target_bytes == target;
            });
        };
        CHECK(sees(4 << 20, 4 << 20));
        CHECK(quotas_of(job.session).user.limit_bytes == FABRICSHM_NO_LIMIT);

        // Long enough that no grace period ends while the test runs.
        const json shrinking =
            parsed(ctl(daemon, {"quota", "npu0", "1M", "--grace", "3600", "--json"}));
        CHECK(shrinking["subject"] == "npu0");
        CHECK(shrinking["quota_bytes"] == 4 << 20);
        CHECK(shrinking["target_bytes"] == 1 << 20);
        CHECK(shrinking["used_bytes"] == 3 << 20);
        CHECK(sees(4 << 20, 1 << 20));
        const fabricshm_quota announced = quotas_of(job.session);
        CHECK(announced.device.used_bytes == 3 << 20);
        CHECK(announced.device.left_ms > 0);
        CHECK(announced.device.left_ms <= 3'600'000);
        CHECK(announced.serial == 2);
        CHECK(has(ctl(daemon, {"devices"}).out, "4 MiB > 1 MiB"));
        fabricshm_region more{};
        CHECK(fabricshm_region_create(job.arena, 4096, &more) == FABRICSHM_ENOMEM);

        REQUIRE(fabricshm_region_free(job.arena, region.id) == 0);
        CHECK(sees(1 << 20, 1 << 20));
        CHECK(quotas_of(job.session).device.left_ms == 0);
        CHECK(fabricshm_region_create(job.arena, 1 << 20, &more) == 0);
        // No session gives back: after the grace period it is cut to what is used.
        const Output text = ctl(daemon, {"quota", "npu0", "64K", "--grace", "0"});
        CHECK(text.code == 0);
        CHECK(text.out == "npu0: 1 MiB until 64 KiB are in use, at most 0 s; 1 MiB used\n");
        CHECK(sees(1 << 20, 1 << 20));
        CHECK(fabricshm_region_free(job.arena, more.id) == 0);
    }

    TEST_CASE("quotas of users, and what makes no sense of one") {
        const TemporaryDirectory folder;
        const Daemon daemon({"--devices-file", device_file(folder)});
        const Job job(daemon.socket(), 8 << 20);
        const auto quota = [&](std::vector<std::string> words) {
            words.insert(words.begin(), "quota");
            return ctl(daemon, words);
        };
        const std::string me = "user:" + std::to_string(::getuid());
        CHECK(quota({me, "16M"}).out == me + ": 16 MiB, 8 MiB used\n");
        CHECK(becomes_true(
            [&] { return quotas_of(job.session).user.limit_bytes == std::uint64_t{16} << 20; }));
        fabricshm_arena* large = nullptr;
        CHECK(fabricshm_arena_open(job.session, "large", 9 << 20, 0, &large) == FABRICSHM_ENOMEM);
        CHECK(quota({me, "0"}).out == me + ": no limit, 8 MiB used\n");
        CHECK(fabricshm_arena_open(job.session, "large", 9 << 20, 0, &large) == 0);

        check_refused(quota({"npu7", "1M"}), 1, "there is no device 'npu7'");
        check_refused(quota({"user:no-user-of-that-name", "1M"}), 1, "there is no user");
        check_refused(quota({"npu0", "2G"}), 1, "has 1 GiB of memory, less than 2 GiB");
        check_refused(quota({"npu0", "much"}), 2, "BYTES: not a size: much");
        check_refused(quota({"npu0"}), 2, "BYTES");
        check_refused(quota({"npu0", "1M", "--grace", "-1"}), 2, "--grace");
    }
}
