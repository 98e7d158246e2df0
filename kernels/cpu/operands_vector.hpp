// Where a reduction reads and writes. See vector.hpp for how this file is compiled.

#pragma once

#include "kernels/cpu/vector.hpp"

namespace kernels {
namespace {

// Where the sources are. With their number known to the compiler the pointers live in registers and
// the loop over them is unrolled; 0 stands for any number.
template <int kSources>
struct Sources {
    explicit Sources(const ReduceJob& job) {
        for (int s = 0; s < kSources; ++s) pointer[s] = static_cast<const char*>(job.sources[s]);
    }
    FABRIC_INLINE int count() const { return kSources; }
    FABRIC_INLINE const char* at(int s) const { return pointer[s]; }
    const char* pointer[kSources];
};

template <>
struct Sources<0> {
    explicit Sources(const ReduceJob& job) : job_(job) {}
    FABRIC_INLINE int count() const { return job_.source_count; }
    FABRIC_INLINE const char* at(int s) const { return static_cast<const char*>(job_.sources[s]); }
    const ReduceJob& job_;
};

// Where the results go, and which destinations take streaming stores.
class Destinations {
  public:
    explicit Destinations(const ReduceJob& job)
        : pointer_(job.destinations), count_(job.destination_count) {
        if (!job.streaming) return;
        // A streaming job may have some destinations that are in place, so it is asked for each.
        const int streamed = count_ - job.cached_destinations;
        for (int d = 0; d < streamed && d < kMaxStreamed; ++d) {
            if (is_source(job, pointer_[d])) continue;
            streamed_[d / 64] |= std::uint64_t{1} << (d % 64);
            any_streamed_ = true;
        }
    }

    // Whether anything goes past the cache at all.
    bool any_streamed() const { return any_streamed_; }

    // The destination whose alignment decides how many elements go before the first tile: one that
    // is streamed to, if there is one.
    const void* to_align() const {
        for (int d = 0; d < count_; ++d) {
            if (is_streamed(d)) return pointer_[d];
        }
        return pointer_[0];
    }

    template <int kVectors, class V>
    FABRIC_INLINE void store(std::size_t offset, const V* result) const {
        constexpr bool kWholeLines = kVectors * kWidth % kLine == 0;
        for (int d = 0; d < count_; ++d) {
            char* to = static_cast<char*>(pointer_[d]) + offset;
            // Asked per tile: destinations need not agree in alignment, and the branch is foreseen.
            if (kWholeLines && is_streamed(d) && at_line(to)) {
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) Isa::stream(to + v * kWidth, result[v]);
            } else {
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) store_vector(to + v * kWidth, result[v]);
            }
        }
    }

  private:
    // As many as the largest world has ranks.
    static constexpr int kMaxStreamed = 256;

    FABRIC_INLINE bool is_streamed(int d) const {
        return d < kMaxStreamed && (streamed_[d / 64] >> (d % 64) & 1) != 0;
    }

    // In place, the lines are in the cache because they have just been read; a streaming store
    // would throw them out first, which takes up to twice the time of a plain one.
    static bool is_source(const ReduceJob& job, const void* destination) {
        for (int s = 0; s < job.source_count; ++s) {
            if (job.sources[s] == destination) return true;
        }
        return false;
    }

    void* const* pointer_;
    int count_;
    std::uint64_t streamed_[kMaxStreamed / 64] = {};
    bool any_streamed_ = false;
};

}  // namespace
}  // namespace kernels
