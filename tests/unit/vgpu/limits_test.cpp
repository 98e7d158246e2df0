#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "fabricd/vgpu/vgpu_limits.hpp"
#include "fabricd/vgpu/vgpu_server.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/vgpu_tenant.hpp"

TEST_SUITE_BEGIN("vgpu.limits");

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kMiB;
using test_support::TemporaryDirectory;
using Tenant = test_support::VgpuTenant;

namespace {

VgpuSpec spec(const char* name, const char* gpu, Bytes quota) {
    VgpuSpec made;
    made.name = name;
    made.gpu = gpu;
    made.device_bytes = 100 * kMiB;
    made.reserve_bytes = 10 * kMiB;
    made.quota_bytes = quota;
    return made;
}

constexpr std::uint32_t kAlice = 4'000'000'001;
constexpr std::uint32_t kBob = 4'000'000'002;
constexpr std::uint32_t kCarol = 4'000'000'003;
constexpr std::uint32_t kStranger = 4'000'000'004;

// What the server answers to this process within `timeout` when it asks for `name` and says that
// it is `self`; negative: nothing.
int asked(const std::string& socket_path, const char* name,
          const fabricshm::ProcessIdentity& self = fabricshm::own_identity().value(),
          fabricshm::Duration timeout = std::chrono::seconds(30)) {
    using namespace fabricshm::proto;
    const auto until = fabricshm::Clock::now() + timeout;
    const auto request = make_vgpu_request(self, name).value();
    const auto socket = fabricshm::UnixSocket::connect(socket_path, until);
    if (!socket.ok()) return -1;
    if (!socket->send(std::as_bytes(std::span(&request, 1)), {}, until).ok()) return -2;
    VgpuReply reply{};
    fabricshm::Fd descriptors[2];
    const auto got =
        socket->receive(std::as_writable_bytes(std::span(&reply, 1)), descriptors, until);
    return got.ok() && got->bytes == sizeof reply ? reply.status : -3;
}

std::unique_ptr<VgpuLimits> open(const TemporaryDirectory& folder, std::vector<VgpuSpec> specs) {
    return VgpuLimits::open(folder.path(), specs).value();
}

}  // namespace

TEST_CASE("the quotas of one GPU stay below its memory less the reserve") {
    const TemporaryDirectory folder;
    const auto limits = open(
        folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB), spec("c", "1", 90 * kMiB)});
    CHECK(limits->resize("a", 51 * kMiB).error().code == Errc::kNoMemory);
    CHECK(limits->resize("a", 50 * kMiB).ok());
    CHECK(limits->resize("b", 41 * kMiB).error().code == Errc::kNoMemory);
    CHECK(limits->resize("c", 90 * kMiB).ok());
    CHECK(limits->resize("c", 0).error().code == Errc::kInvalid);
    CHECK(limits->resize("d", 1).error().code == Errc::kNotFound);
    CHECK(limits->resize("a", ~Bytes{0}).error().code == Errc::kNoMemory);
    const TemporaryDirectory other;
    const std::vector<VgpuSpec> too_much = {spec("a", "0", 46 * kMiB), spec("b", "0", 46 * kMiB)};
    CHECK(VgpuLimits::open(other.path(), too_much).error().code == Errc::kInvalid);
}

TEST_CASE("a larger quota is there on the next call of a process that was refused") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    CHECK(!tenant.charge(50 * kMiB));
    REQUIRE(limits->resize("a", 50 * kMiB).ok());
    CHECK(tenant.charge(50 * kMiB));
}

TEST_CASE("a smaller quota is announced at once and follows the use, never below it") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    REQUIRE(tenant.charge(30 * kMiB));
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    CHECK(!tenant.charge(1));
    CHECK(limits->list()[0].quota_bytes == 30 * kMiB);
    CHECK(limits->list()[0].target_bytes == 20 * kMiB);
    // What it gave up already is there for others.
    CHECK(limits->resize("b", 61 * kMiB).error().code == Errc::kNoMemory);
    CHECK(limits->resize("b", 60 * kMiB).ok());
    tenant.ledger->release(tenant.slot, 5 * kMiB);
    CHECK(limits->step());
    CHECK(limits->list()[0].quota_bytes == 25 * kMiB);
    tenant.ledger->release(tenant.slot, 10 * kMiB);
    limits->step();
    CHECK(!limits->step());
    CHECK(limits->list()[0].quota_bytes == 20 * kMiB);
    CHECK(tenant.charge(5 * kMiB));
    CHECK(!tenant.charge(1));
}

TEST_CASE("a quota that grows again while it shrinks is in force at once") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    REQUIRE(tenant.charge(30 * kMiB));
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    REQUIRE(limits->resize("a", 35 * kMiB).ok());
    CHECK(tenant.charge(5 * kMiB));
    CHECK(!tenant.charge(1));
}

TEST_CASE("a daemon started again goes on with quotas, shares and use") {
    const TemporaryDirectory folder;
    auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    REQUIRE(tenant.charge(30 * kMiB));
    REQUIRE(limits->resize("a", 50 * kMiB).ok());
    REQUIRE(limits->set_share("a", 30).ok());
    limits.reset();
    CHECK(tenant.charge(5 * kMiB));
    limits = open(folder, {spec("a", "0", 40 * kMiB)});
    CHECK(limits->list()[0].quota_bytes == 50 * kMiB);
    CHECK(limits->list()[0].share_percent == 30);
    CHECK(limits->list()[0].used_bytes == 35 * kMiB);
    CHECK(limits->processes().size() == 1);
    REQUIRE(limits->resize("a", 60 * kMiB).ok());
    CHECK(tenant.charge(25 * kMiB));
    // Another configuration counts more than what was set live; not more than what is in use.
    limits.reset();
    limits = open(folder, {spec("a", "0", 45 * kMiB)});
    CHECK(limits->list()[0].target_bytes == 45 * kMiB);
    CHECK(limits->list()[0].quota_bytes == 60 * kMiB);
    CHECK(!tenant.charge(1));
    tenant.ledger->release(tenant.slot, 30 * kMiB);
    limits->step();
    CHECK(limits->list()[0].quota_bytes == 45 * kMiB);
}

TEST_CASE("a share that the configuration changes counts more than one that was set live") {
    const TemporaryDirectory folder;
    VgpuSpec wanted = spec("a", "0", 40 * kMiB);
    REQUIRE(open(folder, {wanted})->set_share("a", 30).ok());
    CHECK(open(folder, {wanted})->list()[0].share_percent == 30);
    wanted.share_percent = 70;
    CHECK(open(folder, {wanted})->list()[0].share_percent == 70);
}

TEST_CASE("what was set live gives way to a new vGPU, which waits for what is in use") {
    const TemporaryDirectory folder;
    const VgpuSpec first = spec("a", "0", 40 * kMiB);
    const VgpuSpec second = spec("b", "0", 40 * kMiB);
    auto limits = open(folder, {first});
    Tenant tenant(*limits, "a");
    REQUIRE(limits->resize("a", 90 * kMiB).ok());
    REQUIRE(tenant.charge(70 * kMiB));
    limits.reset();
    limits = open(folder, {first, second});
    CHECK(limits->list()[0].quota_bytes == 70 * kMiB);
    CHECK(limits->list()[0].target_bytes == 40 * kMiB);
    CHECK(limits->list()[1].quota_bytes == 20 * kMiB);
    CHECK(limits->list()[1].target_bytes == 40 * kMiB);
    Tenant other(*limits, "b");
    CHECK(!other.charge(21 * kMiB));
    tenant.ledger->release(tenant.slot, 60 * kMiB);
    limits->step();
    CHECK(limits->list()[0].quota_bytes == 40 * kMiB);
    CHECK(other.charge(40 * kMiB));
    CHECK(!other.charge(1));
}

TEST_CASE("a vGPU that is no longer configured grants nothing more") {
    const TemporaryDirectory folder;
    auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    Tenant tenant(*limits, "b");
    REQUIRE(tenant.charge(30 * kMiB));
    limits.reset();
    limits = open(folder, {spec("a", "0", 90 * kMiB)});
    CHECK(!tenant.charge(1));
    // It comes back with what it has.
    limits.reset();
    limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    CHECK(tenant.charge(10 * kMiB));
    CHECK(!tenant.charge(1));
}

TEST_CASE("a process that makes its ledger's file longer does not fill the disk") {
    const TemporaryDirectory folder;
    const auto bytes_on_disk = [&] {
        struct stat status {};
        REQUIRE(::stat(folder.file("a.usage").c_str(), &status) == 0);
        return static_cast<Bytes>(status.st_blocks) * 512 + static_cast<Bytes>(status.st_size);
    };
    const auto shrinks_back = [&] {
        const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
        while (fabricshm::Clock::now() < until) {
            if (bytes_on_disk() < 2 * fabricshm::kLedgerBytes + kMiB) return true;
            std::this_thread::yield();
        }
        return false;
    };
    const std::string block(kMiB, 'x');
    fabricshm::Fd ledger;
    {
        const auto limits = open(folder, {spec("a", "0", 30 * kMiB)});
        ledger = std::move(limits->files_of("a")->ledger);
        VgpuServer::Options options;
        options.socket_path = folder.file("vgpu.sock");
        options.admits = [](auto, auto, auto) { return true; };
        const auto server = VgpuServer::start(std::move(options), *limits).value();
        for (int i = 1; i <= 16; ++i) {
            REQUIRE(::pwrite(ledger.get(), block.data(), block.size(), i * (16 << 20)) > 0);
        }
        CHECK(shrinks_back());
        const bool set_aside =
            ::fallocate(ledger.get(), FALLOC_FL_KEEP_SIZE, 32 << 20, 16 << 20) == 0;
        if (set_aside) CHECK(shrinks_back());
        CHECK(limits->list()[0].used_bytes == 0);
    }
    // Likewise while there is no daemon: the next one goes on with the same ledger.
    struct stat before {};
    struct stat after {};
    REQUIRE(::stat(folder.file("a.usage").c_str(), &before) == 0);
    REQUIRE(::pwrite(ledger.get(), block.data(), block.size(), 64 << 20) > 0);
    const auto limits = open(folder, {spec("a", "0", 30 * kMiB)});
    CHECK(shrinks_back());
    REQUIRE(::stat(folder.file("a.usage").c_str(), &after) == 0);
    CHECK(before.st_ino == after.st_ino);
}

TEST_CASE("a ledger that a process cuts short leaves the daemon and the other vGPUs alone") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    const auto files = limits->files_of("a").value();
    Tenant neighbour(*limits, "b");
    REQUIRE(neighbour.charge(20 * kMiB));
    REQUIRE(::ftruncate(files.ledger.get(), 0) == 0);
    CHECK(limits->list()[0].used_bytes == 40 * kMiB);  // no lower figure is known
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    CHECK(limits->step());
    CHECK(limits->list()[0].quota_bytes == 40 * kMiB);
    CHECK(limits->processes().size() == 1);
    CHECK(limits->tenant_died("a", fabricshm::own_identity().value()));
    limits->reclaim_dead();
    CHECK(limits->files_of("a").error().code == Errc::kCorrupt);
    CHECK(limits->list()[1].used_bytes == 20 * kMiB);
    CHECK(neighbour.charge(20 * kMiB));
    // The next daemon makes it again.
    CHECK(open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)})->files_of("a").ok());
}

TEST_CASE("files that are not of this boot or not whole are made again") {
    const TemporaryDirectory folder;
    open(folder, {spec("a", "0", 40 * kMiB)});
    const std::string ledger = folder.file("a.usage");
    std::filesystem::resize_file(ledger, 100);
    CHECK(open(folder, {spec("a", "0", 40 * kMiB)})->list()[0].used_bytes == 0);
    CHECK(std::filesystem::file_size(ledger) == fabricshm::kLedgerBytes);
    struct stat status {};
    REQUIRE(::stat(ledger.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("a process can't map the limits for writing") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    const auto files = limits->files_of("a").value();
    void* data = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, files.limits.get(), 0);
    CHECK(data == MAP_FAILED);
    CHECK(limits->files_of("b").error().code == Errc::kNotFound);
}

TEST_CASE("a vGPU with a list of users is for these, root and the daemon's own user") {
    const TemporaryDirectory folder;
    VgpuSpec theirs = spec("a", "0", 40 * kMiB);
    theirs.allow_uids = {kAlice, kBob};
    const auto limits = open(folder, {theirs, spec("b", "0", 40 * kMiB)});
    VgpuServer::Options options;
    options.socket_path = folder.file("vgpu");
    options.admits = [](std::uint32_t uid, std::uint32_t, int) { return uid != kStranger; };
    std::atomic<std::uint32_t> user{0};
    options.peer_of = [&](const fabricshm::UnixSocket& socket) {
        auto peer = socket.peer();
        if (peer.ok()) peer->uid = user;
        return peer;
    };
    const auto server = VgpuServer::start(std::move(options), *limits).value();
    const auto status = [&](const char* name, std::uint32_t uid) {
        user = uid;
        return asked(folder.file("vgpu"), name);
    };
    CHECK(status("a", kAlice) == 0);
    CHECK(status("a", kBob) == 0);
    CHECK(status("a", 0) == 0);
    CHECK(status("a", ::geteuid()) == 0);
    CHECK(status("a", kCarol) == static_cast<int>(Errc::kDenied));
    CHECK(status("b", kCarol) == 0);
    CHECK(status("c", kCarol) == static_cast<int>(Errc::kNotFound));
    // A user that may not talk to the daemon does not get in by the other vGPU either.
    CHECK(status("b", kStranger) == static_cast<int>(Errc::kDenied));
}

TEST_CASE("one process too many is refused, and those that are known can ask again") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    VgpuServer::Options options;
    options.socket_path = folder.file("vgpu");
    options.admits = [](std::uint32_t, std::uint32_t, int) { return true; };
    options.max_tenants = 2;
    const auto server = VgpuServer::start(std::move(options), *limits).value();
    const auto self = fabricshm::own_identity().value();
    // In a namespace of its own a process may have any number.
    const auto other = [&](std::uint32_t pid) {
        auto made = self;
        made.pid_namespace += 1;
        made.pid = pid;
        return made;
    };
    CHECK(asked(folder.file("vgpu"), "a", self) == 0);
    CHECK(asked(folder.file("vgpu"), "a", other(5)) == 0);
    const int busy = static_cast<int>(Errc::kBusy);
    CHECK(asked(folder.file("vgpu"), "a", other(6)) == busy);
    CHECK(asked(folder.file("vgpu"), "b", self) == busy);
    CHECK(asked(folder.file("vgpu"), "a", self) == 0);
    CHECK(asked(folder.file("vgpu"), "a", other(5)) == 0);
}

TEST_CASE("as many silent callers as are heard at a time do not keep out one that asks") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    VgpuServer::Options options;
    options.socket_path = folder.file("vgpu");
    options.admits = [](std::uint32_t, std::uint32_t, int) { return true; };
    options.ask_within = std::chrono::hours(1);  // no caller is cut off as long as this runs
    std::atomic<std::uint32_t> user{kAlice};
    options.peer_of = [&](const fabricshm::UnixSocket& socket) {
        auto peer = socket.peer();
        if (peer.ok()) peer->uid = user;
        return peer;
    };
    const auto server = VgpuServer::start(std::move(options), *limits).value();
    const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
    // Bob's place is not taken by Alice, a user with more of them.
    user = kBob;
    const auto bob = fabricshm::UnixSocket::connect(folder.file("vgpu"), until).value();
    CHECK(asked(folder.file("vgpu"), "a") == 0);  // and so the server has taken Bob before
    user = kAlice;
    std::vector<fabricshm::UnixSocket> silent;
    for (int i = 0; i < 200; ++i) {
        silent.push_back(fabricshm::UnixSocket::connect(folder.file("vgpu"), until).value());
    }
    CHECK(asked(folder.file("vgpu"), "a") == 0);
    CHECK(fabricshm::wait_ready(bob.get(), POLLIN, {}, "hang up").error().code == Errc::kTimeout);
    CHECK(fabricshm::wait_ready(silent[0].get(), POLLIN, until, "hang up").ok());
}

TEST_CASE("a caller that is not admitted hears so before it has asked") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    VgpuServer::Options options;
    options.socket_path = folder.file("vgpu");
    options.admits = [](std::uint32_t, std::uint32_t, int) { return false; };
    const auto server = VgpuServer::start(std::move(options), *limits).value();
    const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
    const auto stranger = fabricshm::UnixSocket::connect(folder.file("vgpu"), until).value();
    fabricshm::proto::VgpuReply reply{};
    REQUIRE(stranger.receive(std::as_writable_bytes(std::span(&reply, 1)), {}, until).ok());
    CHECK(reply.status == static_cast<int>(Errc::kDenied));
}

TEST_CASE("a caller's descriptor that takes long to close holds up no other") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    VgpuServer::Options options;
    options.socket_path = folder.file("vgpu");
    options.admits = [](std::uint32_t, std::uint32_t, int) { return true; };
    test_support::LingeringSocket lingering;
    const auto server = VgpuServer::start(std::move(options), *limits).value();
    const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
    auto caller = fabricshm::UnixSocket::connect(folder.file("vgpu"), until).value();
    const std::byte one{};
    const int number = lingering.get();
    // Refused where the kernel can refuse descriptors.
    if (caller.send(std::span(&one, 1), std::span(&number, 1), until).ok()) lingering.reset();
    caller.reset();
    CHECK(asked(folder.file("vgpu"), "a") == 0);
}

TEST_CASE("silent callers are cut off, and their places are for those that ask") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    VgpuServer::Options options;
    options.socket_path = folder.file("vgpu");
    options.admits = [](std::uint32_t, std::uint32_t, int) { return true; };
    options.ask_within = std::chrono::milliseconds(10);
    const auto server = VgpuServer::start(std::move(options), *limits).value();
    const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
    std::vector<fabricshm::UnixSocket> silent;
    for (int i = 0; i < 64; ++i) {
        silent.push_back(fabricshm::UnixSocket::connect(folder.file("vgpu"), until).value());
    }
    // A caller may lose its processor before it has asked, and is then cut off as well.
    int answer = -1;
    while (answer != 0 && fabricshm::Clock::now() < until) {
        answer = asked(folder.file("vgpu"), "a");
    }
    CHECK(answer == 0);
}

TEST_CASE("a share is 1 to 100 per cent") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    CHECK(limits->set_share("a", 0).error().code == Errc::kInvalid);
    CHECK(limits->set_share("a", 101).error().code == Errc::kInvalid);
    CHECK(limits->set_share("b", 50).error().code == Errc::kNotFound);
    CHECK(limits->set_share("a", 1).ok());
}

TEST_CASE("a ledger full of lies corrupts the figures of its own vGPU and nothing else") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    for (auto& slot : tenant.ledger->file().slots) {
        slot.pid = 1;
        slot.charged = ~Bytes{0};
    }
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    limits->step();
    CHECK(limits->list()[0].quota_bytes == 40 * kMiB);  // "in use": it can't shrink
    CHECK(limits->resize("b", 50 * kMiB).ok());
    CHECK(limits->list()[1].used_bytes == 0);
}

TEST_SUITE_END();
