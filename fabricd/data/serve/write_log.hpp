// WriteLog: which files are being written, in a file next to the service's socket, so that a
// service which was killed has its successor clear what it left in the silos.

#pragma once

#include <string>
#include <vector>

#include "fabricd/data/silo/silo_writer.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct LoggedWrite {
    std::string at;  // of the silo
    WriteName name;
    bool is_answered = false;  // its commit, although the silo has not got it
};

/// One thread at a time. Nothing is synced: it has to outlive the process, not the host.
class WriteLog {
  public:
    /// What an earlier service had not ended; a broken line is left out. The file is then written
    /// again with these alone.
    static Result<WriteLog> open(const std::string& path, std::vector<LoggedWrite>& writes);

    /// Before the silo hears of it.
    Result<void> begin(const std::string& at, const WriteName& name);
    Result<void> answered(std::uint64_t token);
    /// Nothing of it is left but what was committed.
    void end(std::uint64_t token) noexcept;

  private:
    Result<void> write(const std::string& line) const;

    fabricshm::Fd file_;
};

/// The text of such a file as the writes that it leaves open.
std::vector<LoggedWrite> parse_write_log(std::string_view text);

}  // namespace fabricd
