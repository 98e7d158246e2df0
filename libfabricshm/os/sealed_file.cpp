#include "libfabricshm/os/sealed_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libfabricshm/os/memory_file.hpp"

namespace fabricshm {

namespace {

constexpr int kUnchanging = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

Result<Fd> make_sealed_file(const char* name, std::span<const std::byte> content) {
    FABRIC_TRY(Fd file, open_memory_file(name, "make sealed file"));
    while (!content.empty()) {
        const ssize_t wrote = ::write(file.get(), content.data(), content.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return error_from_errno(wrote < 0 ? errno : ENOSPC, "write sealed file");
        content = content.subspan(static_cast<std::size_t>(wrote));
    }
    if (::fcntl(file.get(), F_ADD_SEALS, kUnchanging | F_SEAL_SEAL) != 0) {
        return error_from_errno(errno, "seal file");
    }
    return file;
}

Result<Mapping> map_sealed_file(const Fd& file, Bytes most) {
    const int seals = ::fcntl(file.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kUnchanging) != kUnchanging) {
        return Error{Errc::kCorrupt, 0, "look at seals of file"};
    }
    // Read behind the seals: it can't change from here on.
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return error_from_errno(errno, "look at sealed file");
    if (status.st_size <= 0 || static_cast<Bytes>(status.st_size) > most) {
        return Error{Errc::kCorrupt, 0, "look at size of sealed file"};
    }
    MapOptions options;
    options.writable = false;
    return Mapping::map(file, 0, static_cast<Bytes>(status.st_size), options);
}

}  // namespace fabricshm
