// The control loop in the real fabricd: from the steps that a trainer tells to the directives that
// it gets back, and what fabricctl says about it.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/support/program.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::ctl;
using test_support::has;
using test_support::Output;

namespace {

json decisions(const Daemon& daemon) {
    const Output output = ctl(daemon, {"decisions", "--json"});
    REQUIRE(output.code == 0);
    return json::parse(output.out)["decisions"];
}

/// Two ranks, the second four times slower. Speeds are told and not made: the second says that it
/// computed all the time since its last step, so the machine's own load changes nothing.
class UnevenJob {
  public:
    explicit UnevenJob(const Daemon& daemon) {
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
        }
        const double slowest = std::max(ranks_[0].share / 4, ranks_[1].share);
        step(ranks_[0], ranks_[0].share / 4 / slowest);
        step(ranks_[1], ranks_[1].share / slowest);
        std::this_thread::yield();
    }

    double share(int rank) const { return ranks_[rank].share; }
    std::uint64_t serial() const { return serial_; }

  private:
    struct Rank {
        fabricshm_session* session = nullptr;
        fabricshm_arena* arena = nullptr;
        fabricshm_group* group = nullptr;
        double share = 0.5;
        std::chrono::steady_clock::time_point last{};
    };

    static void step(Rank& rank, double computing) {
        const auto now = std::chrono::steady_clock::now();
        auto info = fabricshm_step_info_make(static_cast<std::uint64_t>(1000 * rank.share + 0.5));
        info.group = rank.group;
        const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(now - rank.last);
        info.compute_ns = static_cast<std::int64_t>(computing * static_cast<double>(since.count()));
        rank.last = now;
        REQUIRE(fabricshm_step(rank.session, &info) == 0);
    }

    Rank ranks_[2];
    std::uint64_t serial_ = 0;
};

}  // namespace

TEST_SUITE("fabricd.control") {
    TEST_CASE("ranks of unequal speed get shares by speed, and why is told, also by a successor") {
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
