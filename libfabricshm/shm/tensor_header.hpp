// TensorHeader: what lies before the elements of a named tensor, and how its version is published
// and awaited. docs/tensors.md.
//
//   region of the tensor:  TensorHeader (128 bytes) | elements
//
// Every process of the job can write all of it, so a reader believes nothing here that the daemon
// reported already: sizes, type and shape come from there.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kTensorMagic = 0x32534e5442524146;  // "FARBTNS2"
inline constexpr Bytes kTensorHeaderBytes = 128;

struct alignas(kCachePair) TensorHeader {
    // First line: written once by the tensor's maker, the magic last and with release; 0 again when
    // the tensor is freed. Region id and generation distinguish a fresh header from one that an
    // earlier tensor left in the same memory.
    std::atomic<std::uint64_t> magic;
    std::uint64_t region_id;
    std::uint64_t generation;
    std::uint64_t owner_start_time;
    std::uint64_t owner_pid_namespace;
    std::int32_t owner_pid;
    std::uint32_t reserved;
    char pad_[16];

    // Second line: how often the tensor was published.
    std::atomic<std::uint64_t> version;
    std::atomic<std::uint32_t> wake_word;  // changes with every version; what sleepers sleep on
    char pad2_[4];
    // How many sleep, in the low half; 0: none is to be woken, the common case. The high half is a
    // mark of this tensor, not 0: a waiter counts itself by compare-and-swap, so that it can't
    // change what the memory holds when the tensor was freed meanwhile.
    std::atomic<std::uint64_t> sleepers;
    char pad3_[40];
};
static_assert(sizeof(TensorHeader) == kTensorHeaderBytes);
static_assert(offsetof(TensorHeader, version) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// How many sleep on the tensor.
inline std::uint32_t sleepers_on(const TensorHeader& header) noexcept {
    // Sequentially consistent: see publish_tensor().
    return static_cast<std::uint32_t>(header.sleepers.load(std::memory_order_seq_cst));
}

/// Which tensor a header has to belong to.
struct TensorKey {
    std::uint64_t region_id = 0;
    std::uint64_t generation = 0;
};

/// Makes the header of a new tensor, with version 0. By its maker, once. `view` here and below is
/// the seam of the arena that holds the header.
void format_tensor(TensorHeader& header, TensorKey key, const ProcessIdentity& owner,
                   const Visibility& view = {}) noexcept;

/// Notifies readers and sleepers that the tensor is gone. By its maker, before the region is freed.
void retire_tensor(TensorHeader& header, const Visibility& view = {}) noexcept;

/// Takes that back: the region was not freed after all.
void restore_tensor(TensorHeader& header, const Visibility& view = {}) noexcept;

/// The process that made the tensor, by its own word.
ProcessIdentity maker_of(const TensorHeader& header) noexcept;

/// True when the header is made and belongs to `key`.
bool is_tensor(const TensorHeader& header, TensorKey key, const Visibility& view = {}) noexcept;

/// Waits until the maker has made the header. kTimeout.
Result<void> await_tensor(const TensorHeader& header, TensorKey key, TimePoint deadline,
                          const Visibility& view = {});

/// Raises the version by one, after all earlier writes of this thread, and returns the new one.
/// Costs two atomic additions, and a system call only when there are sleepers. `bytes` of elements
/// behind the header are published first. Where memory is not coherent, processes of different
/// hosts must not publish one tensor at the same time.
std::uint64_t publish_tensor(TensorHeader& header, Bytes bytes = 0,
                             const Visibility& view = {}) noexcept;

/// Waits until the version is at least `wanted` and returns it; everything written before that
/// version was published is visible then. Spins shortly, then sleeps. kTimeout; kPeer when the
/// maker died first (Error::detail is -1); kNotFound when the tensor was freed. `bytes` of elements
/// are acquired before it returns.
Result<std::uint64_t> wait_for_version(TensorHeader& header, TensorKey key, std::uint64_t wanted,
                                       TimePoint deadline, Bytes bytes = 0,
                                       const Visibility& view = {});

}  // namespace fabricshm
