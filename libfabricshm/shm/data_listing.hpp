// A listing: the names, sizes and versions that a path had at one moment, in a sealed memory file
// that the data cache makes and a reader maps. docs/data.md.
//
//   header | entries, by the bytes of their names | names, one behind the other

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kListingMagic = 0x3154534c44424146;  // "FABDLST1"
inline constexpr std::uint64_t kListingRecursive = 1;               // of DataListing::flags
inline constexpr std::uint32_t kEntryFolder = 1;                    // of DataEntry::flags
inline constexpr std::uint64_t kNoLine = ~std::uint64_t{0};         // of folders and empty files
inline constexpr Bytes kListingBytesMax = 16 * kGiB;

struct DataListing {
    std::uint64_t magic;
    std::uint64_t generation;  // of the tables that its lines are in
    std::uint64_t id;          // rises for ever, never 0
    std::uint64_t entries;
    std::uint64_t names_bytes;
    std::uint64_t flags;
    std::uint64_t reserved[2];
};
static_assert(sizeof(DataListing) == 64);

struct DataEntry {
    std::uint64_t bytes;
    std::uint64_t first_line;   // data_chunks(bytes) lines from here on; or kNoLine
    std::uint64_t name_offset;  // from the names' start
    std::uint32_t name_bytes;   // of the name below the listed path: "x.jpeg", "n01/x.jpeg"
    std::uint32_t flags;
    std::uint64_t version[4];
    std::uint64_t file;     // of DataLine::file; 0: a folder
    std::int64_t mtime_ns;  // 0: not known
};
static_assert(sizeof(DataEntry) == 80);

/// One entry, by its maker.
struct ListedFile {
    std::string name;
    bool is_folder = false;
    Bytes bytes = 0;
    std::uint64_t first_line = kNoLine;
    std::array<std::uint64_t, 4> version{};
    std::uint64_t file = 0;
    std::int64_t mtime_ns = 0;
};

/// Of which tables, and which listing of them.
struct ListingName {
    std::uint64_t generation = 0;
    std::uint64_t id = 0;
    std::uint64_t flags = 0;
};

/// The bytes of the file. `files` in the order of their names.
std::vector<std::byte> build_listing(const ListingName& name, std::span<const ListedFile> files);

/// A reader's view of such bytes, which can't change and outlive it. Everything was checked once.
class ListingView {
  public:
    /// O(entries). `lines`: of the tables. kCorrupt: an entry has no name or one that is no path,
    /// lies outside, is out of order, or needs lines that there are not.
    static Result<ListingView> check(std::span<const std::byte> bytes, std::uint64_t lines);

    ListingView() = default;

    std::uint64_t generation() const noexcept { return name_.generation; }
    std::uint64_t id() const noexcept { return name_.id; }
    bool is_recursive() const noexcept { return (name_.flags & kListingRecursive) != 0; }
    std::uint64_t size() const noexcept { return entries_.size(); }
    /// Below size().
    const DataEntry& entry(std::uint64_t index) const noexcept { return entries_[index]; }
    std::string_view name(std::uint64_t index) const noexcept {
        const DataEntry& entry = entries_[index];
        return names_.substr(entry.name_offset, entry.name_bytes);
    }
    /// O(log entries).
    std::optional<std::uint64_t> find(std::string_view name) const noexcept;

  private:
    ListingName name_;
    std::span<const DataEntry> entries_;
    std::string_view names_;
};

}  // namespace fabricshm
