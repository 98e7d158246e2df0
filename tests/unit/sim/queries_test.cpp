#include "emu/sim/queries.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace emu;
using fabricshm::Algorithm;
using fabricshm::kGiB;
using fabricshm::kMiB;

namespace {

double number(const Report& report, std::size_t row, const std::string& column) {
    for (std::size_t i = 0; i < report.columns.size(); ++i) {
        if (report.columns[i] == column) return std::get<double>(report.rows.at(row)[i]);
    }
    return std::nan("");
}

}  // namespace

TEST_SUITE("sim.queries") {
    TEST_CASE("an allreduce takes longer the larger it is, and every pair gets a row") {
        AllreduceQuery query;
        query.topology = make_topology({}).value();
        query.sizes = {kMiB, 16 * kMiB};
        query.algorithms = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHost};
        const Report report = answer_allreduce(query);
        REQUIRE(report.rows.size() == 6);
        for (std::size_t row = 0; row < 3; ++row) {
            CHECK(number(report, row, "time_s") < number(report, row + 3, "time_s"));
        }
    }

    TEST_CASE("on a pool the ring never wins; on a long chain it does for large vectors") {
        CrossoverQuery query;
        query.devices = {8};
        query.least = query.most = kGiB;
        CHECK(std::isnan(number(answer_crossover(query), 0, "ring_wins_from_bytes")));
        query.spec.shape = "chain";
        query.devices = {64};
        CHECK(number(answer_crossover(query), 0, "ring_wins_from_bytes") == kGiB);
        CHECK(number(answer_crossover(query), 0, "ring_over_direct") < 1);
    }

    TEST_CASE("claims help against a slow engine, and nothing helps against a late rank") {
        StragglerQuery query;
        TopologySpec spec;
        spec.pools = 32;  // so that engines limit, not the pools
        query.topology = make_topology(spec).value();
        query.runs = 3;
        const Report report = answer_stragglers(query);
        REQUIRE(report.rows.size() == 30);
        CHECK(number(report, 5, "against_nobody") > 3);    // slow engine, fixed parts
        CHECK(number(report, 6, "against_nobody") < 1.3);  // with claims
        CHECK(number(report, 15, "from_last_s") ==
              doctest::Approx(number(report, 0, "from_last_s")).epsilon(0.01));
        CHECK(number(report, 15, "from_first_s") > number(report, 0, "from_first_s"));
    }

    TEST_CASE("the pool's bandwidth is at least what the bytes need, and grows with the devices") {
        BandwidthQuery query;
        query.parameters = 25e6;
        query.step = 0.1;
        query.devices = {2, 8, 32};
        const Report report = answer_bandwidth(query);
        double before = 0;
        for (std::size_t row = 0; row < 3; ++row) {
            const double rate = number(report, row, "pool_per_s");
            CHECK(rate >= number(report, row, "lower_bound_per_s"));
            CHECK(rate > before);
            CHECK(number(report, row, "exposed_share") <= query.target_share);
            before = rate;
        }
        // No pool helps devices whose links are too slow for the target.
        query.step = 1e-3;
        CHECK(std::isnan(number(answer_bandwidth(query), 0, "pool_per_s")));
    }
}
