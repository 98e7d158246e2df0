#include "fabricd/data/silo/folder_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "fabricd/data/silo/folder_place.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Fd;

namespace {

// Steps that wait or are under way: 64 MiB of other memory at most.
constexpr std::size_t kMaxSteps = 8;
constexpr mode_t kFileMode = 0644;
constexpr mode_t kFolderMode = 0755;

Error write_error(int saved_errno, const std::string& path, const char* step) {
    if (saved_errno == EEXIST) return error_of_taken(printable(path), step);
    if (saved_errno == EACCES || saved_errno == EPERM || saved_errno == EROFS) {
        return explain({Errc::kDenied, 0, step}, "%s may not be written", printable(path).c_str());
    }
    return folder_error(saved_errno, path, step);
}

std::string joined(const std::string& folder, const std::string& name) {
    return folder.empty() ? name : folder + "/" + name;
}

Result<void> sync_folder(int folder, const std::string& path) {
    // A descriptor of O_PATH can't be synced.
    const Fd fd(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) != 0) return write_error(errno, path, "sync folder");
    return {};
}

// The folder `name` of `parent`, made if it is not there.
Result<Fd> make_folder(int parent, const std::string& name, const std::string& path) {
    if (::mkdirat(parent, name.c_str(), kFolderMode) == 0) {
        FABRIC_TRY_VOID(sync_folder(parent, path));
    } else if (errno != EEXIST) {
        return write_error(errno, path, "make folder");
    }
    // One name, and no link: what another program has put there doesn't lead out.
    Fd folder(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) return write_error(errno == ENOTDIR ? EEXIST : errno, path, "make folder");
    return folder;
}

// Fails with EEXIST where there is such a name.
int give_name(int file, int folder, const char* name) {
    char own[64];
    std::snprintf(own, sizeof own, "/proc/self/fd/%d", file);
    return ::linkat(AT_FDCWD, own, folder, name, AT_SYMLINK_FOLLOW);
}

int change_name(int from_folder, const char* from, int folder, const char* name,
                FolderNaming first) {
    if (first != FolderNaming::kLink) {
        if (::renameat2(from_folder, from, folder, name, RENAME_NOREPLACE) == 0) return 0;
        // File systems of networks have no such rename; a second name is as careful.
        if (errno != EINVAL && errno != ENOSYS) return -1;
    }
    if (::linkat(from_folder, from, folder, name, 0) != 0) return -1;
    FAULT_POINT("data.write.two_names");
    return ::unlinkat(from_folder, from, 0);
}

}  // namespace

FolderWriter::FolderWriter(std::string place, FolderNaming first)
    : place_(std::move(place)), first_(first), thread_([this] { work(); }) {}

FolderWriter::~FolderWriter() {
    {
        const std::lock_guard lock(mutex_);
        stops_ = true;
    }
    is_asked_.notify_all();
    thread_.join();
}

Result<std::unique_ptr<FolderWriter>> FolderWriter::open(const std::string& root,
                                                         FolderNaming first) {
    FABRIC_TRY(const Fd fd, open_silo_root(root));
    if (::faccessat(fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
        return write_error(errno, root, "open silo for writing");
    }
    return std::unique_ptr<FolderWriter>(new FolderWriter(root, first));
}

bool FolderWriter::has_room() const noexcept {
    const std::lock_guard lock(mutex_);
    return under_way_ < kMaxSteps;
}

void FolderWriter::begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) {
    start({Kind::kBegin, file, tag, name});
}

void FolderWriter::append(std::uint64_t file, const std::byte* bytes, Bytes count,
                          std::uint64_t tag) {
    FABRIC_CHECK(count <= kMaxAppend);
    start({Kind::kAppend, file, tag, {}, bytes, count});
}

void FolderWriter::commit(std::uint64_t file, std::uint64_t tag) {
    start({Kind::kCommit, file, tag, {}});
}

void FolderWriter::abort(std::uint64_t file, std::uint64_t tag) {
    start({Kind::kAbort, file, tag, {}});
}

void FolderWriter::start(Step step) {
    {
        const std::lock_guard lock(mutex_);
        steps_.push_back(std::move(step));
        ++under_way_;
    }
    is_asked_.notify_one();
}

std::vector<Written> FolderWriter::wait(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    has_ended_.wait_until(lock, deadline, [&] { return !ended_.empty() || under_way_ == 0; });
    under_way_ -= ended_.size();
    return std::exchange(ended_, {});
}

void FolderWriter::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        is_asked_.wait(lock, [&] { return stops_ || !steps_.empty(); });
        if (stops_) break;
        const Step step = std::move(steps_.front());
        steps_.pop_front();
        lock.unlock();
        Written written = do_step(step);
        written.tag = step.tag;
        lock.lock();
        ended_.push_back(std::move(written));
        has_ended_.notify_all();
    }
}

Written FolderWriter::do_step(const Step& step) {
    const auto outcome = [](const auto& result) {
        if (result.ok()) return Written{};
        return Written{0, result.error(), fabricshm::explanation_of(result.error()), {}};
    };
    if (step.kind == Kind::kBegin) {
        FABRIC_CHECK(!files_.contains(step.file));
        File& file = files_[step.file];
        file.name = step.name;
        return file.failed = outcome(begin_file(file));
    }
    const auto found = files_.find(step.file);
    FABRIC_CHECK(found != files_.end());
    File& file = found->second;
    if (step.kind == Kind::kAbort) {
        const Written written = outcome(remove(file));
        files_.erase(found);
        return written;
    }
    if (!file.failed.ok()) return file.failed;
    if (step.kind == Kind::kAppend) return file.failed = outcome(append_to(file, step));
    const auto facts = commit_file(file);
    Written written = outcome(facts);
    if (!facts.ok()) return file.failed = written;
    written.facts = *facts;
    files_.erase(found);
    return written;
}

// The deepest folder of its path that is there.
Result<void> FolderWriter::find_folder(int root, File& file) const {
    const std::string& path = file.name.path;
    FABRIC_TRY(file.folder, open_beneath(root, "", O_PATH | O_DIRECTORY));
    for (;;) {
        const std::size_t begin = file.there == 0 ? 0 : file.there + 1;
        const std::size_t end = path.find('/', begin);
        if (end == path.npos) return {};
        const std::string prefix = path.substr(0, end);
        auto folder = open_beneath(root, prefix, O_PATH | O_DIRECTORY);
        if (!folder.ok()) {
            const Error error = folder.error();
            if (error.code != Errc::kNotFound) return error;
            if (open_beneath(root, prefix, O_PATH | O_NOFOLLOW).ok()) {
                return error_of_no_folder(printable(prefix), "begin file");
            }
            return {};
        }
        file.folder = std::move(*folder);
        file.there = end;
    }
}

Result<void> FolderWriter::make_file(File& file) const {
    if (first_ == FolderNaming::kNameless) {
        file.fd = Fd(::openat(file.folder.get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, kFileMode));
        file.is_nameless = bool(file.fd);
        if (file.fd) return {};
        // Others than "not supported" are met again.
    }
    const std::string name = temporary_name(file.name.token);
    file.fd = Fd(::openat(file.folder.get(), name.c_str(),
                          O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, kFileMode));
    if (!file.fd) return write_error(errno, file.name.path, "begin file");
    return {};
}

Result<void> FolderWriter::begin_file(File& file) const {
    const std::string& path = file.name.path;
    FABRIC_TRY_VOID(check_write_path(path, printable(path)));
    FABRIC_TRY(const Fd root, open_silo_root(place_));
    if (open_beneath(root.get(), path, O_PATH | O_NOFOLLOW).ok()) {
        return error_of_taken(printable(path), "begin file");
    }
    FABRIC_TRY_VOID(find_folder(root.get(), file));
    FABRIC_TRY_VOID(make_file(file));
    FAULT_POINT("data.write.begun");
    return {};
}

Result<void> FolderWriter::append_to(File& file, const Step& step) {
    for (Bytes done = 0; done < step.count;) {
        const ssize_t count = ::pwrite(file.fd.get(), step.bytes + done, step.count - done,
                                       static_cast<off_t>(file.bytes));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return write_error(errno, file.name.path, "write file");
        done += static_cast<Bytes>(count);
        file.bytes += static_cast<Bytes>(count);
    }
    FAULT_POINT("data.write.appended");
    return {};
}

Result<FileFacts> FolderWriter::commit_file(const File& file) const {
    const std::string& path = file.name.path;
    // The name is to mean these bytes after a crash of the host, too.
    if (::fsync(file.fd.get()) != 0) return write_error(errno, path, "sync file");
    FAULT_POINT("data.write.synced");
    FABRIC_TRY(Fd folder, file.folder.duplicate());
    std::size_t begin = file.there == 0 ? 0 : file.there + 1;
    for (std::size_t end; (end = path.find('/', begin)) != path.npos; begin = end + 1) {
        FABRIC_TRY(folder,
                   make_folder(folder.get(), path.substr(begin, end - begin), path.substr(0, end)));
    }
    FAULT_POINT("data.write.foldered");
    const char* const name = path.c_str() + begin;
    const int bad = file.is_nameless
                        ? give_name(file.fd.get(), folder.get(), name)
                        : change_name(file.folder.get(), temporary_name(file.name.token).c_str(),
                                      folder.get(), name, first_);
    if (bad != 0) return write_error(errno, path, "name file");
    FAULT_POINT("data.write.named");
    FABRIC_TRY_VOID(sync_folder(folder.get(), path));
    // Naming it has changed the time of its inode.
    struct stat status {};
    if (::fstat(file.fd.get(), &status) != 0) return write_error(errno, path, "look at file");
    return facts_of_file(status);
}

Result<void> FolderWriter::remove(const File& file) {
    if (!file.fd || file.is_nameless) return {};
    if (::unlinkat(file.folder.get(), temporary_name(file.name.token).c_str(), 0) == 0) return {};
    if (errno == ENOENT) return {};
    return write_error(errno, file.name.path, "remove file");
}

// In each folder that may have been the deepest one then.
Result<void> FolderWriter::clear(const WriteName& name, TimePoint) {
    FABRIC_TRY(const Fd root, open_silo_root(place_));
    if (!is_silo_path(name.path)) return {};  // it was never begun
    for (std::size_t end = name.path.rfind('/');; end = name.path.rfind('/', end - 1)) {
        const bool is_root = end == name.path.npos || end == 0;
        const std::string path = is_root ? "" : name.path.substr(0, end);
        const auto folder = open_beneath(root.get(), path, O_PATH | O_DIRECTORY);
        if (folder.ok() && ::unlinkat(folder->get(), temporary_name(name.token).c_str(), 0) != 0 &&
            errno != ENOENT) {
            return write_error(errno, joined(path, temporary_name(name.token)), "remove file");
        }
        if (is_root) return {};
    }
}

}  // namespace fabricd
