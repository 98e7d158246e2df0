// How fast is gloo (TCP on the loopback interface) at the collectives, with each of its algorithms?

#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "bench/driver.hpp"

namespace {

using Operation = std::function<void()>;

/// gloo's own constructs (class per algorithm, buffers bound at construction) work in place; out of
/// place the input is copied first, as a caller would have to.
template <class Algorithm>
Operation bound(std::shared_ptr<Algorithm> algorithm, const bench::Buffers& b) {
    if (b.input == b.output) return [algorithm] { algorithm->run(); };
    return [algorithm, b] {
        std::memcpy(b.output, b.input, b.output_count * sizeof(float));
        algorithm->run();
    };
}

class GlooContender final : public bench::Contender {
  public:
    GlooContender(int rank, int world, const std::string& store_folder,
                  const std::string& interface_address) {
        gloo::transport::tcp::attr address;
        address.hostname = interface_address;
        auto device = gloo::transport::tcp::CreateDevice(address);
        auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
        // As long as the orchestrator waits for a turn by default; gloo gives up by throwing.
        context->setTimeout(std::chrono::minutes(2));
        // A folder of the run's own; gloo leaves files in it that no later run may find.
        gloo::rendezvous::FileStore store(store_folder);
        context->connectFullMesh(store, device);
        context_ = context;
        options_ = std::make_unique<gloo::BarrierOptions>(context_);
        flush_ = std::make_unique<gloo::BarrierAllToAll>(context_);
    }

    int rank() const override { return context_->rank; }
    int world() const override { return context_->size; }
    std::string version() const override {
        return "gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." +
               std::to_string(GLOO_VERSION_MINOR) + "." + std::to_string(GLOO_VERSION_PATCH);
    }

    // gloo's older constructs know one form each of their operation.
    std::string refuses(const bench::Case& wanted) const override {
        if (wanted.memory == bench::Memory::kArena) return "no arena";
        if (wanted.place == bench::Place::kShared) return "no shared result";
        using bench::Collective;
        const std::string& a = wanted.algorithm;
        const bool is_in_place = wanted.place == bench::Place::kIn;
        switch (wanted.collective) {
            case Collective::kAllreduce:
                return a == "ring" || a == "bcube" || a == "halving-doubling" || a == "chunked"
                           ? ""
                           : "no such algorithm";
            case Collective::kReduceScatter:
                return a == "halving-doubling" && is_in_place ? "" : "in place only";
            case Collective::kAllGather:
                if (a == "chunked" && is_in_place) return "out of place only";
                return a == "ring" || a == "chunked" ? "" : "no such algorithm";
            case Collective::kScan:
                return "no scan";
            case Collective::kSendRecv:
                return a == "ring" ? "" : "messages have no algorithms";
            default:
                return a == "ring" || a == "halving-doubling" ? "" : "no such algorithm";
        }
    }

    void prepare(const bench::Case& wanted, const std::vector<bench::Buffers>& pairs) override {
        // Its constructs bind buffers and open what they need when they are made: that is not
        // timed.
        for (const bench::Buffers& b : pairs) operations_.push_back(make(wanted, b));
    }

    void forget() override { operations_.clear(); }
    void run(std::size_t pair) override { operations_[pair](); }

    /// Says something on every pair, both ways: the constructs leave notifications behind, and one
    /// that arrives after its construct is gone would block its pair for ever.
    void barrier() override { flush_->run(); }

  private:
    Operation make(const bench::Case& wanted, const bench::Buffers& b) {
        using bench::Collective;
        const bool newer = wanted.algorithm == "ring";
        switch (wanted.collective) {
            case Collective::kAllreduce:
                return make_allreduce(wanted.algorithm, b);
            case Collective::kAllGather:
                return make_all_gather(wanted.algorithm, b);
            case Collective::kReduceScatter:
                return make_reduce_scatter(b);
            case Collective::kSendRecv:
                return make_ping_pong(b);
            case Collective::kBroadcast:
                return newer ? make_broadcast(b) : make_one_to_all(b);
            default:
                if (newer) return [this] { gloo::barrier(*options_); };
                return [barrier = std::make_shared<gloo::BarrierAllToAll>(context_)] {
                    barrier->run();
                };
        }
    }

    Operation make_allreduce(const std::string& algorithm, const bench::Buffers& b) {
        const std::vector<float*> buffer{b.output};
        // gloo counts in int: vectors beyond 8 GiB would need more.
        const int count = static_cast<int>(b.output_count);
        if (algorithm == "halving-doubling")
            return bound(
                std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context_, buffer, count),
                b);
        if (algorithm == "chunked")
            return bound(
                std::make_shared<gloo::AllreduceRingChunked<float>>(context_, buffer, count), b);
        const auto kind = algorithm == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                              : gloo::AllreduceOptions::Algorithm::BCUBE;
        return [this, kind, b] {
            gloo::AllreduceOptions options(context_);
            options.setAlgorithm(kind);
            // In place is an output without an input.
            if (b.input != b.output) options.setInput(b.input, b.input_count);
            options.setOutput(b.output, b.output_count);
            using Sum = void (*)(void*, const void*, const void*, std::size_t);
            options.setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
            gloo::allreduce(options);
        };
    }

    Operation make_all_gather(const std::string& algorithm, const bench::Buffers& b) {
        if (algorithm == "chunked") {
            auto ring = std::make_shared<gloo::AllgatherRing<float>>(
                context_, std::vector<const float*>{b.input}, b.output,
                static_cast<int>(b.input_count));
            return [ring] { ring->run(); };
        }
        const bool in_place = b.input >= b.output && b.input < b.output + b.output_count;
        return [this, in_place, b] {
            gloo::AllgatherOptions options(context_);
            if (!in_place) options.setInput(b.input, b.input_count);
            options.setOutput(b.output, b.output_count);
            gloo::allgather(options);
        };
    }

    Operation make_reduce_scatter(const bench::Buffers& b) {
        const std::vector<int> parts(static_cast<std::size_t>(world()),
                                     static_cast<int>(b.output_count));
        return bound(
            std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
                context_, std::vector<float*>{b.input}, static_cast<int>(b.input_count), parts),
            // Works in place on the input: the copy that bound() would make has nothing to do.
            {b.input, b.input, 0, 0});
    }

    Operation make_broadcast(const bench::Buffers& b) {
        return [this, b] {
            gloo::BroadcastOptions options(context_);
            options.setRoot(0);
            options.setOutput(b.output, b.output_count);
            gloo::broadcast(options);
        };
    }

    Operation make_one_to_all(const bench::Buffers& b) {
        auto algorithm = std::make_shared<gloo::BroadcastOneToAll<float>>(
            context_, std::vector<float*>{b.output}, static_cast<int>(b.output_count), 0);
        return [algorithm] { algorithm->run(); };
    }

    Operation make_ping_pong(const bench::Buffers& b) {
        const std::size_t bytes = b.input_count * sizeof(float);
        std::shared_ptr<gloo::transport::UnboundBuffer> input =
            context_->createUnboundBuffer(b.input, bytes);
        std::shared_ptr<gloo::transport::UnboundBuffer> output =
            context_->createUnboundBuffer(b.output, bytes);
        const int peer = bench::partner_of(rank());
        const bool serves = rank() % 2 == 0;
        return [input, output, peer, serves] {
            constexpr std::uint64_t kSlot = 7;  // no collective of gloo's own runs meanwhile
            for (const bool sends : {serves, !serves}) {
                if (sends) {
                    input->send(peer, kSlot);
                    input->waitSend();
                } else {
                    output->recv(peer, kSlot);
                    output->waitRecv();
                }
            }
        };
    }

    std::shared_ptr<gloo::Context> context_;
    std::unique_ptr<gloo::BarrierOptions> options_;
    std::unique_ptr<gloo::BarrierAllToAll> flush_;
    std::vector<Operation> operations_;
};

}  // namespace

int main(int argc, char** argv) {
    const std::string control = bench::option(argc, argv, "--control");
    // Before gloo starts its threads, which inherit it.
    if (bench::option(argc, argv, "--pin", "no") == "yes")
        bench::pin_to_core(std::stoi(bench::option(argc, argv, "--rank")));
    GlooContender contender(std::stoi(bench::option(argc, argv, "--rank")),
                            std::stoi(bench::option(argc, argv, "--world")),
                            bench::option(argc, argv, "--store"),
                            bench::option(argc, argv, "--address", "127.0.0.1"));
    return bench::serve(contender, control, bench::option(argc, argv, "--name"));
}
