#include "libfabricshm/optim/snapshot_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/disk_writer.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPartial = ".partial-";

std::string name_of(std::uint64_t step) {
    char text[32];
    (void)std::snprintf(text, sizeof text, "step-%06llu", static_cast<unsigned long long>(step));
    return text;
}

// "step-000123" and nothing else.
std::optional<std::uint64_t> step_of(std::string_view name) {
    if (!name.starts_with(kPrefix)) return std::nullopt;
    const std::string_view digits = name.substr(kPrefix.size());
    std::uint64_t step = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), step);
    const bool is_whole = error == std::errc{} && end == digits.end() && name_of(step) == name;
    return is_whole ? std::optional(step) : std::nullopt;
}

bool is_partial(std::string_view name) {
    if (!name.starts_with(std::string(".") + std::string(kPrefix))) return false;
    const auto at = name.find(kPartial);
    return at != std::string_view::npos && step_of(name.substr(1, at - 1)).has_value();
}

// The names in a directory; empty when it cannot be read.
std::vector<std::string> names_in(const std::string& path, std::error_code& error) {
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
        names.push_back(at->path().filename().string());
    }
    return names;
}

bool is_of_snapshot(std::string_view name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
           name.starts_with("part-");
}

// Through links, too: an old one may have been moved to another disk.
bool holds_model(const std::string& path) {
    std::error_code error;
    const std::vector<std::string> names = names_in(path, error);
    return std::ranges::any_of(names, [](const std::string& name) {
        return name.starts_with("model") && name.ends_with(".safetensors");
    });
}

// Itself, and not what a link leads to.
bool is_directory(const std::string& path) {
    struct stat now {};
    return ::lstat(path.c_str(), &now) == 0 && S_ISDIR(now.st_mode);
}

// What a snapshot is made of, and nothing else; no link is followed. What is none of ours is left,
// and the directory with it.
void remove_flat(const std::string& path) {
    const Fd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory) return;
    std::error_code error;
    for (const std::string& name : names_in(path, error)) {
        if (is_of_snapshot(name)) ::unlinkat(directory.get(), name.c_str(), 0);
    }
    ::rmdir(path.c_str());
}

}  // namespace

Error explain_disk(const Error& error, const std::string& path) {
    const bool has_errno = error.code == Errc::kSystem && error.detail != 0;
    return explain(error, "%s: %s", path.c_str(),
                   has_errno ? std::strerror(error.detail) : text_of(error.code));
}

Result<void> sync_directory(const std::string& path) {
    const Fd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory && ::fsync(directory.get()) == 0) return {};
    return explain_disk(error_of_disk(errno, "fsync a directory"), path);
}

Result<void> write_text(const std::string& path, const std::string& text) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file) return explain_disk(error_of_disk(errno, "open a file to write"), path);
    const auto written =
        write_all(file.get(), reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
    if (!written.ok()) return explain_disk(written.error(), path);
    if (::fsync(file.get()) != 0) return explain_disk(error_of_disk(errno, "fsync"), path);
    return {};
}

Result<std::vector<KeptSnapshot>> SnapshotDirectory::snapshots() const {
    std::error_code error;
    std::vector<KeptSnapshot> found;
    for (const std::string& name : names_in(path_, error)) {
        const auto step = step_of(name);
        const std::string path = path_ + "/" + name;
        if (step && holds_model(path)) found.push_back({*step, path});
    }
    if (error) return explain_disk(error_of_disk(error.value(), "read a directory"), path_);
    std::ranges::sort(found, {}, &KeptSnapshot::step);
    return found;
}

Result<KeptSnapshot> SnapshotDirectory::latest() const {
    FABRIC_TRY(const auto found, snapshots());
    if (!found.empty()) return found.back();
    return explain({Errc::kNotFound, 0, "find a snapshot"}, "there is no snapshot in %s",
                   path_.c_str());
}

std::string SnapshotDirectory::partial_path(const SnapshotStamp& stamp) const {
    char id[17];
    (void)std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(stamp.id));
    return path_ + "/." + name_of(stamp.step) + std::string(kPartial) + id;
}

std::string SnapshotDirectory::final_path(const SnapshotStamp& stamp) const {
    return path_ + "/" + name_of(stamp.step);
}

Result<void> SnapshotDirectory::prepare(const SnapshotStamp& stamp) const {
    for (const std::string& path : {path_, partial_path(stamp)}) {
        if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) continue;
        return explain_disk(error_of_disk(errno, "make a directory"), path);
    }
    return {};
}

void SnapshotDirectory::remove_partials(const SnapshotStamp& stamp) const {
    std::error_code error;
    for (const std::string& name : names_in(path_, error)) {
        const std::string path = path_ + "/" + name;
        if (is_partial(name) && path != partial_path(stamp)) remove_flat(path);
    }
}

Result<void> SnapshotDirectory::commit(const SnapshotStamp& stamp) const {
    const std::string from = partial_path(stamp);
    const std::string to = final_path(stamp);
    FABRIC_TRY_VOID(sync_directory(from));
    FAULT_POINT("snapshot.commit");
    constexpr const char* kStep = "name a snapshot";
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0) {
        if (errno != EEXIST) return explain_disk(error_of_disk(errno, kStep), to);
        // At no time is there none of this step.
        if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
            return explain_disk(error_of_disk(errno, kStep), to);
        }
        FAULT_POINT("snapshot.exchanged");
        FABRIC_TRY_VOID(sync_directory(path_));
        remove_flat(from);
    }
    FAULT_POINT("snapshot.named");
    return sync_directory(path_);
}

void SnapshotDirectory::prune(const SnapshotStamp& stamp, std::uint32_t keep) const {
    auto found = snapshots();
    if (!found.ok() || keep == 0) return;
    std::erase_if(*found, [](const KeptSnapshot& each) { return !is_directory(each.path); });
    std::size_t left = found->size();
    for (const KeptSnapshot& old : *found) {
        if (left <= keep) return;
        if (old.step == stamp.step) continue;
        // Under its own name it is whole, or not there.
        const std::string doomed = partial_path({old.step, stamp.id});
        if (::rename(old.path.c_str(), doomed.c_str()) != 0) continue;
        FAULT_POINT("snapshot.pruned");
        remove_flat(doomed);
        --left;
    }
}

void SnapshotDirectory::abandon(const SnapshotStamp& stamp) const {
    remove_flat(partial_path(stamp));
}

}  // namespace fabricshm
