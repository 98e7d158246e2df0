// One rank of the job of tests/support/fault_job.hpp.

#pragma once

#include <fabricshm/fabricshm.h>
#include <fabricshm/optim.h>
#include <fabricshm/shard.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/fault_job.hpp"

namespace test_support {

/// Plays the part of one rank, in a process of its own.
class FaultPlayer {
  public:
    FaultPlayer(JobBoard& board, std::string socket, int rank)
        : board_(board), socket_(std::move(socket)), rank_(rank) {}
    ~FaultPlayer() {
        fabricshm_parameters_close(set_);
        if (group_ != nullptr) fabricshm_group_leave(group_);
        for (fabricshm_shard* shard : shards_) fabricshm_shard_close(shard);
        fabricshm_session_close(session_);
    }
    FaultPlayer(const FaultPlayer&) = delete;
    FaultPlayer& operator=(const FaultPlayer&) = delete;

    /// True when all was as it has to be.
    bool play() {
        return attach() && make_data() && make_shard() && stand_at(kStageReady) && read_peers() &&
               enter() && rounds() && read_shards() && rounds() && move_shard() &&
               stand_at(kStageMiddle) && change_data() && change_shard() && rounds() &&
               stand_at(kStageMourning) && rounds() && stand_at(kStageEnd) && give_back();
    }

  private:
    bool report(const char* format, ...) const __attribute__((format(printf, 2, 3)));

    // Runs a call that has a timeout of kTimeoutMs, and sees to it that it took no longer.
    int timed(const char* step, const std::function<int()>& call);
    // Again for as long as the daemon is away.
    bool insist(const char* step, const std::function<int()>& call);
    bool until(const char* what, const std::function<bool()>& reached);

    std::size_t own_index() const { return static_cast<std::size_t>(rank_); }
    bool is_dead(int rank) const { return board_.dead[rank].load(); }
    JobBoard::Rank& own() const { return board_.ranks[static_cast<std::size_t>(rank_)]; }

    bool stand_at(JobStage stage) {
        own().stage = stage;
        return until("all ranks are at a stage", [&] { return board_.opened >= stage; });
    }

    bool attach();
    bool make_data();
    bool read_peers();
    bool change_data();
    bool lose_memory();
    bool enter();
    bool rounds();
    bool make_shard();
    bool write_shard(std::uint64_t version);
    bool read_shard(int peer, fabricshm_shard* shard, std::uint64_t version);
    bool read_shards();
    bool move_shard();
    bool change_shard();
    bool give_back();

    void claim(std::uint64_t id, std::uint64_t generation, std::uint64_t offset,
               std::uint64_t bytes);
    bool make_region();
    bool region_intact();
    void write_tensor(std::uint64_t version);
    bool read_tensor(int peer, const fabricshm_tensor& tensor, std::uint64_t version);
    float expected_sum(std::uint64_t i, std::uint64_t version) const;
    int collectives();
    int allreduce(fabricshm_algorithm algorithm, fabricshm_trigger trigger, float* buffer,
                  std::uint64_t count);
    int scan(float* buffer, std::uint64_t count);
    int gather();
    int share_output(std::uint64_t count);
    int messages(std::uint64_t count);
    int offered_messages(std::uint64_t count, bool late);
    int message(int to, int from, const float* sent, float* received, std::uint64_t count);
    bool shrink();
    int train();
    int open_parameters();
    bool leave_model(fabricshm_group* alone);
    int recover_parameters(fabricshm_group* group);
    void step_model(std::uint64_t version);

    static constexpr std::int64_t kTimeoutMs = 15'000;
    static constexpr std::uint64_t kCount = 20'000;  // floats of the larger collectives
    static constexpr std::uint64_t kWire = 1
                                           << 18;  // of the largest message, and half of `shared_`
    static constexpr int kWrong = -100;            // no code of the library: a wrong result
    // What rank `rank` writes at place `i` of anything, for version or call `version`.
    static float pattern(int rank, std::uint64_t i, std::uint64_t version) {
        return static_cast<float>((rank + 1) * static_cast<int>(i % 7 + 1)) +
               static_cast<float>(version * 64);
    }

    JobBoard& board_;
    std::string socket_;
    int rank_;
    bool overdue_ = false;
    fabricshm_session* session_ = nullptr;
    fabricshm_arena* arena_ = nullptr;
    fabricshm_region region_{};
    fabricshm_tensor tensor_{};
    std::array<fabricshm_tensor, kJobRanks> peers_{};
    float* shared_ = nullptr;                           // in the arena
    std::array<fabricshm_shard*, kJobRanks> shards_{};  // the own one, and those of the peers
    fabricshm_group* group_ = nullptr;
    fabricshm_parameters* set_ = nullptr;
    std::vector<float> model_;    // what the set's parameters have to be
    std::uint64_t stepping_ = 0;  // the version of the step that failed; 0: none did
    std::vector<int> members_;    // of group_: ranks of the job, in the group's order
    std::size_t round_ = 0;
    std::uint64_t version_ = 1;  // of what is computed with: differs from call to call
};

}  // namespace test_support
