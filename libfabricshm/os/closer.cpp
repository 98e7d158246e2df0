#include "libfabricshm/os/closer.hpp"

#include <pthread.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

namespace fabricshm {

struct Closer::State {
    struct Owner {
        std::deque<Fd> waiting;
        int threads = 0;  // closing one of its descriptors now
    };
    using Owners = std::map<std::uint32_t, Owner>;

    // Whose turn it is: the next after the last one served that has something to do and may.
    Owners::iterator next_owner() {
        const auto may = [](const Owner& owner) {
            return !owner.waiting.empty() && owner.threads < kThreadsPerOwner;
        };
        const auto after = owners.upper_bound(last);
        for (auto it = after; it != owners.end(); ++it) {
            if (may(it->second)) return it;
        }
        for (auto it = owners.begin(); it != after; ++it) {
            if (may(it->second)) return it;
        }
        return owners.end();
    }

    static void serve(const std::shared_ptr<State>& self);
    void call_thread(const std::shared_ptr<State>& self);

    std::mutex mutex;
    std::condition_variable changed;
    Owners owners;  // those with something that is not closed yet
    std::uint32_t last = 0;
    std::size_t open = 0;  // waiting, or being closed
    int threads = 0;
    int idle = 0;
    bool stopping = false;
};

namespace {

// Runs on the closer's threads. What it does may take for ever.
void close_now(Fd fd) noexcept {
    // A socket's own option to wait is taken away first; of any other file this is only an error.
    // One inside a packet of a packet is not reached, and that is what the other threads are for.
    const linger none{};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    fd.reset();
}

}  // namespace

// Sees to it that what may be closed now finds a thread, as long as there may be one more.
void Closer::State::call_thread(const std::shared_ptr<State>& self) {
    if (next_owner() == owners.end()) return;
    if (idle > 0) return changed.notify_one();
    if (threads == kThreads) return;
    // By hand and not as std::thread, which throws where there can be no more threads: then the
    // descriptor waits for one that there is.
    auto own = std::make_unique<std::shared_ptr<State>>(self);
    pthread_t thread{};
    const auto run = [](void* argument) -> void* {
        const std::unique_ptr<std::shared_ptr<State>> state(
            static_cast<std::shared_ptr<State>*>(argument));
        serve(*state);
        return nullptr;
    };
    if (::pthread_create(&thread, nullptr, run, own.get()) != 0) return;
    [[maybe_unused]] const auto* given = own.release();
    ::pthread_detach(thread);
    ++threads;
}

void Closer::State::serve(const std::shared_ptr<State>& self) {
    State& all = *self;
    std::unique_lock lock(all.mutex);
    for (;;) {
        const auto turn = all.next_owner();
        if (turn == all.owners.end()) {
            // What is left is for threads that have their hands full with the same owner.
            if (all.stopping) break;
            ++all.idle;
            all.changed.wait(lock);
            --all.idle;
            continue;
        }
        Owner& owner = turn->second;
        all.last = turn->first;
        Fd fd = std::move(owner.waiting.front());
        owner.waiting.pop_front();
        ++owner.threads;
        // The next one must not wait behind this one, which may hang.
        all.call_thread(self);
        lock.unlock();
        close_now(std::move(fd));
        lock.lock();
        --all.open;
        --owner.threads;
        // Its last: entries are for those with something to close, however many users come by.
        const bool done = owner.waiting.empty() && owner.threads == 0;
        if (done) all.owners.erase(turn);
    }
    --all.threads;
    all.changed.notify_all();
}

Closer::Closer() : state_(std::make_shared<State>()) {}

Closer::~Closer() {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, kTimeout, [this] { return state_->threads == 0; });
}

void Closer::close(std::uint32_t owner, Fd fd) noexcept {
    if (!fd) return;
    const std::lock_guard lock(state_->mutex);
    state_->owners[owner].waiting.push_back(std::move(fd));
    ++state_->open;
    state_->call_thread(state_);
}

bool Closer::is_full(std::uint32_t owner) const noexcept {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->owners.find(owner);
    const std::size_t own = found == state_->owners.end() ? 0 : found->second.waiting.size();
    return own >= kWaitingPerOwner || state_->open >= kWaiting;
}

std::size_t Closer::waiting() const noexcept {
    const std::lock_guard lock(state_->mutex);
    return state_->open;
}

}  // namespace fabricshm
