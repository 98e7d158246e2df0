#include "fabricd/service/format_check.hpp"

#include <set>

#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

namespace {

// Of a line that a person reads.
constexpr std::size_t kMaxNamed = 8;

// What a file that can't be sealed says, and so a device.
constexpr std::uint32_t kNoSeals = ~std::uint32_t{0};

std::set<SessionId> in_devices(const PoolImage& image) {
    std::set<SessionId> sessions;
    for (const auto& [id, arena] : image.arenas) {
        if (arena.record.seals != kNoSeals) continue;
        sessions.insert(arena.sessions.begin(), arena.sessions.end());
    }
    return sessions;
}

// An error of looking is no proof of an end.
bool has_ended(std::int32_t pid) {
    const auto process = fabricshm::open_pidfd(pid);
    if (!process.ok()) return process.error().code == fabricshm::Errc::kNotFound;
    return !fabricshm::pidfd_alive(*process);
}

// "pid 17", "pid 4 of host b".
std::string name_of(const PoolImage& image, const SessionRecord& session) {
    std::string text = "pid " + std::to_string(session.pid);
    const auto host = image.hosts.find(SessionId{session.session});
    if (host != image.hosts.end()) text += " of host " + std::string(host->second.host);
    return text;
}

}  // namespace

ErrorMessage check_format(const Config& config) {
    if (!config.pool.dax_format) return {};
    const std::string path = config.state.dir + "/journal";
    const auto contents = read_journal(path);
    if (!contents.ok()) return error_message_of(contents.error(), "state.dir " + config.state.dir);
    const auto image = replay(*contents);
    if (!image.ok()) return {};
    std::string named;
    std::size_t alive = 0;
    for (const SessionId id : in_devices(*image)) {
        const auto session = image->sessions.find(id);
        if (session == image->sessions.end()) continue;
        const bool is_remote = image->hosts.count(id) != 0;
        // None of another boot of this host is alive, whatever process has its number now.
        if (!is_remote && (contents->other_boot || has_ended(session->second.pid))) continue;
        if (++alive > kMaxNamed) continue;
        named += (named.empty() ? "" : ", ") + name_of(*image, session->second);
    }
    if (alive == 0) return {};
    if (alive > kMaxNamed) named += ", ...";
    const bool one = alive == 1;
    return "--format: " + std::to_string(alive) + (one ? " session" : " sessions") +
           " of before may live and write to the pool (" + named +
           "): end them first, or, if none of them can, remove " + path + " (state.dir)";
}

}  // namespace fabricd
