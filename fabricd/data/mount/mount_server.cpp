#include "fabricd/data/mount/mount_server.hpp"

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "fabricd/data/mount/change_watch.hpp"
#include "fabricd/data/mount/mount_requests.hpp"
#include "fabricd/data/mount/notifier.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;

namespace {

ssize_t write_reply(int fuse, iovec* pieces, int count, void*) {
    FAULT_POINT("mount.answering");
    const ssize_t written = ::writev(fuse, pieces, count);
    const int saved_errno = errno;
    FAULT_POINT("mount.answered");
    errno = saved_errno;
    return written;
}

ssize_t read_request(int fuse, void* into, std::size_t bytes, void*) {
    return ::read(fuse, into, bytes);
}

constexpr fuse_custom_io kOwnIo = {write_reply, read_request, nullptr, nullptr};

void hand_to_libfuse(fuse_session* session, void* bytes, std::size_t length) {
    fuse_buf request{};
    request.size = length;
    request.mem = bytes;
    fuse_session_process_buf(session, &request);
}

// Plain stores are enough: what comes behind them, in this process, is a system call that the
// compiler does not move them over, and other processes read the slot when this one has ended.
void mark_answered(RequestHead& head) {
    const_cast<volatile std::uint64_t&>(head.unique) = 0;
}

// The kernel copies a request into pages that this process has in its page table without looking
// for signals. Into others it would look, and drop the request when the process is killed there.
void touch_slot(std::span<std::byte> slot) {
    constexpr Bytes kUsual = 4 * fabricshm::kPageBytes;
    for (Bytes at = 0; at < kUsual; at += fabricshm::kPageBytes) {
        auto& byte = const_cast<volatile std::byte&>(slot[at]);
        byte = byte;
    }
}

}  // namespace

struct MountServer::Impl {
    Fd fuse;
    Handover handover;
    std::unique_ptr<MountSource> source;
    MountOptions options;
    NodeTable nodes;
    MountListings listings;
    MountRequests requests;
    fuse_session* session = nullptr;
    std::optional<Notifier> notifier;

    Impl(Fd device, Handover from_keeper, std::unique_ptr<MountSource> names_and_bytes,
         const MountOptions& given)
        : fuse(std::move(device)),
          handover(std::move(from_keeper)),
          source(std::move(names_and_bytes)),
          options(given),
          nodes(handover.nodes()),
          listings(*source, nodes),
          requests{nodes, listings, options, ::geteuid(), ::getegid()} {}
    ~Impl() {
        if (session != nullptr) fuse_session_destroy(session);
    }

    Result<void> make_session();
    void answer(RequestHead& head, std::size_t length);
    void answer_leftover(std::size_t slot);
    void serve(std::size_t slot);
};

// The INIT that the kernel sent once. It takes the first reply; those of later servers are ENOENT.
Result<void> MountServer::Impl::make_session() {
    char name[] = "fabric-mount";
    char* words[] = {name, nullptr};
    fuse_args arguments = FUSE_ARGS_INIT(1, words);
    session =
        fuse_session_new(&arguments, &mount_operations(), sizeof(fuse_lowlevel_ops), &requests);
    if (session == nullptr) return Error{Errc::kInternal, 0, "make session"};
    FABRIC_TRY(Fd own, fuse.duplicate());  // the session closes it
    if (fuse_session_custom_io(session, &kOwnIo, own.release()) != 0) {
        return Error{Errc::kInternal, 0, "hand over device"};
    }
    HandoverHead& head = handover.head();
    std::byte init[kInitBytes];
    if (head.init_bytes < sizeof(RequestHead) || head.init_bytes > kInitBytes) {
        return Error{Errc::kCorrupt, 0, "read INIT"};
    }
    std::memcpy(init, head.init, head.init_bytes);
    hand_to_libfuse(session, init, head.init_bytes);
    return {};
}

void MountServer::Impl::answer(RequestHead& head, std::size_t length) {
    if (head.opcode == FUSE_INTERRUPT) {
        // The kernel sends no more of them then. A reader that is killed waits for its answer, at
        // most as long as the source is waited for.
        reply_error(fuse, head.unique, ENOSYS);
    } else {
        hand_to_libfuse(session, &head, length);
    }
    mark_answered(head);
}

// A request that a dead server had read. A request that each server dies of gets an error in the
// end.
void MountServer::Impl::answer_leftover(std::size_t slot) {
    RequestHead& head = handover.request(slot);
    auto& replays = handover.head().replays[slot];
    const RequestHead copy = head;
    const bool is_whole = copy.length >= sizeof copy && copy.length <= kSlotBytes;
    if (copy.unique == 0 || !is_whole || !expects_reply(copy.opcode)) {
        mark_answered(head);
        return;
    }
    // Relaxed: counted by one server after the other.
    if (replays.fetch_add(1, std::memory_order_relaxed) >= kMaxReplays) {
        fabricshm::log(fabricshm::LogLevel::kError,
                       "fabric-mount: servers died of a request (kind %u, node %llu): an error",
                       copy.opcode, static_cast<unsigned long long>(copy.node));
        reply_error(fuse, copy.unique, EIO);
        mark_answered(head);
    } else {
        FAULT_POINT("mount.replaying");
        answer(head, copy.length);
    }
    replays.store(0, std::memory_order_relaxed);
}

void MountServer::Impl::serve(std::size_t slot) {
    touch_slot(handover.slot(slot));
    answer_leftover(slot);
    RequestHead& head = handover.request(slot);
    for (;;) {
        mark_answered(head);
        const ssize_t got = ::read(fuse.get(), &head, kSlotBytes);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (got < static_cast<ssize_t>(sizeof head)) break;  // ENODEV: unmounted
        FAULT_POINT("mount.read");
        answer(head, static_cast<std::size_t>(got));
        FAULT_POINT("mount.marked");
    }
    mark_answered(head);
}

MountServer::MountServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
MountServer::~MountServer() = default;

Result<std::unique_ptr<MountServer>> MountServer::make(Fd fuse, Handover handover,
                                                       std::unique_ptr<MountSource> source,
                                                       const MountOptions& options) {
    if (options.threads < 1 || options.threads > kMountSlots) {
        return Error{Errc::kInvalid, 0, "threads of the mount"};
    }
    auto impl =
        std::make_unique<Impl>(std::move(fuse), std::move(handover), std::move(source), options);
    FABRIC_TRY_VOID(impl->make_session());
    FABRIC_TRY(impl->notifier, Notifier::start(impl->session));
    return std::unique_ptr<MountServer>(new MountServer(std::move(impl)));
}

Result<void> MountServer::run() {
    ChangeWatch watch(impl_->nodes, impl_->listings, *impl_->notifier, impl_->options.refresh,
                      impl_->options.timeout);
    impl_->requests.watch = &watch;
    impl_->requests.changed = [](void* of) { static_cast<ChangeWatch*>(of)->prompt(); };
    std::vector<std::thread> threads;
    for (std::size_t slot = 0; slot < impl_->options.threads; ++slot) {
        threads.emplace_back([this, slot] { impl_->serve(slot); });
    }
    watch.start();
    // Release: with the count comes that the threads are there.
    impl_->handover.head().servers.fetch_add(1, std::memory_order_release);
    // A server of more threads may have left requests in slots that this one does not serve.
    for (std::size_t slot = impl_->options.threads; slot < kMountSlots; ++slot) {
        impl_->answer_leftover(slot);
    }
    for (auto& thread : threads) thread.join();
    // Without the destructors: the watch may be waiting for the source, and the mount is no more.
    std::_Exit(0);
}

}  // namespace fabricd
