// Homes of shards: from what sessions count of their reads to what a mover is asked.

#include <doctest/doctest.h>

#include <algorithm>

#include "fabricd/control/loop/host_loop.hpp"
#include "fabricd/control/policies/host_policy.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/emulated_host.hpp"

using namespace control_test;

TEST_SUITE("control.loop.host_shards") {
    TEST_CASE("a shard moves to the node that reads it, once its reads are known") {
        Loop loop(acting());
        Window window = window_with_shard(0, 1e8);
        for (int i = 0; i < 2; ++i) {
            advance(window);
            CHECK(loop.tick(window).decisions.empty());
        }
        const auto decisions = until_decided(loop, window, 1);
        REQUIRE(decisions.size() == 1);
        CHECK(kind_of(decisions[0]) == ActionKind::kPlacement);
        CHECK(names_of(decisions[0]) == std::vector<std::string>{"job/experts"});
        CHECK(after_of(decisions[0]) == std::vector<double>{1});
    }

    TEST_CASE("a dry run says what it would move, once in a while") {
        Loop loop(acting("dry-run"));
        Window window = window_with_shard(0, 1e8);
        std::size_t told = 0;
        for (int i = 0; i < 45; ++i) {
            advance(window);
            for (const Decision& decision : loop.tick(window).decisions) {
                CHECK(decision.outcome == Outcome::kNotApplied);
                ++told;
            }
        }
        CHECK(told >= 2);
        CHECK(told <= 3);
    }

    TEST_CASE("a shard that two nodes read alike stays where it is") {
        Loop loop(acting());
        Numbers numbers(5);
        for (int i = 0; i < 500; ++i) {
            Window window = window_with_shard(1e8 * (1 + 0.04 * numbers.uniform()),
                                              1e8 * (1 + 0.04 * numbers.uniform()));
            window.number = static_cast<std::uint64_t>(i) + 1;
            CHECK(loop.tick(window).decisions.empty());
        }
    }

    TEST_CASE("a move is not judged before it has come about, and one that does not has failed") {
        Loop loop(acting());
        Window window = window_with_shard(0, 1e8);
        REQUIRE(until_decided(loop, window).size() == 1);
        window.placement.shards[0].moving = true;
        for (int i = 0; i < 50; ++i) {
            advance(window);
            const auto result = loop.tick(window);
            CHECK((result.outcomes.empty() && result.decisions.empty()));
        }
        window.placement.shards[0].moving = false;  // and still at home
        const auto result = loop.tick(window);
        REQUIRE(result.outcomes.size() == 1);
        CHECK(result.outcomes[0].outcome == Outcome::kFailed);
    }

    TEST_CASE("a shard that people move back home was not refused") {
        Loop loop(acting());
        Window window = window_with_shard(0, 1e8);
        REQUIRE(until_decided(loop, window).size() == 1);
        window.placement.shards[0].home = 1;
        advance(window);
        CHECK(loop.tick(window).outcomes.empty());
        window.placement.shards[0].home = 0;
        advance(window);
        const auto result = loop.tick(window);
        REQUIRE(result.outcomes.size() == 1);
        CHECK(result.outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(result.outcomes[0].reason.find("from outside") != std::string::npos);
    }

    TEST_CASE("a shard that did not move rests for the cool-down, others may go sooner") {
        for (const bool is_refused : {true, false}) {
            CAPTURE(is_refused);
            Loop loop(acting());
            Window window = window_with_shard(0, 1e8);
            const auto first = until_decided(loop, window);
            REQUIRE(first.size() == 1);
            CHECK(loop.failed(999, "no such decision").id == 999);
            // The mover says so at once, or the shard is simply where it was.
            if (is_refused) {
                CHECK(loop.failed(first[0].id, "no room").outcome == Outcome::kFailed);
            } else {
                advance(window);
                REQUIRE(loop.tick(window).outcomes.size() == 1);
            }
            const std::uint64_t failed = window.number;
            window.placement.shards.push_back({6, 1e8, 0, 0, {0, 1e8}, "job/other", false});
            std::vector<Decision> later;
            while (window.number < failed + 4) {
                advance(window);
                const auto result = loop.tick(window);
                CHECK((result.outcomes.empty() && result.decisions.empty()));
            }
            later = until_decided(loop, window, 1);
            REQUIRE(later.size() == 1);
            CHECK(names_of(later[0]) == std::vector<std::string>{"job/other"});
            // It moves, is not judged, and the first one has its turn again.
            window.placement.shards.pop_back();
            later = until_decided(loop, window, 40);
            REQUIRE(later.size() == 1);
            CHECK(names_of(later[0]) == std::vector<std::string>{"job/experts"});
            CHECK(window.number == failed + 21);
        }
    }

    TEST_CASE("what was refused is asked behind the others, what people moved back is not") {
        for (const bool is_refused : {true, false}) {
            CAPTURE(is_refused);
            Loop loop(acting());
            Window window = window_with_shard(0, 1e8);
            REQUIRE(until_decided(loop, window).size() == 1);
            if (!is_refused) {
                window.placement.shards[0].home = 1;
                advance(window);
                CHECK(loop.tick(window).outcomes.empty());
                window.placement.shards[0].home = 0;
            }
            advance(window);
            REQUIRE(loop.tick(window).outcomes.size() == 1);
            // Refused after this look, or moved before it: it rests for 20 looks.
            const std::uint64_t ready = window.number + (is_refused ? 21 : 20);
            while (window.number < ready - 1) {
                // Known after three looks, and so in the same window as the first one is ready.
                if (window.number == ready - 3) {
                    window.placement.shards.push_back({6, 1e8, 0, 0, {0, 1e8}, "job/other", false});
                }
                advance(window);
                CHECK(loop.tick(window).decisions.empty());
            }
            const auto decisions = until_decided(loop, window, 1);
            REQUIRE(decisions.size() == 1);
            CHECK(names_of(decisions[0]).size() == (is_refused ? 1 : 2));
            CHECK(after_of(decisions[0], "job/other", 0) == 1);
        }
    }

    TEST_CASE("the horizon of a move is so many windows, however long they are") {
        ControlConfig config = acting();
        config.window = std::chrono::milliseconds(100);
        config.horizon = 60;
        // 100 MB take 0.1 s; 10 MB/s that are read from afar take 0.01 s in a second: 0.06 s of 6
        // s.
        const auto placed = [&](double reads) {
            return propose_placement(window_with_shard(0, reads).placement, config);
        };
        CHECK_FALSE(placed(1e7));
        const auto decision = placed(2e7);
        REQUIRE(decision);
        CHECK(decision->facts.back().name == "horizon");
        CHECK(decision->facts.back().value == doctest::Approx(6));
    }

    TEST_CASE("a move that costs the jobs samples is rolled back, one for which they end is not") {
        for (const bool ends : {false, true}) {
            CAPTURE(ends);
            Loop loop(acting());
            EmulatedJob job({100, 100});
            Window shards = window_with_shard(0, 1e8);
            TickResult all;
            for (int i = 0; i < 25; ++i) {
                Window window = job.window();
                window.placement = shards.placement;
                if (ends && i > 5) window.jobs.clear();
                for (const Decision& decision : loop.tick(window).decisions) {
                    all.decisions.push_back(decision);
                    const auto home = static_cast<std::uint32_t>(after_of(decision)[0]);
                    shards.placement.shards[0].home = home;
                    const double speed = home == 1 ? 40 : 100;
                    if (!ends) job.speeds = {speed, speed};
                }
            }
            REQUIRE(!all.decisions.empty());
            if (ends) {
                CHECK(all.decisions.size() == 1);
            } else {
                REQUIRE(all.decisions.size() == 2);
                CHECK(all.decisions[1].undoes == all.decisions[0].id);
                CHECK(shards.placement.shards[0].home == 0);
            }
        }
    }

    TEST_CASE("from what sessions count to the mover: a shard goes to its reader once") {
        ShardHost host;
        Controller controller(acting(), host.parts());
        for (int i = 0; i < 60; ++i) controller.step();
        CHECK(host.moves == std::vector<std::string>{"job/experts to far"});
        const auto decisions = controller.decisions(0);
        REQUIRE(decisions.size() == 1);
        CHECK(decisions[0].outcome == Outcome::kUnjudged);
        CHECK(decisions[0].outcome_reason == "no job trained meanwhile");
    }

    TEST_CASE("nothing moves between devices next to one node, or of which none is known") {
        for (const int node : {1, -1}) {
            CAPTURE(node);
            ShardHost host;
            host.places.devices[0].spec.numa_node = node;
            Controller controller(acting(), host.parts());
            for (int i = 0; i < 30; ++i) controller.step();
            CHECK(host.moves.empty());
            CHECK(controller.decisions(0).empty());
        }
    }

    TEST_CASE("no shard goes to a device that is faulty, whatever reads it there") {
        for (const DeviceFaults faults : {1U, 8U}) {
            CAPTURE(faults);
            ShardHost host;
            host.source = PlaceSource([&host] { return host.places; }, std::chrono::seconds(1),
                                      faults_of("ecc,stopped"));
            host.sample.faulty = {{"far", faults}};
            Controller controller(acting(), host.parts());
            for (int i = 0; i < 30; ++i) controller.step();
            CHECK(host.moves.empty() == (faults == 1));
        }
    }

    TEST_CASE(
        "a mover that refuses is asked again after the cool-down, and a reader that stops is "
        "not followed") {
        ShardHost host;
        host.obeys = false;
        Controller controller(acting(), host.parts());
        for (int i = 0; i < 50; ++i) controller.step();
        CHECK(host.moves.size() >= 2);
        CHECK(host.moves.size() <= 3);
        CHECK(controller.decisions(0)[0].outcome == Outcome::kFailed);

        ShardHost quiet;
        quiet.reads[1] = 0;
        Controller idle(acting(), quiet.parts());
        for (int i = 0; i < 30; ++i) idle.step();
        CHECK(quiet.moves.empty());
    }

    TEST_CASE("shards that can't move do not stand before one that can") {
        ShardHost host;
        // More than move at once, and smaller: they are asked first.
        for (const char* name : {"job/a", "job/b", "job/c", "job/d", "job/e", "job/f"}) {
            host.add_shard(name, 4096);
            host.stuck.insert(name);
        }
        Controller controller(acting(), host.parts());
        for (int i = 0; i < 60; ++i) controller.step();
        CHECK(host.places.shards[0].home_device == "far");
        // Each is asked now and then: with a rest that doubles, after some 4, 25 and 66 windows.
        for (const std::string& name : host.stuck) {
            const auto asked = std::count(host.moves.begin(), host.moves.end(), name + " to far");
            CHECK(asked >= 1);
            CHECK(asked <= 3);
        }
        // What is refused says so, the others are judged without it.
        const auto decisions = controller.decisions(0);
        REQUIRE(decisions.size() >= 2);
        CHECK(decisions[0].outcome == Outcome::kFailed);
        CHECK(decisions[1].outcome == Outcome::kUnjudged);
        CHECK(decisions[1].outcome_reason ==
              "no job trained meanwhile; some of its shards did not move");
    }

    TEST_CASE("a lost shard takes neither the verdict nor the rollback from the others") {
        Loop loop(acting());
        EmulatedJob job({100, 100});
        Window shards = window_with_shard(0, 1e8);
        shards.placement.shards.push_back({6, 2e8, 0, 0, {0, 1e8}, "job/gone", false});
        TickResult all;
        for (int i = 0; i < 25; ++i) {
            Window window = job.window();
            window.placement = shards.placement;
            const auto result = loop.tick(window);
            for (const auto& outcome : result.outcomes) all.outcomes.push_back(outcome);
            for (const Decision& decision : result.decisions) {
                all.decisions.push_back(decision);
                shards.placement.shards.resize(1);  // the other ends with its owner
                const auto home = static_cast<std::uint32_t>(after_of(decision)[0]);
                shards.placement.shards[0].home = home;
                const double speed = home == 1 ? 40 : 100;
                job.speeds = {speed, speed};
            }
        }
        REQUIRE(all.decisions.size() == 2);
        CHECK(names_of(all.decisions[0]).size() == 2);
        CHECK(all.decisions[1].undoes == all.decisions[0].id);
        CHECK(names_of(all.decisions[1]) == std::vector<std::string>{"job/experts"});
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kUndone);
    }

    TEST_CASE("what sessions claim of places is bounded by what the daemon knows of them") {
        ShardHost host;
        host.places.shards[0].bytes = 4097;
        host.places.devices[0].spec.quota_bytes = 3 << 28;  // of 1 << 30
        host.places.devices[0].arena_room_bytes = 1 << 29;
        int rank = 0;
        for (SessionSample& session : host.sample.sessions) {
            session.member = true;
            session.image.group_id = 7;
            session.image.rank = rank++;
        }
        host.source.look(host.sample);
        host.window();
        for (const double told : {1e-9, 5e8, 1e18}) {
            PathSample path{};
            path.group_id = 7;
            path.from = 1;
            path.bytes_per_second = told;
            host.sample.paths = {path};
            host.places.devices[0].bytes_denied += std::uint64_t{1} << 62;
            host.source.look(host.sample);
            const Window window = host.window();
            // Links of 1 GB/s: a tenth to ten times of that.
            CHECK(window.placement.bandwidth[1] == std::clamp(told, 1e8, 1e10));
            CHECK(window.pool.devices[0].denied == 1 << 28);
            CHECK(window.placement.shards[0].bytes == 8192);  // as its copy is counted
        }
        // Nor more than the arenas of its sessions could hold.
        host.places.devices[0].arena_room_bytes = 4096;
        host.places.devices[0].bytes_denied += std::uint64_t{1} << 40;
        CHECK(host.window().pool.devices[0].denied == 4096);
    }

    TEST_CASE("reads that are looked at rarely are not taken for quiet in between") {
        ShardHost host;
        host.source = PlaceSource([&] { return host.places; }, std::chrono::seconds(10));
        // As a sampler shows it that looks closely once in ten samples, of one second each.
        for (int i = 0; i < 60; ++i) {
            host.sample.taken_ns += 1'000'000'000;
            if (i % 10 == 0) host.sample.sessions[1].shards[0].bytes += 1'000'000;
            host.source.look(host.sample);
            const double rate = host.window().placement.shards[0].reads[1];
            if (i > 10) CHECK(rate == doctest::Approx(1e5));
        }
        for (int i = 0; i < 31; ++i) {
            host.sample.taken_ns += 1'000'000'000;
            host.source.look(host.sample);
        }
        CHECK(host.window().placement.shards[0].reads[1] == 0);
    }

    TEST_CASE("a shard that is read now and then is needed when it is read next") {
        ShardHost host;
        host.add_shard("job/rare", 1 << 20);
        // The first one is read all the time, the other one every ten seconds.
        for (int second = 0; second <= 24; ++second) {
            auto& told = host.sample.sessions[1].shards;
            told[0].bytes += 1'000'000;
            if (second % 10 == 0) told[1].bytes += 1'000'000;
            host.sample.taken_ns += 1'000'000'000;
            host.source.look(host.sample);
            const Window window = host.window();
            const auto& shards = window.placement.shards;
            CHECK(shards[0].until_needed_s == 0);
            // Known once it was read for a second time; then ten seconds after the last one.
            const double rest = 10 - second % 10;
            CHECK(shards[1].until_needed_s == doctest::Approx(second < 10 ? 0 : rest));
        }
        // It does not come: nothing is known of when it will.
        host.sample.taken_ns += 60'000'000'000;
        host.source.look(host.sample);
        CHECK(host.window().placement.shards[1].until_needed_s == 0);
    }

    TEST_CASE("what is needed first is asked first, and what only its home reads has no hurry") {
        Window window = window_with_shard(0, 1e8);
        window.placement.nodes[1].free_bytes = 1e8;  // for one of them
        window.placement.shards.push_back({6, 1e8, 0, 0, {0, 1e8}, "job/other", false});
        for (const std::size_t first : {0, 1}) {
            window.placement.shards[first].until_needed_s = 0;
            window.placement.shards[1 - first].until_needed_s = 8;
            const auto decision = propose_placement(window.placement, acting());
            REQUIRE(decision);
            CHECK(names_of(*decision) ==
                  std::vector<std::string>{window.placement.shards[first].name});
        }
    }
}
