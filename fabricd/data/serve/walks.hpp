// Walks: commands that take their time over many files: load and verify. Each does a little per
// tick, so that readers are served meanwhile.

#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/serve/service_parts.hpp"

namespace fabricd {

/// How far one is.
struct WalkView {
    std::uint64_t id = 0;
    std::string path;
    std::size_t files = 0;
    std::size_t done_files = 0;
    Bytes bytes = 0;
    Bytes done_bytes = 0;
    std::size_t failed = 0;
    std::string first_failure;  // with its path
    std::size_t skipped = 0;    // of verify: not in memory
    bool is_full = false;       // of load: no room for the rest
    bool is_over = false;
};

/// The control thread's.
class Walks {
  public:
    explicit Walks(ServiceParts& parts) : parts_(parts) {}

    /// Files of `files` into memory, below what readers and plans want, as long as there is room.
    std::uint64_t load(const std::string& path, const std::vector<std::uint64_t>& files);
    /// Compares what is in memory with its checksums, and with the silo's bytes. A file of which a
    /// chunk is wrong is forgotten, and fetched again when it is listed again; not so what jobs
    /// made here alone.
    std::uint64_t verify(const std::string& path, const std::vector<std::uint64_t>& files,
                         bool with_silo);

    std::optional<WalkView> view(std::uint64_t id) const;
    std::vector<WalkView> under_way() const;
    bool is_idle() const;
    void tick(TimePoint now);

  private:
    struct Walk {
        WalkView view;
        std::vector<std::uint64_t> files;
        std::size_t next = 0;     // file
        std::uint64_t chunk = 0;  // of it
        std::size_t in_flight = 0;
        Bytes in_flight_bytes = 0;
        bool is_load = false;
        bool with_silo = false;
    };

    std::uint64_t add(const std::string& path, const std::vector<std::uint64_t>& files);
    const KnownFile* next_file(Walk& walk);
    void step_over(Walk& walk, const KnownFile& file);
    void end_chunk(Walk& walk, Bytes bytes, const std::string& failure);
    bool load_next(const std::shared_ptr<Walk>& walk, TimePoint now);
    bool verify_next(const std::shared_ptr<Walk>& walk);
    void drop_wrong(std::uint64_t id);
    void compare_with_silo(const std::shared_ptr<Walk>& walk, const KnownFile& file);

    ServiceParts& parts_;
    std::list<std::shared_ptr<Walk>> walks_;  // the last ones, also those that are over
    std::uint64_t last_ = 0;
};

}  // namespace fabricd
