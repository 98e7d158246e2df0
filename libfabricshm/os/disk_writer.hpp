// DiskWriter: writes large pieces of memory to files past the page cache, several at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// How bytes got to the disk. What the kernel or the file system forbids is left out, never an
/// error.
struct DiskPath {
    bool uring = false;       // else one pwrite() after the other
    bool registered = false;  // the kernel keeps the memory pinned
    bool direct = false;      // O_DIRECT: the page cache holds no copy
};

/// Offsets and memory of direct writes are multiples of this.
inline constexpr Bytes kDiskBlock = 4096;

/// A file that is written by DiskWriter.
class DiskFile {
  public:
    /// Makes or finds `path`, for writing alone. `mode` is that of a file that is made.
    static Result<DiskFile> open(const std::string& path, unsigned mode = 0644);

    int buffered() const noexcept { return buffered_.get(); }
    int direct() const noexcept { return direct_.get(); }  // -1: the file system has none

    /// All that was written is on the disk.
    Result<void> sync() const noexcept;

  private:
    Fd buffered_;
    Fd direct_;
};

/// One thread at a time. Borrows the memory.
class DiskWriter {
  public:
    /// Writes come out of `memory`, which is pinned if the limits of the process allow it. Without
    /// `uring` as if the kernel had none. Never fails: path() says what was possible.
    explicit DiskWriter(std::span<std::byte> memory, bool uring = true);
    ~DiskWriter();
    DiskWriter(const DiskWriter&) = delete;
    DiskWriter& operator=(const DiskWriter&) = delete;

    /// Starts to write `bytes` at `data`, whose address and `offset` are equal modulo kDiskBlock;
    /// parts of blocks at both ends go through the page cache. Waits while many are under way. The
    /// memory stays as it is until finish(). kSystem with the errno of this or of an earlier one.
    Result<void> write(const DiskFile& file, const std::byte* data, Bytes bytes, Bytes offset);

    /// Waits for all; kSystem with the errno of the first that failed.
    Result<void> finish() noexcept;

    /// What the writes so far have used.
    const DiskPath& path() const noexcept { return path_; }

  private:
    struct Ring;  // liburing's

    Result<void> write_direct(const DiskFile& file, const std::byte* data, Bytes bytes,
                              Bytes offset);
    Result<void> submit(int fd, const std::byte* data, Bytes bytes, Bytes offset);
    void reap(bool all) noexcept;

    std::span<std::byte> memory_;
    std::unique_ptr<Ring> ring_;  // empty: there is none
    DiskPath path_;
    int error_ = 0;  // errno of the first that failed
};

/// All of `bytes`, however often the kernel writes less. kSystem with the errno.
Result<void> write_all(int fd, const std::byte* data, Bytes bytes, Bytes offset) noexcept;

}  // namespace fabricshm
