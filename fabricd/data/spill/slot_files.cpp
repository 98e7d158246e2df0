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

int allocate(int fd, Bytes begin, Bytes bytes) {
    int failed = 0;
    do {
        failed = ::fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0
                     ? 0
                     : errno;
    } while (failed == EINTR);
    // Where the file system can't promise room, a full disk switches the spill off when it is met.
    return failed == EOPNOTSUPP ? 0 : failed;
}

// All of the wanted slots; of a full disk those that the file had and that have their room.
Result<std::uint32_t> allocate_slots(int fd, const std::string& path, std::uint32_t wanted) {
    struct stat before {};
    if (::fstat(fd, &before) != 0) return error_of(errno, path);
    if (::ftruncate(fd, static_cast<off_t>(wanted * kSlotBytes)) != 0) return error_of(errno, path);
    const int failed = allocate(fd, 0, wanted * kSlotBytes);
    if (failed == 0) return wanted;
    if (failed != ENOSPC && failed != EDQUOT) return error_of(failed, path);
    const auto had = static_cast<std::uint32_t>(
        std::min(static_cast<Bytes>(before.st_size) / kSlotBytes, Bytes{wanted}));
    // What was allocated behind them before the disk was full goes back.
    if (::ftruncate(fd, static_cast<off_t>(had * kSlotBytes)) != 0) return error_of(errno, path);
    std::uint32_t there = 0;
    while (there < had && allocate(fd, there * kSlotBytes, kSlotBytes) == 0) ++there;
    if (::ftruncate(fd, static_cast<off_t>(there * kSlotBytes)) != 0) return error_of(errno, path);
    return there;
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
    const auto wanted = static_cast<std::uint32_t>(bytes / kSlotBytes);
    FABRIC_CHECK(wanted > 0);
    // Those of a larger budget first: their room is needed.
    const std::size_t count = (wanted + kSlotsPerFile - 1) / kSlotsPerFile;
    for (std::size_t old = count; ::unlink(file_name(folder, old).c_str()) == 0;) ++old;
    for (std::size_t number = 0; files.slots_ < wanted; ++number) {
        const std::uint32_t more = std::min(kSlotsPerFile, wanted - files.slots_);
        FABRIC_TRY(const std::uint32_t there, files.open_file(file_name(folder, number), more));
        files.slots_ += there;
        if (there == more) continue;
        const std::string text = no_room(folder, bytes, files.slots_ * kSlotBytes);
        if (files.slots_ == 0) return explain({Errc::kSystem, ENOSPC, kStep}, "%s", text.c_str());
        files.shortage_ = text;
        break;
    }
    FAULT_POINT("spill.files_made");
    return files;
}

Result<std::uint32_t> SlotFiles::open_file(const std::string& path, std::uint32_t wanted) {
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
    FABRIC_TRY(const std::uint32_t there, allocate_slots(made.get(), path, wanted));
    if (there == 0) static_cast<void>(::unlink(path.c_str()));
    if (there != 0) files_.push_back(std::move(file));
    return there;
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
