// Mapping: a shared mapping of a piece of a file into this process, or memory of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/stripes.hpp"

namespace fabricshm {

struct MapOptions {
    bool writable = true;
    Bytes align = 4096;         // address alignment: huge pages and devdax need more than a page
    Bytes huge_page_bytes = 0;  // ask for transparent huge pages of this size when not 0
    bool is_inherited = true;   // by children of fork()
};

/// Unmaps when it goes. Move-only.
class Mapping {
  public:
    /// Maps `bytes` of `fd` from `offset` on, MAP_SHARED. The length of a regular file or memfd is
    /// checked first: a mapping past its end would be a SIGBUS later, here it is kCorrupt. So would
    /// be an offset that is not a multiple of `align`, on a device: here it is kInvalid.
    static Result<Mapping> map(const Fd& fd, std::uint64_t offset, Bytes bytes,
                               const MapOptions& options);

    /// The same of a space that lies on `first` and `others` in stripes, `offset` being one of the
    /// space: one mapping for each stripe, in one range of addresses. kNoMemory also when the
    /// process may have no more of them (vm.max_map_count).
    static Result<Mapping> map(const Fd& first, std::span<const Fd> others, const Stripes& stripes,
                               std::uint64_t offset, Bytes bytes, const MapOptions& options);

    /// `bytes` of memory of this process alone, in huge pages where there are any; a child of
    /// fork() does not have it. Zeros, not touched yet.
    static Result<Mapping> own(Bytes bytes);

    Mapping() = default;
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    ~Mapping() { reset(); }

    std::byte* data() const noexcept { return data_; }
    Bytes size() const noexcept { return bytes_; }
    explicit operator bool() const noexcept { return data_ != nullptr; }

    /// True when [offset, offset + length) lies inside, without overflow. For offsets from peers.
    bool holds(std::uint64_t offset, std::uint64_t length) const noexcept {
        return offset <= bytes_ && length <= bytes_ - offset;
    }

    /// Puts the first bytes of another file, as many, in place of what is mapped, at the same
    /// addresses and writable: a thread that is in there meets either. After a failure all is as
    /// before.
    Result<void> replace(const Fd& fd);

    void reset() noexcept;

  private:
    std::byte* data_ = nullptr;
    Bytes bytes_ = 0;
};

}  // namespace fabricshm
