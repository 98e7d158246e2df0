#include "libfabricshm/optim/parameter_spec.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/optim/parameter_block.hpp"

using namespace fabricshm;

namespace {

ParameterSpec small() {
    ParameterSpec spec;
    spec.parameters = {{"weight", {7, 5}, 0}, {"bias", {5}, 1}, {"scale", {}, 1}};
    spec.slots = 3;
    return spec;
}

std::string refusal(const ParameterSpec& spec) {
    const auto checked = check_spec(spec);
    return checked.ok() ? "" : explanation_of(checked.error());
}

bool overlap(Bytes a, Bytes a_bytes, Bytes b, Bytes b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

TEST_SUITE("optim.parameter_spec") {
    TEST_CASE("what is out of its range is refused by a line that names it") {
        CHECK(refusal(small()).empty());
        ParameterSpec spec = small();
        spec.parameters[1].name = "weight";
        CHECK(refusal(spec).find("two parameters are named 'weight'") != std::string::npos);
        spec = small();
        spec.parameters[0].shape = {3, 0};
        CHECK(refusal(spec).find("'weight'") != std::string::npos);
        spec.parameters[0].shape = {3, -1};
        CHECK(refusal(spec).find("'weight'") != std::string::npos);
        spec.parameters[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
        CHECK(refusal(spec).find("'weight'") != std::string::npos);
        spec = small();
        spec.parameters[2].name.clear();
        CHECK(refusal(spec).find("a name has") != std::string::npos);
        spec = small();
        spec.parameters[2].options = kMaxOptions;
        CHECK(refusal(spec).find("'scale'") != std::string::npos);
        spec = small();
        spec.slots = 257;
        CHECK(refusal(spec).find("slots 257") != std::string::npos);
        spec = small();
        spec.gradients = kernels::DType::kI32;
        CHECK(refusal(spec).find("gradients") != std::string::npos);
        spec = small();
        spec.parameters.clear();
        CHECK(refusal(spec).find("no parameter") != std::string::npos);
    }

    TEST_CASE("specs that differ in anything have different signatures") {
        const auto own = signature_of(small());
        CHECK(own == signature_of(small()));
        std::vector<ParameterSpec> others(8, small());
        others[0].parameters[0].shape = {5, 7};
        others[1].parameters[0].name = "weights";
        others[2].parameters[1].options = 0;
        others[3].rule = kernels::Rule::kSgd;
        others[4].gradients = kernels::DType::kBF16;
        others[5].copy = kernels::DType::kBF16;
        others[6].slots = 2;
        others[7].parameters.pop_back();
        for (const auto& other : others) CHECK(signature_of(other) != own);
    }

    TEST_CASE("nothing in the memory overlaps, and arrays begin on pages") {
        for (const auto copy : {kernels::DType::kF32, kernels::DType::kBF16}) {
            ParameterSpec spec = small();
            spec.copy = copy;
            const auto layout = ParameterLayout::of(spec);
            const Bytes array = layout.elements * sizeof(float);
            std::vector<std::pair<Bytes, Bytes>> parts = {
                {0, sizeof(ParameterHeader)},
                {layout.slots, 3 * sizeof(SlotRecord)},
                {layout.logs, 3 * layout.log_bytes},
                {layout.parameters, array},
                {layout.gradients, 3 * layout.gradient_stride}};
            for (int i = 0; i < layout.states; ++i) parts.emplace_back(layout.state[i], array);
            CHECK((layout.copy != 0) == (copy != kernels::DType::kF32));
            if (layout.copy != 0) parts.emplace_back(layout.copy, layout.elements * 2);
            for (std::size_t i = 0; i < parts.size(); ++i) {
                CHECK(parts[i].first % kPageBytes == 0);
                CHECK(parts[i].first + parts[i].second <= layout.total);
                for (std::size_t k = 0; k < i; ++k) {
                    CHECK(
                        !overlap(parts[i].first, parts[i].second, parts[k].first, parts[k].second));
                }
            }
        }
    }

    TEST_CASE("parameters begin on cache lines, and segments cover everything once") {
        const auto layout = ParameterLayout::of(small());
        REQUIRE(layout.pieces.size() == 3);
        CHECK(layout.pieces[0] == ElementRange{0, 35});
        CHECK(layout.pieces[1] == ElementRange{64, 69});
        CHECK(layout.pieces[2] == ElementRange{96, 97});
        REQUIRE(layout.segments.size() == 2);
        CHECK(layout.segments[0] == ElementRange{0, 64});
        CHECK(layout.segments[1] == ElementRange{64, kBlockElements});
        CHECK(layout.options == std::vector<std::uint32_t>{0, 1});
    }

    TEST_CASE("shards follow their shares to within a block, and leave nothing out") {
        const std::uint64_t elements = 1000 * kBlockElements;
        for (const auto& shares : std::vector<std::vector<double>>{
                 {}, {1, 1, 1}, {0.5, 0.25, 0.25}, {0, 1, 0}, {1e-9, 1, 3}}) {
            const auto shards = cut_shards(elements, shares, 3);
            REQUIRE(shards.size() == 3);
            double sum = 0;
            for (const double share : shares) sum += share;
            std::uint64_t next = 0;
            for (std::size_t rank = 0; rank < 3; ++rank) {
                CHECK(shards[rank].begin == next);
                CHECK(shards[rank].begin % kBlockElements == 0);
                next = shards[rank].end;
                const double share = shares.empty() ? 1.0 / 3 : shares[rank] / sum;
                const double count = static_cast<double>(shards[rank].count());
                CHECK(std::abs(count - share * elements) <= 2 * kBlockElements);
            }
            CHECK(next == elements);
        }
    }

    TEST_CASE("more ranks than blocks: some have nothing to do") {
        const auto shards = cut_shards(kBlockElements, {}, 4);
        std::uint64_t covered = 0;
        for (const auto& shard : shards) covered += shard.count();
        CHECK(covered == kBlockElements);
    }
}
