#include "libfabricshm/os/page_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libfabricshm/os/memory_file.hpp"
#include "libfabricshm/os/reopen.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace fabricshm {

Result<PageFile> make_page_file(const char* name, Bytes bytes, PageAccess access,
                                void (*format)(std::byte*) noexcept) {
    FABRIC_TRY(Fd file, open_memory_file(name, "make page file"));
    // Allocated now: a write later must not find a full system and die of SIGBUS.
    if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
        return error_from_errno(errno, "size page file");
    }
    PageFile page;
    FABRIC_TRY(page.mapping, Mapping::map(file, 0, bytes, {}));
    format(page.mapping.data());
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    // Mappings made before stay writable: ours is, and no later one can be. The file belongs to the
    // daemon's user, which may be the session's too: permissions would not keep it from that one.
    if (access == PageAccess::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
    if (::fcntl(file.get(), F_ADD_SEALS, seals) != 0) {
        return error_from_errno(errno, "seal page file");
    }
    if (access == PageAccess::kReadOnly) {
        FABRIC_TRY(page.descriptor, open_read_only(file));
        return page;
    }
    if (::mprotect(page.mapping.data(), bytes, PROT_READ) != 0) {
        return error_from_errno(errno, "protect page file");
    }
    page.descriptor = std::move(file);
    return page;
}

}  // namespace fabricshm
