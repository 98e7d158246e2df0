// That the machine is measured and pictured at all; how right the picture is, `fabric-sim validate`
// says, which no loaded test machine can.

#include "emu/sim/probe.hpp"

#include <doctest/doctest.h>

#include "emu/sim/collective_run.hpp"

using namespace emu;

TEST_SUITE("sim.probe") {
    TEST_CASE("every point of the curve is measured, and what was handed on costs no less") {
        ProbeOptions options;
        options.least = 32 * fabricshm::kKiB;
        options.most = 256 * fabricshm::kKiB;
        options.sample = std::chrono::microseconds(100);
        const auto limits = probe_machine(options);
        REQUIRE(limits.ok());
        CHECK(limits->cores >= 1);
        CHECK(limits->switch_cost > 0);
        REQUIRE(limits->cache.points.size() == 4);
        for (const auto& point : limits->cache.points) {
            CHECK(point.kept > 0);
            CHECK(point.handed >= point.kept);
            CHECK(point.given >= point.kept);
            CHECK(point.streamed > 0);
        }
        // The picture of the machine can be run, also with more ranks than cores.
        for (const int devices : {2, 2 * limits->cores + 1}) {
            const Topology topology = machine_topology(*limits, devices);
            CHECK(topology.error_message() == "");
            fabricshm::AllreduceCall call;
            call.world = devices;
            call.bytes = fabricshm::kMiB;
            CHECK(simulate_allreduce(topology, call, {}).from_last() > 0);
        }
    }
}
