#include "fabricd/vgpu/vgpu_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::LogLevel;
using fabricshm::ProcessIdentity;
using fabricshm::TimePoint;
using fabricshm::UnixSocket;
using namespace fabricshm::proto;

namespace {

constexpr int kBacklog = 128;
constexpr std::size_t kCallersMax = 64;
// A caller that is refused can read why for so long.
constexpr auto kReadRefusal = std::chrono::milliseconds(200);
// Tenants trim on their next call, which no descriptor reports. Most do within a second; one that
// computes for hours need not be polled 200 times in each of them.
constexpr int kShrinkingMs = 5;
constexpr int kShrinkingLongMs = 50;
constexpr int kShrinkingTurns = 200;
constexpr int kShortMs = 100;
// For the dead that have no pidfd here, and burials that found the lock kept.
constexpr auto kLookEvery = std::chrono::seconds(2);

}  // namespace

VgpuServer::VgpuServer(Options options, VgpuLimits& limits, UnixSocket listener, Fd wake)
    : options_(std::move(options)),
      limits_(limits),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      next_look_(Clock::now()) {
    modified_ = Fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    is_told_ = modified_ && limits_.report_ledgers_to(modified_.get());
    limits_.on_change([this] { ::eventfd_write(wake_.get(), 1); });
    thread_ = std::thread([this] { serve(); });
}

Result<std::unique_ptr<VgpuServer>> VgpuServer::start(Options options, VgpuLimits& limits) {
    FABRIC_TRY(UnixSocket listener,
               UnixSocket::listen(options.socket_path, options.socket_mode, kBacklog));
    // No request has a descriptor. Where the kernel can't refuse them they are closed elsewhere.
    (void)listener.allow_descriptors(false);
    Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return fabricshm::error_from_errno(errno, "make an eventfd");
    return std::unique_ptr<VgpuServer>(
        new VgpuServer(std::move(options), limits, std::move(listener), std::move(wake)));
}

VgpuServer::~VgpuServer() {
    // Release: nothing but the flag travels; the eventfd makes the thread check it.
    stopping_.store(true, std::memory_order_release);
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
    limits_.on_change({});
    while (!callers_.empty()) let_go(callers_.begin());
    // Those that wait in its queue may have sent something, too.
    closer_.close(::geteuid(), listener_.release());
    ::unlink(options_.socket_path.c_str());
}

int VgpuServer::timeout_ms(bool is_shrinking) {
    shrinking_turns_ = is_shrinking ? std::min(shrinking_turns_ + 1, kShrinkingTurns) : 0;
    if (is_shrinking) return shrinking_turns_ < kShrinkingTurns ? kShrinkingMs : kShrinkingLongMs;
    if (!callers_.empty() || is_short_) return kShortMs;
    const bool anyone = !tenants_.empty() || !is_told_;
    return anyone ? static_cast<int>(std::chrono::milliseconds(kLookEvery).count()) : -1;
}

void VgpuServer::serve() {
    watch_known();
    while (!stopping_.load(std::memory_order_acquire)) {
        const bool is_shrinking = limits_.step();
        // A caller that can't be taken now must not wake us: poll() passes over a negative
        // descriptor.
        std::vector<pollfd> waits{{wake_.get(), POLLIN, 0},
                                  {is_short_ ? -1 : listener_.get(), POLLIN, 0},
                                  {modified_.get(), POLLIN, 0}};
        for (const Caller& caller : callers_) {
            waits.push_back({caller.is_heard_no_more ? -1 : caller.socket.get(), POLLIN, 0});
        }
        for (const Tenant& tenant : tenants_) waits.push_back({tenant.pidfd.get(), POLLIN, 0});
        ::poll(waits.data(), waits.size(), timeout_ms(is_shrinking));
        is_short_ = false;
        eventfd_t ignored = 0;
        // A quota was changed: a vGPU that shrinks now has not had its second yet.
        if (::eventfd_read(wake_.get(), &ignored) == 0) shrinking_turns_ = 0;
        // In the order in which they were put in; what is new is served in the next turn.
        std::size_t at = 3;
        const TimePoint now = Clock::now();
        for (auto caller = callers_.begin(); caller != callers_.end();) {
            const auto next = std::next(caller);
            const bool is_done = waits[at++].revents != 0 && hear(*caller);
            if (is_done || now >= caller->until) let_go(caller);
            caller = next;
        }
        for (Tenant& tenant : tenants_) {
            if (at < waits.size() && waits[at++].revents != 0) tenant.is_dead = true;
        }
        bury();
        if (waits[1].revents != 0) take_callers();
        if (waits[2].revents != 0) trim();
        if (now < next_look_) continue;
        next_look_ = now + kLookEvery;
        limits_.reclaim_dead();
        limits_.trim_ledgers();
    }
}

// Whatever the kernel reports: that a file was changed is all that counts.
void VgpuServer::trim() {
    alignas(inotify_event) char events[4096];
    while (::read(modified_.get(), events, sizeof events) > 0) {
    }
    limits_.trim_ledgers();
}

// At most a queue of them in a turn: a caller that has asked is answered in between.
void VgpuServer::take_callers() {
    for (int i = 0; i < kBacklog; ++i) {
        auto socket = listener_.accept(TimePoint{});
        if (!socket.ok()) {
            is_short_ = socket.error().code != Errc::kTimeout;
            return;
        }
        if (callers_.size() >= kCallersMax) make_room();
        take_caller(std::move(*socket));
    }
}

void VgpuServer::take_caller(UnixSocket socket) {
    const auto peer = options_.peer_of ? options_.peer_of(socket) : socket.peer();
    Caller caller{std::move(socket), peer.ok() ? *peer : fabricshm::PeerCredentials{},
                  Clock::now() + options_.ask_within};
    const bool is_admitted =
        peer.ok() && options_.admits(caller.peer.uid, caller.peer.gid, caller.socket.get());
    if (!is_admitted) {
        answer(caller, Error{Errc::kDenied, 0, "ask for a vGPU"});
        caller.is_heard_no_more = true;
        caller.until = Clock::now() + kReadRefusal;
    }
    callers_.push_back(std::move(caller));
}

// Of those that are heard no more the one that has waited longest; else the same of the user with
// the most callers, so that no user loses a place to one that has more of them.
void VgpuServer::make_room() {
    std::map<uid_t, int> of_user;
    for (const Caller& caller : callers_) ++of_user[caller.peer.uid];
    auto goes = callers_.begin();
    for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
        if (caller->is_heard_no_more) {
            goes = caller;
            break;
        }
        if (of_user[caller->peer.uid] > of_user[goes->peer.uid]) goes = caller;
    }
    let_go(goes);
}

void VgpuServer::let_go(std::list<Caller>::iterator caller) {
    closer_.close(caller->peer.uid, caller->socket.release());
    callers_.erase(caller);
}

// False when it is kept, with what it sent, since its user sends more descriptors than are closed.
bool VgpuServer::hear(Caller& caller) {
    if (closer_.is_full(caller.peer.uid) && caller.socket.has_descriptors()) {
        caller.is_heard_no_more = true;
        return false;
    }
    VgpuRequest request{};
    std::vector<Fd> descriptors;
    const auto got = caller.socket.receive_all(std::as_writable_bytes(std::span(&request, 1)),
                                               descriptors, TimePoint{});
    // None was asked for. Not closed here: that takes as long as its sender likes.
    for (Fd& descriptor : descriptors) closer_.close(caller.peer.uid, std::move(descriptor));
    if (!got.ok()) return true;
    answer(caller, [&]() -> Result<VgpuLimits::Files> {
        FABRIC_TRY_VOID(check_vgpu_request(request, *got));
        return admit(caller, request);
    }());
    return true;
}

void VgpuServer::answer(const Caller& caller, const Result<VgpuLimits::Files>& files) {
    VgpuReply reply{};
    reply.magic = kVgpuMagic;
    reply.version = kVgpuVersion;
    reply.status = files.ok() ? 0 : static_cast<std::int32_t>(files.error().code);
    std::vector<int> descriptors;
    if (files.ok()) {
        std::strncpy(reply.gpu, files->gpu.c_str(), sizeof reply.gpu - 1);
        // What it can't know itself where it has a pid namespace of its own, and NVML knows it by.
        reply.host_pid = static_cast<std::uint32_t>(caller.peer.pid);
        descriptors = {files->limits.get(), files->ledger.get()};
    }
    // A caller that is gone already is buried by its pidfd.
    (void)caller.socket.send(std::as_bytes(std::span(&reply, 1)), descriptors, TimePoint{});
}

Result<VgpuLimits::Files> VgpuServer::admit(const Caller& caller, const VgpuRequest& request) {
    const fabricshm::PeerCredentials& peer = caller.peer;
    FABRIC_TRY_VOID(limits_.check_user(request.name, peer.uid));
    FABRIC_TRY(auto files, limits_.files_of(request.name));
    Tenant tenant{request.name, {request.pid, request.start_time, request.pid_namespace}, {}};
    // In our own namespace the kernel's word counts; from inside another one the process knows
    // its numbers better than we do, and the pidfd reports its death all the same.
    FABRIC_TRY(const std::uint64_t space, fabricshm::own_pid_namespace());
    if (request.pid_namespace == space && request.pid != peer.pid) {
        return Error{Errc::kDenied, 0, "ask for a vGPU as another process"};
    }
    FABRIC_TRY(tenant.pidfd, caller.socket.peer_pidfd());
    FABRIC_TRY_VOID(watch(std::move(tenant)));
    return files;
}

namespace {

// Whether the process that has `pid` here is not the one with the slot, which was here under that
// number. In a container it may count its start from another time (time namespaces): then its pid
// namespace decides, and where that can't be read it is taken for alive.
bool is_another(pid_t pid, const ProcessIdentity& process, std::uint64_t own_space) {
    const auto start = fabricshm::process_start_time(pid);
    if (!start.ok()) return true;
    if (*start == process.start_time) return false;
    if (process.pid_namespace == own_space) return true;
    const auto space = fabricshm::pid_namespace_of(pid);
    return space.ok() && *space != process.pid_namespace;
}

}  // namespace

// A daemon started again finds its tenants in the ledgers. These are of this pid namespace
// (VgpuFiles::open), so that the numbers in them which the daemon before gave out are ours, too. A
// process that writes another one's number there ends up without its quota, or keeps it too long.
void VgpuServer::watch_known() {
    const auto space = fabricshm::own_pid_namespace();
    for (auto& [vgpu, use] : limits_.processes()) {
        const bool is_here = space.ok() && use.process.pid_namespace == *space;
        const bool is_known = is_here || use.host_pid != use.process.pid;
        if (!space.ok() || !is_known) continue;
        const pid_t pid = is_here ? use.process.pid : use.host_pid;
        auto pidfd = fabricshm::open_pidfd(pid);
        Tenant tenant{vgpu, use.process, pidfd.ok() ? std::move(*pidfd) : Fd{}};
        // The number may be another process's by now: asked after the pidfd is there, so that it is
        // this very process which has to have started then.
        tenant.is_dead = !pidfd.ok() || is_another(pid, use.process, *space);
        (void)watch(std::move(tenant));
    }
    bury();
}

Result<void> VgpuServer::watch(Tenant tenant) {
    const bool is_known = std::any_of(tenants_.begin(), tenants_.end(), [&](const Tenant& other) {
        return other.vgpu == tenant.vgpu && other.process == tenant.process;
    });
    if (is_known) return {};
    if (tenants_.size() >= options_.max_tenants)
        return Error{Errc::kBusy, 0, "watch a vGPU's process"};
    tenants_.push_back(std::move(tenant));
    return {};
}

void VgpuServer::bury() {
    tenants_.remove_if([this](const Tenant& tenant) {
        // False: another process keeps the ledger's lock. Its pidfd stays readable; another turn.
        return tenant.is_dead && limits_.tenant_died(tenant.vgpu, tenant.process);
    });
}

}  // namespace fabricd
