// A memory file whose content can't change any more: what one process gives another to read once.

#pragma once

#include <cstddef>
#include <span>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricshm {

/// A file called `name` that holds `content`, sealed against every change. kNoMemory or kSystem.
Result<Fd> make_sealed_file(const char* name, std::span<const std::byte> content);

/// Maps a file of another process for reading; `most` bytes at most. kCorrupt: it is no memory
/// file, may still change or shrink, is empty or too large.
Result<Mapping> map_sealed_file(const Fd& file, Bytes most);

}  // namespace fabricshm
