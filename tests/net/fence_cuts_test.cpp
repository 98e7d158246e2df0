// Late writes over many cuts. On each of some cables a host writes without end, small and large; at
// a random instant the cable is cut, within the cut the writer is fenced, then the cable is mended.
// What the writer has sent comes then, and must not land. The same without the fence lands, or the
// test would prove nothing.
//
// How it is known that all has come: the writer posts nothing more, its writes have ended, or its
// connection has, its socket has no byte that is not acknowledged, and the reader's socket no byte
// that is not read.
//
// FABRIC_FENCE_CUTS: how many cuts with a fence, FABRIC_FENCE_FREE: without one,
// FABRIC_FENCE_LANES: on so many cables.

#include <doctest/doctest.h>
#include <linux/sockios.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/net/transport_loader.hpp"
#include "libfabricshm/net/trusted.hpp"
#include "tests/support/cables.hpp"
#include "tests/support/children.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using net::Event;
using test_support::CableEnd;
using test_support::Cables;
using test_support::Child;

namespace {

constexpr int kMaxLanes = 48;
constexpr Bytes kDoorBytes = 512 << 10;
constexpr Bytes kLargest = 256 << 10;
constexpr int kBuffers = 8;
constexpr auto kLimit = 50s;  // of one step: what takes longer is an error
constexpr const char* kProviders[] = {"tcp;ofi_rxm", "net"};

int wanted(const char* variable, int usual) {
    const char* set = std::getenv(variable);
    return set == nullptr ? usual : std::atoi(set);
}

/// What became of the cuts of one lane.
struct Counts {
    int cuts = 0;
    int large = 0;      // with a large write under way
    int landed = 0;     // in which bytes changed after the fence
    int delivered = 0;  // in which the writer's bytes were taken by the reader's kernel
    int words = 0;      // in which words of late writes were delivered
    int missed = 0;     // which do not count: nothing was late, or the fence was not inside
};

/// Steps of the current cut, raised by one process and awaited by the other. 0: none.
struct Lane {
    net::Address address;
    net::Door door;
    std::atomic<int> open{0};     // reader: this cut's door is there
    std::atomic<int> stop{0};     // reader: post no more
    std::atomic<int> settled{0};  // writer: all that it sent has come, or never will
    std::atomic<int> over{0};     // reader: this cut is over
    std::atomic<std::uint64_t> posted{0};
    std::atomic<int> large{0};  // writes that are not done
    std::atomic<bool> delivered{false};
    Counts fenced;
    Counts free;
};

struct Shared {
    std::atomic<int> ended{0};
    std::atomic<int> cuts{0};
    std::array<Lane, kMaxLanes> lanes;
};

/// Of each lane.
struct Plan {
    int fenced = 0;  // cuts, the first ones
    int free = 0;    // and those after them
    int cuts() const noexcept { return fenced + free; }
};

std::unique_ptr<net::Transport> open(int lane, int rank) {
    const auto address = net::trusted_address(Cables::network(lane));
    if (!address.ok()) return nullptr;
    const bool remote[] = {rank != 0, rank != 1};
    net::TransportSpec spec;
    spec.rank = rank;
    spec.world = 2;
    spec.remote = remote;
    spec.door_bytes = kDoorBytes;
    spec.address = address->c_str();
    spec.provider = kProviders[lane % 2];
    auto opened = net::open_transport(spec);
    if (opened.ok()) return std::move(opened).value();
    spec.provider = "";  // a libfabric without it
    opened = net::open_transport(spec);
    return opened.ok() ? std::move(opened).value() : nullptr;
}

// Of this process's TCP connections: bytes that are not acknowledged, or not read.
struct Connections {
    int established = 0;
    int unsent = 0;
    int unread = 0;
};
Connections connections() {
    Connections found;
    for (int file = 3; file < 128; ++file) {
        tcp_info info{};
        socklen_t bytes = sizeof info;
        if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) continue;
        int unsent = 0;
        int unread = 0;
        if (info.tcpi_state == TCP_LISTEN || info.tcpi_state == TCP_CLOSE) continue;
        if (info.tcpi_state == TCP_ESTABLISHED) ++found.established;
        ::ioctl(file, SIOCOUTQ, &unsent);
        ::ioctl(file, SIOCINQ, &unread);
        found.unsent += unsent;
        found.unread += unread;
    }
    return found;
}

class Writer {
  public:
    Writer(Lane& lane, int number) : lane_(lane), number_(number), random_(number) {}

    int run(const Plan& plan) {
        for (int cut = 1; cut <= plan.cuts(); ++cut) {
            if (!until([&] { return lane_.open >= cut || lane_.open < 0; })) return 1;
            if (lane_.open < 0) return 0;
            transport_ = open(number_, 1);
            if (transport_ == nullptr) return 2;
            if (transport_->know(0, lane_.address, lane_.door) != Errc::kOk) return 3;
            lost_ = false;
            lane_.posted = 0;
            while (lane_.stop < cut) {
                if (lost_ || !post()) progress();
            }
            // Writes to a peer that is gone stay with some providers for ever; their connection
            // does not.
            const bool came = until([&] {
                progress();
                const Connections now = connections();
                const bool ended = lost_ || now.established == 0;
                lane_.delivered = !ended;
                return (ended || under_way() == 0) && now.unsent == 0;
            });
            if (!came) return 4;
            lane_.settled = cut;
            if (!until([&] { return lane_.over >= cut; })) return 5;
            transport_.reset();
            for (auto& count : pending_) count = 0;
            lane_.large = 0;
        }
        return 0;
    }

  private:
    template <typename Done>
    bool until(const Done& done) {
        for (const TimePoint end = Clock::now() + kLimit; Clock::now() < end; ::sched_yield()) {
            if (done()) return true;
            if (transport_ == nullptr) ::usleep(1000);
        }
        return false;
    }
    int under_way() const {
        int count = 0;
        for (const auto& pending : pending_) count += pending.load();
        return count;
    }
    // One write of other bytes than all before it, at a random place.
    bool post() {
        const auto buffer = static_cast<std::size_t>(next_ % kBuffers);
        if (pending_[buffer] != 0) return false;
        const bool large = random_() % 4 == 0;
        const Bytes bytes =
            (large ? 64 + random_() % (kLargest - 64) : 64 + random_() % 4096) & ~7u;
        const Bytes offset = (64 + random_() % (kDoorBytes - 64 - bytes)) & ~7u;
        std::byte* from = bytes_.data() + buffer * kLargest;
        std::memset(from, static_cast<int>(1 + next_ % 255), bytes);
        const Errc code = transport_->write(0, from, bytes, offset, 1, &pending_[buffer]);
        lost_ = lost_ || code == Errc::kPeer;
        if (code != Errc::kOk) return false;
        is_large_[buffer] = bytes > 32 << 10;
        ++next_;
        lane_.posted.fetch_add(1);
        return true;
    }
    void progress() {
        Event events[16];
        const int count = transport_->poll(events, 16, 1);
        for (int i = 0; i < count; ++i) lost_ = lost_ || events[i].what == Event::What::kLost;
        int large = 0;
        for (std::size_t i = 0; i < kBuffers; ++i) {
            large += is_large_[i] && pending_[i] != 0 ? 1 : 0;
        }
        lane_.large = large;
    }

    Lane& lane_;
    const int number_;
    std::mt19937 random_;
    std::unique_ptr<net::Transport> transport_;
    std::vector<std::byte> bytes_ = std::vector<std::byte>(kBuffers * kLargest);
    std::array<std::atomic<int>, kBuffers> pending_{};
    std::array<bool, kBuffers> is_large_{};
    std::uint64_t next_ = 0;
    bool lost_ = false;
};

class Reader {
  public:
    Reader(Lane& lane, int number, CableEnd& near, CableEnd& far)
        : lane_(lane),
          number_(number),
          random_(1000 * wanted("FABRIC_FENCE_SEED", 1) + number),
          ends_{&near, &far} {}

    int run(const Plan& plan, Shared& shared) {
        for (int cut = 1; cut <= plan.cuts(); ++cut) {
            if (const int code = play(cut, cut <= plan.fenced); code != 0) return code;
            shared.cuts.fetch_add(1);
        }
        return 0;
    }

  private:
    template <typename Done>
    bool serve(Duration time, const Done& done) {
        const TimePoint end = Clock::now() + time;
        do {
            if (done()) return true;
            progress(1);
        } while (Clock::now() < end);
        return done();
    }
    void progress(int wait_ms) {
        Event events[16];
        const int count = transport_->poll(events, 16, wait_ms);
        for (int i = 0; i < count; ++i) words_ += events[i].what == Event::What::kArrived ? 1 : 0;
    }
    Duration some(int microseconds) {
        return std::chrono::microseconds(random_() % static_cast<unsigned>(microseconds));
    }
    static bool never() { return false; }

    // The fence by another thread while this one takes what comes, as on_host_lost() has it.
    void fence(bool aside) {
        if (!aside) return transport_->fence(1);
        std::atomic<bool> done{false};
        std::thread other([&] {
            transport_->fence(1);
            // At its return, as it is promised.
            copy();
            done = true;
        });
        while (!done) progress(0);
        other.join();
    }
    void copy() { std::memcpy(before_.data(), transport_->memory(1), kDoorBytes); }

    int play(int cut, bool fences) {
        transport_ = open(number_, 0);
        if (transport_ == nullptr) return 11;
        words_ = 0;
        lane_.address = transport_->address();
        lane_.door = transport_->door(1);
        lane_.open = cut;
        if (!serve(kLimit, [&] { return words_ > 0; })) return 12;
        serve(some(8000), never);
        CableEnd& end = *ends_[random_() % 2];
        if (!end.set(false)) return 13;
        serve(some(4000), never);
        const std::uint64_t posted = lane_.posted;
        const bool large = lane_.large > 0;
        bool inside = !end.is_up();
        const bool aside = random_() % 2 == 0;
        if (fences) fence(aside);
        if (!fences || !aside) copy();
        inside = inside && !end.is_up();
        const std::uint64_t taken = words_;
        serve(2ms + some(20000), never);
        inside = inside && !end.is_up();
        if (random_() % 2 == 0) lane_.stop = cut;
        if (!end.set(true)) return 14;
        serve(some(4000), never);
        lane_.stop = cut;
        if (!serve(kLimit, [&] { return lane_.settled >= cut; })) return 15;
        // What the kernel has taken and the provider has not.
        int quiet = 0;
        if (!serve(kLimit, [&] {
                quiet = connections().unread == 0 ? quiet + 1 : 0;
                return quiet == 3;
            })) {
            return 16;
        }
        note(fences ? lane_.fenced : lane_.free, inside && posted > taken, large, taken);
        transport_.reset();
        lane_.over = cut;
        return 0;
    }

    void note(Counts& all, bool counts, bool large, std::uint64_t taken) {
        if (!counts) {
            ++all.missed;
            return;
        }
        ++all.cuts;
        all.large += large ? 1 : 0;
        all.landed += std::memcmp(before_.data(), transport_->memory(1), kDoorBytes) != 0 ? 1 : 0;
        all.delivered += lane_.delivered ? 1 : 0;
        all.words += words_ > taken ? 1 : 0;
    }

    Lane& lane_;
    const int number_;
    std::mt19937 random_;
    std::array<CableEnd*, 2> ends_;
    std::unique_ptr<net::Transport> transport_;
    std::vector<std::byte> before_ = std::vector<std::byte>(kDoorBytes);
    std::atomic<std::uint64_t> words_{0};
};

int read_lane(const Cables& cables, Shared& shared, int lane, const Plan& plan) {
    if (!cables.enter(1)) return 21;
    CableEnd far(Cables::device(lane, 1));
    if (!cables.enter(0)) return 22;
    CableEnd near(Cables::device(lane, 0));
    Lane& at = shared.lanes[static_cast<std::size_t>(lane)];
    const int code = Reader(at, lane, near, far).run(plan, shared);
    if (code != 0) at.open = -1;
    shared.ended.fetch_add(1);
    return code;
}

// What a transport frees the next one takes: else the kernel clears megabytes for each.
void keep_freed_memory() {
    ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void add(Counts& sum, const Counts& one) {
    sum.cuts += one.cuts;
    sum.large += one.large;
    sum.landed += one.landed;
    sum.delivered += one.delivered;
    sum.words += one.words;
    sum.missed += one.missed;
}

/// By provider.
struct Sums {
    std::array<Counts, 2> fenced;
    std::array<Counts, 2> free;
};

Sums play(const Cables& cables, int lanes, const Plan& plan) {
    ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
    void* memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& shared = *new (memory) Shared();
    std::vector<Child> children;
    for (int lane = 0; lane < lanes; ++lane) {
        children.emplace_back([&, lane] {
            keep_freed_memory();
            return read_lane(cables, shared, lane, plan);
        });
        children.emplace_back([&, lane] {
            keep_freed_memory();
            if (!cables.enter(1)) return 31;
            return Writer(shared.lanes[static_cast<std::size_t>(lane)], lane).run(plan);
        });
    }
    int done = 0;
    for (TimePoint last = Clock::now(); shared.ended < lanes && Clock::now() - last < 2 * kLimit;) {
        ::usleep(10'000);
        if (const int now = shared.cuts; now != done) {
            done = now;
            last = Clock::now();
        }
    }
    for (Child& child : children) CHECK(child.wait() == 0);
    Sums sums;
    for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes); ++lane) {
        add(sums.fenced[lane % 2], shared.lanes[lane].fenced);
        add(sums.free[lane % 2], shared.lanes[lane].free);
    }
    ::munmap(memory, sizeof(Shared));
    return sums;
}

void print(const char* provider, const char* kind, const Counts& sum) {
    std::printf(
        "%-12s %s: %d cuts, %d in a large write; landed %d, words of late writes in %d, "
        "all bytes taken in %d; not counted: %d\n",
        provider, kind, sum.cuts, sum.large, sum.landed, sum.words, sum.delivered, sum.missed);
}

}  // namespace

TEST_SUITE("net.fence_cuts") {
    TEST_CASE("over many cuts no late write of a fenced host lands, and those of others do") {
        const int lanes = std::clamp(wanted("FABRIC_FENCE_LANES", 10), 2, kMaxLanes);
        const Cables cables(lanes);
        if (!cables.ok()) return test_support::skip("network namespaces need root and ip");
        const Plan plan{(wanted("FABRIC_FENCE_CUTS", 50) + lanes - 1) / lanes,
                        (wanted("FABRIC_FENCE_FREE", 20) + lanes - 1) / lanes};
        const Sums sums = play(cables, lanes, plan);
        for (std::size_t i = 0; i < std::size(kProviders); ++i) {
            print(kProviders[i], "fenced", sums.fenced[i]);
            print(kProviders[i], "free", sums.free[i]);
            CHECK(sums.fenced[i].landed == 0);
            // Else it would prove little.
            CHECK(sums.fenced[i].cuts > sums.fenced[i].missed);
            CHECK(2 * sums.free[i].landed >= sums.free[i].cuts);
        }
    }
}
