#include "fabricd/pool/file_identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

namespace fabricd {

fabricshm::Result<FileIdentity> identity_of(const fabricshm::Fd& fd) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) {
        return fabricshm::error_from_errno(errno, "look at descriptor");
    }
    // A file that cannot be sealed says so with an error; that is part of what it is, too.
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    return FileIdentity{status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
                        seals < 0 ? ~std::uint32_t{0} : static_cast<std::uint32_t>(seals)};
}

}  // namespace fabricd
