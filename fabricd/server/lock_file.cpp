#include "fabricd/server/lock_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

// Whether `path` still names the file that is open: its last holder may have removed it between our
// open() and our flock(), and then a third process could lock a new file of that name.
bool is_at(const Fd& file, const std::string& path) {
    struct stat open_one {};
    struct stat named {};
    if (::fstat(file.get(), &open_one) != 0 || ::stat(path.c_str(), &named) != 0) return false;
    return open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

}  // namespace

Result<LockFile> LockFile::take(const std::string& path) {
    for (;;) {
        Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        // On a disk that is read-only by now the one that lies there can be locked all the same.
        if (!file && errno == EROFS) {
            file = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        }
        if (!file) return fabricshm::error_of_disk(errno, "open lock file");
        // flock, not fcntl: it belongs to the open file, so closing some other descriptor of the
        // file cannot drop it, and the kernel drops it with a killed process.
        if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) return Error{Errc::kBusy, 0, "another fabricd is running"};
            return fabricshm::error_of_disk(errno, "take lock");
        }
        // Ends: each round needs another holder that goes away at this very moment.
        if (!is_at(file, path)) continue;
        LockFile lock;
        lock.path_ = path;
        lock.file_ = std::move(file);
        return lock;
    }
}

LockFile& LockFile::operator=(LockFile&& other) noexcept {
    // Swapped, so that a lock which this object held before goes with `other`, properly removed.
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    return *this;
}

LockFile::~LockFile() {
    if (file_) ::unlink(path_.c_str());  // before the lock goes with the descriptor
}

Result<void> make_directory(const std::string& path, unsigned mode) {
    // From the root down, as mkdir -p does; what is there already keeps its mode.
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string part = path.substr(0, end);
        if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) {
            return fabricshm::error_of_disk(errno, "make directory");
        }
        if (end == std::string::npos) break;
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return fabricshm::error_of_disk(errno, "look at directory");
    }
    if (!S_ISDIR(status.st_mode)) return Error{Errc::kInvalid, 0, "not a directory"};
    // The directory's owner can replace what is in it: sockets, journals and locks must not lie in
    // another user's.
    const bool ours = status.st_uid == ::geteuid() || status.st_uid == 0;
    if (!ours) return Error{Errc::kDenied, 0, "the directory belongs to another user"};
    return {};
}

Result<void> check_not_open_to_all(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return fabricshm::error_from_errno(errno, "look at directory");
    }
    // Sticky or not: a user that may add a file can put one where we are going to make ours.
    const bool is_open = (status.st_mode & S_IWOTH) != 0;
    if (is_open) return Error{Errc::kDenied, 0, "the state folder is writable by all users"};
    return {};
}

}  // namespace fabricd
