// MountKeeper: holds the mount while servers come and go. It does nothing else, so that there is
// little that could end it.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/mount/handover.hpp"
#include "fabricd/data/mount/mount_point.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Where a server finds what it is handed.
inline constexpr int kFuseDescriptor = 3;
inline constexpr int kHandoverDescriptor = 4;
/// Gives a byte when it is this server's turn, and ends with the keeper.
inline constexpr int kGateDescriptor = 5;

struct KeeperOptions {
    std::string mount_point;           // canonical
    std::vector<std::string> command;  // the server's program and words
    bool allow_other = false;
    bool nonempty = false;  // the mount point may have files, which are hidden then
    std::string user;       // that the server runs as; "": this one
    int ready = -1;         // a descriptor that gets a byte when the first server is ready
    fabricshm::Duration timeout = std::chrono::seconds(30);  // then requests get errors
};

/// A *standby* is a server that has begun, with all that takes time behind it, and waits for its
/// turn: a reader whose server dies waits for a wake-up, and not for a program to be loaded.
class MountKeeper {
  public:
    explicit MountKeeper(KeeperOptions options) : options_(std::move(options)) {}

    /// Mounts, serves until SIGTERM, SIGINT or an unmount by another process, and unmounts. The
    /// exit code: 0, or that of a first server that could not start.
    int run();

  private:
    Result<void> mount();
    Result<void> read_init();
    struct Server {
        pid_t process = -1;
        fabricshm::Fd gate;  // of a standby
    };

    Result<Server> start_server() const;
    [[noreturn]] void become_server(pid_t keeper, const fabricshm::Fd& gate) const;
    void start_standby();
    void end_standby();
    void activate();
    std::optional<int> reap();
    void note_ready();
    std::optional<int> note_death(int status);
    void count_crash() const;
    fabricshm::Duration time_to_next_step() const;
    void refuse_requests() const;
    int end();

    const KeeperOptions options_;
    fabricshm::Fd fuse_;
    fabricshm::Fd signals_;
    Handover handover_;
    pid_t server_ = -1;
    Server standby_;
    std::uint64_t ready_before_ = 0;  // servers that were ready when this one had its turn
    unsigned failures_ = 0;           // in a row, without having been ready
    fabricshm::TimePoint next_start_{};
    fabricshm::TimePoint next_standby_{};
    fabricshm::TimePoint down_since_{};
};

}  // namespace fabricd
