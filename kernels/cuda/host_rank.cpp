#include "kernels/cuda/host_rank.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/copy.hpp"
#include "kernels/cuda/collective_body.hpp"
#include "kernels/cuda/step_body.hpp"
#include "kernels/reduce.hpp"

namespace kernels::cuda {

namespace {

// A grid of one thread (span_body.hpp has what each function promises). std::atomic_ref: the words
// are plain in launch.hpp, which GPUs share.
class HostGrid {
  public:
    HostGrid(const GroupArgs& group, HostWait wait) : group_(group), wait_(wait) {}
    unsigned thread() const { return 0; }
    unsigned threads() const { return 1; }
    unsigned block() const { return 0; }
    unsigned blocks() const { return 1; }
    // Where a grid's accesses are ordered before what says to the peers that they were made.
    void sync_block() {
        if (wait_.is_harmed == nullptr || !wait_.is_harmed(wait_.context)) return;
        give_up(*this, group_, make_report(Outcome::kAborted, group_.rank));
    }
    std::uint64_t& shared(int index) { return shared_[index]; }

    std::uint64_t load_acquire(Address from) const {
        return word<std::uint64_t>(from).load(std::memory_order_acquire);
    }
    void store_release(Address to, std::uint64_t value) const {
        word<std::uint64_t>(to).store(value, std::memory_order_release);
    }
    std::uint32_t load_acquire32(Address from) const {
        return word<std::uint32_t>(from).load(std::memory_order_acquire);
    }
    void store_release32(Address to, std::uint32_t value) const {
        word<std::uint32_t>(to).store(value, std::memory_order_release);
    }
    std::uint32_t fetch_add32(Address at, std::uint32_t value) const {
        return word<std::uint32_t>(at).fetch_add(value, std::memory_order_acq_rel);
    }
    void fence() const { std::atomic_thread_fence(std::memory_order_seq_cst); }
    template <class T>
    T load(Address from) const {
        T value;
        std::memcpy(&value, reinterpret_cast<const void*>(from), sizeof value);
        return value;
    }
    template <class T>
    void store(Address to, const T& value) const {
        std::memcpy(reinterpret_cast<void*>(to), &value, sizeof value);
    }
    std::uint64_t now_ns() const {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }
    // The GPU's part takes microseconds at best: a few turns of the loop, then the processor is
    // others'.
    void pause(unsigned turn) const {
        constexpr unsigned kSpins = 64, kYields = 4096;
        if (turn < kSpins) return;
        if (turn % kSpins == 0 && wait_.look != nullptr) wait_.look(wait_.context);
        if (turn < kYields) return std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

  private:
    template <class Word>
    static std::atomic_ref<Word> word(Address at) {
        return std::atomic_ref<Word>(*reinterpret_cast<Word*>(at));
    }
    const GroupArgs& group_;
    const HostWait wait_;
    std::uint64_t shared_[kSharedWords] = {};
};

// The CPU's own kernels instead of spans: the same bits, at its speed.
struct HostWork {
    // From here on the working set is taken to exceed the caches.
    static constexpr std::uint64_t kStreamingBytes = std::uint64_t{8} << 20;

    void reduce(HostGrid&, const Operands& job, Worker) const {
        const void* sources[kMaxRanks];
        void* destinations[kMaxRanks];
        int count = 0;
        for (int s = 0; s < job.source_count; ++s) {
            sources[s] = reinterpret_cast<const void*>(job.source(s));
        }
        for (int d = 0; d < job.destination_count; ++d) {
            void* const to = reinterpret_cast<void*>(job.destination(d));
            // A copy onto itself would be an overlap.
            const bool copies = job.source_count == 1 && job.op != ReduceOp::kAvg;
            if (!copies || to != sources[0]) destinations[count++] = to;
        }
        if (count == 0) return;
        ReduceJob whole = {job.type,     job.op, sources,   job.source_count,
                           destinations, count,  job.count, job.divisor};
        whole.streaming = job.count * bytes_of(job.type) >= kStreamingBytes;
        kernels::reduce(whole);
    }
    void copy(HostGrid&, Address to, Address from, std::uint64_t bytes, Worker) const {
        if (to == from || bytes == 0) return;
        kernels::copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes,
                      bytes >= kStreamingBytes);
    }
};

}  // namespace

void run_collective_on_host(const CollectiveArgs& args, HostWait wait) noexcept {
    HostGrid grid(args.group, wait);
    collective_body(grid, args, HostWork());
}

void run_step_on_host(const StepArgs& args, HostWait wait) noexcept {
    HostGrid grid(args.group, wait);
    step_body(grid, args);
}

}  // namespace kernels::cuda
