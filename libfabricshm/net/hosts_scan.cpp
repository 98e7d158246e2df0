// Scan and exscan over several hosts.
//
// Rank r adds up, in the order of hosts, what each host has of the ranks up to r: on its own host
// that is its place in the local scan, on another one the place of the last rank there that is
// below r. That rank, the prior of r on its host, sends it. Where several ranks of a host have the
// same prior, the first of them receives it for all. With ranks numbered host by host the prior is
// a host's last rank, and each sum crosses to each later host once.
//
// One job adds up all, as in an allreduce: every rank gets the same bits for the same hosts.

#include <algorithm>

#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

class Scan {
  public:
    Scan(HostsGroup& group, const HostsGroup::Step& step)
        : group_(group), step_(step), plan_(group.plan()), most_(group.slot_bytes()) {
        // Of each host, and one for what is handed to others.
        if (group.local().world() > 1)
            came_.resize((static_cast<Bytes>(plan_.hosts()) + 1) * most_);
    }
    Result<void> run_block(Bytes at, Bytes bytes);

  private:
    // The last rank of `host` below `rank`; -1: there is none.
    int prior(int rank, int host) const noexcept;
    // The ranks of `host` whose prior is `of`.
    std::vector<int> users(int host, int of) const;
    std::byte* room(int number) noexcept { return &came_[static_cast<Bytes>(number) * most_]; }
    Result<void> send(Bytes bytes);
    Result<const std::byte*> fetch(int host, Bytes bytes);

    HostsGroup& group_;
    const HostsGroup::Step& step_;
    const HostsPlan& plan_;
    const Bytes most_;
    std::vector<std::byte> came_;
    std::vector<int> borrowed_;  // from these: what is added up where it came
};

int Scan::prior(int rank, int host) const noexcept {
    const std::vector<int>& ranks = plan_.ranks_of(host);
    const auto next = std::ranges::lower_bound(ranks, rank);
    return next == ranks.begin() ? -1 : *(next - 1);
}

std::vector<int> Scan::users(int host, int of) const {
    std::vector<int> found;
    for (const int rank : plan_.ranks_of(host)) {
        if (prior(rank, plan_.host_of(of)) == of) found.push_back(rank);
    }
    return found;
}

Result<void> Scan::send(Bytes bytes) {
    for (int turn = 1; turn < plan_.hosts(); ++turn) {
        const int host = (group_.own_host() + turn) % plan_.hosts();
        const std::vector<int> there = users(host, group_.rank());
        if (there.empty()) continue;
        FABRIC_TRY_VOID(group_.send_any(step_, there.front(), group_.slot(0), bytes));
    }
    return {};
}

// What `host` has for this rank; nullptr: nothing. Takes part in what others of this host get.
Result<const std::byte*> Scan::fetch(int host, Bytes bytes) {
    const std::byte* own = nullptr;
    for (const int sender : plan_.ranks_of(host)) {
        const std::vector<int> here = users(group_.own_host(), sender);
        if (here.empty()) continue;
        const bool mine = prior(group_.rank(), host) == sender;
        const bool receives = here.front() == group_.rank();
        if (here.size() == 1) {
            if (!receives) continue;
            FABRIC_TRY(own, group_.receive(step_, sender, bytes));
            borrowed_.push_back(sender);
            continue;
        }
        std::byte* to = room(mine ? host : plan_.hosts());
        if (receives) FABRIC_TRY_VOID(take(group_, step_, sender, to, bytes));
        FABRIC_TRY_VOID(group_.run_local(step_, {.kind = Kind::kBroadcast,
                                                 .input = to,
                                                 .output = to,
                                                 .bytes = bytes,
                                                 .root = plan_.local_of(here.front())}));
        if (mine) own = to;
    }
    return own;
}

Result<void> Scan::run_block(Bytes at, Bytes bytes) {
    const std::byte* input = step_.call.input + at;
    const bool exclusive = step_.call.kind == Kind::kExscan;
    FABRIC_TRY_VOID(group_.run_local(
        step_, {.kind = Kind::kScan, .input = input, .output = group_.slot(0), .bytes = bytes}));
    // On one rank it would be a copy of what does not count.
    if (exclusive && group_.local().world() > 1) {
        FABRIC_TRY_VOID(group_.run_local(
            step_,
            {.kind = Kind::kExscan, .input = input, .output = group_.slot(1), .bytes = bytes}));
    }
    FABRIC_TRY_VOID(send(bytes));
    HostsSum sum;
    for (int host = 0; host < plan_.hosts(); ++host) {
        if (host == group_.own_host()) {
            if (!exclusive) sum.parts.push_back(group_.slot(0));
            if (exclusive && group_.own_local() > 0) sum.parts.push_back(group_.slot(1));
            continue;
        }
        FABRIC_TRY(const std::byte* theirs, fetch(host, bytes));
        if (theirs != nullptr) sum.parts.push_back(theirs);
    }
    if (!sum.parts.empty()) {
        sum.output = step_.call.output + at;
        sum.bytes = bytes;
        sum_up(step_, group_.world(), sum);
    }
    for (const int peer : borrowed_) group_.links()->release(peer);
    borrowed_.clear();
    return {};
}

}  // namespace

Result<void> run_hosts_scan(HostsGroup& group, const HostsGroup::Step& step) {
    const Bytes bytes = step.call.count * step.element;
    Scan scan(group, step);
    for (Bytes at = 0; at < bytes; at += group.slot_bytes()) {
        FABRIC_TRY_VOID(scan.run_block(at, std::min(group.slot_bytes(), bytes - at)));
    }
    return {};
}

}  // namespace fabricshm::net
