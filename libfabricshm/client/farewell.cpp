#include "libfabricshm/client/farewell.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

constexpr Duration kFirstPauseToSay = std::chrono::milliseconds(50);
constexpr Duration kLongestPauseToSay = std::chrono::seconds(1);
// A daemon that listens takes connections at once; one that hangs must not hold up the others.
constexpr Duration kConnectToSay = std::chrono::milliseconds(100);

struct Farewell {
    std::vector<std::string> sockets;
    SessionIdentity identity;
    // The session's own at first, until the daemon closes it; then one that asks.
    std::shared_ptr<const UnixSocket> line;
    bool is_asked = false;  // through `line`
    bool is_over = false;
    TimePoint again{};  // without a line: when to connect
    Duration pause = kFirstPauseToSay;
};

// Of one process. Never destroyed, as its thread may run while the process exits; a forked child
// makes its own, since the parent's lock may be held in the child for ever.
struct Farewells {
    std::uint32_t generation = fork_guard::generation();
    Fd wake;  // an eventfd
    std::mutex mutex;
    std::vector<Farewell> added;  // for the thread to take
    bool is_running = false;
    // Relaxed throughout: a count that tests look at, and nothing is read by it.
    std::atomic<std::size_t> unanswered{0};

    void add(Farewell farewell);
    void run();
    bool take_added(std::vector<Farewell>& all);
};

std::atomic<Farewells*> g_farewells{nullptr};

Farewells& farewells() {
    // Acquire pairs with the release of the thread that made it: its members are there.
    Farewells* known = g_farewells.load(std::memory_order_acquire);
    while (known == nullptr || known->generation != fork_guard::generation()) {
        auto* made = new Farewells;
        made->wake = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        // Release publishes the members of the new one; acquire, on failure as well, is for those
        // of another thread's that was faster.
        if (g_farewells.compare_exchange_strong(known, made, std::memory_order_acq_rel)) {
            return *made;
        }
        delete made;
    }
    return *known;
}

void* run_farewells(void* all) {
    static_cast<Farewells*>(all)->run();
    return nullptr;
}

// By hand: std::thread throws where there is none to be had, and this is called by destructors.
bool start_detached(Farewells& all) {
    sigset_t every;
    sigset_t before;
    sigfillset(&every);
    // Handlers of the program should not run on a thread that it does not know of.
    ::pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_t thread;
    const bool is_started = ::pthread_create(&thread, nullptr, run_farewells, &all) == 0;
    if (is_started) {
        ::pthread_setname_np(thread, "fabric-goodbye");
        ::pthread_detach(thread);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return is_started;
}

void Farewells::add(Farewell farewell) {
    const std::lock_guard lock(mutex);
    unanswered.fetch_add(1, std::memory_order_relaxed);
    added.push_back(std::move(farewell));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake.get(), &one, sizeof one);
    if (is_running) return;
    is_running = start_detached(*this);
    if (!is_running) log(LogLevel::kWarning, "no thread for a goodbye: it is said with the next");
}

// Under the lock it either takes what was added or ends: nothing added is left without a thread.
bool Farewells::take_added(std::vector<Farewell>& all) {
    const std::lock_guard lock(mutex);
    std::move(added.begin(), added.end(), std::back_inserter(all));
    added.clear();
    is_running = !all.empty();
    return is_running;
}

void say(Farewell& farewell, TimePoint now) {
    proto::Message bye = proto::make_request(proto::Type::kBye, 1);
    bye.hello.session_id = farewell.identity.id;
    std::memcpy(bye.hello.token, farewell.identity.token.data(), farewell.identity.token.size());
    auto line = connect_first(farewell.sockets, now + kConnectToSay);
    if (line.ok() && (*line)->send(proto::bytes_of(bye), {}, TimePoint{}).ok()) {
        farewell.line = std::move(*line);
        farewell.is_asked = true;
        return;
    }
    farewell.again = now + farewell.pause;
    farewell.pause = std::min(2 * farewell.pause, kLongestPauseToSay);
}

// What the daemon says settles it, unless it can't serve now; an end of the line settles nothing.
bool settles(const proto::Message& reply) {
    if (proto::type_of(reply.header) != proto::Type::kBye) return false;
    switch (static_cast<Errc>(reply.header.status)) {
        case Errc::kOk:
        case Errc::kNotFound:  // it, or one before it, has ended the session
        case Errc::kDenied:    // not this process's
        case Errc::kInvalid:   // a daemon of before, which knows no such goodbye
            return true;
        default:
            return false;
    }
}

void hear(Farewell& farewell, TimePoint now) {
    proto::Message reply;
    fork_guard::Incoming unwanted;  // answers to what was asked before may have some
    const auto received =
        unwanted.receive(*farewell.line, proto::writable_bytes_of(reply), TimePoint{});
    if (!received.ok() && received.error().code == Errc::kTimeout) return;
    const bool is_reply = received.ok() && proto::check_reply(reply, received->bytes).ok();
    // Through the session's own line come answers to what was asked before.
    if (is_reply && !farewell.is_asked) return;
    farewell.is_over = is_reply && settles(reply);
    if (farewell.is_over) return;
    farewell.line.reset();
    // At once when the daemon has closed the session's line: most often it has served the goodbye.
    farewell.again = farewell.is_asked ? now + farewell.pause : now;
    if (farewell.is_asked) farewell.pause = std::min(2 * farewell.pause, kLongestPauseToSay);
    farewell.is_asked = false;
}

// Until a line says something, a farewell is due, or one is added.
void wait_for_one(const std::vector<Farewell>& all, int wake) {
    std::vector<pollfd> entries{{wake, POLLIN, 0}};
    TimePoint due = TimePoint::max();
    for (const Farewell& farewell : all) {
        if (farewell.line != nullptr) entries.push_back({farewell.line->get(), POLLIN, 0});
        if (farewell.line == nullptr) due = std::min(due, farewell.again);
    }
    int timeout_ms = -1;
    if (due != TimePoint::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now());
        timeout_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    (void)::poll(entries.data(), entries.size(), timeout_ms);
    std::uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake, &drained, sizeof drained);
}

void Farewells::run() {
    std::vector<Farewell> all;
    while (take_added(all)) {
        for (Farewell& farewell : all) {
            const TimePoint now = Clock::now();
            if (farewell.line != nullptr) hear(farewell, now);
            if (!farewell.is_over && farewell.line == nullptr && farewell.again <= now) {
                say(farewell, now);
            }
        }
        const auto said = std::erase_if(all, [](const Farewell& one) { return one.is_over; });
        unanswered.fetch_sub(said, std::memory_order_relaxed);
        if (!all.empty()) wait_for_one(all, wake.get());
    }
}

}  // namespace

Stay::Stay(std::vector<std::string> sockets, const SessionIdentity& identity)
    : sockets_(std::move(sockets)), identity_(identity), generation_(fork_guard::generation()) {}

Stay::~Stay() {
    if (generation_ != fork_guard::generation()) return;  // the goodbye is the parent's to say
    Farewell farewell;
    farewell.sockets = std::move(sockets_);
    farewell.identity = identity_;
    farewell.line = std::move(line_);
    farewells().add(std::move(farewell));
}

std::shared_ptr<Stay> stay_of(const std::vector<std::string>& sockets,
                              const SessionIdentity& identity) {
    const bool is_shared = identity.visibility[0] != '\0';
    return is_shared ? std::make_shared<Stay>(sockets, identity) : nullptr;
}

std::size_t unanswered_farewells() noexcept {
    return farewells().unanswered.load(std::memory_order_relaxed);
}

}  // namespace fabricshm
