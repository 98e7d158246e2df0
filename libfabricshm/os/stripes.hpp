// Stripes: how one space of offsets lies on several files. docs/pool.md, "Several devices".

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Stripe s of the space lies on file s mod `files`, as its stripe s / files. Before its stripes
/// each file has `skip` bytes of its own, and so has the space: with one file both are the same.
struct Stripes {
    static constexpr std::uint32_t kFilesMax = 8;

    std::uint32_t files = 1;
    Bytes bytes = 0;  // of one stripe; not used with one file
    Bytes skip = 0;

    bool is_one_file() const noexcept { return files == 1; }

    /// Bytes of one file, from an offset in it.
    struct Part {
        std::uint32_t file = 0;
        std::uint64_t offset = 0;
        Bytes bytes = 0;
    };

    /// Where the first of `most` bytes from `offset` on lie: those that are together on one file.
    /// `offset` is not below `skip`, but for one file.
    Part first(std::uint64_t offset, Bytes most) const noexcept {
        if (is_one_file()) return {0, offset, most};
        const std::uint64_t stripe = (offset - skip) / bytes;
        const Bytes within = (offset - skip) % bytes;
        return {static_cast<std::uint32_t>(stripe % files), skip + stripe / files * bytes + within,
                std::min(most, bytes - within)};
    }

    /// All that a file has of `count` bytes from `offset` on: one range of the file. May be empty.
    Part part(std::uint32_t file, std::uint64_t offset, Bytes count) const noexcept {
        if (is_one_file()) return {0, offset, count};
        const Bytes start = before(file, offset - skip);
        return {file, skip + start, before(file, offset - skip + count) - start};
    }

  private:
    /// How many of the first `count` striped bytes the file has.
    Bytes before(std::uint32_t file, Bytes count) const noexcept {
        const Bytes row = bytes * files;
        const Bytes first = bytes * file;
        const Bytes rest = count % row;
        return count / row * bytes + (rest > first ? std::min(rest - first, bytes) : 0);
    }
};

}  // namespace fabricshm
