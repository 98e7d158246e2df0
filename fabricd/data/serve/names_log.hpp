// NamesLog: which line of the arena is which file's, in a file next to the service's socket, so
// that a service that was killed finds what it left in memory. Worth nothing without that arena.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct NamedFile {
    std::uint64_t id = 0;
    std::uint64_t first_line = 0;
    std::string path;  // in the namespace: "/images/x.jpeg"
    FileFacts facts;
};

/// One thread at a time. Nothing is synced: it has to outlive the process, not the host.
class NamesLog {
  public:
    /// Of tables of `generation` over silos of `silos` (a checksum of what they are): what an
    /// earlier service wrote of them, without what is gone. A file of others, or a broken end, is
    /// left out. The file is then written again with what counts.
    static Result<NamesLog> open(const std::string& path, std::uint64_t generation,
                                 std::uint32_t silos, std::vector<NamedFile>& files);

    /// Kept until the next flush().
    void add(const NamedFile& file);
    void remove(std::uint64_t id);
    /// To be called before a line of what was added is filled.
    Result<void> flush();

  private:
    fabricshm::Fd file_;
    std::string records_;  // not written yet
};

}  // namespace fabricd
