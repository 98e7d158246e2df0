// Ranks of CPUs, which run host_rank.hpp, in one group with ranks that are grids, as GPUs' are.

#include <doctest/doctest.h>

#include "kernels/cuda/collective_body.hpp"
#include "kernels/cuda/host_rank.hpp"
#include "kernels/cuda/step_body.hpp"
#include "tests/support/device_group.hpp"

namespace {

using kernels::DType;
using kernels::ReduceOp;
using kernels::cuda::CollectiveArgs;
using kernels::cuda::CollectiveKind;
using kernels::cuda::Outcome;
using test_support::DeviceGroup;
using test_support::GridShape;
using test_support::GroupBuffer;
using test_support::ThreadGrid;

constexpr int kWorld = 4;
constexpr bool is_cpu(int rank) {
    return rank % 2 == 0;
}

float value_of(int rank, std::size_t i) {
    return (static_cast<float>(rank) + 0.3f) / (static_cast<float>(i % 89) + 7.0f);
}

float sum_in_order(std::size_t i) {
    float sum = value_of(0, i);
    for (int rank = 1; rank < kWorld; ++rank) sum = sum + value_of(rank, i);
    return sum;
}

float sum_in_ring(std::size_t i, std::size_t count) {
    std::vector<float> values;
    test_support::in_ring_order(i, count, kWorld,
                                [&](int rank) { values.push_back(value_of(rank, i)); });
    float sum = values[0];
    for (std::size_t v = 1; v < values.size(); ++v) sum = sum + values[v];
    return sum;
}

// A CPU's rank is one thread; the words are the same.
void run_mixed(DeviceGroup& group, const std::vector<CollectiveArgs>& args) {
    std::vector<GridShape> shapes;
    for (int rank = 0; rank < kWorld; ++rank) {
        const unsigned blocks = is_cpu(rank) ? 1 : 2;
        shapes.push_back({blocks, blocks, {static_cast<std::uint64_t>(rank) + 1, 0}});
    }
    group.run(shapes, [&](ThreadGrid& grid, int rank) {
        const CollectiveArgs& one = args[static_cast<std::size_t>(rank)];
        if (is_cpu(rank)) return kernels::cuda::run_collective_on_host(one);
        kernels::cuda::collective_body(grid, one, kernels::cuda::SpanWork());
    });
}

}  // namespace

TEST_SUITE("kernels.cuda_mixed") {
    TEST_CASE("CPUs and grids in one group get the same sums, every algorithm and collective") {
        using kernels::cuda::Algorithm;
        for (const std::size_t count : {1, 100, 5000}) {
            for (const CollectiveKind kind :
                 {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                  CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
                  CollectiveKind::kBarrier}) {
                for (const Algorithm algorithm :
                     {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kRing}) {
                    DeviceGroup group(kWorld);
                    const std::size_t all = count * kWorld;
                    std::vector<CollectiveArgs> args;
                    std::vector<GroupBuffer> outputs;
                    for (int rank = 0; rank < kWorld; ++rank) {
                        const GroupBuffer input = group.in_pool(all * 4);
                        outputs.push_back(group.in_pool(all * 4));
                        for (std::size_t i = 0; i < all; ++i) {
                            input.as<float>()[i] = value_of(rank, i);
                        }
                        CollectiveArgs one = {};
                        one.group = group.args(rank);
                        one.group.timeout_ns = 60'000'000'000;  // of a real clock, for the CPUs
                        one.kind = kind;
                        one.algorithm = algorithm;
                        one.type = DType::kF32;
                        one.op = ReduceOp::kSum;
                        one.root = 2;
                        one.divisor = 1;
                        one.count = count;
                        one.input = input.address();
                        one.output = outputs.back().address();
                        one.shown_input = input.place;
                        one.shown_output = outputs.back().place;
                        args.push_back(one);
                    }
                    run_mixed(group, args);
                    std::size_t wrong = 0;
                    for (int rank = 0; rank < kWorld; ++rank) {
                        CHECK(group.status(rank).operations == 1);
                        const auto* result = outputs[static_cast<std::size_t>(rank)].as<float>();
                        const std::size_t skipped = static_cast<std::size_t>(rank) * count;
                        for (std::size_t i = 0; i < count; ++i) {
                            switch (kind) {
                                case CollectiveKind::kAllReduce:
                                    wrong += result[i] != (algorithm == Algorithm::kRing
                                                               ? sum_in_ring(i, count)
                                                               : sum_in_order(i));
                                    break;
                                case CollectiveKind::kReduceScatter:
                                    wrong += result[i] != sum_in_order(skipped + i);
                                    break;
                                case CollectiveKind::kAllGather:
                                    for (int r = 0; r < kWorld; ++r) {
                                        const auto at = static_cast<std::size_t>(r) * count + i;
                                        wrong += result[at] != value_of(r, i);
                                    }
                                    break;
                                case CollectiveKind::kBroadcast:
                                    wrong += result[i] != value_of(2, i);
                                    break;
                                default:
                                    break;
                            }
                        }
                    }
                    CHECK(wrong == 0);
                }
            }
        }
    }

    TEST_CASE("a CPU's wait ends at its deadline and names the rank") {
        DeviceGroup group(2);
        CollectiveArgs args = {};
        args.group = group.args(0);
        args.group.timeout_ns = 5'000'000;
        args.kind = CollectiveKind::kBarrier;
        kernels::cuda::run_collective_on_host(args);
        CHECK(group.status(0).report == kernels::cuda::make_report(Outcome::kTimeout, 1));
        CHECK(group.words(0).failure == group.status(0).report);
    }

    TEST_CASE("a CPU's step in a group of one is the grid's") {
        DeviceGroup group(1);
        const std::size_t count = 777;
        const auto factors = make_step_factors(kernels::Rule::kAdamW, kernels::Hyper(), 2);
        GroupBuffer buffers[2][5];
        for (int run = 0; run < 2; ++run) {
            for (int b = 0; b < 5; ++b) {
                buffers[run][b] = group.in_pool(count * 4);
                for (std::size_t i = 0; i < count; ++i) {
                    buffers[run][b].as<float>()[i] = value_of(b, i);
                }
            }
            kernels::cuda::StepArgs args = {};
            args.group = group.args(0);
            args.group.timeout_ns = std::uint64_t{1} << 62;
            args.rule = kernels::Rule::kAdamW;
            args.gradient_type = args.publish_type = DType::kF32;
            args.scale = 1;
            args.total = args.count = count;
            args.factors = test_support::address_of(&factors);
            args.parameters = buffers[run][0].address();
            args.first = buffers[run][1].address();
            args.second = buffers[run][2].address();
            args.gradients[0] = buffers[run][3].address();
            args.publish = buffers[run][4].address();
            args.shown_gradient = buffers[run][3].place;
            args.shown_publish = buffers[run][4].place;
            if (run == 0) kernels::cuda::run_step_on_host(args);
            const GridShape shapes[] = {{2, 2, {}}};
            if (run == 1) {
                group.run(shapes,
                          [&](ThreadGrid& grid, int) { kernels::cuda::step_body(grid, args); });
            }
        }
        for (int b = 0; b < 5; ++b) {
            CHECK(std::memcmp(buffers[0][b].data, buffers[1][b].data, count * 4) == 0);
        }
        CHECK(group.status(0).operations == 2);
    }
}
