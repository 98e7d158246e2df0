#include "fabricd/slurm/job_records.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "libfabricshm/os/fd.hpp"

namespace fabricd {

std::optional<SlurmJobRecord> JobRecords::find(std::uint32_t job) const {
    std::ifstream file(path_of(job));
    std::string line;
    if (!std::getline(file, line)) return std::nullopt;
    SlurmJobRecord record{job};
    int has_ended = 0, length = 0;
    const int read = std::sscanf(line.c_str(), "fabric-job 1 %20" SCNu64 " %10" SCNu32 " %1d .%n",
                                 &record.bytes, &record.user, &has_ended, &length);
    if (read != 3 || static_cast<std::size_t>(length) != line.size()) return std::nullopt;
    record.has_ended = has_ended != 0;
    return record;
}

fabricshm::Result<void> JobRecords::write(const SlurmJobRecord& record) const {
    constexpr const char* kStep = "write record of a job";
    if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
        return fabricshm::error_of_disk(errno, kStep);
    }
    const std::string text = "fabric-job 1 " + std::to_string(record.bytes) + " " +
                             std::to_string(record.user) + (record.has_ended ? " 1 .\n" : " 0 .\n");
    // Two steps of a job may begin at once.
    const std::string other = path_of(record.job) + "." + std::to_string(::getpid());
    const fabricshm::Fd file(::open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file ||
        ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::rename(other.c_str(), path_of(record.job).c_str()) != 0) {
        const int saved = errno;
        ::unlink(other.c_str());
        return fabricshm::error_of_disk(saved, kStep);
    }
    return {};
}

void JobRecords::erase(std::uint32_t job) const {
    ::unlink(path_of(job).c_str());
}

std::vector<SlurmJobRecord> JobRecords::ended(std::size_t limit) const {
    std::vector<SlurmJobRecord> records;
    std::error_code bad;
    for (std::filesystem::directory_iterator file(folder_, bad), end; !bad && file != end;
         file.increment(bad)) {
        const std::string name = file->path().filename();
        std::uint32_t job = 0;
        const auto [at, error] = std::from_chars(name.data(), name.data() + name.size(), job);
        if (error != std::errc{} || at != name.data() + name.size()) continue;
        const auto record = find(job);
        if (record && record->has_ended && records.size() < limit) records.push_back(*record);
    }
    return records;
}

}  // namespace fabricd
