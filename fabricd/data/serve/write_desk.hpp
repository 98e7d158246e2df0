// WriteDesk: what the service needs of its way of new files into silos.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fabricd/data/serve/data_server.hpp"
#include "fabricd/data/serve/fills.hpp"

namespace fabricd {

/// Answers kCreate to kAbort: the way of new files into a silo.
class WriteDesk {
  public:
    WriteDesk() = default;
    virtual ~WriteDesk() = default;
    WriteDesk(const WriteDesk&) = delete;
    WriteDesk& operator=(const WriteDesk&) = delete;

    using Reply = std::function<void(const RequestOutcome&, const std::string& payload)>;
    virtual void handle(DataRequest request, Reply reply) = 0;
    virtual void end_connection(std::uint64_t connection) = 0;
    virtual void tick(TimePoint now) = 0;

    struct Stats {
        std::size_t open = 0;         // being written
        std::uint64_t committed = 0;  // that the silo has
        std::uint64_t aborted = 0;
        // Of write = "back": what the silo does not have yet.
        std::size_t pending = 0;
        Bytes pending_bytes = 0;
        std::uint64_t failed_uploads = 0;  // that are tried again
        std::string last_failure;
        std::vector<std::string>
            lost;  // of which a service that was killed did not hear that they are uploaded; some
        std::uint64_t lost_count = 0;
    };
    virtual Stats stats() const = 0;
};

}  // namespace fabricd
