// Which jobs of this node were admitted and not released yet: a file each, so that what a daemon
// missed while it was away is made up for.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

struct SlurmJobRecord {
    std::uint32_t job = 0;
    std::uint64_t bytes = 0;  // that the job itself asked for; 0: only its steps did
    std::uint32_t user = 0;
    bool has_ended = false;  // and the daemon has not heard of it

    bool operator==(const SlurmJobRecord&) const = default;
};

/// In a folder of its own, which root alone may write to. Several processes may use it at a time.
class JobRecords {
  public:
    explicit JobRecords(std::string folder) : folder_(std::move(folder)) {}

    /// Nothing: there is none, or what is there is no record.
    std::optional<SlurmJobRecord> find(std::uint32_t job) const;
    /// Replaces that of the job. Makes the folder where it is not there, below one that is.
    fabricshm::Result<void> write(const SlurmJobRecord& record) const;
    void erase(std::uint32_t job) const;
    /// Those that have ended, `limit` at most.
    std::vector<SlurmJobRecord> ended(std::size_t limit) const;

  private:
    std::string path_of(std::uint32_t job) const { return folder_ + "/" + std::to_string(job); }

    std::string folder_;
};

}  // namespace fabricd
