// Operations that are captured into graphs of the mock driver, which keeps a launch with its
// argument as it was and does it when the graph is launched. Nothing here ran on a GPU.

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/mock_gpu/stream_ranks.hpp"

using namespace fabricshm;
using namespace mock_gpu;
using kernels::cuda::CollectiveKind;

namespace {

constexpr gpu::Status kInvalidated = 901;

// The driver's functions that a program captures with: the library needs none of them.
template <typename Function>
Function* function_of(const char* name) {
    static void* const library = ::dlopen(mock_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* const found = ::dlsym(library, name);
    REQUIRE(found != nullptr);
    return reinterpret_cast<Function*>(found);
}

gpu::Handle stream_of(int rank) {
    return reinterpret_cast<gpu::Handle>(static_cast<std::uintptr_t>(0x100 + rank));
}

void begin_capture(gpu::Handle stream) {
    REQUIRE(function_of<gpu::Status(gpu::Handle, int)>("cuStreamBeginCapture_v2")(stream, 0) == 0);
}

gpu::Status end_capture(gpu::Handle stream, gpu::Handle* graph) {
    return function_of<gpu::Status(gpu::Handle, gpu::Handle*)>("cuStreamEndCapture")(stream, graph);
}

/// What `put` puts on a stream, for as many launches as wanted.
class Captured {
  public:
    template <typename Put>
    Captured(gpu::Handle stream, const Put& put) {
        begin_capture(stream);
        put(stream);
        REQUIRE(end_capture(stream, &graph_) == 0);
        REQUIRE(function_of<gpu::Status(gpu::Handle*, gpu::Handle, unsigned long long)>(
                    "cuGraphInstantiateWithFlags")(&executable_, graph_, 0) == 0);
    }
    ~Captured() {
        function_of<gpu::Status(gpu::Handle)>("cuGraphExecDestroy")(executable_);
        function_of<gpu::Status(gpu::Handle)>("cuGraphDestroy")(graph_);
    }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;

    bool launch(gpu::Handle stream) const {
        return function_of<gpu::Status(gpu::Handle, gpu::Handle)>("cuGraphLaunch")(executable_,
                                                                                   stream) == 0;
    }

  private:
    gpu::Handle graph_ = nullptr;
    gpu::Handle executable_ = nullptr;
};

// By rank; none for those on CPUs.
using Graphs = std::vector<std::unique_ptr<Captured>>;

gpu::DeviceCall barrier() {
    return call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0);
}

bool names_the_capture(const Error& error) {
    return error.code == Errc::kInvalid && std::strstr(reason_of(error), "captured") != nullptr;
}

}  // namespace

TEST_SUITE("cuda.graphs") {
    TEST_CASE("a captured allreduce runs when it is replayed, with what is in memory then") {
        constexpr int kWorld = 3;
        constexpr int kReplays = 6;
        constexpr std::uint64_t kCount = kStageBytes / 8 * 2 + 3;  // cut into pieces
        for (const unsigned int cpus : {0b000U, 0b001U}) {
            Ranks ranks(kWorld, std::chrono::seconds(60), cpus);
            ranks.host.argument_size = argument_size;
            const auto call = [&](int rank) {
                std::byte* input = ranks.own(rank, rank == 1 ? Where::kPool : Where::kDevice);
                return call_of(CollectiveKind::kAllReduce, input, input + kPerRank / 2, kCount);
            };
            Graphs graphs(kWorld);
            const std::size_t held = ranks.host.pinned.size();
            // One after the other: no launch waits for the other ranks.
            for (int rank = 0; rank < kWorld; ++rank) {
                if (ranks.is_cpu(rank)) continue;
                const auto index = static_cast<std::size_t>(rank);
                graphs[index] = std::make_unique<Captured>(stream_of(rank), [&](gpu::Handle on) {
                    CHECK(ranks.groups[index]->run(call(rank), on).ok());
                    CHECK(ranks.groups[index]->status().ok());
                });
            }
            CHECK(ranks.host.launches.empty());
            CHECK(ranks.host.pinned.size() == held);  // no memory was taken
            std::vector<int> good(kWorld);
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                const auto index = static_cast<std::size_t>(rank);
                const auto own = call(rank);
                for (int round = 0; round < kReplays; ++round) {
                    auto* values = static_cast<float*>(const_cast<void*>(own.input));
                    for (std::uint64_t i = 0; i < kCount; ++i) {
                        values[i] = value_of(rank + round, i);
                    }
                    bool done = ranks.is_cpu(rank) ? group.run(own, nullptr).ok()
                                                   : graphs[index]->launch(stream_of(rank));
                    // And others in between.
                    if (round % 2 == 1) {
                        const gpu::Handle on = ranks.is_cpu(rank) ? nullptr : stream_of(rank);
                        done = done && group.run(barrier(), on).ok();
                    }
                    done = done && group.status().ok();
                    const auto* sums = static_cast<const float*>(own.output);
                    for (std::uint64_t i = 0; i < kCount; ++i) {
                        float sum = 0;
                        for (int r = 0; r < kWorld; ++r) sum += value_of(r + round, i);
                        if (sums[i] != sum) done = false;
                    }
                    if (done) ++good[index];
                }
            });
            for (const int all : good) CHECK(all == kReplays);
        }
    }

    TEST_CASE("a replayed step takes the factors that are in memory when it runs") {
        constexpr int kWorld = 2;
        constexpr std::uint64_t kEach = 100;
        constexpr std::uint64_t kTotal = kEach * kWorld;
        constexpr double kRates[] = {0.5, 0.25, 1};
        Ranks ranks(kWorld);
        ranks.host.argument_size = argument_size;
        Graphs graphs(kWorld);
        const auto factors = [&](int rank) { return ranks.own(rank, Where::kPool) + 32768; };
        for (int rank = 0; rank < kWorld; ++rank) {
            const auto index = static_cast<std::size_t>(rank);
            std::byte* memory = ranks.own(rank, Where::kPool);
            fill(memory, rank, kTotal);
            std::memset(memory + 16384, 0, kEach * sizeof(float));
            gpu::DeviceStep step;
            step.rule = kernels::Rule::kSgd;
            step.scale = 0.5F;
            step.total = kTotal;
            step.begin = index * kEach;
            step.count = kEach;
            step.factors = factors(rank);
            step.gradient = memory;
            step.publish = memory + 8192;
            step.parameters = memory + 16384;
            graphs[index] = std::make_unique<Captured>(stream_of(rank), [&](gpu::Handle on) {
                CHECK(ranks.groups[index]->step(step, on).ok());
            });
        }
        std::vector<int> good(kWorld);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            double moved = 0;  // of every parameter, for each unit of its mean gradient
            for (const double rate : kRates) {
                kernels::Hyper hyper;
                hyper.learning_rate = rate;
                const auto made = kernels::make_step_factors(kernels::Rule::kSgd, hyper, 1);
                std::memcpy(factors(rank), &made, sizeof made);
                bool done = graphs[static_cast<std::size_t>(rank)]->launch(stream_of(rank)) &&
                            group.status().ok();
                moved += rate;
                const auto* all =
                    reinterpret_cast<const float*>(ranks.own(rank, Where::kPool) + 8192);
                for (std::uint64_t i = 0; i < kTotal; ++i) {
                    // Quarters and eighths of small whole numbers: exact.
                    const double mean = (value_of(0, i) + value_of(1, i)) * 0.5;
                    if (all[i] != -moved * mean) done = false;
                }
                if (done) ++good[static_cast<std::size_t>(rank)];
            }
        });
        for (const int all : good) CHECK(all == static_cast<int>(std::size(kRates)));
    }

    TEST_CASE("a rank that replays once more than the others waits for them until the timeout") {
        Ranks ranks(2, std::chrono::milliseconds(20));
        ranks.host.argument_size = argument_size;
        Graphs graphs(2);
        for (const int rank : {0, 1}) {
            const auto index = static_cast<std::size_t>(rank);
            graphs[index] = std::make_unique<Captured>(stream_of(rank), [&](gpu::Handle on) {
                CHECK(ranks.groups[index]->run(barrier(), on).ok());
            });
        }
        CHECK(graphs[0]->launch(stream_of(0)));
        const auto late = ranks.groups[0]->status();
        CHECK(late.error().code == Errc::kTimeout);
        CHECK(late.error().detail == 1);
        // What is replayed afterwards ends at once, and the others hear of the failure.
        CHECK(graphs[0]->launch(stream_of(0)));
        CHECK(ranks.groups[0]->status().error().code == Errc::kTimeout);
        CHECK(graphs[1]->launch(stream_of(1)));
        CHECK(ranks.groups[1]->status().error().code == Errc::kPeer);
        CHECK(ranks.groups[1]->status().error().detail == 0);
    }

    TEST_CASE("to wait for a stream that is captured is refused, and the capture goes on") {
        Ranks ranks(1);
        ranks.host.argument_size = argument_size;
        const Captured graph(stream_of(0), [&](gpu::Handle on) {
            CHECK(ranks.groups[0]->run(barrier(), on).ok());
            const auto waited = ranks.groups[0]->wait(on, Clock::now());
            CHECK(names_the_capture(waited.error()));
        });
        CHECK(graph.launch(stream_of(0)));
        CHECK(ranks.groups[0]->wait(stream_of(0), Clock::now()).ok());
    }

    TEST_CASE("the legacy stream is refused while another is captured, and nothing has failed") {
        Ranks ranks(1);
        ranks.host.argument_size = argument_size;
        const Captured graph(stream_of(0), [&](gpu::Handle on) {
            CHECK(names_the_capture(ranks.groups[0]->run(barrier(), nullptr).error()));
            CHECK(names_the_capture(ranks.groups[0]->step({}, nullptr).error()));
            CHECK(names_the_capture(ranks.groups[0]->wait(nullptr, Clock::now()).error()));
            CHECK(ranks.groups[0]->run(barrier(), on).ok());
        });
        CHECK(ranks.host.launches.empty());
        CHECK(graph.launch(stream_of(0)));
        CHECK(ranks.groups[0]->run(barrier(), nullptr).ok());
        CHECK(ranks.groups[0]->status().ok());
        CHECK(ranks.host.launches.size() == 2);
    }

    TEST_CASE("a group is not made while a stream is captured, which is said") {
        Ranks ranks(1);
        begin_capture(stream_of(0));
        gpu::DevicePlace place;
        place.block = kBuffersAt;
        gpu::format_device_group(ranks.base + kBuffersAt, 1, 1);
        const auto made = gpu::DeviceGroup::make(ranks.arena, place, nullptr);
        CHECK(names_the_capture(made.error()));
        // To take memory has broken the capture, as the driver does it.
        gpu::Handle graph = nullptr;
        CHECK(end_capture(stream_of(0), &graph) == kInvalidated);
        CHECK(gpu::DeviceGroup::make(ranks.arena, place, nullptr).ok());
    }

    TEST_CASE("a graph from before an export fails instead of taking places of before") {
        Ranks ranks(1);
        ranks.host.argument_size = argument_size;
        std::byte* own = ranks.own(0, Where::kDevice);
        const auto put = [&](gpu::Handle on) {
            CHECK(ranks.groups[0]->run(call_of(CollectiveKind::kAllReduce, own, own, 64), on).ok());
        };
        {
            const Captured before(stream_of(0), put);
            CHECK(before.launch(stream_of(0)));
            CHECK(ranks.groups[0]->status().ok());
        }
        REQUIRE(ranks.export_all(0b1).ok());
        const Captured after(stream_of(0), put);
        CHECK(after.launch(stream_of(0)));
        CHECK(ranks.groups[0]->status().ok());
        ranks.groups[0]->use(nullptr);
        CHECK(after.launch(stream_of(0)));
        const auto status = ranks.groups[0]->status();
        REQUIRE_FALSE(status.ok());
        CHECK(status.error().code == Errc::kBroken);
        CHECK(std::strstr(reason_of(status.error()), "capture it again") != nullptr);
    }
}
