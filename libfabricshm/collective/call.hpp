// Call: one collective operation as a rank asks for it, checked and with its parts laid out.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dtype.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/kinds.hpp"

namespace fabricshm {

enum class Algorithm : std::uint8_t {
    kAuto = 0,
    kFlat = 1,
    kDirect = 2,
    kRing = 3,
    kStaged = 4,
    kHost = 5,
};

/// async: a rank starts as soon as its peers have come; sync: when rank 0 commands it.
enum class Trigger : std::uint8_t { kAsync = 0, kSync = 1 };

inline constexpr int kAnyPeer = -1;

/// Bits of Call::flags. kSharedOutput: all ranks name one output in the arena, which is written
/// once. The ranks then always arrive and end with a barrier: no rank stores into it after any has
/// returned.
inline constexpr std::uint32_t kSharedOutput = 1;
inline constexpr std::uint32_t kKnownFlags = kSharedOutput;

/// What the caller gives. Buffers are borrowed until the operation completes.
struct Call {
    Kind kind = Kind::kBarrier;
    kernels::DType dtype = kernels::DType::kU8;
    kernels::ReduceOp op = kernels::ReduceOp::kSum;
    Algorithm algorithm = Algorithm::kAuto;
    Trigger trigger = Trigger::kAsync;
    int root = 0;
    int peer = 0;
    int tag = 0;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::uint64_t count = 0;                 // elements; ignored when `counts` is not empty
    std::vector<std::uint64_t> counts;       // elements of each part, or empty: all equal
    std::vector<std::uint64_t> recv_counts;  // all_to_all only
    TimePoint deadline = TimePoint::max();
    // Of a started collective, which may stand behind others: its deadline is so long after it
    // begins. max(): `deadline` counts.
    Duration timeout = Duration::max();
    std::uint32_t flags = 0;
    // Of the collective over several hosts that this one is a step of: ranks that mean different
    // ones may have the same steps in one pool. 0: it is none.
    std::uint64_t step_of = 0;

    bool shares_output() const noexcept { return (flags & kSharedOutput) != 0; }
    /// Only the rank itself knows its parts.
    bool has_own_counts() const noexcept { return exchanges_parts(kind) && !counts.empty(); }
};

/// Where the parts of a buffer lie: part r has bytes(r) bytes from offset(r) on.
class Parts {
  public:
    Parts() = default;
    /// All parts of `bytes` bytes. Costs no allocation.
    static Parts equal(Bytes bytes, int world) noexcept;
    /// Parts of counts[r] * element bytes, one after the other.
    static Parts of(const std::vector<std::uint64_t>& counts, Bytes element);

    Bytes bytes(int rank) const noexcept {
        return offsets_.empty() ? each_ : offsets_[at(rank) + 1] - offsets_[at(rank)];
    }
    Bytes offset(int rank) const noexcept {
        return offsets_.empty() ? each_ * at(rank) : offsets_[at(rank)];
    }
    /// Calls work(part, offset in the part, offset in the whole, bytes) for what [from, from +
    /// bytes) of the whole has of each of the `world` parts.
    template <typename Work>
    void for_range(int world, Bytes from, Bytes bytes, const Work& work) const {
        for (int part = 0; part < world && bytes != 0; ++part) {
            const Bytes end = offset(part) + this->bytes(part);
            if (from >= end) continue;
            const Bytes length = std::min(bytes, end - from);
            work(part, from - offset(part), from, length);
            from += length;
            bytes -= length;
        }
    }
    Bytes total() const noexcept { return total_; }
    Bytes largest() const noexcept { return largest_; }

  private:
    static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }

    Bytes each_ = 0;
    Bytes total_ = 0;
    Bytes largest_ = 0;
    std::vector<Bytes> offsets_;  // world + 1 entries, or empty when all parts are equal
};

/// The parts that the ranks exchange in `call`.
Parts parts_of(const Call& call, int world);

/// Refuses what no rank could run: kInvalid (the step names the argument) or kUnsupported. Checks
/// the call of this rank alone: what the ranks disagree about is found at the barrier.
Result<void> check_call(const Call& call, int rank, int world);

/// The same for the buffers of a call that was checked with others: null, or overlapping where they
/// must not.
Result<void> check_buffers(const Call& call, const std::byte* input, const std::byte* output,
                           int rank, int world);

/// Whether two collectives without counts differ in nothing but buffers and deadline.
bool is_like(const Call& a, const Call& b) noexcept;

/// Bytes this rank reads from `input` and writes to `output` (0 where it has no part in it).
Bytes input_bytes(const Call& call, int rank, int world) noexcept;
Bytes output_bytes(const Call& call, int rank, int world) noexcept;

/// What all ranks of an operation have to agree on, mixed into 64 bits. all_to_all leaves its
/// counts out, since they differ by rank.
std::uint64_t signature_of(const Call& call) noexcept;

}  // namespace fabricshm
