#include "libfabricshm/optim/snapshot_plan.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace fabricshm;

namespace {

ParameterSpec spec_of(kernels::Rule rule) {
    ParameterSpec spec;
    spec.parameters = {{"a", {1000}, 0}, {"b", {10}, 0}, {"c", {3000}, 0}, {"d", {5}, 0}};
    spec.rule = rule;
    spec.slots = 2;
    return spec;
}

}  // namespace

TEST_SUITE("optim.snapshot_plan") {
    TEST_CASE("what fits into one file of each kind has no index") {
        const auto plan = SnapshotPlan::of(spec_of(kernels::Rule::kAdamW), {7, 1}, kGiB);
        REQUIRE(plan.files.size() == 2);
        CHECK(plan.files[0].name == "model.safetensors");
        CHECK(plan.files[1].name == "optimizer.safetensors");
        CHECK(plan.files[1].tensors.size() == 8);
        CHECK(plan.files[1].tensors[5].name == "optimizer.exp_avg_sq.b");
        CHECK(plan.indices().empty());
    }

    TEST_CASE(
        "every tensor is whole in one file, and no file is longer than asked but for one tensor") {
        for (int rule = 0; rule < kernels::kRuleCount; ++rule) {
            const ParameterSpec spec = spec_of(static_cast<kernels::Rule>(rule));
            const auto plan = SnapshotPlan::of(spec, {7, 1}, 8000);
            std::set<std::string> names;
            for (const PlannedFile& file : plan.files) {
                CHECK(file.header % kHeaderUnit == 0);
                CHECK((file.bytes - file.header <= 8000 || file.tensors.size() == 1));
                Bytes at = 0;
                for (const PlannedTensor& tensor : file.tensors) {
                    CHECK(tensor.begin == at);
                    at += tensor.bytes;
                    CHECK(names.insert(tensor.name).second);
                }
                CHECK(file.header + at == file.bytes);
            }
            const int arrays = 1 + kernels::row_of(spec.rule).states();
            CHECK(names.size() == spec.parameters.size() * static_cast<std::size_t>(arrays));
            CHECK(plan.files[0].name == "model-00001-of-00003.safetensors");
            REQUIRE(plan.indices().size() == 2);
            CHECK(plan.indices()[0].name == "model.safetensors.index.json");
        }
    }

    TEST_CASE("headers are as long as planned whatever the checksums are") {
        const ParameterSpec spec = spec_of(kernels::Rule::kMaxAdaBelief);
        const auto plan = SnapshotPlan::of(spec, {123456789, ~std::uint64_t{0}}, kGiB);
        for (std::size_t i = 0; i < plan.files.size(); ++i) {
            const std::vector<std::uint32_t> sums(plan.files[i].tensors.size(), 0xffffffffU);
            CHECK(format_header(plan.header_of(spec, i, sums)).size() == plan.files[i].header);
        }
    }

    TEST_CASE("names that mean something else in a snapshot are rejected") {
        ParameterSpec spec = spec_of(kernels::Rule::kAdam);
        CHECK(check_names(spec).ok());
        for (const char* name : {"__metadata__", "optimizer.exp_avg.a"}) {
            spec.parameters[1].name = name;
            CHECK(check_names(spec).error().code == Errc::kInvalid);
        }
    }
}
