#include "libfabricshm/collective/peer_read.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/copy.hpp"
#include "kernels/flush.hpp"

namespace fabricshm {

namespace {

constexpr std::size_t kPiece = 2048;  // of a copy: its destination stays in the first cache
constexpr Bytes kChainBytes = 4096;   // in which the lines for the latency lie
constexpr int kChain = 16;

// Loads that each need the address from the one before, over lines far enough apart that no
// prefetcher brings the next one.
std::int64_t time_chain(const std::byte* place) noexcept {
    constexpr std::size_t kLines = kChainBytes / kCacheLine;
    std::size_t line = 0;
    const TimePoint start = Clock::now();
    for (int i = 0; i < kChain; ++i) {
        const auto* word =
            reinterpret_cast<const volatile std::uint64_t*>(place + line * kCacheLine);
        // Always 0 is added, which the compiler cannot know; 29 is prime to the number of lines.
        const std::uint64_t value = *word;
        std::uint64_t nothing = value;
        asm volatile("" : "+r"(nothing));
        line = (line + 29 + ((nothing ^ value) & 1)) % kLines;
    }
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count() /
           kChain;
}

}  // namespace

PeerRead time_read(const std::byte* place, Bytes bytes) noexcept {
    PeerRead read;
    const auto method = kernels::has_flush(kernels::FlushMethod::kClflushopt)
                            ? kernels::FlushMethod::kClflushopt
                            : kernels::FlushMethod::kClflush;
    if (!kernels::has_flush(method)) return read;
    kernels::drop(method, place, bytes);
    read.latency_ns = time_chain(place);

    alignas(kCacheLine) std::byte kept[kPiece];
    const std::byte* from = place + kChainBytes;
    read.bytes = (bytes - kChainBytes) / kPiece * kPiece;
    const TimePoint start = Clock::now();
    for (Bytes at = 0; at < read.bytes; at += kPiece) {
        kernels::copy(kept, from + at, kPiece, false);
        // What was copied is not used, and has to be copied all the same.
        asm volatile("" : : "r"(kept) : "memory");
    }
    const auto length = Clock::now() - start;
    read.ns = std::max<std::int64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(length).count(), 1);
    return read;
}

}  // namespace fabricshm
