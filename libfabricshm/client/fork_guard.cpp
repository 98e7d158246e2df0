#include "libfabricshm/client/fork_guard.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "libfabricshm/os/fork_lock.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricshm::fork_guard {

namespace {

// Under fork_lock(), all of it.
struct Watched {
    std::set<int> descriptors;
    std::map<std::byte*, Bytes> holes;
};

// Never destroyed: threads of sessions may still run while the process exits.
Watched& watched() {
    static auto* const all = new Watched;
    return *all;
}

// Relaxed everywhere: it changes only in a child that has one thread.
std::atomic<std::uint32_t> g_generation{1};

// The locks are held across the fork so that the child inherits nothing that is half changed by a
// thread which it does not have.
void before_fork() noexcept {
    PoisonWatch::lock_for_fork();
    fork_lock().lock();
}

void in_parent() noexcept {
    fork_lock().unlock();
    PoisonWatch::unlock_after_fork();
}

void in_child() noexcept {
    // Without a word on the sockets: a goodbye would be the parent's.
    for (const int fd : watched().descriptors) ::close(fd);
    watched().descriptors.clear();
    // What the kernel left free here a later mapping could take, and a pointer of the parent's
    // would hit that. Without room for it the addresses stay free: a touch is SIGSEGV as well.
    for (const auto& [data, bytes] : watched().holes) {
        PoisonWatch::forget_in_child(data);
        ::mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
               0);
    }
    watched().holes.clear();
    g_generation.fetch_add(1, std::memory_order_relaxed);
    fork_lock().unlock();
    PoisonWatch::unlock_after_fork();
}

// Once per process, when the library is loaded.
[[maybe_unused]] const int g_registered = ::pthread_atfork(before_fork, in_parent, in_child);

void unwatch(const UnixSocket& socket) {
    watched().descriptors.erase(socket.get());
}

void unwatch(const Fd& file) {
    watched().descriptors.erase(file.get());
}

void unwatch(const std::vector<Fd>& files) {
    for (const Fd& file : files) unwatch(file);
}

// Of descriptors that are on the list, until their last holder goes.
template <typename Held>
std::shared_ptr<const Held> share(Held held) {
    return {new Held(std::move(held)), [made_in = generation()](const Held* old) {
                // A child has closed its copies, and the numbers may be other files' by now: they
                // are left alone, as a leak on purpose.
                if (made_in != generation()) return;
                // Off the list and closed in one step: between the two a child would keep it.
                const std::lock_guard lock(fork_lock());
                unwatch(*old);
                delete old;
            }};
}

}  // namespace

std::uint32_t generation() noexcept {
    return g_generation.load(std::memory_order_relaxed);
}

Result<std::shared_ptr<const UnixSocket>> connect(const std::string& path, TimePoint deadline) {
    UnixSocket made;
    {
        const std::lock_guard lock(fork_lock());
        FABRIC_TRY(made, UnixSocket::make());
        watched().descriptors.insert(made.get());
    }
    auto socket = share(std::move(made));
    FABRIC_TRY_VOID(socket->connect_to(path, deadline));
    return socket;
}

Incoming::~Incoming() {
    const std::lock_guard lock(fork_lock());
    for (Fd& file : files_) {
        if (file) unwatch(file);
        file.reset();
    }
}

Result<Received> Incoming::receive(const UnixSocket& socket, std::span<std::byte> packet,
                                   TimePoint deadline) {
    for (;;) {
        {
            const std::lock_guard lock(fork_lock());
            // An attempt: what has not come yet is waited for below.
            auto received = socket.receive(packet, files_, TimePoint{});
            for (const Fd& file : files_) {
                if (file) watched().descriptors.insert(file.get());
            }
            if (received.ok() || received.error().code != Errc::kTimeout) return received;
        }
        FABRIC_TRY_VOID(wait_ready(socket.get(), POLLIN, deadline, "receive"));
    }
}

bool Incoming::has(std::size_t first, std::size_t count) const noexcept {
    const auto from = files_.begin() + static_cast<std::ptrdiff_t>(first);
    return std::all_of(from, from + static_cast<std::ptrdiff_t>(count),
                       [](const Fd& file) { return static_cast<bool>(file); });
}

Fd Incoming::take(std::size_t index) {
    const std::lock_guard lock(fork_lock());
    unwatch(files_[index]);
    return std::move(files_[index]);
}

std::shared_ptr<const Fd> Incoming::keep(std::size_t index) {
    return share(std::move(files_[index]));
}

std::shared_ptr<const std::vector<Fd>> Incoming::keep(std::size_t first, std::size_t count) {
    const auto from = files_.begin() + static_cast<std::ptrdiff_t>(first);
    return share(
        std::vector<Fd>(std::make_move_iterator(from),
                        std::make_move_iterator(from + static_cast<std::ptrdiff_t>(count))));
}

Hole::Hole(std::byte* data, Bytes bytes) : data_(data) {
    const std::lock_guard lock(fork_lock());
    watched().holes[data] = bytes;
}

Hole::~Hole() {
    const std::lock_guard lock(fork_lock());
    watched().holes.erase(data_);
}

}  // namespace fabricshm::fork_guard
