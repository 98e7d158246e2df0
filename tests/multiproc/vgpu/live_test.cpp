// Limits that change under running processes, and daemons that come and go.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "libfabricshm/os/unix_socket.hpp"
#include "tests/support/mock_gpu/stage.hpp"

TEST_SUITE_BEGIN("vgpu.live");

using fabricshm::kMiB;
using mock_gpu::slice;
using mock_gpu::Stage;
using namespace fabricshm::proto;

namespace {

constexpr std::uint64_t kQuota = 32 * kMiB;
constexpr auto kOutOfMemory = "2";

std::string bytes(std::uint64_t count) {
    return std::to_string(count);
}

bool quota_becomes(Stage& stage, std::uint64_t wanted) {
    for (int i = 0; i < 30000; ++i) {
        if (stage.view("half").quota_bytes == wanted) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

// Processes of the vGPU wait for so much.
bool comes_to_want(Stage& stage, std::uint64_t wanted) {
    for (int i = 0; i < 30000; ++i) {
        if (stage.view("half").wanted_bytes == wanted) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

// A vGPU whose processes wait for room: longer than a player is waited for, so that a wait which
// nothing ends fails the test.
fabricd::VgpuSpec patient() {
    auto spec = slice("half", kQuota);
    spec.wait_ms = 600'000;
    return spec;
}

// Sends `request` as it is; the status of the answer, -1 when there is none.
int asked(const Stage& stage, const VgpuRequest& request, std::size_t length) {
    const auto until = fabricshm::Clock::now() + std::chrono::seconds(20);
    const auto socket = fabricshm::UnixSocket::connect(stage.folder() + "/attach.sock.vgpu", until);
    if (!socket.ok()) return -2;
    const auto all = std::as_bytes(std::span(&request, 1));
    if (!socket->send(all.first(length), {}, until).ok()) return -3;
    VgpuReply reply{};
    fabricshm::Fd descriptors[2];
    const auto got =
        socket->receive(std::as_writable_bytes(std::span(&reply, 1)), descriptors, until);
    return got.ok() && got->bytes == sizeof reply ? reply.status : -1;
}

}  // namespace

TEST_CASE("a quota that grows lets the next call through, and the queries know") {
    Stage stage({slice("half", kQuota)});
    const auto player = stage.player("half");
    CHECK(player->ask("alloc " + bytes(40 * kMiB)) == kOutOfMemory);
    REQUIRE(stage.limits().resize("half", 40 * kMiB).ok());
    CHECK(player->numbers("info").at(1) == 40 * kMiB);
    CHECK(player->ask("alloc " + bytes(40 * kMiB)) == "ok 0");
}

TEST_CASE("an allocation waits for room, and a larger quota ends that") {
    Stage stage({patient()});
    const auto player = stage.player("half");
    player->tell("alloc " + bytes(40 * kMiB));
    REQUIRE(comes_to_want(stage, 40 * kMiB));
    CHECK(stage.view("half").denied == 0);
    REQUIRE(stage.limits().resize("half", 40 * kMiB).ok());
    CHECK(player->answer() == "ok 0");
    CHECK(stage.view("half").wanted_bytes == 0);
    CHECK(stage.view("half").denied == 0);
    // What the GPU has not can't come; nor does a process wait that was asked not to.
    CHECK(player->ask("alloc " + bytes(std::uint64_t{2} << 30)) == kOutOfMemory);
    const auto hasty = stage.player("half", {"FABRIC_VGPU_WAIT=0s"});
    CHECK(hasty->ask("alloc " + bytes(2 * kMiB)) == kOutOfMemory);
    CHECK(stage.view("half").denied == 2);
}

TEST_CASE("what another process frees, or leaves when it dies, ends a wait") {
    Stage stage({patient()});
    const auto player = stage.player("half");
    auto other = stage.player("half");
    CHECK(other->ask("alloc " + bytes(20 * kMiB)) == "ok 0");
    CHECK(other->ask("alloc " + bytes(8 * kMiB)) == "ok 1");
    player->tell("alloc " + bytes(8 * kMiB));
    REQUIRE(comes_to_want(stage, 8 * kMiB));
    CHECK(other->ask("free 1") == "ok");
    CHECK(player->answer() == "ok 0");
    player->tell("alloc " + bytes(24 * kMiB));
    REQUIRE(comes_to_want(stage, 24 * kMiB));
    other->kill();
    CHECK(player->answer() == "ok 1");
    CHECK(stage.view("half").used_bytes == 32 * kMiB);
}

TEST_CASE("while one thread waits the others allocate, map, release and free") {
    constexpr std::uint64_t kContext = 6 * kMiB;
    auto spec = patient();
    spec.context_bytes = kContext;
    Stage stage({spec});
    for (const char* waits : {"alloc-aside ", "map-aside 1 ", "retain-aside "}) {
        CAPTURE(waits);
        const auto player = stage.player("half");
        CHECK(player->ask("alloc " + bytes(22 * kMiB)) == "ok 0");
        CHECK(player->ask("import 7") == "ok 1");  // nothing is charged until it is mapped
        const bool has_size = std::string(waits) != "retain-aside ";
        CHECK(player->ask(waits + (has_size ? bytes(kContext) : "")) == "ok");
        REQUIRE(comes_to_want(stage, kContext));
        CHECK(player->ask("release-primary") == "201");  // it was never retained
        const auto made = player->numbers("create " + bytes(2 * kMiB));
        REQUIRE(made.size() == 1);
        CHECK(player->ask("release " + bytes(made[0])) == "ok");
        CHECK(stage.view("half").wanted_bytes == kContext);
        CHECK(player->ask("free 0") == "ok");
        CHECK(player->ask("end-aside") == "ok");
    }
}

TEST_CASE("while a stream is captured nothing waits, and trimming a pool does not break it") {
    Stage stage({patient()});
    const auto player = stage.player("half");
    CHECK(player->ask("async " + bytes(10 * kMiB)) == "ok 0");
    CHECK(player->ask("free-async 0") == "ok");
    CHECK(player->ask("begin-capture") == "ok");
    // Only with what the pool keeps unused.
    CHECK(player->ask("alloc " + bytes(28 * kMiB)) == "ok 1");
    CHECK(player->ask("alloc " + bytes(8 * kMiB)) == kOutOfMemory);
    CHECK(player->ask("end-capture") == "ok");
    // One that begins later ends a wait.
    CHECK(player->ask("alloc-aside " + bytes(8 * kMiB)) == "ok");
    REQUIRE(comes_to_want(stage, 8 * kMiB));
    CHECK(player->ask("begin-capture") == "ok");
    CHECK(player->ask("end-aside") == kOutOfMemory);
    CHECK(player->ask("end-capture") == "ok");
}

TEST_CASE(
    "a quota that shrinks makes processes trim, waits for the rest, and is never below the use") {
    Stage stage({slice("half", kQuota)});
    const auto player = stage.player("half");
    const auto other = stage.player("half");
    CHECK(player->ask("async " + bytes(12 * kMiB)) == "ok 0");
    CHECK(player->ask("free-async 0") == "ok");
    CHECK(other->ask("alloc " + bytes(12 * kMiB)) == "ok 0");
    CHECK(other->ask("alloc " + bytes(2 * kMiB)) == "ok 1");
    REQUIRE(stage.limits().resize("half", 8 * kMiB).ok());
    CHECK(stage.view("half").quota_bytes == 26 * kMiB);
    CHECK(other->ask("alloc 1") == kOutOfMemory);
    CHECK(other->ask("graph 0 1") == "ok 2");  // takes nothing
    // A call of any kind: the pool's 12 MiB go.
    CHECK(player->ask("info").substr(0, 2) == "ok");
    CHECK(quota_becomes(stage, 14 * kMiB));
    CHECK(other->ask("free 0") == "ok");
    CHECK(quota_becomes(stage, 8 * kMiB));
    CHECK(other->ask("alloc " + bytes(6 * kMiB)) == "ok 3");
    CHECK(other->ask("alloc 1") == kOutOfMemory);
}

TEST_CASE("without a daemon limits stay in force, and the next one goes on with them") {
    Stage stage({slice("half", kQuota)});
    auto before = stage.player("half");
    CHECK(before->ask("alloc " + bytes(20 * kMiB)) == "ok 0");
    stage.stop_daemon();
    CHECK(before->ask("alloc " + bytes(14 * kMiB)) == kOutOfMemory);
    CHECK(before->ask("alloc " + bytes(4 * kMiB)) == "ok 1");
    stage.start_daemon();
    CHECK(stage.view("half").used_bytes == 24 * kMiB);
    const auto after = stage.player("half");
    CHECK(after->ask("alloc " + bytes(10 * kMiB)) == kOutOfMemory);
    CHECK(after->ask("alloc " + bytes(8 * kMiB)) == "ok 0");
    REQUIRE(stage.limits().resize("half", 64 * kMiB).ok());
    CHECK(before->ask("alloc " + bytes(32 * kMiB)) == "ok 2");
    // The new daemon found the process of before and sees it end.
    before->kill();
    CHECK(stage.settles_at("half", 8 * kMiB));
}

TEST_CASE("a process that starts without a daemon is not limited and runs") {
    Stage stage({slice("half", kQuota)});
    stage.stop_daemon();
    const auto player = stage.player("half");
    CHECK(player->ask("alloc " + bytes(64 * kMiB)) == "ok 0");
}

TEST_CASE("a process that must not run without limits does not start without them") {
    Stage stage({slice("half", kQuota)});
    const std::string log = stage.folder() + "/said";
    const std::vector<std::string> required = {"FABRIC_VGPU_REQUIRE=1", "FABRIC_PLAYER_LOG=" + log};
    stage.stop_daemon();
    const auto player = stage.player("half", required);
    CHECK(player->ask("init") == "802");
    CHECK(player->ask("said").find("cuInit is refused, as FABRIC_VGPU_REQUIRE asks: half is not "
                                   "limited: ") != std::string::npos);
    // The driver was not even started.
    CHECK(player->ask("alloc 512") != "ok 0");
    stage.start_daemon();
    CHECK(player->ask("init") == "ok");
    CHECK(player->ask("context") == "ok");
    CHECK(player->ask("alloc " + bytes(kQuota + 1)) == kOutOfMemory);
    // Nor without a name, without such a vGPU, or with a device that has none.
    for (const char* name : {"", "other", "off"}) {
        CAPTURE(name);
        CHECK(stage.player(name, required)->ask("init") == "802");
    }
    std::vector<std::string> two = required;
    two.emplace_back("FABRIC_MOCK_DEVICES=2");
    const auto half_limited = stage.player("half", two);
    CHECK(half_limited->ask("init") == "802");
    CHECK(half_limited->ask("said").find("device 1 is none of the vGPUs") != std::string::npos);
}

TEST_CASE("a share of the GPU's time holds launches and graphs back") {
    Stage stage({slice("half", kQuota)});
    const auto player = stage.player("half");
    CHECK(player->ask("launch 100 10") == "ok");
    CHECK(stage.view("half").tenants.size() == 1);
    REQUIRE(stage.limits().set_share("half", 20).ok());
    // Work of 0.4 s of the GPU alone: with a fifth of the time it can't be done in that.
    const auto begin = std::chrono::steady_clock::now();
    CHECK(player->ask("graph 0 1000000") == "ok 0");  // 1 ms
    for (int i = 0; i < 200; ++i) CHECK(player->ask("launch-graph 0") == "ok");
    CHECK(player->ask("launch 1000000 200") == "ok");
    const auto passed = std::chrono::steady_clock::now() - begin;
    // The first windows run free until the rate is known.
    CHECK(passed > std::chrono::milliseconds(500));
    // What the GPU was busy with is in the charge tables, but for the first and the last window.
    const fabricd::VgpuView view = stage.view("half");
    CHECK(view.busy_known);
    CHECK(view.busy_ns > 50'000'000);
    CHECK(view.busy_ns == view.tenants.at(0).busy_ns);
    CHECK(view.busy_ns <= 2 * stage.gpu().processes[0].busy_ns.load());
}

TEST_CASE("without a share the GPU's time is still reported, and a refused launch costs no share") {
    Stage stage({slice("half", kQuota)});
    const auto player = stage.player("half");
    CHECK(!stage.view("half").busy_known);
    CHECK(player->ask("launch 100") == "ok");
    CHECK(stage.view("half").busy_known);
    REQUIRE(stage.limits().set_share("half", 50).ok());
    const auto files = stage.limits().files_of("half").value();
    const auto map = fabricshm::Mapping::map(files.ledger, 0, fabricshm::kLedgerBytes, {}).value();
    const auto& bucket = reinterpret_cast<fabricshm::LedgerFile*>(map.data())->bucket;
    // As long as it is unknown what work costs, nothing is charged.
    for (int i = 0; i < 300 && bucket.rate.load() == 0; ++i) {
        CHECK(player->ask("launch-for 100 10000") == "ok");
    }
    REQUIRE(bucket.rate.load() > 0);
    // More threads than a grid may have.
    for (int i = 0; i < 20; ++i) CHECK(player->ask("launch 4000000000") == "1");
    // Captured, and never launched.
    CHECK(player->ask("graph 0 2000000000") == "ok 0");
    CHECK(static_cast<std::int64_t>(bucket.tokens.load()) > -1'000'000'000);
}

TEST_CASE("what is no request, and a request for another process, is refused and hurts nothing") {
    Stage stage({slice("half", kQuota)});
    const auto self = fabricshm::own_identity().value();
    const auto good = make_vgpu_request(self, "half").value();
    CHECK(asked(stage, good, 10) == static_cast<int>(fabricshm::Errc::kCorrupt));
    VgpuRequest request = good;
    request.version = 9;
    CHECK(asked(stage, request, sizeof request) == static_cast<int>(fabricshm::Errc::kVersion));
    request = good;
    std::memset(request.name, 'x', sizeof request.name);
    CHECK(asked(stage, request, sizeof request) == static_cast<int>(fabricshm::Errc::kInvalid));
    request = good;
    std::strcpy(request.name, "../half");
    CHECK(asked(stage, request, sizeof request) == static_cast<int>(fabricshm::Errc::kInvalid));
    std::strcpy(request.name, "other");
    CHECK(asked(stage, request, sizeof request) == static_cast<int>(fabricshm::Errc::kNotFound));
    request = good;
    request.pid = ::getppid();
    CHECK(asked(stage, request, sizeof request) == static_cast<int>(fabricshm::Errc::kDenied));
    CHECK(asked(stage, good, sizeof good) == 0);
    // A process that connects and never asks.
    const auto silent = fabricshm::UnixSocket::connect(
        stage.folder() + "/attach.sock.vgpu", fabricshm::Clock::now() + std::chrono::seconds(20));
    CHECK(silent.ok());
    CHECK(stage.player("half")->ask("alloc 512") == "ok 0");
}

TEST_CASE("the self-check names what the driver has and the shim has not") {
    Stage stage({slice("half", kQuota)});
    const std::string log = stage.folder() + "/said";
    const auto player = stage.player(
        "half", {"FABRIC_VGPU_CHECK=1", "FABRIC_LOG=warning", "FABRIC_PLAYER_LOG=" + log});
    CHECK(player->ask("said").find("cuLaunchKernelFromTheFuture") != std::string::npos);
}

TEST_SUITE_END();
