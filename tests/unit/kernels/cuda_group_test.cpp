// The collectives of CUDA kernels, run on the CPU: each rank is a grid of threads.

#include <doctest/doctest.h>

#include <barrier>
#include <memory>
#include <string>

#include "kernels/cpu/kernel_set.hpp"
#include "kernels/cuda/collective_body.hpp"
#include "kernels/cuda/step_body.hpp"
#include "tests/support/device_group.hpp"

namespace {

using kernels::DType;
using kernels::ReduceOp;
using kernels::cuda::Algorithm;
using kernels::cuda::CollectiveArgs;
using kernels::cuda::CollectiveKind;
using kernels::cuda::Outcome;
using test_support::Address;
using test_support::DeviceGroup;
using test_support::GridShape;
using test_support::GroupBuffer;
using test_support::ThreadGrid;

std::vector<GridShape> shapes_of(int world, unsigned blocks, unsigned threads, std::uint64_t seed) {
    std::vector<GridShape> shapes;
    for (int rank = 0; rank < world; ++rank) {
        shapes.push_back({blocks, threads, {seed == 0 ? 0 : seed * 1000 + rank * 500, 0}});
    }
    return shapes;
}

/// One collective of f32 (or bytes) with a buffer in and a buffer out for each rank.
struct Scene {
    Scene(DeviceGroup& group, int world, CollectiveKind kind, std::uint64_t count)
        : group(group), world(world) {
        for (int rank = 0; rank < world; ++rank) {
            CollectiveArgs one = {};
            one.group = group.args(rank);
            one.kind = kind;
            one.type = DType::kF32;
            one.op = ReduceOp::kSum;
            one.divisor = world;
            one.count = count;
            args.push_back(one);
        }
    }
    void give(int rank, const GroupBuffer& input, const GroupBuffer& output) {
        args[rank].input = input.address();
        args[rank].shown_input = input.place;
        args[rank].output = output.address();
        args[rank].shown_output = output.place;
        inputs.push_back(input);
        outputs.push_back(output);
    }
    /// Values that no sum of floats holds exactly, others for each rank.
    void fill(std::size_t count) {
        for (int rank = 0; rank < world; ++rank) {
            for (std::size_t i = 0; i < count; ++i) {
                inputs[rank].as<float>()[i] = value(rank, i);
            }
        }
    }
    static float value(int rank, std::size_t i) {
        return (static_cast<float>(rank) + 0.1f) / (static_cast<float>(i % 97) + 3.0f);
    }
    /// In the order of ranks, each sum rounded.
    float sum(std::size_t i) const {
        float sum = value(0, i);
        for (int rank = 1; rank < world; ++rank) sum = sum + value(rank, i);
        return sum;
    }
    float ring_sum(std::size_t i, std::size_t count) const {
        float sum = 0;
        bool begins = true;
        test_support::in_ring_order(i, count, world, [&](int rank) {
            sum = begins ? value(rank, i) : sum + value(rank, i);
            begins = false;
        });
        return sum;
    }
    auto body() const {
        return [this](ThreadGrid& grid, int rank) {
            kernels::cuda::collective_body(grid, args[static_cast<std::size_t>(rank)],
                                           kernels::cuda::SpanWork());
        };
    }
    std::vector<bool> run(std::span<const GridShape> shapes) { return group.run(shapes, body()); }

    DeviceGroup& group;
    int world;
    std::vector<CollectiveArgs> args;
    std::vector<GroupBuffer> inputs, outputs;
};

constexpr std::size_t kCounts[] = {0, 1, 3, 16, 17, 255, 1000, 4099};

std::size_t wrong_sums(const Scene& scene, std::size_t count) {
    std::size_t wrong = 0;
    for (int rank = 0; rank < scene.world; ++rank) {
        for (std::size_t i = 0; i < count; ++i) {
            wrong += scene.outputs[static_cast<std::size_t>(rank)].as<float>()[i] != scene.sum(i);
        }
    }
    return wrong;
}

bool all_ok(const DeviceGroup& group, int world, std::uint64_t operations) {
    for (int rank = 0; rank < world; ++rank) {
        if (group.status(rank).report != 0) return false;
        if (group.status(rank).operations != operations) return false;
    }
    return true;
}

}  // namespace

TEST_SUITE("kernels.cuda_group") {
    TEST_CASE("an allreduce gives every rank the sum in the order of ranks, flat and direct") {
        for (int world = 1; world <= 4; ++world) {
            DeviceGroup group(world);
            std::uint64_t operations = 0;
            for (const Algorithm algorithm : {Algorithm::kFlat, Algorithm::kDirect}) {
                for (const std::size_t count : kCounts) {
                    group.free_buffers();
                    Scene scene(group, world, CollectiveKind::kAllReduce, count);
                    for (int rank = 0; rank < world; ++rank) {
                        scene.args[rank].algorithm = algorithm;
                        const auto in = group.in_pool(count * 4, count % 3 == 0 ? 4 * rank : 0);
                        scene.give(rank, in, group.in_pool(count * 4));
                    }
                    scene.fill(count);
                    scene.run(shapes_of(world, 2, 2, count % 2));
                    CHECK(wrong_sums(scene, count) == 0);
                    CHECK(all_ok(group, world, ++operations));
                }
            }
        }
    }

    TEST_CASE("in place, buffers are never overwritten before all have read them") {
        DeviceGroup group(3);
        for (std::uint64_t round = 1; round <= 10; ++round) {
            group.free_buffers();
            Scene scene(group, 3, CollectiveKind::kAllReduce, 1000);
            for (int rank = 0; rank < 3; ++rank) {
                const auto buffer = group.in_pool(4000);
                scene.give(rank, buffer, buffer);
            }
            scene.fill(1000);
            scene.run(shapes_of(3, 2, 2, round));
            CHECK(wrong_sums(scene, 1000) == 0);
            CHECK(all_ok(group, 3, round));
        }
    }

    TEST_CASE("the ring adds up each chunk in the order of the ring, in place too") {
        for (int world = 1; world <= 4; ++world) {
            for (const std::size_t count : {0, 17, 1000, 4099}) {
                for (const bool in_place : {false, true}) {
                    DeviceGroup group(world);
                    Scene scene(group, world, CollectiveKind::kAllReduce, count);
                    for (int rank = 0; rank < world; ++rank) {
                        scene.args[rank].algorithm = Algorithm::kRing;
                        scene.args[rank].op = count == 1000 ? ReduceOp::kAvg : ReduceOp::kSum;
                        const auto in = group.in_pool(count * 4);
                        scene.give(rank, in, in_place ? in : group.in_pool(count * 4));
                    }
                    scene.fill(count);
                    scene.run(shapes_of(world, 1 + count % 3, 2, count));
                    std::size_t wrong = 0;
                    for (std::size_t i = 0; i < count; ++i) {
                        float sum = scene.ring_sum(i, count);
                        if (count == 1000) sum = sum / static_cast<float>(world);
                        for (const GroupBuffer& output : scene.outputs) {
                            wrong += output.as<float>()[i] != sum;
                        }
                    }
                    CHECK(wrong == 0);
                    CHECK(all_ok(group, world, 1));
                }
            }
        }
    }

    TEST_CASE("buffers may be in exported device memory, and outputs private") {
        for (const bool exported : {false, true}) {
            DeviceGroup group(3);
            Scene scene(group, 3, CollectiveKind::kAllReduce, 9000);
            for (int rank = 0; rank < 3; ++rank) {
                scene.give(rank, group.in_own(36000, true),
                           group.in_own(36000, exported || rank != 1));
            }
            scene.fill(9000);
            scene.run(shapes_of(3, 3, 1, 1));
            CHECK(wrong_sums(scene, 9000) == 0);
            CHECK(all_ok(group, 3, 1));
        }
    }

    TEST_CASE("every type and operation gives the bits of the scalar kernel") {
        constexpr int kWorld = 2;
        constexpr std::size_t kCount = 53;
        DeviceGroup group(kWorld);
        for (const auto& type : kernels::kDTypeRows) {
            for (const auto& op : kernels::kReduceOpRows) {
                if (!is_supported(type.type, op.op)) continue;
                group.free_buffers();
                Scene scene(group, kWorld, CollectiveKind::kAllReduce, kCount);
                const std::size_t bytes = kCount * type.size;
                std::vector<unsigned char> expected(bytes);
                for (int rank = 0; rank < kWorld; ++rank) {
                    scene.args[rank].type = type.type;
                    scene.args[rank].op = op.op;
                    scene.args[rank].algorithm = Algorithm::kDirect;
                    scene.give(rank, group.in_pool(bytes), group.in_pool(bytes));
                    std::uint64_t random = static_cast<std::uint64_t>(rank) + 99;
                    for (std::size_t i = 0; i < bytes; ++i) {
                        random = kernels::cuda::mix(random, i);
                        scene.inputs[rank].data[i] = static_cast<unsigned char>(random);
                    }
                }
                const void* sources[] = {scene.inputs[0].data, scene.inputs[1].data};
                void* destination = expected.data();
                kernels::ReduceJob job{type.type, op.op, sources, kWorld, &destination, 1, kCount};
                job.divisor = kWorld;
                reduce_with(*kernels::kernel_set(0), job);
                scene.run(shapes_of(kWorld, 1, 2, 0));
                for (const GroupBuffer& output : scene.outputs) {
                    const bool same = std::memcmp(output.data, expected.data(), bytes) == 0;
                    CHECK((same ? "" : std::string(type.name) + " " + op.name) == "");
                }
            }
        }
    }

    TEST_CASE("reduce_scatter gives each rank the sum of its part") {
        for (int world = 1; world <= 4; ++world) {
            for (const std::size_t count : kCounts) {
                DeviceGroup group(world);
                Scene scene(group, world, CollectiveKind::kReduceScatter, count);
                const std::size_t all = count * static_cast<std::size_t>(world);
                for (int rank = 0; rank < world; ++rank) {
                    scene.give(rank, group.in_pool(all * 4), group.in_own(count * 4, false));
                }
                scene.fill(all);
                scene.run(shapes_of(world, 2, 1, count));
                std::size_t wrong = 0;
                for (int rank = 0; rank < world; ++rank) {
                    for (std::size_t i = 0; i < count; ++i) {
                        const float result = scene.outputs[rank].as<float>()[i];
                        wrong += result != scene.sum(static_cast<std::size_t>(rank) * count + i);
                    }
                }
                CHECK(wrong == 0);
                CHECK(all_ok(group, world, 1));
            }
        }
    }

    TEST_CASE("all_gather gives every rank all parts, in place too") {
        for (const bool in_place : {false, true}) {
            for (const std::size_t count : kCounts) {
                constexpr int kWorld = 3;
                DeviceGroup group(kWorld);
                Scene scene(group, kWorld, CollectiveKind::kAllGather, count);
                for (int rank = 0; rank < kWorld; ++rank) {
                    const GroupBuffer output = group.in_pool(count * 4 * kWorld);
                    GroupBuffer part = group.in_pool(count * 4);
                    const std::size_t skipped = count * 4 * static_cast<std::size_t>(rank);
                    if (in_place) part = {output.data + skipped, output.place + skipped};
                    scene.give(rank, part, output);
                }
                scene.fill(count);
                scene.run(shapes_of(kWorld, 2, 1, count));
                std::size_t wrong = 0;
                for (const GroupBuffer& output : scene.outputs) {
                    for (std::size_t i = 0; i < count * kWorld; ++i) {
                        const auto rank = static_cast<int>(i / count);
                        wrong += output.as<float>()[i] != Scene::value(rank, i % count);
                    }
                }
                CHECK(wrong == 0);
            }
        }
    }

    TEST_CASE("broadcast gives every rank the root's bytes, and only the root shows an input") {
        for (int root = 0; root < 3; ++root) {
            DeviceGroup group(3);
            Scene scene(group, 3, CollectiveKind::kBroadcast, 1001);
            for (int rank = 0; rank < 3; ++rank) {
                scene.args[rank].root = root;
                const GroupBuffer in = rank == root ? group.in_pool(4004) : GroupBuffer{};
                scene.give(rank, in, group.in_own(4004, false));
            }
            for (std::size_t i = 0; i < 1001; ++i) {
                scene.inputs[root].as<float>()[i] = Scene::value(root, i);
            }
            scene.run(shapes_of(3, 2, 2, 1));
            std::size_t wrong = 0;
            for (const GroupBuffer& output : scene.outputs) {
                for (std::size_t i = 0; i < 1001; ++i) {
                    wrong += output.as<float>()[i] != Scene::value(root, i);
                }
            }
            CHECK(wrong == 0);
            CHECK(all_ok(group, 3, 1));
        }
    }

    TEST_CASE("one captured call repeats, over the end of its sequence too") {
        DeviceGroup group(2, 0xfffffffe);
        Scene scene(group, 2, CollectiveKind::kAllReduce, 64);
        for (int rank = 0; rank < 2; ++rank) {
            scene.give(rank, group.in_pool(256), group.in_pool(256));
        }
        for (std::uint64_t round = 1; round <= 5; ++round) {
            scene.fill(64);
            scene.run(shapes_of(2, 2, 1, round));
            CHECK(wrong_sums(scene, 64) == 0);
            CHECK(all_ok(group, 2, round));
        }
        CHECK(group.words(0).arrived == kernels::cuda::make_turn(DeviceGroup::kEpoch, 3));
    }

    TEST_CASE("what follows in a stream reads all that the peers stored") {
        constexpr int kWorld = 3, kOperations = 6;
        DeviceGroup group(kWorld);
        Scene scene(group, kWorld, CollectiveKind::kAllReduce, 200);
        // Kernels of one stream are one after the other: the threads of a rank wait for each other.
        std::vector<std::unique_ptr<std::barrier<>>> streams;
        for (int rank = 0; rank < kWorld; ++rank) {
            const auto buffer = group.in_pool(800);
            scene.give(rank, buffer, buffer);
            streams.push_back(std::make_unique<std::barrier<>>(4));
        }
        scene.fill(200);
        std::atomic<int> wrong{0};
        group.run(shapes_of(kWorld, 2, 2, 1), [&](ThreadGrid& grid, int rank) {
            const auto at = static_cast<std::size_t>(rank);
            CollectiveArgs args = scene.args[at];
            std::vector<float> expected;
            for (std::size_t i = 0; i < 200; ++i) expected.push_back(scene.sum(i));
            for (int operation = 0; operation < kOperations; ++operation) {
                args.algorithm = operation % 2 == 0 ? Algorithm::kDirect : Algorithm::kRing;
                kernels::cuda::collective_body(grid, args, kernels::cuda::SpanWork());
                streams[at]->arrive_and_wait();
                for (std::size_t i = 0; i < 200; ++i) {
                    if (scene.outputs[at].as<float>()[i] != expected[i]) ++wrong;
                    expected[i] = expected[i] + expected[i] + expected[i];
                }
                streams[at]->arrive_and_wait();
            }
        });
        CHECK(wrong == 0);
        CHECK(all_ok(group, kWorld, kOperations));
    }

    TEST_CASE("ranks of different grids work together, many operations in a row") {
        DeviceGroup group(4);
        Scene scene(group, 4, CollectiveKind::kAllReduce, 300);
        for (int rank = 0; rank < 4; ++rank) {
            scene.args[rank].algorithm = Algorithm::kDirect;
            scene.give(rank, group.in_pool(1200), group.in_pool(1200));
        }
        scene.fill(300);
        const GridShape shapes[] = {{1, 1, {1, 0}}, {2, 1, {2, 0}}, {1, 3, {3, 0}}, {2, 2, {4, 0}}};
        for (std::uint64_t round = 1; round <= 20; ++round) {
            for (const GroupBuffer& output : scene.outputs) std::memset(output.data, 0, 1200);
            scene.run(shapes);
            CHECK(wrong_sums(scene, 300) == 0);
            CHECK(all_ok(group, 4, round));
        }
    }

    TEST_CASE("a fused step gives the bits of the scalar kernel on each rank's share") {
        constexpr std::size_t kTotal = 1003;
        for (int world = 1; world <= 4; ++world) {
            for (const kernels::RuleRow& rule : kernels::kRuleRows) {
                DeviceGroup group(world);
                std::vector<std::vector<float>> gradients, shared(static_cast<std::size_t>(world));
                const auto start = [](std::size_t at, std::size_t array) {
                    return static_cast<float>(at % 31) / (7.0f + static_cast<float>(array));
                };
                kernels::Hyper hyper;
                hyper.momentum = rule.rule == kernels::Rule::kSgd ? 0.9 : 0;
                hyper.weight_decay = 0.01;
                const auto factors = make_step_factors(rule.rule, hyper, 3);
                std::vector<kernels::cuda::StepArgs> args(static_cast<std::size_t>(world));
                std::vector<GroupBuffer> in, out, state;
                for (int rank = 0; rank < world; ++rank) {
                    in.push_back(group.in_pool(kTotal * 4));
                    out.push_back(group.in_pool(kTotal * 4));
                    for (std::size_t i = 0; i < kTotal; ++i) {
                        in.back().as<float>()[i] = Scene::value(rank, i);
                    }
                }
                std::vector<const void*> sources;
                for (const GroupBuffer& one : in) sources.push_back(one.data);
                std::vector<float> expected[4];
                kernels::OptimiseJob job;
                float** const arrays[] = {&job.parameters, &job.first, &job.second, &job.maximum};
                for (std::size_t a = 0; a < 4; ++a) {
                    for (std::size_t i = 0; i < kTotal; ++i) expected[a].push_back(start(i, a));
                    *arrays[a] = expected[a].data();
                }
                job.rule = rule.rule;
                job.factors = factors;
                job.gradients = sources.data();
                job.gradient_count = world;
                job.scale = 1.0f / static_cast<float>(world);
                job.count = kTotal;
                optimise_with(*kernels::kernel_set(0), job);
                for (int rank = 0; rank < world; ++rank) {
                    auto& one = args[static_cast<std::size_t>(rank)];
                    const auto share = kernels::cuda::share_of_rank(kTotal, rank, world);
                    one.group = group.args(rank);
                    one.rule = rule.rule;
                    one.gradient_type = one.publish_type = DType::kF32;
                    one.scale = job.scale;
                    one.total = kTotal;
                    one.begin = share.begin;
                    one.count = share.end - share.begin;
                    one.factors = test_support::address_of(&factors);
                    Address* const fields[] = {&one.parameters, &one.first, &one.second,
                                               &one.maximum};
                    for (std::size_t a = 0; a < 4; ++a) {
                        state.push_back(group.in_own(one.count * 4, false));
                        for (std::size_t i = 0; i < one.count; ++i) {
                            state.back().as<float>()[i] = start(share.begin + i, a);
                        }
                        *fields[a] = state.back().address();
                    }
                    one.gradients[rank] = in[static_cast<std::size_t>(rank)].address();
                    one.publish = out[static_cast<std::size_t>(rank)].address();
                    one.shown_gradient = in[static_cast<std::size_t>(rank)].place;
                    one.shown_publish = out[static_cast<std::size_t>(rank)].place;
                }
                group.run(shapes_of(world, 2, 1, 1), [&](ThreadGrid& grid, int rank) {
                    kernels::cuda::step_body(grid, args[static_cast<std::size_t>(rank)]);
                });
                CHECK(all_ok(group, world, 1));
                for (const GroupBuffer& one : out) {
                    CHECK(std::memcmp(one.data, expected[0].data(), kTotal * 4) == 0);
                }
            }
        }
    }
}

TEST_SUITE("kernels.cuda_group.failures") {
    // Two of three ranks that call, with buffers for all.
    struct Trio {
        Trio() : group(3), scene(group, 3, CollectiveKind::kAllReduce, 100) {
            for (int rank = 0; rank < 3; ++rank) {
                scene.give(rank, group.in_pool(400), group.in_pool(400));
            }
            scene.fill(100);
        }
        void call(int ranks) {
            for (auto& args : scene.args) args.group.timeout_ns = group.timeout_ns;
            scene.run(shapes_of(ranks, 2, 2, 1));
        }
        DeviceGroup group;
        Scene scene;
    };

    TEST_CASE("a rank that never comes ends the wait at the deadline, by name") {
        Trio trio;
        trio.group.timeout_ns = 100'000;
        trio.call(2);
        const auto first = kernels::cuda::make_report(Outcome::kTimeout, 2);
        for (int rank = 0; rank < 2; ++rank) {
            const auto report = trio.group.status(rank).report;
            // The other may see the failure of this one before its own deadline.
            const bool expected = report == first ||
                                  kernels::cuda::outcome_of(report) == Outcome::kPeerFailed ||
                                  kernels::cuda::outcome_of(report) == Outcome::kTimeout;
            CHECK(expected);
            CHECK(trio.group.status(rank).operations == 0);
        }
    }

    TEST_CASE("the abort word ends every wait") {
        Trio trio;
        const auto report = kernels::cuda::make_report(Outcome::kAborted, 2);
        trio.group.run(shapes_of(2, 2, 2, 1), trio.scene.body(), [&] {
            std::atomic_ref<std::uint64_t>(trio.group.header().abort)
                .store(report, std::memory_order_release);
        });
        for (int rank = 0; rank < 2; ++rank) {
            const auto seen = kernels::cuda::outcome_of(trio.group.status(rank).report);
            CHECK((seen == Outcome::kAborted || seen == Outcome::kPeerFailed));
        }
    }

    TEST_CASE("a group that failed takes no more operations, and the first reason stays") {
        Trio trio;
        trio.group.timeout_ns = 100'000;
        trio.call(1);
        const auto report = kernels::cuda::make_report(Outcome::kTimeout, 1);
        CHECK(trio.group.status(0).report == report);
        trio.group.timeout_ns = std::uint64_t{1} << 62;
        trio.call(3);
        CHECK(trio.group.status(0).report == report);
        CHECK(trio.group.status(0).operations == 0);
        // For rank 1 it is rank 0 that failed; rank 2 hears of either.
        const auto failed = kernels::cuda::make_report(Outcome::kPeerFailed, 0);
        CHECK(trio.group.status(1).report == failed);
        const auto heard = trio.group.status(2).report;
        CHECK((heard == report || heard == failed));
    }

    TEST_CASE("ranks that call different operations all report it") {
        for (int turn = 0; turn < 20; ++turn) {
            Trio trio;
            trio.scene.args[1].count = 99;
            trio.call(3);
            for (int rank = 0; rank < 3; ++rank) {
                const auto report = trio.group.status(rank).report;
                CHECK(kernels::cuda::outcome_of(report) == Outcome::kMismatch);
                CHECK(kernels::cuda::rank_of(report) != rank);
            }
        }
    }

    TEST_CASE("a place outside its memory is never touched") {
        using kernels::cuda::make_place;
        using kernels::cuda::Space;
        const std::uint64_t bad[] = {make_place(Space::kPool, DeviceGroup::kPoolBytes),
                                     make_place(Space::kPool, DeviceGroup::kPoolBytes - 396),
                                     make_place(Space::kPool, (std::uint64_t{1} << 62) - 400),
                                     make_place(Space::kPool, 8193),
                                     make_place(static_cast<Space>(2), 8192)};
        for (const std::uint64_t place : bad) {
            for (const bool input : {true, false}) {
                Trio trio;
                auto& args = trio.scene.args[2];
                (input ? args.shown_input : args.shown_output) = place;
                trio.call(3);
                CHECK(trio.group.outcome(0) != Outcome::kOk);
                CHECK(trio.group.outcome(1) != Outcome::kOk);
                const auto seen = trio.group.outcome(0);
                CHECK((seen == Outcome::kBadPlace || seen == Outcome::kPeerFailed));
            }
        }
    }

    TEST_CASE("memory that is not mapped, a private input and a flat operation in place fail") {
        const auto fails = [](Outcome outcome, auto change) {
            Trio trio;
            for (auto& args : trio.scene.args) args.algorithm = Algorithm::kDirect;
            change(trio);
            trio.call(3);
            for (int rank = 0; rank < 2; ++rank) {
                const Outcome seen = trio.group.outcome(rank);
                CHECK((seen == outcome || seen == Outcome::kPeerFailed));
            }
        };
        fails(Outcome::kUnreachable,
              [](Trio& trio) { trio.scene.args[2].shown_input = kernels::cuda::kPrivatePlace; });
        fails(Outcome::kUnreachable,
              [](Trio& trio) { trio.scene.args[2].shown_output = kernels::cuda::kPrivatePlace; });
        fails(Outcome::kUnreachable, [](Trio& trio) {
            trio.scene.args[2].shown_input =
                kernels::cuda::make_place(kernels::cuda::Space::kDevice, 8192);
            for (auto& args : trio.scene.args) args.group.device[2] = {0, 0};
        });
        fails(Outcome::kBadPlace, [](Trio& trio) {
            for (auto& args : trio.scene.args) {
                args.algorithm = Algorithm::kFlat;
                args.shown_output = args.shown_input;
                args.output = args.input;
            }
        });
    }

    TEST_CASE("a block of another epoch, or none, is not touched") {
        Trio trio;
        trio.scene.args[0].group.epoch = 8;
        const GridShape shapes[] = {{2, 1, {}}};
        trio.scene.run(shapes);
        CHECK(trio.group.outcome(0) == Outcome::kBadEpoch);
        CHECK(trio.group.words(0).failure == 0);
    }

    TEST_CASE("a rank killed at any access leaves no other waiting") {
        for (const Algorithm algorithm : {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kRing}) {
            int ended = 0, survived = 0;
            // The ring has a word for each slice and step.
            const std::uint64_t last = algorithm == Algorithm::kRing ? 200 : 40;
            for (std::uint64_t at = 1; at <= last; at += last / 20) {
                Trio trio;
                for (auto& args : trio.scene.args) {
                    args.algorithm = algorithm;
                    args.group.timeout_ns = 200'000;
                }
                GridShape shapes[] = {{1, 1, {}}, {1, 1, {0, at}}, {2, 1, {at, 0}}};
                const std::vector<bool> lived = trio.scene.run(shapes);
                CHECK(lived[0]);
                CHECK(lived[2]);
                survived += lived[1];
                for (int rank : {0, 2}) {
                    const auto& status = trio.group.status(rank);
                    // Either the result is whole, or the rank says why not.
                    CHECK((status.operations == 1) != (status.report != 0));
                    ended += status.operations == 1;
                    if (status.operations != 1) continue;
                    std::size_t wrong = 0;
                    for (std::size_t i = 0; i < 100; ++i) {
                        const bool ring = algorithm == Algorithm::kRing;
                        const float sum = ring ? trio.scene.ring_sum(i, 100) : trio.scene.sum(i);
                        wrong += trio.scene.outputs[rank].as<float>()[i] != sum;
                    }
                    CHECK(wrong == 0);
                }
            }
            MESSAGE(ended << " operations ended well, the rank came to its end " << survived
                          << " times");
        }
    }
}
