// What a host wrote before it was cut off arrives when the cable is mended. From a peer that was
// fenced meanwhile nothing lands.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "libfabricshm/net/transport_loader.hpp"
#include "libfabricshm/net/trusted.hpp"
#include "tests/support/children.hpp"
#include "tests/support/namespaces.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using net::Event;
using test_support::Cable;
using test_support::Child;
using test_support::Gate;

namespace {

constexpr Bytes kWord = 64;  // where the writers count

// What the processes know of each other.
struct Shared {
    net::Address address;
    net::Door doors[3];
    std::atomic<std::uint64_t> posted[3];
    std::atomic<bool> over;
};

std::unique_ptr<net::Transport> open(int rank) {
    ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
    const auto address = net::trusted_address(Cable::kNetwork);
    if (!address.ok()) return nullptr;
    const bool reader = rank == 0;
    const bool remote[] = {!reader, reader, reader};
    net::TransportSpec spec;
    spec.rank = rank;
    spec.world = 3;
    spec.remote = remote;
    spec.door_bytes = 4096;
    spec.address = address->c_str();
    auto opened = net::open_transport(spec);
    return opened.ok() ? std::move(opened).value() : nullptr;
}

std::uint64_t word_of(const net::Transport& transport, int peer) {
    std::uint64_t word = 0;
    std::memcpy(&word, transport.memory(peer) + kWord, sizeof word);
    return word;
}

void progress(net::Transport& transport) {
    Event events[8];
    transport.poll(events, 8, 1);
}

// Counts in the reader's memory until all is over.
int write_always(const Cable& cable, Shared& shared, int rank, const Gate& ready) {
    if (!cable.enter(1) || !ready.wait()) return 1;
    const auto transport = open(rank);
    if (transport == nullptr) return 2;
    if (transport->know(0, shared.address, shared.doors[rank]) != Errc::kOk) return 3;
    std::uint64_t words[1024];
    std::atomic<int> pending{0};
    for (std::uint64_t next = 1; !shared.over;) {
        std::uint64_t& word = words[next % std::size(words)];
        word = next;
        if (pending < 512 && transport->write(0, reinterpret_cast<std::byte*>(&word), sizeof word,
                                              kWord, 0, &pending) == Errc::kOk) {
            shared.posted[rank] = next++;
        }
        progress(*transport);
    }
    return 0;
}

// Serves the writers for so long, or until `done`.
template <typename Done>
bool serve(net::Transport& transport, Duration time, const Done& done) {
    for (const TimePoint until = Clock::now() + time; Clock::now() < until;) {
        if (done()) return true;
        progress(transport);
    }
    return done();
}

int read_always(const Cable& cable, Shared& shared, Gate& ready) {
    if (!cable.enter(0)) return 10;
    const auto transport = open(0);
    if (transport == nullptr) return 11;
    shared.address = transport->address();
    for (const int writer : {1, 2}) shared.doors[writer] = transport->door(writer);
    ready.open();
    const auto both_at = [&](std::uint64_t count) {
        return word_of(*transport, 1) >= count && word_of(*transport, 2) >= count;
    };
    if (!serve(*transport, 20s, [&] { return both_at(20); })) return 12;
    if (!cable.cut()) return 13;
    // What was in this end already comes in; then nothing does, while the writers go on.
    serve(*transport, 300ms, [] { return false; });
    const std::uint64_t fenced = word_of(*transport, 1);
    const std::uint64_t free = word_of(*transport, 2);
    const std::uint64_t posted = shared.posted[1];
    transport->fence(1);
    serve(*transport, 300ms, [] { return false; });
    // The fence fell inside the cut, or this would prove nothing.
    if (word_of(*transport, 1) != fenced || word_of(*transport, 2) != free) return 14;
    if (shared.posted[1] <= posted || posted <= fenced) return 15;
    if (!cable.mend()) return 16;
    // Without a fence it lands.
    if (!serve(*transport, 20s, [&] { return word_of(*transport, 2) > posted; })) return 17;
    serve(*transport, 2s, [] { return false; });
    const bool landed = word_of(*transport, 1) != fenced;
    shared.over = true;
    return landed ? 18 : 0;
}

}  // namespace

TEST_SUITE("net.fence") {
    TEST_CASE("late writes of a fenced peer do not land, and those of one that is not do") {
        const Cable cable;
        if (!cable.ok()) return test_support::skip("network namespaces need root and ip");
        void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        auto& shared = *new (memory) Shared();
        Gate ready;
        Child reader([&] { return read_always(cable, shared, ready); });
        Child one([&] { return write_always(cable, shared, 1, ready); });
        Child two([&] { return write_always(cable, shared, 2, ready); });
        CHECK(reader.wait() == 0);
        shared.over = true;
        CHECK(one.wait() == 0);
        CHECK(two.wait() == 0);
        ::munmap(memory, sizeof(Shared));
    }
}
