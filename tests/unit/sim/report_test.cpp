#include "emu/sim/report.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

using emu::Report;

namespace {

Report sample() {
    Report report;
    report.query = "what";
    report.facts = {{"rate_per_s", 46e9}, {"name", std::string("x")}};
    report.columns = {"size_bytes", "time_s", "word"};
    report.rows = {{1024.0, 1.5e-6, std::string("a,b")},
                   {2048.0, std::nan(""), std::string("c\"d")}};
    report.notes = {"a note"};
    return report;
}

}  // namespace

TEST_SUITE("sim.report") {
    TEST_CASE("people see units, and a dash where there is no value") {
        CHECK(emu::as_text(sample()) ==
              "rate: 46.0 GB/s\nname: x\n"
              " size     time  word\n1 KiB  1.50 us   a,b\n2 KiB        -   c\"d\na note\n");
    }

    TEST_CASE("CSV quotes what it has to and leaves missing values empty") {
        CHECK(emu::as_csv(sample()) ==
              "size_bytes,time_s,word\n1024,1.5e-06,\"a,b\"\n2048,,\"c\"\"d\"\n");
    }

    TEST_CASE("JSON holds plain numbers, and null for missing ones") {
        const auto json = nlohmann::json::parse(emu::as_json(sample()));
        CHECK(json["query"] == "what");
        CHECK(json["rate_per_s"] == 46e9);
        CHECK(json["rows"][0]["time_s"] == 1.5e-6);
        CHECK(json["rows"][1]["time_s"].is_null());
        CHECK(json["notes"][0] == "a note");
    }
}
