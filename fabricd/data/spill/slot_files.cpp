#include "fabricd/data/spill/slot_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Fd;

namespace {

constexpr std::uint32_t kSlotsPerFile = 4096;  // 16 GiB
constexpr const char* kStep = "open spill";

std::string file_name(const std::string& folder, std::size_t number) {
    char name[32];
    std::snprintf(name, sizeof name, "/slots-%03zu", number);
    return folder + name;
}

Error error_of(int saved_errno, const std::string& path) {
    const Errc code = saved_errno == EACCES || saved_errno == EPERM || saved_errno == EROFS
                          ? Errc::kDenied
                          : fabricshm::error_of_disk(saved_errno, kStep).code;
    const std::int32_t detail = code == Errc::kSystem ? saved_errno : 0;
    return explain({code, detail, kStep}, "%s: %s", printable(path).c_str(),
                   std::strerror(saved_errno));
}

// Bytes that another user could have put there, or could change, are not read as ours.
Result<void> check_folder(const std::string& folder) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return error_of(errno, folder);
    if (!S_ISDIR(status.st_mode)) return error_of(ENOTDIR, folder);
    const bool others_write = (status.st_mode & S_IWOTH) != 0;
    if (others_write) {
        return explain({Errc::kDenied, 0, kStep}, "%s may be written by every user",
                       printable(folder).c_str());
    }
    if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
        return error_of(errno, folder);
    }
    return {};
}

Result<void> check_file(int fd, const std::string& path) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return error_of(errno, path);
    const bool is_ours =
        S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && status.st_nlink == 1;
    if (is_ours) return {};
    return explain({Errc::kDenied, 0, kStep}, "%s is no file of this user alone",
                   printable(path).c_str());
}

std::string no_room(const std::string& folder, Bytes bytes, Bytes there) {
    return printable(folder) + ": has not the room for spill_bytes " +
           fabricshm::format_bytes(bytes) + (there != 0 ? ", but for " : "") +
           (there != 0 ? fabricshm::format_bytes(there) : "");
}

}  // namespace

Result<SlotFiles> SlotFiles::open(const std::string& folder, Bytes bytes) {
    FABRIC_TRY_VOID(check_folder(folder));
    SlotFiles files;
    const std::string lock = folder + "/lock";
    files.lock_ = Fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!files.lock_) return error_of(errno, lock);
    if (::flock(files.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
        return explain({Errc::kBusy, 0, kStep}, "%s: another process uses this spill",
                       printable(folder).c_str());
    }
    files.slots_ = static_cast<std::uint32_t>(bytes / kSlotBytes);
    FABRIC_CHECK(files.slots_ > 0);
    std::size_t number = 0;
    // Those of a larger budget first: their room is needed.
    const std::size_t count = (files.slots_ + kSlotsPerFile - 1) / kSlotsPerFile;
    for (std::size_t old = count; ::unlink(file_name(folder, old).c_str()) == 0;) ++old;
    for (std::uint32_t slot = 0; slot < files.slots_; slot += kSlotsPerFile) {
        const Bytes size = std::min(kSlotsPerFile, files.slots_ - slot) * kSlotBytes;
        const auto opened = files.open_file(file_name(folder, number++), size);
        if (!opened.ok() && opened.error().detail == ENOSPC) {
            return explain(opened.error(), "%s", no_room(folder, bytes, 0).c_str());
        }
        if (!opened.ok()) return opened.error();
    }
    FAULT_POINT("spill.files_made");
    return files;
}

Result<void> SlotFiles::open_file(const std::string& path, Bytes bytes) {
    File file;
    // Not through a link.
    const Fd made(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!made) return error_of(errno, path);
    FABRIC_TRY_VOID(check_file(made.get(), path));
    FABRIC_TRY(file.writable, fabricshm::DiskFile::open(path, 0600));
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
    file.readable = Fd(::open(path.c_str(), kFlags | O_DIRECT));
    // tmpfs and some others have none.
    if (!file.readable) {
        direct_ = false;
        file.readable = Fd(::open(path.c_str(), kFlags));
    }
    if (!file.readable) return error_of(errno, path);
    if (::ftruncate(made.get(), static_cast<off_t>(bytes)) != 0) return error_of(errno, path);
    int allocated = 0;
    do {
        allocated = ::fallocate(made.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (allocated == EINTR);
    if (allocated == ENOSPC) static_cast<void>(::unlink(path.c_str()));
    // Where the file system can't promise room, a full disk switches the spill off when it is met.
    if (allocated != 0 && allocated != EOPNOTSUPP) return error_of(allocated, path);
    files_.push_back(std::move(file));
    return {};
}

const fabricshm::DiskFile& SlotFiles::writable(std::uint32_t slot) const {
    return files_[slot / kSlotsPerFile].writable;
}

int SlotFiles::readable(std::uint32_t slot) const {
    return files_[slot / kSlotsPerFile].readable.get();
}

Bytes SlotFiles::offset(std::uint32_t slot) const noexcept {
    return slot % kSlotsPerFile * kSlotBytes;
}

std::string spill_problem(const std::string& folder, Bytes bytes) {
    const auto checked = check_folder(folder);
    if (!checked.ok()) return fabricshm::explanation_of(checked.error());
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0)
        return fabricshm::explanation_of(error_of(errno, folder));
    Bytes there = Bytes{disk.f_bavail} * disk.f_frsize;
    struct stat status {};
    for (std::size_t number = 0; ::stat(file_name(folder, number).c_str(), &status) == 0;
         ++number) {
        there += static_cast<Bytes>(status.st_blocks) * 512;
    }
    return there < bytes ? no_room(folder, bytes, there) : "";
}

}  // namespace fabricd
