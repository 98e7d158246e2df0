// PageFile: a small memory file that two processes share, and whose size can't be changed.

#pragma once

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricshm {

/// Which processes may write it.
enum class PageAccess {
    kReadWrite,  // those that get the descriptor, and the maker reads
    kReadOnly,   // the maker alone, through the mapping that it has from the start
};

/// The maker's mapping and the descriptor to hand out; the maker needs the descriptor no longer.
struct PageFile {
    Mapping mapping;  // writable for kReadOnly files, read-only for kReadWrite ones
    Fd descriptor;
};

/// Makes a file called `name` of `bytes`, filled by `format`, sealed against growing, shrinking and
/// further seals. A kReadOnly descriptor cannot be made writable: neither by mapping nor by opening
/// it again through /proc. kNoMemory or kSystem.
Result<PageFile> make_page_file(const char* name, Bytes bytes, PageAccess access,
                                void (*format)(std::byte*) noexcept);

}  // namespace fabricshm
