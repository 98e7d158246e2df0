#include "emu/memory/model_check.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "emu/memory/memory_touch.hpp"
#include "emu/memory/presets.hpp"
#include "tests/support/link_fixture.hpp"

using namespace emu;

namespace {

// Memory of a known speed: moves the clock instead of bytes.
struct TimedMemory final : PoolTouch {
    TimedMemory(TestClock& clock, std::uint64_t latency, double ns_per_byte)
        : clock(clock), latency(latency), ns_per_byte(ns_per_byte) {}
    void read(Bytes bytes) noexcept override { pass(bytes); }
    void write(Bytes bytes) noexcept override { pass(bytes); }
    void pass(Bytes bytes) noexcept {
        clock.time +=
            latency + static_cast<std::uint64_t>(static_cast<double>(bytes) * ns_per_byte);
    }
    TestClock& clock;
    std::uint64_t latency;
    double ns_per_byte;
};

Figures figures_on(const fabricshm::LinkImage& links, std::uint64_t latency, double ns_per_byte) {
    TestClock clock;
    CheckPlan plan;
    plan.bulk_ns = 10'000'000;
    const TouchMaker maker = [&](int, int) {
        return std::make_unique<TimedMemory>(clock, latency, ns_per_byte);
    };
    return check_model(links, plan, maker, clock);
}

fabricshm::LinkImage links_of(const char* preset, std::uint32_t slow_motion) {
    EmulatedMachine machine = *find_preset(preset);
    machine.slow_motion = slow_motion;
    fabricshm::LinkImage links;
    REQUIRE_FALSE(resolve(machine, links));
    return links;
}

}  // namespace

TEST_SUITE("emu.model_check") {
    TEST_CASE("on faster memory every preset is shown to a few per cent") {
        for (const EmulatedMachine& preset : presets()) {
            CAPTURE(preset.name);
            const auto links = links_of(preset.name.c_str(), 1);
            const Figures shown = figures_on(links, 50, 0.001);
            // The latency of one line includes its 64 bytes.
            CHECK(worst_error_percent(shown, rated_figures(links, 0)) < 3.0);
        }
    }

    TEST_CASE("on slower memory the error is what is missing, and slow motion takes it away") {
        const auto links = links_of("cxl_switch", 1);
        const Figures own = figures_on(unslowed(links), 100, 0.1);
        CHECK(own.read_latency_ns == doctest::Approx(106));
        CHECK(own.read_bandwidth == doctest::Approx(10e9).epsilon(0.01));
        const Figures rated = rated_figures(links, 0);
        const Figures shown = figures_on(links, 100, 0.1);
        CHECK(error_percent(shown.read_bandwidth, rated.read_bandwidth) < -70);
        CHECK(error_percent(shown.read_latency_ns, rated.read_latency_ns) < 1.0);
        CHECK_FALSE(reach_of(own, rated).read_bandwidth);

        const int factor = slow_motion_for(own, rated);
        CHECK(factor == 5);
        const auto slow = links_of("cxl_switch", static_cast<std::uint32_t>(factor));
        const Figures better = slowed(figures_on(slow, 100, 0.1), 1.0 / factor);
        CHECK(worst_error_percent(better, rated) < 3.0);
    }

    TEST_CASE("several ranks are checked on threads of their own, however they are scheduled") {
        // Real time, so no figure can be promised: only that there is one for everything.
        std::vector<std::byte> memory(4 * fabricshm::kMiB);
        CheckPlan plan;
        plan.ranks = 2;
        plan.latency_operations = 3;
        plan.bulk_bytes = fabricshm::kMiB / 2;
        plan.bulk_ns = 5'000'000;
        const auto links = shared_link(1, 1000, 1000, 4.0, 4.0);
        const Figures shown =
            check_model(links, plan, MemoryTouch::maker(memory.data(), memory.size()),
                        fabricshm::LinkClock::real());
        CHECK(shown.read_latency_ns > 0);
        CHECK(shown.write_latency_ns > 0);
        CHECK(shown.read_bandwidth > 0);
        CHECK(shown.write_bandwidth > 0);
    }
}
