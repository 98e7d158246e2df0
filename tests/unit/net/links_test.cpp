// What Links makes of what a transport reports, over a transport that the test plays.

#include "libfabricshm/net/links.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace fabricshm;
using namespace std::chrono_literals;
using net::Event;
using net::Links;

namespace {

constexpr Bytes kDoor = 1 << 16;

constexpr std::uint32_t kAnswer = 1U << 24 | static_cast<std::uint32_t>(net::Note::kPing) << 20 | 1;

/// Takes all writes, and reports what the test puts in.
class PlayedTransport final : public net::Transport {
  public:
    const char* provider() const noexcept override { return "played"; }
    bool needs_lent() const noexcept override { return false; }
    Errc lend(std::byte*, Bytes) noexcept override { return Errc::kOk; }
    net::Address address() const noexcept override { return {}; }
    net::Door door(int) const noexcept override { return {}; }
    std::byte* memory(int) const noexcept override { return memory_.data(); }
    Errc know(int, const net::Address&, const net::Door&) noexcept override { return Errc::kOk; }
    Errc write(int, const std::byte*, Bytes, Bytes, std::uint32_t,
               std::atomic<int>*) noexcept override {
        return takes_none ? Errc::kBusy : Errc::kOk;
    }
    int poll(Event* events, int capacity, int) noexcept override {
        const std::lock_guard lock(mutex_);
        int count = 0;
        for (; count < capacity && !events_.empty(); events_.pop_front()) {
            events[count++] = events_.front();
        }
        if (count == 0 && never_stops) events[count++] = {Event::What::kArrived, kAnswer, -1, 0};
        return count;
    }
    net::Presence presence(int) noexcept override { return *takes_none; }
    void fence(int peer) noexcept override {
        const std::lock_guard lock(mutex_);
        fenced_.push_back(peer);
    }
    void wake() noexcept override {}

    /// Before the first wait: rank 1 says all the time that it lives.
    bool never_stops = false;
    /// Before the first wait: the peer takes no writes, and is there or not.
    std::optional<net::Presence> takes_none;

    /// A word that came, with its bytes if it was not fenced.
    void report(std::uint32_t word) {
        const std::lock_guard lock(mutex_);
        events_.push_back({Event::What::kArrived, word, -1, 0});
    }
    std::vector<int> fenced() {
        const std::lock_guard lock(mutex_);
        return fenced_;
    }

  private:
    mutable std::vector<std::byte> memory_ = std::vector<std::byte>(kDoor);
    std::mutex mutex_;
    std::deque<Event> events_;
    std::vector<int> fenced_;
};

constexpr std::uint32_t data_of(std::uint32_t peer, std::uint32_t mark) {
    return peer << 24 | static_cast<std::uint32_t>(net::Note::kData) << 21 | mark;
}

constexpr std::uint32_t hello_of(std::uint32_t peer) {
    return peer << 24 | static_cast<std::uint32_t>(net::Note::kHello) << 20;
}

constexpr std::uint32_t abort_of(std::uint32_t peer, Errc code, int rank) {
    return peer << 24 | static_cast<std::uint32_t>(net::Note::kAbort) << 20 |
           static_cast<std::uint32_t>(code) << 9 | static_cast<std::uint32_t>(rank + 1);
}

/// Rank 0 of two or more, each on a host.
struct Rig {
    explicit Rig(std::size_t world = 2, Duration silence = 1s) {
        auto played = std::make_unique<PlayedTransport>();
        transport = played.get();
        net::LinksSpec spec;
        spec.rank = 0;
        spec.remote.assign(world, true);
        spec.remote[0] = false;
        spec.greets = spec.remote;
        spec.ring_bytes = 4096;
        spec.control_bytes = 256;
        spec.silence = silence;
        links = std::make_unique<Links>(
            std::move(spec), std::move(played),
            [this] {
                if (at_check) at_check();
                return Result<void>{};
            },
            [this](const Error& failure, int reporter) {
                reported = failure;
                reported_by = reporter;
            });
        links->begin();
    }
    Result<const std::byte*> receive(std::uint32_t mark) {
        return links->receive(1, 64, mark, Clock::now() + 20s);
    }

    PlayedTransport* transport = nullptr;
    std::function<void()> at_check;
    Error reported;
    int reported_by = -1;
    std::unique_ptr<Links> links;  // last: it calls back
};

}  // namespace

TEST_SUITE("net.links") {
    TEST_CASE("a message is taken once its word is there") {
        Rig rig;
        rig.transport->report(data_of(1, 5));
        CHECK(rig.receive(5).ok());
        rig.links->release(1);
    }

    // Its last bytes may come after the fence, into other memory, and their word with them.
    TEST_CASE("the word of a message that was under way when its sender was fenced is not one") {
        Rig rig;
        rig.links->condemn(1);
        CHECK(rig.transport->fenced() == std::vector<int>{1});
        rig.transport->report(data_of(1, 5));
        const auto late = rig.receive(5);
        REQUIRE_FALSE(late.ok());
        CHECK(late.error().code == Errc::kPeer);
        CHECK(late.error().detail == 1);
    }

    TEST_CASE("what a peer had sent as a whole before it was fenced may be taken") {
        Rig rig;
        rig.transport->report(data_of(1, 5));
        REQUIRE(rig.receive(5).ok());
        rig.transport->report(data_of(1, 6));
        // Both words are handled by now: one wait makes progress for all that came.
        rig.links->release(1);
        REQUIRE(rig.receive(6).ok());
        rig.links->condemn(1);
        rig.links->release(1);
        CHECK_FALSE(rig.receive(7).ok());
    }

    TEST_CASE(
        "a peer that takes nothing for long is dead where its machine says so, and not before") {
        struct {
            net::Presence presence;
            Errc code;
            bool lost;
            bool dead;
        } const cases[] = {
            {net::Presence::kGone, Errc::kPeer, true, true},
            // It only is late.
            {net::Presence::kThere, Errc::kTimeout, false, false},
            {net::Presence::kNoAnswer, Errc::kTimeout, false, false},
            // Nothing says that its process has ended: the side with fewer hosts may not go on.
            {net::Presence::kUnknown, Errc::kPeer, true, false},
        };
        for (const auto& it : cases) {
            CAPTURE(static_cast<int>(it.presence));
            Rig rig;
            rig.transport->report(hello_of(1));
            rig.transport->takes_none = it.presence;
            // Else it would count as silent, on a machine that stands still for a second.
            rig.transport->never_stops = true;
            // Where the peer is lost the wait ends by that, however late it is found out.
            const Duration length = it.lost ? 20s : 600ms;
            const auto came = rig.links->receive(1, 64, 5, Clock::now() + length);
            REQUIRE_FALSE(came.ok());
            CHECK(came.error().code == it.code);
            CHECK(came.error().detail == 1);
            CHECK(rig.links->lost(1) == it.lost);
            CHECK(rig.links->dead(1) == it.dead);
            rig.links->condemn(1);  // no goodbye
        }
    }

    TEST_CASE("a wait for a peer that never stops sending other things ends at its deadline") {
        Rig rig;
        rig.transport->never_stops = true;
        const auto came = rig.links->receive(1, 64, 5, Clock::now() + 100ms);
        REQUIRE_FALSE(came.ok());
        CHECK(came.error().code == Errc::kTimeout);
        rig.transport->report(data_of(1, 5));
        CHECK(rig.receive(5).ok());
        rig.links->release(1);
        rig.links->condemn(1);  // no goodbye
    }

    TEST_CASE("a rank that the others gave up names the one that said so, and not itself") {
        Rig rig(3);
        rig.transport->report(abort_of(2, Errc::kPeer, 0));
        const auto came = rig.receive(5);
        REQUIRE_FALSE(came.ok());
        CHECK(came.error().code == Errc::kPeer);
        CHECK(came.error().detail == 2);
        CHECK(came.error().step == std::string(net::kGivenUp));
        // The ranks of its pool learn which one was given up.
        CHECK(rig.reported.code == Errc::kPeer);
        CHECK(rig.reported.detail == 0);
        CHECK(rig.reported_by == 2);
        rig.links->condemn(1);  // no goodbye
        rig.links->condemn(2);
    }

    TEST_CASE("a failure that a peer reports is the one that it names, and is reported once") {
        Rig rig(3);
        rig.transport->report(abort_of(2, Errc::kPeer, 1));
        rig.transport->report(abort_of(1, Errc::kTimeout, 2));
        const auto came = rig.receive(5);
        REQUIRE_FALSE(came.ok());
        CHECK(came.error().code == Errc::kPeer);
        CHECK(came.error().detail == 1);
        CHECK(rig.reported.detail == 1);
        rig.links->condemn(1);  // no goodbye
        rig.links->condemn(2);
    }

    // The one that is waited for waits itself for one that stands still.
    TEST_CASE("a peer is not silent because this rank stood still and did not listen") {
        Rig rig(2, 200ms);
        rig.transport->report(hello_of(1));
        rig.transport->never_stops = true;
        const auto deadline = Clock::now() + 50ms;
        rig.at_check = [&] {
            while (Clock::now() < deadline + 250ms) std::this_thread::yield();
        };
        const auto came = rig.links->receive(1, 64, 5, deadline);
        REQUIRE_FALSE(came.ok());
        CHECK(came.error().code == Errc::kTimeout);
        CHECK(came.error().detail == 1);
        rig.links->condemn(1);  // no goodbye
    }

    TEST_CASE("where the awaited peer answers and another does not, the silent one is named") {
        Rig rig(3, 200ms);
        rig.transport->report(hello_of(1));
        rig.transport->report(hello_of(2));
        rig.transport->never_stops = true;  // rank 1 says all the time that it lives
        const auto came = rig.links->receive(1, 64, 5, Clock::now() + 500ms);
        REQUIRE_FALSE(came.ok());
        CHECK(came.error().code == Errc::kPeer);
        CHECK(came.error().detail == 2);
        rig.links->condemn(1);  // no goodbye
        rig.links->condemn(2);
    }

    TEST_CASE("words of ranks that may not write here are ignored") {
        Rig rig;
        rig.transport->report(data_of(0, 5));
        rig.transport->report(data_of(200, 5));
        rig.transport->report(data_of(1, 6));
        CHECK(rig.receive(6).ok());
        rig.links->release(1);
    }
}
