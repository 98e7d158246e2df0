// MountSource: where the mount has names and bytes from. The data cache is one, a plain folder the
// other.

#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabricd/data/mount/node_table.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::TimePoint;

struct MountEntry {
    std::string name;
    NodeFacts facts;  // a folder's stamp is 0
};

/// Bytes of a file, where they lie. They stay as they are as long as `hold` is held.
struct MountBytes {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> hold;
};

/// One entry on a walk through a folder; the walk goes on behind `cookie`.
struct WalkStep {
    std::uint64_t cookie = 0;
    std::size_t index = 0;
};

/// A folder as it was at one moment. Any number of threads.
class MountListing {
  public:
    MountListing() = default;
    virtual ~MountListing() = default;
    MountListing(const MountListing&) = delete;
    MountListing& operator=(const MountListing&) = delete;

    virtual std::size_t count() const = 0;
    /// Entries are in the order of their names' bytes. `index` is below count().
    virtual Result<MountEntry> entry(std::size_t index) const = 0;
    virtual std::optional<std::size_t> find(std::string_view name) const = 0;

    /// Of the file `index`, from `offset` on, as many bytes as `room` has; fewer at its end alone.
    /// Either a view of where they lie, or a copy in `room`. kChanged: that version is no more.
    virtual Result<MountBytes> read(std::size_t index, Bytes offset, std::span<std::byte> room,
                                    TimePoint deadline) const = 0;

    /// All entries by rising cookies, which depend on the name alone: a walk goes on over changes
    /// of the folder and in another server. Sorted at the first call.
    const std::vector<WalkStep>& walk() const;

  private:
    mutable std::once_flag walk_sorted_;
    mutable std::vector<WalkStep> walk_;
};

/// Cookies below this one are "." and "..".
inline constexpr std::uint64_t kFirstCookie = 16;

/// Any number of threads.
class MountSource {
  public:
    MountSource() = default;
    virtual ~MountSource() = default;
    MountSource(const MountSource&) = delete;
    MountSource& operator=(const MountSource&) = delete;

    /// Whether it can be had at all; asked by the first server before there is a mount.
    virtual Result<void> open(TimePoint deadline) = 0;
    /// The folder at `path` below the mount's root, "" is that. kNotFound: there is none.
    virtual Result<std::shared_ptr<const MountListing>> list(const std::string& path,
                                                             TimePoint deadline) = 0;
};

/// Of all entries with their versions; never 0.
std::uint64_t stamp_of(const MountListing& listing);

}  // namespace fabricd
