// How fast is the fabric at the collectives: buffers in the arena, outside it, result shared?

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "bench/driver.hpp"
#include "bench/fabric_step.hpp"

namespace {

// The library's own words, since a benchmark has nobody else to tell.
void need(int result, const char* step) {
    if (result == FABRICSHM_OK) return;
    bench::die(std::string(step) + ": " + fabricshm_error_name(result) + ": " +
               fabricshm_error_text());
}

struct Algorithm {
    const char* name;
    fabricshm_algorithm value;
};
constexpr Algorithm kAlgorithms[] = {
    {"auto", FABRICSHM_AUTO}, {"flat", FABRICSHM_FLAT},     {"direct", FABRICSHM_DIRECT},
    {"ring", FABRICSHM_RING}, {"staged", FABRICSHM_STAGED}, {"host", FABRICSHM_HOST},
};

const Algorithm* find_algorithm(const std::string& name) {
    for (const Algorithm& algorithm : kAlgorithms)
        if (name == algorithm.name) return &algorithm;
    return nullptr;
}

fabricshm_kind kind_of(bench::Collective collective) {
    switch (collective) {
        case bench::Collective::kAllreduce:
            return FABRICSHM_ALLREDUCE;
        case bench::Collective::kAllGather:
            return FABRICSHM_ALL_GATHER;
        case bench::Collective::kReduceScatter:
            return FABRICSHM_REDUCE_SCATTER;
        case bench::Collective::kBroadcast:
            return FABRICSHM_BROADCAST;
        case bench::Collective::kSendRecv:
            return FABRICSHM_SEND;
        case bench::Collective::kScan:
            // By its value: headers of older libraries do not have it, and refuses() finds out.
            return static_cast<fabricshm_kind>(11);
        case bench::Collective::kStep:
        case bench::Collective::kBarrier:
            break;
    }
    return FABRICSHM_BARRIER;
}

/// By the flag's value: this file is also built with headers of older libraries, which have neither
/// the name nor the field, and take a shared result as it is.
template <class Call>
void share_output(Call& call) {
    if constexpr (requires { call.flags; }) call.flags |= 1u;
}

/// Lines of dimensions from the file that is called as the case has bytes; without it one tensor.
std::vector<std::vector<std::int64_t>> read_shapes(const std::string& folder, std::size_t bytes) {
    std::vector<std::vector<std::int64_t>> shapes;
    std::ifstream file(folder + "/" + std::to_string(bytes));
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        shapes.emplace_back();
        for (std::int64_t length = 0; words >> length;) shapes.back().push_back(length);
    }
    if (shapes.empty()) shapes.push_back({static_cast<std::int64_t>(bytes / sizeof(float))});
    return shapes;
}

class FabricContender final : public bench::Contender {
  public:
    FabricContender(const std::string& socket, const std::string& arena, std::uint64_t bytes,
                    int rank, int world, std::string shapes)
        : shapes_(std::move(shapes)) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket.c_str();
        options.label = "bench";
        need(fabricshm_session_open(&options, &session_), "open the session");
        need(fabricshm_arena_open(session_, arena.c_str(), bytes, 0, &arena_), "open the arena");
        // All ranks are started together; half a minute is for a loaded machine.
        need(fabricshm_group_join(arena_, "bench", rank, world, 30'000, &group_), "join the group");
    }

    ~FabricContender() override {
        fabricshm_group_leave(group_);
        fabricshm_session_close(session_);
    }

    int rank() const override { return fabricshm_group_rank(group_); }
    int world() const override { return fabricshm_group_world(group_); }
    std::string version() const override { return std::string("fabricshm ") + fabricshm_version(); }

    std::string refuses(const bench::Case& wanted) const override {
        const bool is_shared = wanted.place == bench::Place::kShared;
        if (wanted.collective == bench::Collective::kSendRecv && wanted.algorithm != "auto")
            return "messages have no algorithms";
        if (wanted.collective == bench::Collective::kStep)
            return wanted.algorithm == "auto" || wanted.algorithm == "clip" ? "" : "no such step";
        if (is_shared && wanted.collective != bench::Collective::kAllreduce)
            return "only allreduce has the same result everywhere";
        if (wanted.collective == bench::Collective::kScan && !has_scan()) return "no scan";
        const Algorithm* algorithm = find_algorithm(wanted.algorithm);
        if (algorithm == nullptr) return "no such algorithm";
        // Both do only allreduce, and would otherwise be taken for something that they are not.
        const bool reduces_for_all =
            algorithm->value == FABRICSHM_RING || algorithm->value == FABRICSHM_HOST;
        if (reduces_for_all && wanted.collective != bench::Collective::kAllreduce)
            return "ring and host are for allreduce";
        return "";
    }

    // As the library has it: the result of a rank is its part, in its place.
    bool in_place_result_at_start() const override { return false; }

    void* allocate(bench::Memory memory, std::size_t bytes) override {
        if (memory == bench::Memory::kHeap) return Contender::allocate(memory, bytes);
        void* block = fabricshm_alloc(arena_, bytes);
        if (block == nullptr) bench::die("the arena is full: give --arena more bytes");
        return block;
    }

    void release(bench::Memory memory, void* block, std::size_t bytes) override {
        if (memory == bench::Memory::kHeap) return Contender::release(memory, block, bytes);
        fabricshm_free(arena_, block);
    }

    // One region for all, which rank 0 makes and the others find by its id: through the fabric
    // itself, as a program would.
    void* allocate_shared(std::size_t bytes) override {
        fabricshm_region region{};
        if (rank() == 0)
            need(fabricshm_region_create(arena_, bytes, &region), "make the shared result");
        std::uint64_t id = region.id;
        need(fabricshm_broadcast(group_, &id, 1, FABRICSHM_U64, 0), "tell the shared result");
        if (rank() != 0) need(fabricshm_region_open(arena_, id, &region), "open the shared result");
        shared_id_ = id;
        return region.base;
    }

    void release_shared(void* /*block*/, std::size_t /*bytes*/) override {
        // Peers may still be in their last read of it.
        need(fabricshm_barrier(group_), "barrier");
        if (rank() == 0) need(fabricshm_region_free(arena_, shared_id_), "free the shared result");
    }

    std::vector<bench::StepTensor> prepare_step(const bench::Case& wanted) override {
        step_ = bench::make_fabric_step(arena_, group_, read_shapes(shapes_, wanted.bytes),
                                        wanted.algorithm == "clip");
        if (!step_) bench::die("this library has no optimiser step");
        return step_->tensors();
    }

    void prepare(const bench::Case& wanted, const std::vector<bench::Buffers>& pairs) override {
        is_ping_pong_ = wanted.collective == bench::Collective::kSendRecv;
        // Built once per case: what is timed is the operation and not the filling in of its
        // arguments.
        for (const bench::Buffers& b : pairs) calls_.push_back(make_call(wanted, b));
    }

    void forget() override {
        calls_.clear();
        step_.reset();
    }

    void run(std::size_t pair) override {
        if (step_) return step_->run();
        if (is_ping_pong_) return ping_pong(calls_[pair]);
        need(fabricshm_run(group_, &calls_[pair]), "run");
    }

    void barrier() override { need(fabricshm_barrier(group_), "barrier"); }

  private:
    // Of no elements, so that a library that has it does nothing; refused without effect otherwise.
    bool has_scan() const {
        fabricshm_call call = fabricshm_call_make(static_cast<fabricshm_kind>(11), FABRICSHM_F32,
                                                  FABRICSHM_SUM, nullptr, nullptr, 0);
        call.timeout_ms = 30'000;
        return fabricshm_run(group_, &call) != FABRICSHM_EINVAL;
    }

    // The call is used for both directions: two fields differ, and setting them costs nothing
    // beside a message.
    void ping_pong(fabricshm_call& call) {
        const bool serves = rank() % 2 == 0;
        call.kind = serves ? FABRICSHM_SEND : FABRICSHM_RECV;
        need(fabricshm_run(group_, &call), serves ? "send" : "receive");
        call.kind = serves ? FABRICSHM_RECV : FABRICSHM_SEND;
        need(fabricshm_run(group_, &call), serves ? "receive" : "send");
    }

    fabricshm_call make_call(const bench::Case& wanted, const bench::Buffers& b) const {
        fabricshm_call call{};
        call.struct_size = sizeof call;
        call.kind = kind_of(wanted.collective);
        call.dtype = FABRICSHM_F32;
        call.op = FABRICSHM_SUM;
        call.algorithm = find_algorithm(wanted.algorithm)->value;
        call.input = b.input;
        call.output = b.output;
        // The library counts what a rank gives in all_gather, and the others by what it gets.
        const bool counts_input = wanted.collective == bench::Collective::kAllGather;
        call.count = counts_input ? b.input_count : b.output_count;
        call.peer = bench::partner_of(rank());
        call.timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
        if (wanted.place == bench::Place::kShared) share_output(call);
        return call;
    }

    std::string shapes_;
    std::unique_ptr<bench::FabricStep> step_;
    fabricshm_session* session_ = nullptr;
    fabricshm_arena* arena_ = nullptr;
    fabricshm_group* group_ = nullptr;
    std::uint64_t shared_id_ = 0;
    bool is_ping_pong_ = false;
    std::vector<fabricshm_call> calls_;
};

}  // namespace

int main(int argc, char** argv) {
    using bench::option;
    const std::string control = option(argc, argv, "--control");
    // Before the session opens: the library counts the cores that it may use.
    if (option(argc, argv, "--pin", "no") == "yes")
        bench::pin_to_core(std::stoi(option(argc, argv, "--rank")));
    FabricContender contender(
        option(argc, argv, "--socket"), option(argc, argv, "--arena"),
        std::stoull(option(argc, argv, "--arena-bytes")), std::stoi(option(argc, argv, "--rank")),
        std::stoi(option(argc, argv, "--world")), option(argc, argv, "--shapes", ""));
    return bench::serve(contender, control, option(argc, argv, "--name"));
}
