#include "fabricd/data/mount/folder_source.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;

namespace {

Error error_of(int saved_errno, const char* step) {
    if (saved_errno == EACCES || saved_errno == EPERM || saved_errno == EXDEV) {
        return {Errc::kDenied, 0, step};
    }
    if (saved_errno == ENOTDIR) return {Errc::kNotFound, 0, step};
    return fabricshm::error_of_disk(saved_errno, step);
}

Result<Fd> open_beneath(const Fd& root, const std::string& path, int flags) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    for (;;) {
        const long fd =
            ::syscall(SYS_openat2, root.get(), path.empty() ? "." : path.c_str(), &how, sizeof how);
        if (fd >= 0) return Fd(static_cast<int>(fd));
        if (errno != EAGAIN && errno != EINTR) return error_of(errno, "open in folder");
    }
}

std::int64_t nanoseconds(const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

NodeFacts facts_of(const struct stat& status) {
    NodeFacts facts;
    facts.is_folder = S_ISDIR(status.st_mode);
    if (facts.is_folder) return facts;
    facts.bytes = static_cast<Bytes>(status.st_size);
    facts.mtime_ns = nanoseconds(status.st_mtim);
    std::uint64_t stamp = mix_hash(facts.bytes, status.st_ino);
    stamp = mix_hash(stamp, static_cast<std::uint64_t>(facts.mtime_ns));
    stamp = mix_hash(stamp, static_cast<std::uint64_t>(nanoseconds(status.st_ctim)));
    facts.stamp = std::max<std::uint64_t>(stamp, 1);
    return facts;
}

class FolderListing : public MountListing {
  public:
    FolderListing(Fd folder, std::vector<MountEntry> entries)
        : folder_(std::move(folder)), entries_(std::move(entries)) {}

    std::size_t count() const override { return entries_.size(); }
    Result<MountEntry> entry(std::size_t index) const override { return entries_[index]; }

    std::optional<std::size_t> find(std::string_view name) const override {
        const auto found = std::lower_bound(
            entries_.begin(), entries_.end(), name,
            [](const MountEntry& entry, auto wanted) { return entry.name < wanted; });
        if (found == entries_.end() || found->name != name) return std::nullopt;
        return static_cast<std::size_t>(found - entries_.begin());
    }

    Result<MountBytes> read(std::size_t index, Bytes offset, std::span<std::byte> room,
                            TimePoint) const override;

  private:
    const Fd folder_;
    const std::vector<MountEntry> entries_;
};

// Looked at before and after: what was read is of that version.
Result<MountBytes> FolderListing::read(std::size_t index, Bytes offset, std::span<std::byte> room,
                                       TimePoint) const {
    const MountEntry& entry = entries_[index];
    const Error changed{Errc::kChanged, 0, "read file"};
    auto file = open_beneath(folder_, entry.name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!file.ok()) return file.error().code == Errc::kNotFound ? changed : file.error();
    const auto is_same = [&] {
        struct stat status {};
        return ::fstat(file->get(), &status) == 0 && facts_of(status).stamp == entry.facts.stamp;
    };
    if (!is_same()) return changed;
    const Bytes wanted =
        std::min<Bytes>(room.size(), entry.facts.bytes - std::min(offset, entry.facts.bytes));
    Bytes got = 0;
    while (got < wanted) {
        const ssize_t piece =
            ::pread(file->get(), room.data() + got, wanted - got, static_cast<off_t>(offset + got));
        if (piece < 0 && errno == EINTR) continue;
        if (piece < 0) return error_of(errno, "read file");
        if (piece == 0) return changed;
        got += static_cast<Bytes>(piece);
    }
    if (!is_same()) return changed;
    return MountBytes{room.first(got), nullptr};
}

}  // namespace

Result<void> FolderSource::open(TimePoint deadline) {
    const auto root = list("", deadline);
    return root.ok() ? Result<void>{} : Result<void>{root.error()};
}

Result<std::shared_ptr<const MountListing>> FolderSource::list(const std::string& path, TimePoint) {
    const Fd root(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root) return error_of(errno, "open folder");
    FABRIC_TRY(Fd folder, open_beneath(root, path, O_RDONLY | O_DIRECTORY));
    FABRIC_TRY(Fd copy, folder.duplicate());
    DIR* const stream = ::fdopendir(copy.get());
    if (stream == nullptr) return error_of(errno, "list folder");
    static_cast<void>(copy.release());
    std::vector<MountEntry> entries;
    errno = 0;
    while (const dirent* const found = ::readdir(stream)) {
        const std::string name = found->d_name;
        if (name == "." || name == "..") continue;
        struct stat status {};
        if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISLNK(status.st_mode)) {
            const auto target = open_beneath(folder, name, O_PATH);
            if (!target.ok() || ::fstat(target->get(), &status) != 0) continue;
        }
        if (S_ISDIR(status.st_mode) || S_ISREG(status.st_mode)) {
            entries.push_back({name, facts_of(status)});
        }
        errno = 0;
    }
    const int saved_errno = errno;
    ::closedir(stream);
    if (saved_errno != 0) return error_of(saved_errno, "list folder");
    std::sort(entries.begin(), entries.end(),
              [](const MountEntry& one, const MountEntry& other) { return one.name < other.name; });
    return std::shared_ptr<const MountListing>(
        std::make_shared<FolderListing>(std::move(folder), std::move(entries)));
}

}  // namespace fabricd
