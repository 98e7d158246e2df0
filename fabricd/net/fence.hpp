// What it takes until a lost incarnation counts as fenced: a command that ends well, or other
// proof. docs/hosts.md, "Leases and fences".

#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "fabricd/net/host_table.hpp"

namespace fabricd {

/// One incarnation: a fence is of one life of a host and not of the host, which may be back
/// already.
using FenceKey = std::pair<std::string, Incarnation>;

enum class FencePhase {
    kWaiting,  // for its turn, or for a person where there is no command
    kRunning,  // the command runs here
    kClaimed,  // it runs at another daemon, or did when this one asked last
};

struct FenceJob {
    FencePhase phase = FencePhase::kWaiting;
    int attempts = 0;
    BootTime next_attempt{};
    int last_status = 0;  // of the command; 0: it has not failed yet
};

/// Plain data and rules, without a clock. Jobs of incarnations that are lost.
struct FenceTable {
    bool has_command = false;
    std::map<FenceKey, FenceJob> jobs;
    std::uint64_t followed = 0;  // `losses` of the host table that `jobs` are of
};

/// Between attempts: 5 s, doubled each time, 5 min at most. A management controller that is being
/// restarted answers again within minutes, and one that never will must not be flooded.
inline constexpr fabricshm::Duration kFirstFencePause = std::chrono::seconds(5);
inline constexpr fabricshm::Duration kMaxFencePause = std::chrono::minutes(5);

/// Takes over what the host table says: lost incarnations begin to wait, those that are not lost
/// any more are dropped.
void follow(FenceTable& fences, const HostTable& hosts, BootTime now);

/// The incarnation whose command should be started now, if any: one at a time, so that a power
/// controller serves one request. A host whose newest incarnation is up is left out: the command
/// would end that one, and it fences the ones before itself.
std::optional<FenceKey> next_to_run(const FenceTable& fences, const HostTable& hosts, BootTime now);

/// Whether a command that runs has to be ended: its incarnation is fenced by other means, or its
/// host is up again, and the command would end that life.
bool is_needless(const HostTable& hosts, const FenceKey& key);

/// The outcome of asking the store for the right to run the command: another daemon may have it.
void note_claim(FenceTable& fences, const FenceKey& key, bool is_ours, BootTime now);

/// The command ended. `status` is 0 only when it said so itself: killed by a signal, not found and
/// timed out are failures. Returns whether the incarnation is fenced by that; only then the store
/// may say so.
bool note_command(FenceTable& fences, const FenceKey& key, int status, BootTime now);

}  // namespace fabricd
