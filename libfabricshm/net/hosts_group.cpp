#include "libfabricshm/net/hosts_group.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <span>

#include "kernels/copy.hpp"
#include "kernels/reduce.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/world_max.hpp"
#include "libfabricshm/collective/request.hpp"
#include "libfabricshm/collective/worker.hpp"
#include "libfabricshm/net/allreduce_plan.hpp"
#include "libfabricshm/net/hosts_messages.hpp"
#include "libfabricshm/net/transport_loader.hpp"
#include "libfabricshm/net/trusted.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricshm::net {

namespace {

constexpr std::uint32_t kFormat = 5;
constexpr std::uint64_t kMagic = 0x7374736f68626166;  // "fabhosts"

// Of ahead_of(), at most; of a short timeout it is an eighth.
constexpr Duration kMaxAhead = std::chrono::milliseconds(250);

// What ranks say of themselves, first; and, once they know where all are, how to reach them.
struct Introduction {
    std::uint64_t magic = kMagic;
    std::uint32_t format = kFormat;
    std::int32_t rank = 0;
    std::uint64_t pool = 0;
    char host[64] = "";
    char place[64] = "";
    std::uint64_t incarnation = 0;
    std::int32_t ring_from = 0;  // rank 0's is the group's, as is the next
    std::int32_t unused = 0;
    GroupId id{};  // random
};
struct Opening {
    std::uint64_t magic = kMagic;
    std::int32_t rank = 0;
    std::int32_t failed = 0;  // an Errc
    char reason[132] = "";
    Address address;
    // Behind it: a Door for each rank.
};

constexpr const char* kFailedBefore = "collective: the group failed before";

template <std::size_t size>
void set_text(char (&to)[size], const std::string& from) {
    std::memcpy(to, from.data(), std::min(from.size(), size - 1));
}

// Of another process: ends somewhere, and has nothing that a terminal obeys.
template <std::size_t size>
std::string text_in(const char (&from)[size]) {
    std::string text(from, ::strnlen(from, size));
    std::ranges::replace_if(
        text, [](char letter) { return letter < 0x20 || letter > 0x7e; }, '?');
    return text;
}

const char* environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

Result<int> ring_from_of(const HostsSpec& spec) {
    if (spec.ring_from != 0) return spec.ring_from;
    const std::string text = environment(kRingVariable);
    if (text.empty()) return kNoRing;
    int hosts = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hosts);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    if (is_number && hosts > 2 && hosts <= kWorldMax) return hosts;
    return explain({Errc::kInvalid, 0, "join"}, "%s is not a number of hosts, 3 to %d",
                   kRingVariable, kWorldMax);
}

// What the exchange gave for a rank is no record of one.
Error garbage_of(int rank) noexcept {
    return explain({Errc::kInvalid, rank, "join"},
                   "the exchange gave no valid record of rank %d: it is not what that rank gave",
                   rank);
}

// A rank knows one record of all, its own. An exchange that changes that is wrong itself, and what
// it gives for others says nothing of them.
Result<void> check_own(const HostsSpec& hosts, const void* own, const void* all,
                       std::size_t bytes) {
    const auto* given =
        static_cast<const std::byte*>(all) + static_cast<std::size_t>(hosts.rank) * bytes;
    if (std::memcmp(given, own, bytes) == 0) return {};
    return explain({Errc::kInvalid, 0, "join"},
                   "the exchange gave rank %d another record than its own in that place: the "
                   "exchange mixes or changes records, and no rank is at fault",
                   hosts.rank);
}

Result<std::unique_ptr<Transport>> transport_for(const HostsSpec& hosts, const LinksSpec& links) {
    std::string networks = hosts.trusted;
    if (networks.empty()) networks = environment(kTrustedVariable);
    FABRIC_TRY(const std::string address, trusted_address(networks));
    const std::string provider = environment(kProviderVariable);
    const std::unique_ptr<bool[]> far(new bool[static_cast<std::size_t>(hosts.world)]);
    std::copy(links.remote.begin(), links.remote.end(), far.get());
    TransportSpec wanted;
    wanted.rank = hosts.rank;
    wanted.world = hosts.world;
    wanted.remote = far.get();
    wanted.door_bytes = door_bytes(links);
    wanted.address = address.c_str();
    wanted.provider = provider.c_str();
    return open_transport(wanted);
}

// A failure that came over the network, in the word by which the ranks of this pool learn of it:
// its code, the rank that reported it, and the rank that it names. Their own failures have a rank
// alone there, which is below 2^18.
constexpr int kReporterShift = 9;
constexpr int kVerdictShift = 2 * kReporterShift;
constexpr int kRankMask = (1 << kReporterShift) - 1;
static_assert(kWorldMax < kRankMask);
int verdict_of(const Error& error, int reporter = -1) noexcept {
    return static_cast<int>(error.code) << kVerdictShift | (reporter + 1) << kReporterShift |
           (error.detail + 1);
}

}  // namespace

Result<std::unique_ptr<HostsGroup>> HostsGroup::join(HostsSpec spec, TimePoint deadline) {
    std::unique_ptr<HostsGroup> made(new HostsGroup(std::move(spec)));
    FABRIC_TRY_VOID(made->introduce());
    FAULT_POINT("hosts.introduced");
    if (const auto opened = made->open(deadline); !opened.ok()) {
        if (made->local_ != nullptr) {
            const std::uint64_t id = made->local_->id();
            const int rank = made->local_->rank();
            // To those of this pool that wait for the network: it leaves, but not in order.
            made->local_->abort(Errc::kPeer, rank);
            made->links_.reset();
            made->local_.reset();
            made->spec_.leave(id, rank);
        }
        return opened.error();
    }
    return made;
}

HostsGroup::HostsGroup(HostsSpec spec) : spec_(std::move(spec)) {}

HostsGroup::~HostsGroup() {
    worker_.reset();
    if (messages_ != nullptr) messages_->finish();
    links_.reset();
    if (work_ != nullptr) spec_.release(work_);
}

Result<void> HostsGroup::introduce() {
    Introduction own;
    own.rank = spec_.rank;
    own.pool = spec_.pool;
    set_text(own.host, spec_.host);
    set_text(own.place, spec_.place);
    own.incarnation = spec_.incarnation;
    FABRIC_TRY(own.ring_from, ring_from_of(spec_));
    FABRIC_TRY_VOID(fill_random(std::as_writable_bytes(std::span(own.id))));
    std::vector<Introduction> all(static_cast<std::size_t>(spec_.world));
    if (!spec_.exchange(&own, sizeof own, all.data())) {
        return explain({Errc::kInvalid, 0, "join"}, "the exchange between the ranks failed");
    }
    FABRIC_TRY_VOID(check_own(spec_, &own, all.data(), sizeof own));
    std::vector<std::uint64_t> pools;
    for (int rank = 0; rank < spec_.world; ++rank) {
        const Introduction& one = all[static_cast<std::size_t>(rank)];
        if (one.magic != kMagic) return garbage_of(rank);
        if (one.format != kFormat) {
            return explain({Errc::kVersion, rank, "join"}, "rank %d has another version", rank);
        }
        if (one.rank != rank) {
            return explain({Errc::kInvalid, rank, "join"},
                           "the exchange gave the record of rank %d in place of rank %d's",
                           one.rank, rank);
        }
        pools.push_back(one.pool);
        names_.push_back(text_in(one.host));
        places_.push_back({text_in(one.place), one.incarnation});
    }
    id_ = all.front().id;
    plan_ = HostsPlan(pools, all.front().ring_from);
    return {};
}

// Every rank takes part in the second exchange, or the others would wait for it in the first place.
Result<void> HostsGroup::open(TimePoint deadline) {
    Result<void> own;
    auto local =
        spec_.join(own_local(), static_cast<int>(plan_.ranks_of(own_host()).size()), deadline);
    if (local.ok()) local_ = std::move(local).value();
    if (!local.ok()) own = local.error();
    if (plan_.hosts() == 1) return own;
    if (own.ok()) own = open_links(deadline);
    FAULT_POINT("hosts.opened");
    const auto world = static_cast<std::size_t>(spec_.world);
    const std::size_t bytes = sizeof(Opening) + world * sizeof(Door);
    std::vector<std::byte> mine(bytes);
    std::vector<std::byte> all(bytes * world);
    Opening opening;
    opening.rank = spec_.rank;
    opening.failed = own.ok() ? 0 : static_cast<std::int32_t>(own.error().code);
    if (!own.ok()) set_text(opening.reason, explanation_of(own.error()));
    if (own.ok()) {
        opening.address = links_->transport().address();
        for (int peer = 0; peer < spec_.world; ++peer) {
            const Door door = links_->transport().door(peer);
            std::memcpy(&mine[sizeof opening + static_cast<std::size_t>(peer) * sizeof door], &door,
                        sizeof door);
        }
    }
    std::memcpy(mine.data(), &opening, sizeof opening);
    if (!spec_.exchange(mine.data(), bytes, all.data())) {
        return explain({Errc::kInvalid, 0, "join"}, "the exchange between the ranks failed");
    }
    FAULT_POINT("hosts.exchanged");
    FABRIC_TRY_VOID(own);
    FABRIC_TRY_VOID(check_own(spec_, mine.data(), all.data(), bytes));
    for (int rank = 0; rank < spec_.world; ++rank) {
        Opening theirs;
        Door door;
        const std::byte* at = &all[static_cast<std::size_t>(rank) * bytes];
        std::memcpy(&theirs, at, sizeof theirs);
        std::memcpy(&door, at + sizeof theirs + static_cast<std::size_t>(spec_.rank) * sizeof door,
                    sizeof door);
        if (theirs.magic != kMagic || theirs.rank != rank) return garbage_of(rank);
        if (theirs.failed != 0) {
            return explain({Errc::kPeer, rank, "join"}, "rank %d on host %s: %s", rank,
                           host_name(rank).c_str(), text_in(theirs.reason).c_str());
        }
        if (!plan_.remote(rank, spec_.rank)) continue;
        const Errc code = links_->transport().know(rank, theirs.address, door);
        if (code != Errc::kOk) return garbage_of(rank);
    }
    const auto met = links_->greet(deadline);
    if (!met.ok()) return ended(met.error());
    links_->end();
    FAULT_POINT("hosts.greeted");
    return {};
}

Result<void> HostsGroup::open_links(TimePoint deadline) {
    LinksSpec spec;
    spec.rank = spec_.rank;
    int remote = 0;
    for (int peer = 0; peer < spec_.world; ++peer) {
        const bool far = plan_.remote(peer, spec_.rank);
        spec.remote.push_back(far);
        spec.greets.push_back(far && own_host() < plan_.host_of(peer));
        remote += far ? 1 : 0;
    }
    slot_bytes_ = largest_message(plan_);
    spec.piece_ring_bytes = HostsMailbox::kRing;
    spec.ring_bytes = 4 * slot_bytes_;
    spec.control_bytes = static_cast<Bytes>(spec_.world) *
                             (sizeof(Opening) + static_cast<Bytes>(spec_.world) * sizeof(Door)) +
                         kPageBytes;
    if (spec_.admit) FABRIC_TRY_VOID(spec_.admit(deadline));
    if (!spec_.coherent) {
        return explain({Errc::kUnsupported, 0, "pool"},
                       "groups of several hosts need coherent memory in each of their pools");
    }
    FABRIC_TRY(auto transport, transport_for(spec_, spec));
    work_ = spec_.allocate(2 * kSlots * slot_bytes_);
    if (work_ == nullptr) return Error{Errc::kNoMemory, 0, "staging in the arena"};
    if (transport->lend(work_, 2 * kSlots * slot_bytes_) != Errc::kOk) {
        return Error{Errc::kNoMemory, 0, "register memory"};
    }
    give_up_lost_ = [this] {
        // Messages and operations wait at the same time: one of them asks.
        const std::unique_lock asking(asking_, std::try_to_lock);
        if (!asking.owns_lock()) return;
        for (int host = 0; spec_.is_gone && host < plan_.hosts(); ++host) {
            const Place& place = places_[static_cast<std::size_t>(plan_.leader_of(host))];
            // Ranks of one pool are in one place, whatever each of them says.
            if (host == own_host() || place.name.empty()) continue;
            if (spec_.is_gone(place.name, place.incarnation)) on_host_lost(host);
        }
    };
    // While this rank waits, the pool's group may break, and other hosts may be lost.
    const auto look_around = [this]() -> Result<void> {
        const auto well = local_->check();
        if (!well.ok()) return of_local(well.error(), true);
        give_up_lost_();
        return {};
    };
    // Ranks of the pool may wait for each other, and not for the network.
    const auto on_abort = [this](const Error& failure, int reporter) {
        local_->abort(Errc::kBroken, verdict_of(failure, reporter));
    };
    links_ = std::make_unique<Links>(std::move(spec), std::move(transport), look_around, on_abort);
    HostsMessages::Words words;
    words.of_local = [this](const Error& error) { return of_local(error); };
    words.named = [this](const Error& error) { return named(error); };
    FABRIC_TRY(messages_, HostsMessages::make(plan_, rank(), *links_, *local_, std::move(words)));
    return {};
}

// Ranks of the local group are not those of this one.
Error HostsGroup::of_local(const Error& error, bool is_check) const noexcept {
    Error found = error;
    if (error.code == Errc::kBroken && error.detail >> kVerdictShift > 0) {
        found.code = static_cast<Errc>(error.detail >> kVerdictShift);
        found.detail = (error.detail & kRankMask) - 1;
        const int reporter = (error.detail >> kReporterShift & kRankMask) - 1;
        // The others gave this rank up: to it the one that said so is gone.
        if (found.code == Errc::kPeer && found.detail == rank() && reporter >= 0) {
            found = Error{Errc::kPeer, reporter, kGivenUp};
        }
        return found;
    }
    const auto& ranks = plan_.ranks_of(own_host());
    const bool is_rank = error.detail >= 0 && static_cast<std::size_t>(error.detail) < ranks.size();
    const bool names =
        error.code == Errc::kPeer || error.code == Errc::kMismatch || error.code == Errc::kTimeout;
    // Another rank of the pool gave up its wait, and the group knows the rank that it waited for.
    const bool is_late = is_check && error.code == Errc::kBroken;
    if (!is_rank || !(names || is_late)) return found;
    found.detail = ranks[static_cast<std::size_t>(error.detail)];
    if (!is_late) return found;
    return explain(found,
                   "the group is broken: another rank of host %s gave up its wait for rank %d",
                   host_name(found.detail).c_str(), found.detail);
}

Error HostsGroup::named(const Error& error) const noexcept {
    const bool names =
        error.code == Errc::kPeer || error.code == Errc::kMismatch || error.code == Errc::kTimeout;
    if (!names || error.detail < 0 || error.detail >= world()) return error;
    if (std::strcmp(error.step, kGivenUp) == 0) {
        return explain(
            error,
            "rank %d on host %s has given up this one, rank %d, which did not answer it, "
            "and goes on without it",
            error.detail, host_name(error.detail).c_str(), rank());
    }
    return explain(error, "rank %d on host %s: %s", error.detail, host_name(error.detail).c_str(),
                   text_of(error.code));
}

// A failure ends the group for all. The first one that this pool knows is what all its ranks give.
Error HostsGroup::ended(const Error& error) {
    failed_ = true;
    local_->abort(Errc::kBroken, verdict_of(error));
    const auto known = local_->check();
    Error first = known.ok() ? error : of_local(known.error(), true);
    // The rank that gave up its wait says so itself, and better than the pool.
    if (first.code == Errc::kBroken && error.code != Errc::kBroken) first = error;
    // What it has sent and may come late must not be taken for something of the next epoch.
    const bool gone = first.code == Errc::kPeer && first.detail >= 0 && first.detail < world() &&
                      plan_.remote(first.detail, spec_.rank);
    if (gone) links_->fence(first.detail);
    links_->spread(first.code, first.detail);
    Error result = first;
    if (*result.step == '\0') result.step = "collective";
    return named(result);
}

Result<void> HostsGroup::run(const Call& call) {
    FABRIC_TRY_VOID(check_call(call, rank(), world()));
    if (given_up_) return Error{Errc::kBroken, 0, kFailedBefore};
    if (is_message(call.kind)) return messages_->run(call);
    if (worker_ == nullptr || worker_->idle()) return run_now(call);
    FABRIC_TRY(const auto request, start(call));
    return request->wait();
}

Result<std::shared_ptr<Request>> HostsGroup::start(Call call) {
    FABRIC_TRY_VOID(check_call(call, rank(), world()));
    if (given_up_) return Error{Errc::kBroken, 0, kFailedBefore};
    if (is_message(call.kind)) return messages_->start(call);
    if (failed_) return Error{Errc::kBroken, 0, kFailedBefore};
    const auto request = std::make_shared<PendingRequest>();
    if (worker_ == nullptr) worker_ = std::make_unique<Worker>();
    worker_->push([this, request, call = std::move(call)]() mutable {
        if (call.timeout != Duration::max()) call.deadline = deadline_from_now(call.timeout);
        request->complete(run_now(call));
    });
    return std::shared_ptr<Request>(request);
}

Result<void> HostsGroup::run_now(const Call& call) {
    if (failed_) return Error{Errc::kBroken, 0, kFailedBefore};
    links_->begin();
    FAULT_POINT("hosts.begin");
    const Result<void> result = dispatch(call);
    links_->end();
    if (result.ok() || result.error().code == Errc::kUnsupported) return result;
    return ended(result.error());
}

Result<void> HostsGroup::dispatch(const Call& call) {
    Step step{call, 0, kernels::size_of(call.dtype), call.op};
    if (call.op == kernels::ReduceOp::kAvg) step.partial = kernels::ReduceOp::kSum;
    const std::uint64_t signature = signature_of(call) ^ (++operations_ * 0x9e3779b97f4a7c15);
    // Where each pool has one rank, none waits for another of its pool.
    step.deadline = plan_.hosts() == world() ? call.deadline : ahead_of(call.deadline);
    step.mark = static_cast<std::uint32_t>((signature ^ signature >> 32) & 0xfffff);
    if (call.algorithm != Algorithm::kAuto || call.trigger != Trigger::kAsync || call.flags != 0) {
        return Error{Errc::kUnsupported, 0, "over several hosts: algorithm auto, trigger async"};
    }
    switch (call.kind) {
        case Kind::kAllreduce:
            return run_hosts_allreduce(*this, step);
        case Kind::kBarrier:
            return run_hosts_barrier(*this, step);
        case Kind::kBroadcast:
            return run_hosts_broadcast(*this, step);
        case Kind::kAllGather:
            return run_hosts_all_gather(*this, step);
        case Kind::kReduce:
        case Kind::kReduceScatter:
            return run_hosts_reduce(*this, step);
        case Kind::kGather:
            return run_hosts_gather(*this, step);
        case Kind::kScatter:
            return run_hosts_scatter(*this, step);
        case Kind::kAllToAll:
            return run_hosts_all_to_all(*this, step);
        case Kind::kScan:
        case Kind::kExscan:
            return run_hosts_scan(*this, step);
        case Kind::kSend:
        case Kind::kRecv:
            break;  // HostsMessages
    }
    return Error{Errc::kInvalid, 0, "kind"};
}

Result<void> HostsGroup::run_local(const Step& step, const LocalCall& local) {
    if (local_->world() == 1) {
        if (local.output != local.input && local.output != nullptr && local.bytes != 0) {
            kernels::copy(local.output, local.input, local.bytes, false);
        }
        return {};
    }
    Call call;
    call.kind = local.kind;
    call.dtype = step.call.dtype;
    call.op = step.partial;
    call.root = local.root;
    call.input = local.input;
    call.output = local.output;
    call.count = local.bytes / step.element;
    call.step_of = step.mark + 1;
    for (const Bytes bytes : local.counts) call.counts.push_back(bytes / step.element);
    for (const Bytes bytes : local.recv_counts) call.recv_counts.push_back(bytes / step.element);
    call.deadline = step.call.deadline;
    // Meanwhile the thread of the links answers peers, and hears of failures: a rank that waits for
    // one of its pool must not look dead itself.
    links_->end();
    const auto result = local_->run(call);
    links_->begin();
    if (result.ok()) return {};
    // A verdict of the network, by the rank that waited there, comes as a broken group.
    const auto known = local_->check();
    const Error first = known.ok() ? of_local(result.error()) : of_local(known.error(), true);
    const bool is_own = first.code == Errc::kBroken && result.error().code != Errc::kBroken;
    return is_own ? of_local(result.error()) : first;
}

Result<void> HostsGroup::send(const Step& step, int peer, const std::byte* from, Bytes bytes,
                              std::atomic<int>& pending) {
    const auto sent = links_->send(peer, from, bytes, step.mark, pending, step.deadline);
    FAULT_POINT("hosts.sent");
    return sent;
}

Result<void> HostsGroup::send_any(const Step& step, int peer, const std::byte* from, Bytes bytes) {
    const auto number = static_cast<std::size_t>(staged_++ % kSlots + kSlots);
    // Its bytes may still be on their way.
    FABRIC_TRY_VOID(links_->settle(pending_[number], step.deadline));
    std::byte* at = work_ + number * slot_bytes_;
    if (bytes != 0) kernels::copy(at, from, bytes, false);
    return send(step, peer, at, bytes, pending_[number]);
}

Result<const std::byte*> HostsGroup::receive(const Step& step, int peer, Bytes bytes) {
    const auto theirs = links_->receive(peer, bytes, step.mark, step.deadline);
    FAULT_POINT("hosts.received");
    return theirs;
}

Result<void> take(HostsGroup& group, const HostsGroup::Step& step, int peer, std::byte* to,
                  Bytes bytes) {
    FABRIC_TRY(const std::byte* theirs, group.receive(step, peer, bytes));
    if (bytes != 0) kernels::copy(to, theirs, bytes, false);
    group.links()->release(peer);
    return {};
}

TimePoint ahead_of(TimePoint deadline) noexcept {
    if (deadline == TimePoint::max()) return deadline;
    const Duration left = std::max<Duration>(deadline - Clock::now(), Duration::zero());
    return deadline - std::min<Duration>(left / 8, kMaxAhead);
}

// One job for all hosts, so that every rank that computes an element gets the same bits.
void sum_up(const HostsGroup::Step& step, int world, const HostsSum& what) noexcept {
    if (what.bytes == 0) return;
    std::array<const void*, kWorldMax> sources;
    std::ranges::copy(what.parts, sources.begin());
    void* output = what.output;
    kernels::ReduceJob job;
    job.type = step.call.dtype;
    job.op = step.call.op;
    job.sources = sources.data();
    job.source_count = static_cast<int>(what.parts.size());
    job.destinations = &output;
    job.destination_count = 1;
    job.count = what.bytes / step.element;
    job.divisor = world;
    kernels::reduce(job);
}

void HostsGroup::on_host_lost(int host) noexcept {
    if (links_ == nullptr || host < 0 || host >= plan_.hosts()) return;
    for (const int rank : plan_.ranks_of(host)) {
        if (plan_.remote(rank, spec_.rank)) links_->condemn(rank);
    }
}

void HostsGroup::give_up() noexcept {
    given_up_ = true;
    failed_ = true;
    local_->give_up();
    if (links_ != nullptr && !links_->failure()) links_->spread(Errc::kPeer, rank());
}

void HostsGroup::retire() noexcept {
    failed_ = true;
    worker_.reset();
    if (messages_ != nullptr) messages_->stop();
    if (links_ != nullptr && !links_->failure()) links_->spread(Errc::kBroken, -1);
    local_->retire();
}

}  // namespace fabricshm::net
