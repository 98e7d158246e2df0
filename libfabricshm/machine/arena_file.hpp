// Arena files: sealed memfds. Shared by the emu and numa backends.
//
// A memfd has no name in any file system, so nothing stays in /dev/shm when all processes are gone,
// and it is opened only by a descriptor that the daemon handed out. The seals keep a client that
// has one from shrinking it under the others (that would be a SIGBUS for them).

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

struct ArenaFileOptions {
    Bytes huge_page_bytes = 0;  // transparent huge pages to ask for; 0: none
    bool hugetlb = false;       // from the reserved huge pages of huge_page_bytes instead
    /// Called with the mapping before the first page is touched, to bind it to a node, and after
    /// the last one, to see that they are there. May be empty.
    std::function<Result<void>(void* data, Bytes bytes)> bind;
    std::function<Result<void>(void* data, Bytes bytes)> verify;
};

/// Makes the file of arena `arena_id`: `bytes` long (a whole number of its pages), zero, sealed,
/// its first `committed` bytes (likewise) committed. kNoMemory when the pages are not there. About
/// 0.3 s for each committed GiB.
Result<Fd> make_arena_file(std::uint64_t arena_id, Bytes bytes, Bytes committed,
                           const ArenaFileOptions& options);

/// Commits [from, to), whole pages of such a file, likewise. Pages that are there stay as they are.
Result<void> commit_arena_file(const Fd& fd, Bytes from, Bytes to, const ArenaFileOptions& options);

/// True to kOk when `fd`, which comes from a client, is the file that make_arena_file() made for
/// `arena_id`, opened for reading and writing; kCorrupt otherwise. A process with the daemon's own
/// user id could forge one; no other can, since the file's owner is compared.
Result<void> check_arena_file(const Fd& fd, std::uint64_t arena_id, Bytes bytes);

/// Gives the pages of [from, to) back to the kernel, even while a client still maps the file: those
/// that it touches again are zero and charged to itself.
void empty_arena_file(const Fd& fd, Bytes from, Bytes to) noexcept;

}  // namespace fabricshm
