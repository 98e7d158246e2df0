#include "libfabricshm/machine/arena_file.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libfabricshm/os/mapping.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace fabricshm {

namespace {

// Not F_SEAL_WRITE: clients store into it. F_SEAL_SEAL, so that no process adds that one.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string file_name(std::uint64_t arena_id) {
    return "fabric-arena-" + std::to_string(arena_id);
}

/// MFD_HUGE_*: the logarithm of the page size in the upper bits of the flags.
unsigned huge_flags(Bytes page_bytes) {
    return MFD_HUGETLB | (static_cast<unsigned>(__builtin_ctzll(page_bytes)) << MFD_HUGE_SHIFT);
}

Result<Fd> open_memfd(std::uint64_t arena_id, const ArenaFileOptions& options) {
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (options.hugetlb) flags |= huge_flags(options.huge_page_bytes);
    const std::string name = file_name(arena_id);
    int fd = ::memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
    // Kernels before 6.3 do not know the flag.
    if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name.c_str(), flags);
    if (fd < 0) return error_from_errno(errno, "make arena file");
    return Fd(fd);
}

Result<void> populate(const Fd& fd, Bytes from, const Mapping& mapping) {
    if (::madvise(mapping.data(), mapping.size(), MADV_POPULATE_WRITE) == 0) return {};
    // EFAULT is how a population that ran out of reserved huge pages ends.
    if (errno == ENOMEM || errno == EFAULT) return Error{Errc::kNoMemory, 0, "commit arena"};
    // The kernel is too old for it. fallocate commits just as well, with small pages only.
    const auto length = static_cast<off_t>(mapping.size());
    const bool too_old = errno == EINVAL;
    if (too_old && ::fallocate(fd.get(), 0, static_cast<off_t>(from), length) == 0) return {};
    return error_from_errno(errno, "commit arena");
}

MapOptions map_options(const ArenaFileOptions& options) {
    MapOptions map;
    // A mapping that starts elsewhere has no huge pages.
    map.align = options.huge_page_bytes != 0 ? options.huge_page_bytes : kPageBytes;
    map.huge_page_bytes = options.hugetlb ? 0 : options.huge_page_bytes;
    return map;
}

// All of it at once: the binding is the file's, and holds for pages that come later.
Result<void> bind(const Fd& fd, Bytes bytes, const ArenaFileOptions& options) {
    if (!options.bind) return {};
    FABRIC_TRY(const Mapping mapping, Mapping::map(fd, 0, bytes, map_options(options)));
    return options.bind(mapping.data(), bytes);
}

}  // namespace

Result<Fd> make_arena_file(std::uint64_t arena_id, Bytes bytes, Bytes committed,
                           const ArenaFileOptions& options) {
    FABRIC_TRY(Fd fd, open_memfd(arena_id, options));
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        return error_from_errno(errno, "size arena file");
    }
    FABRIC_TRY_VOID(bind(fd, bytes, options));
    FABRIC_TRY_VOID(commit_arena_file(fd, 0, committed, options));
    // After the size was set, which F_SEAL_GROW would forbid.
    if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
        return error_from_errno(errno, "seal arena file");
    }
    return fd;
}

Result<void> commit_arena_file(const Fd& fd, Bytes from, Bytes to,
                               const ArenaFileOptions& options) {
    FABRIC_TRY(const Mapping mapping, Mapping::map(fd, from, to - from, map_options(options)));
    FABRIC_TRY_VOID(populate(fd, from, mapping));
    // Last: only a page that is there is anywhere.
    if (options.verify) FABRIC_TRY_VOID(options.verify(mapping.data(), mapping.size()));
    return {};
}

Result<void> check_arena_file(const Fd& fd, std::uint64_t arena_id, Bytes bytes) {
    const Error refused{Errc::kCorrupt, 0, "check arena file"};
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return refused;
    if (static_cast<Bytes>(status.st_size) != bytes) return refused;
    if (status.st_uid != ::geteuid()) return refused;

    // Only memfds can have these seals; a file in a tmpfs is born with F_SEAL_SEAL alone.
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals || (seals & F_SEAL_WRITE) != 0) return refused;
    if ((::fcntl(fd.get(), F_GETFL) & O_ACCMODE) != O_RDWR) return refused;

    // The link has the name that the memfd was made with; it can't be changed.
    char target[128];
    const std::string link = "/proc/self/fd/" + std::to_string(fd.get());
    const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
    const std::string expected = "/memfd:" + file_name(arena_id) + " (deleted)";
    if (length < 0 || std::string(target, static_cast<std::size_t>(length)) != expected) {
        return refused;
    }
    return {};
}

void empty_arena_file(const Fd& fd, Bytes from, Bytes to) noexcept {
    if (from >= to) return;
    // Holes, for the seals forbid to shrink it.
    ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                static_cast<off_t>(to - from));
}

}  // namespace fabricshm
