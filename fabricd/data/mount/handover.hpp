// What outlives a server of the mount: the kernel's INIT, the requests under way, and the nodes
// that the kernel knows. The keeper makes it, each server maps it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Result;

/// As many requests are worked on at once as there are slots.
inline constexpr std::size_t kMountSlots = 64;
/// What the kernel demands of a read: its largest write, 1 MiB, and a page for the headers.
inline constexpr Bytes kSlotBytes = fabricshm::kMiB + fabricshm::kPageBytes;
inline constexpr std::size_t kInitBytes = 1024;
/// A request that servers die of, again and again, is answered with EIO. A crash during its replay
/// counts for more than a SIGKILL, which need not have to do with it.
inline constexpr std::uint32_t kMaxReplays = 60;
inline constexpr std::uint32_t kReplaysOfCrash = 15;

/// The first bytes of every request and reply, as linux/fuse.h has them.
struct RequestHead {
    std::uint32_t length;
    std::uint32_t opcode;
    std::uint64_t unique;
    std::uint64_t node;
    std::uint32_t user;
    std::uint32_t group;
    std::uint32_t process;
    std::uint32_t reserved;
};
static_assert(sizeof(RequestHead) == 40);

struct HandoverHead {
    std::atomic<std::uint64_t> servers;  // that have been ready so far
    std::uint32_t init_bytes;
    std::byte init[kInitBytes];
    std::atomic<std::uint32_t> replays[kMountSlots];
};
static_assert(sizeof(HandoverHead) <= fabricshm::kPageBytes);

/// One file: the head's page, the slots, the nodes. Sparse: what was not touched costs nothing.
class Handover {
  public:
    /// A new one, for the keeper.
    static Result<Handover> make();
    /// The keeper's, for a server. kCorrupt: of another size, another build's.
    static Result<Handover> map(fabricshm::Fd file);

    const fabricshm::Fd& file() const noexcept { return file_; }
    HandoverHead& head() const noexcept;

    /// The whole slot, to read a request into.
    std::span<std::byte> slot(std::size_t number) const noexcept;
    /// The request in it. Not zero in `unique`: it was read and not marked as answered.
    RequestHead& request(std::size_t number) const noexcept;
    std::span<std::byte> nodes() const noexcept;

  private:
    fabricshm::Fd file_;
    fabricshm::Mapping mapping_;
};

/// Whether the kernel waits for a reply to requests of this kind.
bool expects_reply(std::uint32_t opcode) noexcept;

/// Replies with an error alone. A reply that is not waited for, since it was given before, is
/// ENOENT for the kernel and nothing here.
void reply_error(const fabricshm::Fd& fuse, std::uint64_t unique, int error) noexcept;

}  // namespace fabricd
