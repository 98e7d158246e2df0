// AttachServer: when it has to act next, and what sessions hear unasked: of their quotas, and that
// they are traced. docs/devices.md, docs/tracing.md.

#include <algorithm>
#include <utility>

#include "fabricd/server/attach_server.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace {

// While a quota shrinks, its sessions see this often how much is still used.
constexpr Duration kQuotasAgain = std::chrono::milliseconds(100);

}  // namespace

// Announces limits that changed; while one shrinks also how far it is.
void AttachServer::tell_quotas(TimePoint now) {
    const bool changed = registry_.quotas().changes() != quotas_told_;
    const bool again = registry_.quotas().shrink() && now >= quotas_due_;
    if (!changed && !again) return;
    pages_.tell_quotas(
        [&](const PageOwner& owner) { return registry_.quotas_of(owner.device, owner.uid, now); });
    quotas_told_ = registry_.quotas().changes();
    quotas_due_ = fabricshm::deadline_after(now, kQuotasAgain);
}

bool AttachServer::trace(SessionId session, const fabricshm::proto::Trace& trace,
                         fabricshm::Fd file) {
    namespace proto = fabricshm::proto;
    const auto process = processes_.find(session);
    if (process == processes_.end() || process->second.connection == 0) return false;
    const ConnectionId id = process->second.connection;
    // Memory of this host means nothing to a process of another one.
    if (connections_.at(id).peer.is_remote()) return false;
    proto::Message news = proto::make_reply(proto::make_request(proto::Type::kTrace, 0));
    news.trace = trace;
    return send(id, {news, {}, std::move(file)});
}

void AttachServer::warn_of_trace(const std::string& line) {
    if (log_.traces.begins_line(fabricshm::Clock::now()))
        fabricshm::log(fabricshm::LogLevel::kWarning, "%s", line.c_str());
}

TimePoint AttachServer::next_deadline() const {
    TimePoint next = registry_.next_deadline();
    if (registry_.quotas().shrink()) next = std::min(next, quotas_due_);
    next = std::min(next, accept_again_);
    next = std::min(next, strangers_.next_deadline());
    if (!parked_.empty()) next = std::min(next, parked_until_);
    if (!stalled_.empty()) next = std::min(next, stalled_.begin()->first);
    if (greeting_.empty()) return next;
    return std::min(next, connections_.at(*greeting_.begin()).hello_until);
}

}  // namespace fabricd
