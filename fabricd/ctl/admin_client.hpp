// The other end of the admin API.

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/ctl/chrome_trace.hpp"
#include "fabricd/ctl/picture.hpp"
#include "fabricd/net/cluster_view.hpp"
#include "fabricd/vgpu/vgpu_view.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// The named socket, else $FABRIC_ADMIN_SOCKET, else the first of the usual ones that is there.
/// A socket that we may not use counts as found: "for the daemon's own user" helps more than "no
/// daemon answers" at some other place. With none found, the message names the place that was tried
/// first.
std::string find_admin_socket(const std::string& named);

/// Errors: kDaemon when no daemon listens, kDenied when this user may not, kTimeout; kNotFound,
/// kInvalid and kNoMemory as the daemon gave them; kInternal for every other refusal. last_text()
/// has the daemon's own words. Not thread-safe.
/// Asks a daemon on this host, one request at a time. Each call blocks until its answer is there,
/// `timeout` at most; watch() and migrate() last as long as what they follow.
class AdminClient {
  public:
    /// Of calls with one answer. They wait for the control thread's next turn, well below a second;
    /// so much is for a host that is busy.
    static constexpr std::chrono::milliseconds kTimeout{5000};

    /// Connects to `socket_path` and checks that a daemon is there and speaks. `timeout`: of that,
    /// and of each later call.
    static fabricshm::Result<AdminClient> connect(const std::string& socket_path,
                                                  std::chrono::milliseconds timeout = kTimeout);
    AdminClient(AdminClient&&) noexcept;
    ~AdminClient();

    /// Fetches what `view` needs. `arena_id` is for regions; 0: of all arenas.
    fabricshm::Result<Picture> fetch(View view, std::uint64_t arena_id);

    /// Everything that there is to see but regions, in one request: the sessions, arenas, groups,
    /// devices and telemetry, and with `rest` all else. What the daemon is not set up for (no
    /// control loop, no vGPUs) is an empty part.
    struct WholePicture {
        Picture picture;
        std::vector<Decision> decisions;  // the newest, the oldest of them first
        std::vector<EventView> events;    // likewise
        ClusterView cluster;
        std::vector<VgpuView> vgpus;
    };
    struct Rest {
        std::uint32_t decisions = 0;  // how many; 0: all
        std::uint32_t events = 0;
    };
    fabricshm::Result<WholePicture> picture(std::optional<Rest> rest);

    /// Calls `show` with each picture until it returns false. kDaemon when the daemon ended.
    fabricshm::Result<void> watch(View view, std::chrono::milliseconds interval,
                                  const std::function<bool(Picture&)>& show);

    /// The vGPUs of the device file with what their processes hold. Empty when it names none.
    fabricshm::Result<std::vector<VgpuView>> vgpus();
    /// The vGPU as it is then.
    fabricshm::Result<VgpuView> set_vgpu(const VgpuOrder& order);

    /// Moves a shard and calls `show` with how many of how many bytes are moved, until it is done.
    fabricshm::Result<void> migrate(
        const MoveOrder& order,
        const std::function<void(std::uint64_t moved, std::uint64_t bytes)>& show);

    /// Traces a job for `length` and calls `take` with what came, also when it is nothing, ten
    /// times per second at least, until it returns false or the trace is over. Once `take` was
    /// called there is no error any more, but the reason for which the trace ended early, "" for
    /// none.
    fabricshm::Result<std::string> trace(
        const std::string& job, std::chrono::milliseconds length,
        const std::function<bool(const TraceSpan&, const std::vector<TraceBatch>&)>& take);

    /// Changes a quota; the state is the one right after the order was taken. One that shrinks
    /// below what is in use gets there later, see QuotaState.
    fabricshm::Result<QuotaState> set_quota(const QuotaOrder& order);

    /// The decision `id`, or the newest `last` (0: all that the daemon remembers), oldest first.
    fabricshm::Result<std::vector<Decision>> decisions(std::uint64_t id, std::uint32_t last);

    /// The newest `last` lines of the daemon's log (0: all that it remembers), oldest first.
    fabricshm::Result<std::vector<EventView>> events(std::uint32_t last);

    /// The cluster with its hosts. No cluster: its name is empty.
    fabricshm::Result<ClusterView> hosts();
    /// A person's word that a lost host can write no more.
    fabricshm::Result<void> fence_host(const std::string& host);

    /// While draining the daemon takes no new sessions and arenas. Those that are there go on.
    fabricshm::Result<void> drain(bool on);

    /// Asks the daemon to end and returns once it has said that it will: its socket may still be
    /// there for a moment.
    fabricshm::Result<void> shutdown();

    /// What the daemon's answer said when it was an error.
    const std::string& last_text() const noexcept { return last_text_; }

  private:
    struct Channel;
    explicit AdminClient(std::unique_ptr<Channel> channel) noexcept;
    template <typename Method, typename Request, typename Reply>
    fabricshm::Result<void> call(Method method, const Request& request, Reply& reply,
                                 std::chrono::milliseconds longer = {});

    fabricshm::Result<void> watch_until(std::chrono::system_clock::time_point deadline, View view,
                                        std::chrono::milliseconds interval,
                                        const std::function<bool(Picture&)>& show);

    std::unique_ptr<Channel> channel_;
    std::string last_text_;
};

}  // namespace fabricd
