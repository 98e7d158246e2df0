#include "emu/sim/fluid.hpp"

#include <doctest/doctest.h>

#include <cmath>

using emu::Fluid;
using emu::Load;

namespace {

Load load_on(int resource, double most = 1e9) {
    Load load;
    load.uses.push_back({resource, 1});
    load.most = most;
    return load;
}

double run_to_end(Fluid& fluid) {
    while (!fluid.idle()) {
        fluid.advance(fluid.next_end());
        fluid.take_ended();
    }
    return fluid.now();
}

}  // namespace

TEST_SUITE("sim.fluid") {
    TEST_CASE("N transfers on one link take N times as long as one") {
        for (const int count : {1, 2, 7, 100}) {
            Fluid fluid;
            const int link = fluid.add_resource(50);
            const int load = fluid.add_load(load_on(link));
            for (int i = 0; i < count; ++i) fluid.start(i, load, 100);
            CHECK(run_to_end(fluid) == doctest::Approx(2.0 * count));
            CHECK(fluid.passed(link) == doctest::Approx(100.0 * count));
        }
    }

    TEST_CASE("what a slow transfer leaves goes to the others") {
        Fluid fluid;
        const int link = fluid.add_resource(30);
        const int slow = fluid.add_load(load_on(link, 4));
        const int fast = fluid.add_load(load_on(link));
        fluid.start(0, slow, 100);
        fluid.start(1, fast, 100);
        fluid.start(2, fast, 100);
        const auto rates = fluid.rates();
        CHECK(rates[0] == doctest::Approx(4));
        CHECK(rates[1] == doctest::Approx(13));
        CHECK(rates[2] == doctest::Approx(13));
    }

    TEST_CASE("shares on two links are max-min fair") {
        // a on the first link, b on both, c on the second: b is held by the narrow one.
        Fluid fluid;
        const int narrow = fluid.add_resource(10);
        const int wide = fluid.add_resource(100);
        Load both = load_on(narrow);
        both.uses.push_back({wide, 1});
        fluid.start(0, fluid.add_load(load_on(narrow)), 1);
        fluid.start(1, fluid.add_load(both), 1);
        fluid.start(2, fluid.add_load(load_on(wide)), 1);
        const auto rates = fluid.rates();
        CHECK(rates[0] == doctest::Approx(5));
        CHECK(rates[1] == doctest::Approx(5));
        CHECK(rates[2] == doctest::Approx(95));
    }

    TEST_CASE("a spread with corrections is the same as its weights written out") {
        // Three homes behind three links; rank i is at home i and does not use that link.
        Fluid spread;
        Fluid plain;
        const double capacities[] = {10, 20, 40};
        for (int i = 0; i < 3; ++i) {
            spread.add_resource(capacities[i]);
            spread.set_common(0, i, 1.0 / 3);
            plain.add_resource(capacities[i]);
        }
        for (int rank = 0; rank < 3; ++rank) {
            Load common;
            common.spread[0] = 3;
            common.uses.push_back({rank, -1});
            common.most = 1e9;
            spread.start(rank, spread.add_load(common), 5);
            Load written;
            written.most = 1e9;
            for (int home = 0; home < 3; ++home) {
                if (home != rank) written.uses.push_back({home, 1});
            }
            plain.start(rank, plain.add_load(written), 5);
        }
        const auto a = spread.rates();
        const auto b = plain.rates();
        for (std::size_t i = 0; i < 3; ++i) CHECK(a[i] == doctest::Approx(b[i]));
        CHECK(run_to_end(spread) == doctest::Approx(run_to_end(plain)));
        for (int i = 0; i < 3; ++i) CHECK(spread.passed(i) == doctest::Approx(plain.passed(i)));
    }

    TEST_CASE("a pot is worked off by all, the fast ones more, and all end together") {
        Fluid fluid;
        const int link = fluid.add_resource(1e9);
        const int pot = fluid.add_pot(100);
        fluid.start_on_pot(0, fluid.add_load(load_on(link, 30)), pot);
        fluid.start_on_pot(1, fluid.add_load(load_on(link, 20)), pot);
        const double end = fluid.next_end();
        CHECK(end == doctest::Approx(2));
        fluid.advance(end);
        CHECK(fluid.take_ended().size() == 2);
        CHECK(fluid.idle());
        // A flow that starts when it is empty has nothing to do.
        fluid.start_on_pot(2, 0, pot);
        CHECK(fluid.next_end() == end);
        CHECK(fluid.take_ended().size() == 1);
    }
}
