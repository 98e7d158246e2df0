#include "libfabricshm/optim/stored_snapshot.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/optim/snapshot_directory.hpp"
#include "libfabricshm/optim/snapshot_plan.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

namespace {

constexpr const char* kStoredStep = "read snapshot";
constexpr Error kCorruptFile{Errc::kCorrupt, 0, kStoredStep};
constexpr Error kOther{Errc::kMismatch, -1, "restore snapshot"};
// Small enough that the checksum finds it in the cache.
constexpr Bytes kReadBytes = kMiB;

// kCorrupt when the file ends before.
Result<void> read_all(int fd, std::byte* data, Bytes bytes, Bytes offset) {
    while (bytes > 0) {
        const ssize_t got = ::pread(fd, data, bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_of_disk(errno, kStoredStep);
        if (got == 0) return Error{Errc::kCorrupt, 0, "read snapshot: the file is too short"};
        data += got;
        bytes -= static_cast<Bytes>(got);
        offset += static_cast<Bytes>(got);
    }
    return {};
}

const std::string& value_of(const StoredHeader& header, const std::string& key) {
    static const std::string kNone;
    const auto found = header.metadata.find(key);
    return found == header.metadata.end() ? kNone : found->second;
}

// False: it is no number.
bool parse(const std::string& text, std::uint64_t& value) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && at == end;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
    std::string text = "(";
    for (const std::int64_t length : shape) text += std::to_string(length) + ",";
    return text + ")";
}

}  // namespace

Result<StoredSnapshot::File> StoredSnapshot::read_file(const std::string& path) {
    // Not blocking: a pipe would wait for a writer.
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat now {};
    if (!fd || ::fstat(fd.get(), &now) != 0)
        return explain_disk(error_of_disk(errno, kStoredStep), path);
    if (!S_ISREG(now.st_mode)) return explain(kCorruptFile, "%s: it is no file", path.c_str());
    const auto bytes = static_cast<Bytes>(now.st_size);
    std::array<unsigned char, 8> start{};
    auto got = read_all(fd.get(), reinterpret_cast<std::byte*>(start.data()), start.size(), 0);
    if (!got.ok()) return explain_disk(got.error(), path);
    std::uint64_t length = 0;
    for (std::size_t i = start.size(); i-- > 0;) length = length << 8 | start[i];
    if (length > kMaxHeader || length > bytes - start.size()) {
        return explain(kCorruptFile, "%s: the header is damaged", path.c_str());
    }
    std::string json(length, '\0');
    got = read_all(fd.get(), reinterpret_cast<std::byte*>(json.data()), length, start.size());
    if (!got.ok()) return explain_disk(got.error(), path);
    auto header = parse_header(json);
    if (!header.ok()) {
        return explain(header.error(), "%s: %s", path.c_str(),
                       std::string(reason_of(header.error())).c_str());
    }
    File file{path, start.size() + length, std::move(header).value()};
    const Bytes tensors = file.header.tensors.empty() ? 0 : file.header.tensors.back().end;
    if (tensors != bytes - file.data) {
        return explain(kCorruptFile, "%s: the file has %llu bytes, its header speaks of %llu",
                       path.c_str(), static_cast<unsigned long long>(bytes),
                       static_cast<unsigned long long>(file.data + tensors));
    }
    return file;
}

Result<StoredSnapshot> StoredSnapshot::open(const std::string& path) {
    std::error_code error;
    std::vector<std::string> paths;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
        if (at->path().extension() == ".safetensors") paths.push_back(at->path().string());
    }
    if (error) return explain_disk(error_of_disk(error.value(), kStoredStep), path);
    if (paths.empty()) {
        return explain({Errc::kNotFound, 0, kStoredStep}, "%s: there is no snapshot", path.c_str());
    }
    std::ranges::sort(paths);
    StoredSnapshot snapshot;
    snapshot.path_ = path;
    for (const std::string& each : paths) {
        FABRIC_TRY(File file, read_file(each));
        for (std::size_t i = 0; i < file.header.tensors.size(); ++i) {
            const std::string& name = file.header.tensors[i].name;
            if (snapshot.tensors_.emplace(name, Place{snapshot.files_.size(), i}).second) continue;
            return explain(kCorruptFile, "%s: tensor '%.80s' is in two files", each.c_str(),
                           name.c_str());
        }
        snapshot.files_.push_back(std::move(file));
    }
    FABRIC_TRY_VOID(snapshot.check_stamps());
    return snapshot;
}

Result<void> StoredSnapshot::check_stamps() {
    const StoredHeader& first = files_.front().header;
    for (const File& file : files_) {
        const std::string& version = value_of(file.header, kVersionKey);
        if (version.empty()) {
            return explain(kCorruptFile, "%s: it is not part of a snapshot", file.path.c_str());
        }
        if (version != kSnapshotVersion) {
            return explain({Errc::kVersion, 0, kStoredStep},
                           "%s: format %.20s, this is for format %s", file.path.c_str(),
                           version.c_str(), kSnapshotVersion);
        }
        for (const char* key : {kSnapshotKey, kStepKey, kFilesKey, kOptimiserKey}) {
            if (value_of(file.header, key) == value_of(first, key)) continue;
            return explain(kCorruptFile, "%s: it belongs to another snapshot than %s",
                           file.path.c_str(), files_.front().path.c_str());
        }
    }
    std::uint64_t count = 0;
    if (!parse(value_of(first, kStepKey), step_) || !parse(value_of(first, kFilesKey), count) ||
        step_ > kMaxSteps) {
        return explain(kCorruptFile, "%s: the header is damaged", files_.front().path.c_str());
    }
    if (count == files_.size()) return {};
    return explain(kCorruptFile, "%s: %zu files of %llu are there", path_.c_str(), files_.size(),
                   static_cast<unsigned long long>(count));
}

Result<void> StoredSnapshot::check(const ParameterSpec& spec) const {
    const std::string& optimiser = value_of(files_.front().header, kOptimiserKey);
    const char* own = kernels::row_of(spec.rule).name;
    if (optimiser != own) {
        return explain(kOther, "the snapshot is one of %.20s, the set is stepped by %s",
                       optimiser.c_str(), own);
    }
    const int arrays = 1 + kernels::row_of(spec.rule).states();
    std::size_t known = 0;
    for (int array = 0; array < arrays; ++array) {
        for (std::size_t i = 0; i < spec.parameters.size(); ++i, ++known) {
            const std::string name = stored_name(spec, array, i);
            const auto found = tensors_.find(name);
            if (found == tensors_.end()) {
                return explain(kOther, "the snapshot has no tensor '%.80s'", name.c_str());
            }
            const StoredTensor& tensor =
                files_[found->second.file].header.tensors[found->second.tensor];
            const std::vector<std::int64_t>& shape = spec.parameters[i].shape;
            const bool fits = tensor.dtype == "F32" && tensor.shape == shape &&
                              tensor.bytes() == spec.parameters[i].elements() * sizeof(float);
            // Now, and not when the set has been written into.
            const StoredHeader& header = files_[found->second.file].header;
            if (fits && value_of(header, kChecksumKey + name).empty()) {
                return explain(kCorruptFile, "%s: tensor '%.80s' has no checksum",
                               files_[found->second.file].path.c_str(), name.c_str());
            }
            if (fits) continue;
            return explain(kOther, "tensor '%.80s' is %.8s %.60s in the snapshot, F32 %.60s here",
                           name.c_str(), tensor.dtype.c_str(), text_of(tensor.shape).c_str(),
                           text_of(shape).c_str());
        }
    }
    if (known == tensors_.size()) return {};
    std::set<std::string> own_names;
    for (int array = 0; array < arrays; ++array) {
        for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
            own_names.insert(stored_name(spec, array, i));
        }
    }
    const auto other = std::ranges::find_if(
        tensors_, [&](const auto& each) { return own_names.count(each.first) == 0; });
    return explain(kOther, "the set has no tensor '%.80s', which the snapshot has",
                   other == tensors_.end() ? "" : other->first.c_str());
}

Result<void> StoredSnapshot::read(const std::string& name, std::byte* data) const {
    const auto found = tensors_.find(name);
    FABRIC_CHECK(found != tensors_.end());  // check() has looked for it
    const Place place = found->second;
    const File& file = files_[place.file];
    const StoredTensor& tensor = file.header.tensors[place.tensor];
    const Fd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return explain_disk(error_of_disk(errno, kStoredStep), file.path);
    ::posix_fadvise(fd.get(), static_cast<off_t>(file.data + tensor.begin),
                    static_cast<off_t>(tensor.bytes()), POSIX_FADV_WILLNEED);
    std::uint32_t checksum = 0;
    for (Bytes at = 0; at < tensor.bytes(); at += kReadBytes) {
        const Bytes now = std::min(kReadBytes, tensor.bytes() - at);
        const auto got = read_all(fd.get(), data + at, now, file.data + tensor.begin + at);
        if (!got.ok()) return explain_disk(got.error(), file.path);
        checksum = crc32c(data + at, now, checksum);
    }
    if (value_of(file.header, kChecksumKey + name) == checksum_text(checksum)) return {};
    return explain(kCorruptFile, "%s: the checksum of tensor '%.80s' does not hold",
                   file.path.c_str(), name.c_str());
}

}  // namespace fabricshm
