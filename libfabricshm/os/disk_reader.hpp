// DiskReader: reads pieces of files into memory past the page cache, many at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/disk_writer.hpp"

namespace fabricshm {

/// A piece of a file and where it goes. Of a file that is open with O_DIRECT, address, length and
/// offset are multiples of kDiskBlock.
struct DiskRead {
    int fd = -1;
    std::byte* into = nullptr;
    Bytes bytes = 0;
    Bytes offset = 0;
    std::uint64_t tag = 0;  // the caller's
};

struct DiskReadDone {
    std::uint64_t tag = 0;
    Bytes bytes = 0;  // fewer than were asked for: the file ends there
    int error = 0;    // errno; `bytes` came before it
};

/// One thread at a time. Borrows memory and files until a read of them is done.
class DiskReader {
  public:
    /// Reads go into `memory`, which is pinned if the limits of the process allow it; `depth` of
    /// them at most at a time. Without `uring` as if the kernel had none: each read is then done by
    /// start(). Never fails: path() says what was possible.
    DiskReader(std::span<std::byte> memory, unsigned depth, bool uring = true);
    /// Waits for what is under way, since the kernel writes into the memory until then.
    ~DiskReader();
    DiskReader(const DiskReader&) = delete;
    DiskReader& operator=(const DiskReader&) = delete;

    bool has_room() const noexcept { return under_way_ < depth_; }
    unsigned under_way() const noexcept { return under_way_; }

    /// Starts a read; has_room() has to be true. Its failure is in what wait() gives.
    void start(const DiskRead& read);

    /// What has ended. Waits for the first while any is under way, until `deadline`.
    std::vector<DiskReadDone> wait(TimePoint deadline);

    /// Readable when something has ended, for poll(); -1: start() has done it already.
    int descriptor() const noexcept;

    const DiskPath& path() const noexcept { return path_; }

  private:
    struct Ring;  // liburing's

    void submit(unsigned index);
    void reap();
    void finish(unsigned index, int error);

    std::span<std::byte> memory_;
    unsigned depth_;
    unsigned under_way_ = 0;      // also those in done_
    std::unique_ptr<Ring> ring_;  // empty: there is none
    std::vector<DiskReadDone> done_;
    DiskPath path_;
};

}  // namespace fabricshm
