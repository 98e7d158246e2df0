// What another process finds when a step is stopped: after any instruction of it, at random times,
// and in the midst of the stores of each block.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/kernel_set.hpp"
#include "tests/support/children.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/kernels/optimise_compare.hpp"

namespace {

using kernels::DType;
using kernels::Rule;
using kernels_test::available_sets;

constexpr int kMaxArrays = 4;

// A job whose arrays and log are shared with children, and what they were before.
class SharedJob {
  public:
    SharedJob(Rule rule, std::size_t count) : count_(count), arrays_(1 + row_of(rule).states()) {
        const std::size_t bytes = sizeof(Words) + (2 * kMaxArrays + 1) * count * sizeof(float);
        memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory_ != MAP_FAILED);
        bytes_ = bytes;
        words_ = new (memory_) Words;
        kernels_test::Random random(7);
        float* gradient = floats(2 * kMaxArrays);
        for (std::size_t i = 0; i < (2 * kMaxArrays + 1) * count; ++i) {
            floats(0)[i] = static_cast<float>(random() % 1000 + 1) / 64;
        }
        before_.assign(floats(0), floats(0) + arrays_ * count);
        gradients_[0] = gradients_[1] = gradient;
        job_.rule = rule;
        job_.factors = kernels::make_step_factors(rule, {.momentum = 0.9}, 2);
        job_.gradients = gradients_;
        job_.gradient_count = 2;
        job_.count = count;
        float** const arrays[] = {&job_.parameters, &job_.first, &job_.second, &job_.maximum};
        float** const logs[] = {&log_.parameters, &log_.first, &log_.second, &log_.maximum};
        for (std::size_t a = 0; a < arrays_; ++a) {
            *arrays[a] = floats(a);
            *logs[a] = floats(kMaxArrays + a);
        }
        log_.logged = &words_->logged;
        job_.undo = &log_;
    }
    ~SharedJob() { munmap(memory_, bytes_); }
    SharedJob(const SharedJob&) = delete;
    SharedJob& operator=(const SharedJob&) = delete;

    const kernels::OptimiseJob& job() const { return job_; }
    std::uint64_t logged() const { return words_->logged.load(std::memory_order_acquire); }

    void reset() {
        words_->logged.store(0);
        std::memcpy(floats(0), before_.data(), before_.size() * sizeof(float));
        // An old value in the log must be this job's.
        std::memset(floats(kMaxArrays), 0xff, kMaxArrays * count_ * sizeof(float));
    }

    // An element is altered only when the log has what it was.
    bool may_stop() const {
        const std::size_t logged = this->logged();
        if (logged > count_) return false;
        for (std::size_t a = 0; a < arrays_; ++a) {
            const float* old = before_.data() + a * count_;
            const float* log = floats(kMaxArrays + a);
            const float* now = floats(a);
            if (std::memcmp(log, old, logged * sizeof(float)) != 0) return false;
            const std::size_t rest = (count_ - logged) * sizeof(float);
            if (std::memcmp(now + logged, old + logged, rest) != 0) return false;
        }
        return true;
    }

    bool as_before() const {
        return std::memcmp(floats(0), before_.data(), before_.size() * sizeof(float)) == 0;
    }
    // Twice, because the process that does it may be killed, too.
    bool undo_restores() const {
        kernels::undo(job_);
        const bool restored = as_before();
        kernels::undo(job_);
        return restored && as_before();
    }

    // Elements from `from` on are as they were: as if the stores of a block had come so far.
    void put_back_from(std::size_t from) {
        for (std::size_t a = 0; a < arrays_; ++a) {
            std::memcpy(floats(a) + from, before_.data() + a * count_ + from,
                        (count_ - from) * sizeof(float));
        }
    }

  private:
    struct Words {
        alignas(64) std::atomic<std::uint64_t> logged{0};
        char pad[56];
    };
    // 0 to 3 parameters and state, 4 to 7 the log, 8 the gradient.
    float* floats(std::size_t array) const {
        return reinterpret_cast<float*>(static_cast<char*>(memory_) + sizeof(Words)) +
               array * count_;
    }

    std::size_t count_;
    std::size_t arrays_;
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
    Words* words_ = nullptr;
    std::vector<float> before_;
    const void* gradients_[2];
    kernels::OptimiseJob job_;
    kernels::UndoLog log_;
};

struct Walk {
    bool possible = true;
    long instructions = 0;
    bool sound = true;
    bool ended = false;
};

// Runs the job in a child, one instruction after the other, and looks at the memory after each.
Walk walk(const kernels::KernelSet& set, SharedJob& shared) {
    const pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
        raise(SIGSTOP);
        optimise_with(set, shared.job());
        _exit(0);
    }
    Walk walked;
    int status = 0;
    waitpid(child, &status, 0);
    while (WIFSTOPPED(status)) {
        walked.sound = walked.sound && shared.may_stop();
        ++walked.instructions;
        if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) break;
        if (waitpid(child, &status, 0) != child) break;
    }
    walked.ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    walked.possible = !(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    return walked;
}

}  // namespace

TEST_SUITE("kernels.optimise_undo") {
    TEST_CASE("after every instruction of a step the log has what was altered") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const kernels::RuleRow& row : kernels::kRuleRows) {
                // Of the rules those with the least and the most state, as each instruction costs
                // two changes of process; a block, and a part of one that fills no register.
                if (row.second != row.maximum) continue;
                if (set == available_sets().front() && !row.maximum) continue;
                const std::size_t count = kernels::kBlockElements + 5;
                SharedJob shared(row.rule, count);
                shared.reset();
                const Walk walked = walk(*set, shared);
                if (!walked.possible) return test_support::skip("ptrace() is not permitted here");
                INFO(set->name << " " << row.name);
                CHECK(walked.sound);
                CHECK(walked.ended);
                CHECK(walked.instructions > 100);
                CHECK(shared.logged() == count);
                CHECK_FALSE(shared.as_before());
                CHECK(shared.undo_restores());
            }
        }
    }

    TEST_CASE("stopped in the midst of a block's stores, a step is undone") {
        for (const kernels::RuleRow& row : kernels::kRuleRows) {
            SharedJob shared(row.rule, 4 * kernels::kBlockElements + 9);
            const std::size_t count = shared.job().count;
            for (std::size_t logged = 0; logged < count; logged += kernels::kBlockElements) {
                for (const std::size_t stored : {0, 1, 17, 255}) {
                    shared.reset();
                    kernels::OptimiseJob begun = shared.job();
                    begun.count = std::min(count, logged + kernels::kBlockElements);
                    kernels::optimise(begun);
                    shared.put_back_from(std::min(begun.count, logged + stored));
                    CHECK(shared.may_stop());
                    CHECK(shared.undo_restores());
                }
            }
        }
    }

    TEST_CASE("killed at any time, a step is undone by another process") {
        constexpr std::size_t kCount = 100'000;
        SharedJob shared(Rule::kMaxAdaBelief, kCount);
        kernels_test::Random random(3);
        int interrupted = 0;
        for (int round = 0; round < 60; ++round) {
            shared.reset();
            const std::uint64_t from = random() % kCount;
            test_support::Child child([&] {
                kernels::optimise(shared.job());
                return 0;
            });
            // The round ends in any case: a step that is done has logged all.
            while (shared.logged() < from) {
            }
            child.kill();
            if (shared.logged() < kCount) ++interrupted;
            CHECK(shared.may_stop());
            CHECK(shared.undo_restores());
        }
        MESSAGE(interrupted, " of 60 rounds were interrupted");
    }

    TEST_CASE("a log that begins elsewhere counts from there") {
        SharedJob shared(Rule::kSgd, 300);
        shared.reset();
        kernels::UndoLog log = *shared.job().undo;
        kernels::OptimiseJob job = shared.job();
        log.base = 1'000'000;
        job.undo = &log;
        log.logged->store(log.base);
        kernels::undo(job);
        CHECK(shared.as_before());
        kernels::optimise(job);
        CHECK(log.logged->load() == 1'000'300);
        // Of a chunk before, nothing is in this log.
        log.base = 2'000'000;
        kernels::undo(job);
        CHECK_FALSE(shared.as_before());
        log.base = 1'000'000;
        kernels::undo(job);
        CHECK(shared.as_before());
    }
}
