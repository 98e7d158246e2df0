#include "libfabricshm/optim/snapshot_stage.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "libfabricshm/os/disk_writer.hpp"

using namespace fabricshm;

namespace {

ParameterSpec spec() {
    ParameterSpec made;
    made.parameters = {{"a", {30001}, 0}, {"b", {17}, 0}, {"c", {50, 999}, 0}, {"d", {}, 0}};
    made.rule = kernels::Rule::kAdam;
    made.slots = 1;
    return made;
}

float value_of(std::size_t array, std::uint64_t element) {
    return static_cast<float>(array * 1'000'000 + element);
}

struct Arrays {
    std::vector<std::vector<float>> values;
    explicit Arrays(std::uint64_t elements) : values(3, std::vector<float>(elements)) {
        for (std::size_t array = 0; array < values.size(); ++array) {
            for (std::uint64_t i = 0; i < elements; ++i) values[array][i] = value_of(array, i);
        }
    }
    std::vector<const float*> pointers() const {
        return {values[0].data(), values[1].data(), values[2].data()};
    }
    // As a step over these elements.
    void change(ElementRange range) {
        for (auto& array : values) {
            for (std::uint64_t i = range.begin; i < range.end; ++i) array[i] = -1;
        }
    }
};

// Elements whose staged value is not that of the beginning.
std::uint64_t wrong_in(const SnapshotStage& stage) {
    std::uint64_t wrong = 0;
    for (const SnapshotStage::Part& part : stage.parts()) {
        for (std::uint64_t i = part.elements.begin; i < part.elements.end; ++i) {
            float found = 0;
            std::memcpy(&found, part.data + (i - part.elements.begin) * sizeof found, sizeof found);
            wrong += found == value_of(static_cast<std::size_t>(part.array), i) ? 0 : 1;
        }
    }
    return wrong;
}

}  // namespace

TEST_SUITE("optim.snapshot_stage") {
    TEST_CASE("the parts of all shards are the files, in whatever way the set is cut") {
        const ParameterLayout layout = ParameterLayout::of(spec());
        const Arrays arrays(layout.elements);
        for (const Bytes file_bytes : {Bytes{1}, Bytes{150'000}, kGiB}) {
            const SnapshotPlan plan = SnapshotPlan::of(spec(), {1, 1}, file_bytes);
            for (const int world : {1, 2, 5, 9}) {
                std::vector<std::vector<int>> written;
                for (const PlannedFile& file : plan.files) {
                    written.emplace_back(file.bytes - file.header, 0);
                }
                for (const ElementRange& shard : cut_shards(layout.elements, {}, world)) {
                    const auto stage =
                        SnapshotStage::make(plan, layout, arrays.pointers(), shard, nullptr)
                            .value();
                    stage->save_all();
                    CHECK(wrong_in(*stage) == 0);
                    for (const SnapshotStage::Extent& extent : stage->extents()) {
                        const auto place = reinterpret_cast<std::uintptr_t>(extent.data);
                        CHECK(place % kDiskBlock == extent.offset % kDiskBlock);
                        const Bytes header = plan.files[extent.file].header;
                        for (Bytes i = 0; i < extent.bytes; ++i) {
                            ++written[extent.file][extent.offset - header + i];
                        }
                    }
                }
                for (const auto& file : written) {
                    CHECK(std::ranges::all_of(file, [](int times) { return times == 1; }));
                }
            }
        }
    }

    TEST_CASE("what a step is about to change is as it was, also while the other thread saves") {
        const ParameterLayout layout = ParameterLayout::of(spec());
        const SnapshotPlan plan = SnapshotPlan::of(spec(), {1, 1}, kGiB);
        const ElementRange shard{kBlockElements, layout.elements - kBlockElements};
        std::shared_ptr<SnapshotStage> stage;
        for (int round = 0; round < 50; ++round) {
            Arrays arrays(layout.elements);
            stage =
                SnapshotStage::make(plan, layout, arrays.pointers(), shard, stage.get()).value();
            std::thread writer([&] { stage->save_all(); });
            for (std::uint64_t at = shard.begin; at < shard.end; at += kLogElements) {
                const ElementRange chunk{at, at + kLogElements};
                stage->save(chunk);
                arrays.change(chunk);
            }
            writer.join();
            CHECK(wrong_in(*stage) == 0);
        }
    }

    TEST_CASE("what lies outside of the shard is another rank's to save") {
        const ParameterLayout layout = ParameterLayout::of(spec());
        const Arrays arrays(layout.elements);
        const SnapshotPlan plan = SnapshotPlan::of(spec(), {1, 1}, kGiB);
        const ElementRange shard{2 * kBlockElements, 4 * kBlockElements};
        const auto stage =
            SnapshotStage::make(plan, layout, arrays.pointers(), shard, nullptr).value();
        CHECK_FALSE(stage->save({0, 2 * kBlockElements}));
        CHECK_FALSE(stage->save({4 * kBlockElements, layout.elements}));
        CHECK(stage->save({3 * kBlockElements, 4 * kBlockElements}));
        CHECK_FALSE(stage->save(shard));  // one piece holds all of it
    }

    TEST_CASE("a rank without a shard has nothing to write") {
        const ParameterLayout layout = ParameterLayout::of(spec());
        const Arrays arrays(layout.elements);
        const SnapshotPlan plan = SnapshotPlan::of(spec(), {1, 1}, kGiB);
        const auto stage =
            SnapshotStage::make(plan, layout, arrays.pointers(), {1024, 1024}, nullptr).value();
        stage->save_all();
        CHECK(stage->extents().empty());
        CHECK(stage->parts().empty());
    }
}
