#include "emu/litmus/litmus.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "emu/hosts/incoherent_hosts.hpp"
#include "libfabricshm/shm/flush_policy.hpp"

using namespace emu;
using fabricshm::TouchPoint;
using fabricshm::Visibility;
using namespace std::chrono_literals;

namespace {

LitmusSightings play_both(const Visibility& first, std::byte* first_base, const Visibility& second,
                          std::byte* second_base, const LitmusOptions& options) {
    LitmusSightings other;
    std::thread thread([&] { other = run_litmus(1, second_base, second, options); });
    LitmusSightings seen = run_litmus(0, first_base, first, options);
    thread.join();
    seen.stale += other.stale;
    seen.both_old += other.both_old;
    seen.silent = seen.silent || other.silent;
    return seen;
}

// Two emulated hosts; `policy` stands for the profile, or the hosts' own seam when it is nullptr.
LitmusSightings on_hosts(fabricshm::VisibilityPolicy* policy, const HostBehaviour& behaviour,
                         fabricshm::Duration timeout) {
    SharedPages pool(kLitmusBytes);
    IncoherentHosts hosts(pool.data(), kLitmusBytes, 2, behaviour);
    const auto view = [&](int host) {
        return Visibility(policy != nullptr ? policy : &hosts.policy(host), hosts.base(host),
                          kLitmusBytes);
    };
    return play_both(view(0), hosts.base(0), view(1), hosts.base(1), {200, timeout});
}

// Coherent memory that runs `between` once, after the first word of a side and before its look.
class Interrupted : public fabricshm::VisibilityPolicy {
  public:
    explicit Interrupted(std::function<void()> between) : between_(std::move(between)) {}
    void publish(const fabricshm::Access&) noexcept override { spoken_ = true; }
    void acquire(const fabricshm::Access&) noexcept override {
        if (spoken_ && between_) std::exchange(between_, nullptr)();
    }
    bool coherent() const noexcept override { return true; }

  private:
    std::function<void()> between_;
    bool spoken_ = false;
};

}  // namespace

TEST_SUITE("emu.litmus") {
    TEST_CASE("no profile that this processor has is refuted on its own coherent memory") {
        for (const char* name :
             {"coherent", "coherent-hosts", "clwb", "clflushopt", "clflush", "nt"}) {
            const auto profile = fabricshm::find_profile(name);
            if (!profile.ok()) continue;
            CAPTURE(std::string(name));
            SharedPages memory(kLitmusBytes);
            const auto policy = fabricshm::make_policy(*profile);
            const Visibility view(policy.get(), memory.data(), kLitmusBytes);
            for (int again = 0; again < 2; ++again) {
                const auto seen = play_both(view, memory.data(), view, memory.data(), {300, 60s});
                CHECK_FALSE(seen.refutes());
                CHECK(seen.rounds == 900);
            }
        }
    }

    TEST_CASE("a side whose first word is cleared before it hears the other one says it again") {
        SharedPages memory(kLitmusBytes);
        const LitmusOptions options{10, 60s};
        LitmusSightings cleared;
        std::thread clears;
        Interrupted policy([&] {
            std::memset(memory.data(), 0, kLitmusBytes);
            clears =
                std::thread([&] { cleared = run_litmus(0, memory.data(), Visibility(), options); });
            // Until side 0 has spoken: it alone writes now, and its words are no zeros.
            const auto spoken = [&] {
                for (fabricshm::Bytes at = 0; at < kLitmusBytes; at += 8) {
                    const auto* word = reinterpret_cast<std::uint64_t*>(memory.data() + at);
                    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 0) return true;
                }
                return false;
            };
            while (!spoken()) std::this_thread::yield();
        });
        const Visibility view(&policy, memory.data(), kLitmusBytes);
        const LitmusSightings seen = run_litmus(1, memory.data(), view, options);
        clears.join();
        CHECK_FALSE(seen.refutes());
        CHECK_FALSE(cleared.refutes());
    }

    TEST_CASE("hosts that share no caches pass with their own seam") {
        CHECK_FALSE(on_hosts(nullptr, {Temper::kRandom, 5, std::nullopt}, 60s).refutes());
    }

    TEST_CASE("a profile that does nothing for such hosts is refuted") {
        fabricshm::FlushPolicy wrong(kernels::FlushMethod::kClflush);
        CHECK(on_hosts(&wrong, {Temper::kEager, 5, std::nullopt}, 100ms).refutes());
        CHECK(on_hosts(&wrong, {Temper::kStrict, 5, std::nullopt}, 100ms).refutes());
    }

    TEST_CASE("a seam that forgets to publish or to acquire the data is caught with stale data") {
        for (const TouchPoint touch : {TouchPoint::kMessage, TouchPoint::kMessageRead}) {
            const auto seen = on_hosts(nullptr, {Temper::kEager, 5, touch}, 60s);
            CHECK(seen.stale > 0);
            CHECK(seen.both_old > 0);
        }
    }

    TEST_CASE("a seam that forgets the flag is caught as a side that never hears of the other") {
        const auto seen = on_hosts(nullptr, {Temper::kEager, 5, TouchPoint::kSent}, 100ms);
        CHECK(seen.silent);
    }
}
