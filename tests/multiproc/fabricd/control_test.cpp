// The control loop in the real fabricd: from the steps that a trainer reports to the directives
// that it gets back, and what fabricctl says about it.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/multiproc/fabricd/on_device.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::ctl;
using test_support::has;
using test_support::OnDevice;
using test_support::Output;
using test_support::two_devices;

namespace {

json decisions(const Daemon& daemon) {
    const Output output = ctl(daemon, {"decisions", "--json"});
    REQUIRE(output.code == 0);
    return json::parse(output.out)["decisions"];
}

/// Two ranks, the second four times slower. Speeds are reported and not real: the second says that
/// it computed all the time since its last step, so the machine's own load changes nothing.
class UnevenJob {
  public:
    /// With `units` the ranks say that so many wait on each of them, and follow units, not shares.
    explicit UnevenJob(const Daemon& daemon, std::uint32_t units = 0) {
        for (Rank& rank : ranks_) rank.units = units;
        for (Rank& rank : ranks_) {
            fabricshm_session_options options{};
            options.struct_size = sizeof options;
            options.socket = daemon.socket().c_str();
            REQUIRE(fabricshm_session_open(&options, &rank.session) == 0);
            REQUIRE(fabricshm_arena_open(rank.session, "job", 8 << 20, 0, &rank.arena) == 0);
        }
        int joined = -1;
        std::thread other([&] {
            joined = fabricshm_group_join(ranks_[1].arena, "world", 1, 2, 20000, &ranks_[1].group);
        });
        const int first =
            fabricshm_group_join(ranks_[0].arena, "world", 0, 2, 20000, &ranks_[0].group);
        other.join();
        REQUIRE((first == 0 && joined == 0));
    }
    ~UnevenJob() {
        for (Rank& rank : ranks_) fabricshm_group_leave(rank.group);
        for (Rank& rank : ranks_) fabricshm_session_close(rank.session);
    }
    UnevenJob(const UnevenJob&) = delete;
    UnevenJob& operator=(const UnevenJob&) = delete;

    /// A step of both ranks with the shares that rank 0 read.
    void step() {
        fabricshm_directive directive{};
        directive.struct_size = sizeof directive;
        REQUIRE(fabricshm_directives(ranks_[0].session, &directive) == 0);
        serial_ = directive.serial;
        for (int rank = 0; rank < 2; ++rank) {
            if (directive.batch_share[0] > 0) ranks_[rank].share = directive.batch_share[rank];
            const std::uint32_t* units = directive.work_units;
            if (units[0] + units[1] == 0) continue;
            ranks_[rank].units = units[rank];
            ranks_[rank].share = double(units[rank]) / (units[0] + units[1]);
        }
        const double slowest = std::max(ranks_[0].share / 4, ranks_[1].share);
        step(ranks_[0], ranks_[0].share / 4 / slowest);
        step(ranks_[1], ranks_[1].share / slowest);
        std::this_thread::yield();
    }

    double share(int rank) const { return ranks_[rank].share; }
    std::uint32_t units(int rank) const { return ranks_[rank].units; }
    std::uint64_t serial() const { return serial_; }

  private:
    struct Rank {
        fabricshm_session* session = nullptr;
        fabricshm_arena* arena = nullptr;
        fabricshm_group* group = nullptr;
        double share = 0.5;
        std::uint32_t units = 0;
        std::chrono::steady_clock::time_point last{};
    };

    static void step(Rank& rank, double computing) {
        const auto now = std::chrono::steady_clock::now();
        auto info = fabricshm_step_info_make(static_cast<std::uint64_t>(1000 * rank.share + 0.5));
        info.group = rank.group;
        info.queue = rank.units;
        const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(now - rank.last);
        info.compute_ns = static_cast<std::int64_t>(computing * static_cast<double>(since.count()));
        rank.last = now;
        REQUIRE(fabricshm_step(rank.session, &info) == 0);
    }

    Rank ranks_[2];
    std::uint64_t serial_ = 0;
};

/// Two ranks on threads of their own that do nothing but merge gradients.
class MergingJob {
  public:
    explicit MergingJob(const Daemon& daemon) {
        for (int rank = 0; rank < 2; ++rank) {
            threads_[rank] = std::thread(
                [this, rank, socket = daemon.socket()] { codes_[rank] = train(rank, socket); });
        }
    }
    ~MergingJob() { stop(); }
    MergingJob(const MergingJob&) = delete;
    MergingJob& operator=(const MergingJob&) = delete;

    /// The interval that both ranks were asked for; 0: none yet, or one of them has another one.
    std::uint32_t interval() const { return wanted_[0] == wanted_[1] ? wanted_[0].load() : 0; }
    /// Ends the training; whether all of it went well.
    bool stop() {
        over_ = true;
        for (std::thread& thread : threads_) {
            if (thread.joinable()) thread.join();
        }
        return codes_[0] == 0 && codes_[1] == 0;
    }

  private:
    int train(int rank, const std::string& socket) {
        constexpr std::uint64_t kElements = 64 * 1024;
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket.c_str();
        fabricshm_session* session = nullptr;
        fabricshm_arena* arena = nullptr;
        fabricshm_group* group = nullptr;
        int code = fabricshm_session_open(&options, &session);
        if (code == 0) code = fabricshm_arena_open(session, "merging", 8 << 20, 0, &arena);
        if (code == 0) code = fabricshm_group_join(arena, "world", rank, 2, 60'000, &group);
        std::vector<float> gradient(kElements, 0.5F);
        while (code == 0) {
            // Together, so that no rank waits for one that has left.
            float leaves = over_ ? 1.0F : 0.0F;
            code = fabricshm_allreduce(group, &leaves, &leaves, 1, FABRICSHM_F32, FABRICSHM_MAX);
            if (code != 0 || leaves > 0) break;
            code = fabricshm_allreduce(group, gradient.data(), gradient.data(), kElements,
                                       FABRICSHM_F32, FABRICSHM_MAX);
            if (code == 0) code = tell(rank, session, group);
        }
        fabricshm_group_leave(group);
        fabricshm_session_close(session);
        return code;
    }

    int tell(int rank, fabricshm_session* session, fabricshm_group* group) {
        auto info = fabricshm_step_info_make(1);
        info.group = group;
        const int code = fabricshm_step(session, &info);
        if (code != 0) return code;
        fabricshm_directive directive{};
        directive.struct_size = sizeof directive;
        const int read = fabricshm_directives(session, &directive);
        wanted_[rank] = directive.sync_interval;
        return read;
    }

    std::thread threads_[2];
    int codes_[2] = {0, 0};
    std::atomic<bool> over_{false};
    std::atomic<std::uint32_t> wanted_[2] = {0, 0};
};

}  // namespace

TEST_SUITE("fabricd.control") {
    TEST_CASE(
        "ranks of unequal speed get shares by speed, and why is reported, also by a successor") {
        Daemon daemon({"--control-mode=on", "--control-window=100ms"});
        UnevenJob job(daemon);
        REQUIRE(test_support::becomes_true([&] {
            job.step();
            return job.share(0) > 0.7;
        }));
        CHECK(job.share(0) == doctest::Approx(0.8).epsilon(0.05));
        CHECK(job.share(0) + job.share(1) == doctest::Approx(1));
        REQUIRE(test_support::becomes_true([&] {
            for (int i = 0; i < 1000; ++i) job.step();
            return decisions(daemon)[0]["outcome"] != "on probation";
        }));
        const json first = decisions(daemon)[0];
        CHECK(first["kind"] == "batch shares");
        CHECK(first["gain_share"] > 0.05);
        const std::string id = std::to_string(first["id"].get<int>());
        const Output why = ctl(daemon, {"why", id});
        CHECK(why.code == 0);
        CHECK(has(why.out, "S112\n"));
        CHECK(has(why.out, "samples/s"));
        CHECK(ctl(daemon, {"why", "999"}).code == 1);

        daemon.kill();
        const Output replay = test_support::run_program(
            {FABRICCTL_PATH, "replay", daemon.folder() + "/state/decisions", "--json"});
        REQUIRE(replay.code == 0);
        const json replayed = json::parse(replay.out);
        CHECK(replayed["windows"] > 3);
        CHECK(replayed["decisions"][0]["replay"] == "same");
        const Output timid =
            test_support::run_program({FABRICCTL_PATH, "replay", "--set", "gain=9", "--json",
                                       daemon.folder() + "/state/decisions"});
        REQUIRE(timid.code == 0);
        CHECK(json::parse(timid.out)["decisions"][0]["replay"] == "not now");
        CHECK(test_support::run_program({FABRICCTL_PATH, "replay", "/nowhere"}).code == 1);
        CHECK(test_support::run_program(
                  {FABRICCTL_PATH, "replay", "--set", "no=1", daemon.folder() + "/state/decisions"})
                  .code == 2);
        // The last directives stay in force without a daemon, and its successor knows of them. (By
        // now they may be those of before: how fast these steps really are is the machine's.)
        job.step();
        const double held = job.share(0);
        const std::uint64_t serial = job.serial();
        CHECK(serial > 0);
        for (int i = 0; i < 10; ++i) job.step();
        CHECK(job.share(0) == held);
        CHECK(job.serial() == serial);
        daemon.start();
        daemon.await_ready(2);
        CHECK(decisions(daemon)[0]["id"] == first["id"]);
    }

    TEST_CASE("ranks that have units waiting get units by speed") {
        const Daemon daemon(
            {"--control-mode=on", "--control-window=100ms", "--control-actions=units"});
        UnevenJob job(daemon, 8);
        REQUIRE(test_support::becomes_true([&] {
            job.step();
            return job.units(0) != 8;
        }));
        CHECK(job.units(0) + job.units(1) == 16);
        CHECK(job.units(0) >= 12);
        CHECK(decisions(daemon)[0]["kind"] == "work units");
    }

    TEST_CASE("ranks that do little but synchronise are asked to do it less often") {
        // What a synchronisation costs here is the machine's: with these coefficients any cost is
        // enough.
        const Daemon daemon({"--control-mode=on", "--control-window=100ms",
                             "--control-actions=sync", "--control-gain=0",
                             "--control-sync-share=0.001"});
        MergingJob job(daemon);
        CHECK(test_support::becomes_true([&] { return job.interval() > 1; }));
        CHECK(job.stop());
        const json first = decisions(daemon)[0];
        CHECK(first["kind"] == "sync interval");
        CHECK(has(ctl(daemon, {"why", std::to_string(first["id"].get<int>())}).out, "S313\n"));
    }

    TEST_CASE("a device that was refused memory of the pool gets what another one has unused") {
        const test_support::TemporaryDirectory directory;
        const Daemon daemon({"--devices-file", two_devices(directory, false), "--control-mode=on",
                             "--control-window=100ms", "--control-actions=pool",
                             "--telemetry-interval=20ms"});
        const OnDevice needy(daemon, "near");
        const OnDevice idle(daemon, "far");
        fabricshm_arena* large = nullptr;
        REQUIRE(fabricshm_arena_open(needy.session, "large", 64 << 20, 0, &large) == 0);
        fabricshm_region region{};
        REQUIRE(fabricshm_region_create(large, 7 << 20, &region) == 0);
        REQUIRE(test_support::becomes_true(
            [&] { return fabricshm_region_create(large, 2 << 20, &region) == 0; }));
        const Output output = ctl(daemon, {"devices", "--json"});
        REQUIRE(output.code == 0);
        const json parsed = json::parse(output.out);
        std::int64_t all = 0;
        for (const json& device : parsed["devices"]) {
            all += device["vgpu_memory_bytes"].get<std::int64_t>();
            CHECK(device["quota_left_ms"] == 0);
            // Of which device, its own accounting says: this session never made a step.
            CHECK((device["bytes_denied"] > 0) == (device["name"] == "near"));
        }
        CHECK(all == 16 << 20);
        CHECK(decisions(daemon)[0]["kind"] == "pool quota");
        CHECK(has(ctl(daemon, {"why", "1"}).out, "S412"));
    }

    TEST_CASE("a dry run decides and directs nothing, and off decides nothing") {
        {
            const Daemon daemon({"--control-window=100ms"});
            UnevenJob job(daemon);
            REQUIRE(test_support::becomes_true([&] {
                for (int i = 0; i < 1000; ++i) job.step();
                return !decisions(daemon).empty();
            }));
            CHECK(decisions(daemon)[0]["outcome"] == "dry run");
            CHECK(job.share(0) == 0.5);
        }
        const Daemon off({"--control-mode=off"});
        const Output none = ctl(off, {"decisions"});
        CHECK(none.code == 1);
        CHECK(has(none.error, "control.mode is off"));
    }
}
