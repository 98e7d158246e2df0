#include "emu/memory/figures.hpp"

#include <doctest/doctest.h>

#include "tests/support/link_fixture.hpp"

using namespace emu;

TEST_SUITE("emu.figures") {
    TEST_CASE("the narrowest stretch of the way is its bandwidth, slow motion taken out") {
        auto links = shared_link(1, 300, 400, 0.1, 0.2);
        links.channel_count = 2;
        links.channels[1] = links.channels[0];
        links.channels[1].read_ns_per_byte = 0.6;  // but half of the bytes only
        links.routes[0].hops[1] = {1, 500};
        links.routes[0].hop_count = 2;
        links.slow_motion = 2;
        const Figures rated = rated_figures(links, 0);
        CHECK(rated.read_latency_ns == doctest::Approx(150));
        CHECK(rated.write_latency_ns == doctest::Approx(200));
        CHECK(rated.read_bandwidth == doctest::Approx(2 * 1e9 / 0.3));
        CHECK(rated.write_bandwidth == doctest::Approx(2 * 1e9 / 0.2));
    }

    TEST_CASE(
        "an error has a sign, the worst one has none, and what is not rated has none at all") {
        CHECK(error_percent(110, 100) == doctest::Approx(10));
        CHECK(error_percent(95, 100) == doctest::Approx(-5));
        CHECK(error_percent(95, 0) == 0);
        const Figures rated{100, 200, 10, 0};
        CHECK(worst_error_percent({101, 204, 9, 77}, rated) == doctest::Approx(10));
        CHECK(worst_error_percent(rated, rated) == 0);
    }

    TEST_CASE(
        "slowing reaches slower memory only, and slow motion brings the faster within reach") {
        const Figures own{150, 0, 20e9, 15e9};
        CHECK(reach_of(own, {640, 640, 10e9, 10e9}).all());
        const Reach far = reach_of(own, {100, 640, 60e9, 10e9});
        CHECK_FALSE(far.read_latency);
        CHECK(far.write_latency);
        CHECK_FALSE(far.read_bandwidth);
        CHECK(far.write_bandwidth);
        CHECK(slow_motion_for(own, {640, 640, 10e9, 10e9}) == 1);
        CHECK(slow_motion_for(own, {640, 640, 60e9, 60e9}) == 4);
        CHECK(slow_motion_for(own, {100, 640, 0, 0}) == 2);
        const Figures slow = slowed({100, 200, 60, 30}, 3);
        CHECK(slow.read_latency_ns == doctest::Approx(300));
        CHECK(slow.write_bandwidth == doctest::Approx(10));
    }
}
