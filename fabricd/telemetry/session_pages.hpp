// SessionPages: the telemetry and the directive page of every session. docs/telemetry.md.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabricd/telemetry/latency_reader.hpp"
#include "fabricd/telemetry/sample.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/directive_page.hpp"
#include "libfabricshm/shm/wait_record.hpp"

namespace fabricd {

/// Whose page it is, as the kernel and the daemon's records know it.
struct PageOwner {
    std::uint64_t session_id = 0;
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::string label;
    std::string device;
};

/// Thread-safe: the control thread makes and drops pages, the sampler reads them, the control loop
/// writes directives. A page is a mapping and nothing else here; its descriptor goes to the
/// session.
class SessionPages {
  public:
    /// So many of either kind a session gets in its life. It may keep what it got, so each one
    /// costs for as long as the session likes; one that comes back now and then needs a few.
    static constexpr int kPagesOfSession = 32;
    /// A session's first page of a kind is bounded by how many sessions its user may have; so many
    /// more, of both kinds, all sessions of a user together get.
    static constexpr int kMorePagesOfUser = 256;

    /// A telemetry page for the session, in place of one that it had, whose memory goes back. The
    /// descriptor is for it alone. kNoMemory (after too many, too) or kSystem; then the old page
    /// stays.
    fabricshm::Result<fabricshm::Fd> open_telemetry(const PageOwner& owner);

    /// The same for directives. The last ones are in the new page, too.
    fabricshm::Result<fabricshm::Fd> open_directives(const PageOwner& owner);

    /// The session is over. Unknown ids are ignored.
    void end(std::uint64_t session_id) noexcept;

    /// Says to the session what it shall do from its next step on. Costs a copy of 800 bytes.
    /// kNotFound when it never asked for directives, kInvalid when check_directives() refuses them
    /// or the serial is not above the last one.
    fabricshm::Result<void> direct(std::uint64_t session_id,
                                   const fabricshm::DirectiveImage& image);

    /// Says to the session what it may hold, in the page of its directives. The serial is set here.
    void tell_quota(std::uint64_t session_id, const fabricshm::QuotaImage& quota);

    /// The same for all that have such a page: `quota_of` says what each of them may hold.
    void tell_quotas(const std::function<fabricshm::QuotaImage(const PageOwner&)>& quota_of);

    /// Sessions that have asked for directives.
    std::vector<std::uint64_t> directed() const;

    /// Brings `sessions`, which is what an earlier call left there or empty, up to date: one entry
    /// for each telemetry page, by id, with its head; of every `peers_every`-th session (all of
    /// them in turn) the arrays as well. Stale: nothing written since `now_ns - stale_after`.
    void sample(std::vector<SessionSample>& sessions, std::int64_t now_ns, std::int64_t stale_ns,
                unsigned turn, unsigned peers_every) const;

    /// The latencies that were read so far, those of sessions that have ended included.
    LatencySums latencies() const;

    /// The waits that sessions show, tamed. Costs a read of one line of each page.
    std::vector<fabricshm::SessionWait> waits() const;

  private:
    struct Pages {
        PageOwner owner;
        fabricshm::Mapping telemetry;              // read-only here; empty: not asked for
        fabricshm::Mapping directives;             // written here alone
        std::unique_ptr<LatencyReader> latencies;  // of the telemetry page
        fabricshm::DirectiveImage last{};
        fabricshm::QuotaImage quota{};
        std::uint64_t made = 0;   // number of the telemetry page
        int telemetry_pages = 0;  // how many it got
        int directive_pages = 0;
    };

    // What sampling needs of a page, side by side: thousands of them are walked ten times a second.
    struct Slot {
        std::uint64_t session_id;
        std::uint64_t number;
        const std::byte* page;
        LatencyReader* latencies;
    };

    bool list_slots() const;  // true: rebuilt
    void fetch_ahead(std::size_t slot, const std::vector<SessionSample>& sessions,
                     std::size_t entry, bool peers) const;
    fabricshm::Result<void> count_page(const PageOwner& owner, int Pages::*kind);
    void read_latencies_to_the_end(const Pages& pages) const;
    static void tell(Pages& pages, fabricshm::QuotaImage quota);

    mutable std::mutex mutex_;
    std::map<std::uint64_t, Pages> pages_;
    std::map<std::uint32_t, int> more_;  // beyond the first ones, by user; those that have some
    // Of those with a telemetry page, by session; made by the first sample after a change.
    mutable std::vector<Slot> slots_;
    mutable bool slots_listed_ = false;
    mutable LatencySums latencies_;
    std::uint64_t made_ = 0;
};

}  // namespace fabricd
