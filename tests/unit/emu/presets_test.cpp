#include "emu/memory/presets.hpp"

#include <doctest/doctest.h>

#include "emu/memory/figures.hpp"

using namespace emu;

TEST_SUITE("emu.presets") {
    TEST_CASE("every preset resolves, says where it comes from and is in the list") {
        const std::string list = presets_text();
        for (const EmulatedMachine& preset : presets()) {
            CAPTURE(preset.name);
            fabricshm::LinkImage links;
            CHECK_FALSE(resolve(preset, links));
            CHECK_FALSE(preset.source.empty());
            CHECK(list.find("\n" + preset.name + " ") != std::string::npos);
            CHECK(find_preset(preset.name) == &preset);
        }
        CHECK(find_preset("no_such") == nullptr);
    }

    TEST_CASE("the figures are those that were published") {
        const auto rated = [](const char* name) {
            fabricshm::LinkImage links;
            REQUIRE_FALSE(resolve(*find_preset(name), links));
            return rated_figures(links, 0);
        };
        CHECK(rated("dram_local").read_latency_ns == doctest::Approx(100));
        CHECK(rated("dram_local").read_bandwidth == 0);
        CHECK(rated("cxl_expander").read_latency_ns == doctest::Approx(220));
        CHECK(rated("cxl_expander").read_bandwidth == doctest::Approx(64e9));
        CHECK(rated("mhd_niagara2").read_latency_ns == doctest::Approx(640));
        CHECK(rated("mhd_niagara2").write_bandwidth == doctest::Approx(10.1e9));
        CHECK(rated("cxl_switch").read_latency_ns == doctest::Approx(750));
        CHECK(rated("cxl_switch").write_latency_ns == doctest::Approx(780));
        CHECK(rated("cxl_switch").read_bandwidth == doctest::Approx(46e9));
        CHECK(rated("cxl_switch").write_bandwidth == doctest::Approx(33e9));
        CHECK(rated("rdma").read_latency_ns == doctest::Approx(4500));
    }
}
