// Every way to memory of the GPU, compared with what the GPU itself counts.

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/mock_gpu/stage.hpp"

TEST_SUITE_BEGIN("vgpu.memory");

using fabricshm::kMiB;
using mock_gpu::Player;
using mock_gpu::slice;
using mock_gpu::Stage;

namespace {

constexpr std::uint64_t kQuota = 32 * kMiB;
constexpr auto kOutOfMemory = "2";

// A stage with one process; after each step the tables have to say what the GPU says.
struct Scene {
    Stage stage{{slice("half", kQuota)}};
    std::unique_ptr<Player> player = stage.player("half");

    void does(const std::string& command, const std::string& answer, std::uint64_t then) {
        CAPTURE(command);
        CHECK(player->ask(command) == answer);
        CHECK(stage.view("half").used_bytes == then);
        CHECK(mock_gpu::used_by_all(stage.gpu()) == then);
    }
    std::uint64_t used() { return stage.view("half").used_bytes; }
};

std::string bytes(std::uint64_t count) {
    return std::to_string(count);
}

// A process whose other thread stands still within a call of the driver or of NVML.
struct Held {
    Stage stage{{slice("half", kQuota)}};
    std::unique_ptr<Player> player = stage.player("half", {"FABRIC_MOCK_HOLD=" + stage.folder()});

    std::string file(const std::string& point) { return stage.folder() + "/" + point; }
    void stop_at(const std::string& point) { std::ofstream(file(point)).put('1'); }
    void go_on(const std::string& point) { std::filesystem::remove(file(point + ".here")); }
    bool is_at(const std::string& point) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (!std::filesystem::exists(file(point + ".here"))) {
            if (std::chrono::steady_clock::now() > until) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return true;
    }
    std::uint64_t used() { return stage.view("half").used_bytes; }
};

}  // namespace

TEST_CASE("linear memory: plain, managed, pitched, by dlsym and by cuGetProcAddress") {
    Scene scene;
    scene.does("alloc 1000", "ok 0", 1024);
    scene.does("managed " + bytes(kMiB), "ok 1", 1024 + 2 * kMiB);
    scene.does("pitch 100 10", "ok 2", 1024 + 2 * kMiB + 5120);
    scene.does("free 1", "ok", 1024 + 5120);
    scene.does("free 2", "ok", 1024);
    scene.does("free 0", "ok", 0);
    scene.does("alloc-by-dlsym 512", "ok 3", 512);
    scene.does("alloc-by-address 512 cuMemAlloc", "ok 4", 1024);
    // Through an address that no symbol has.
    scene.does("alloc-by-address 512 cuMemAllocManaged", "ok 5", 1536);
    for (const char* command :
         {"alloc ", "managed ", "async ", "create ", "alloc-by-dlsym ", "external "}) {
        scene.does(command + bytes(kQuota + 2 * kMiB), kOutOfMemory, 1536);
    }
    scene.does("alloc-by-address " + bytes(kQuota) + " cuMemAlloc", kOutOfMemory, 1536);
    scene.does("alloc-by-address " + bytes(kQuota) + " cuMemAllocManaged", kOutOfMemory, 1536);
    scene.does("alloc 18446744073709551615", kOutOfMemory, 1536);
    scene.does("pitch 18446744073709551615 18446744073709551615", kOutOfMemory, 1536);
}

TEST_CASE("a call that the driver refuses leaves the charge tables again") {
    Scene scene;
    scene.does("alloc 0", "1", 0);
    scene.does("create 1000", "1", 0);
    scene.does("alloc 512", "ok 0", 512);
    scene.does("free 0", "ok", 0);
    scene.does("free 0", "1", 0);
}

TEST_CASE("a pool counts with what it has taken, and gives it back before a request is refused") {
    Scene scene;
    scene.does("async " + bytes(10 * kMiB), "ok 0", 10 * kMiB);
    scene.does("free-async 0", "ok", 10 * kMiB);
    scene.does("async " + bytes(4 * kMiB), "ok 1", 10 * kMiB);
    scene.does("alloc " + bytes(28 * kMiB), "ok 2", 32 * kMiB);
    CHECK(scene.stage.view("half").denied == 0);
    scene.does("async 512", kOutOfMemory, 32 * kMiB);
    CHECK(scene.stage.view("half").denied == 1);
    CHECK(scene.stage.view("half").denied_bytes == 2 * kMiB);
    CHECK(scene.stage.view("half").tenants.at(0).denied_bytes == 2 * kMiB);
    scene.does("free 2", "ok", 4 * kMiB);
    scene.does("alloc-by-address 512 cuMemAllocAsync 2", "ok 3", 6 * kMiB);
}

TEST_CASE("a pool counts where its memory is: on the GPU, and not on the host") {
    Scene scene;
    scene.does("pool device", "ok 0", 0);
    scene.does("async-from 0 " + bytes(kMiB), "ok 1", 2 * kMiB);
    scene.does("pool host", "ok 2", 2 * kMiB);
    scene.does("async-from 2 " + bytes(2 * kQuota), "ok 3", 2 * kMiB);
    scene.does("end-pool 0", "ok", 0);
    scene.does("end-pool 0", "1", 0);
}

TEST_CASE("a pool that the driver does not let go of stays in the charge tables") {
    Scene scene;
    scene.does("async " + bytes(10 * kMiB), "ok 0", 10 * kMiB);
    scene.does("free-async 0", "ok", 10 * kMiB);
    scene.does("default-pool", "ok 1", 10 * kMiB);
    scene.does("end-pool 1", "1", 10 * kMiB);
    // Known still: it is trimmed for this.
    scene.does("alloc " + bytes(28 * kMiB), "ok 2", 28 * kMiB);
}

TEST_CASE("a new pool with the handle of one that another thread is ending is kept") {
    Held held;
    CHECK(held.player->ask("pool device") == "ok 0");
    CHECK(held.player->ask("async-from 0 " + bytes(4 * kMiB)) == "ok 1");
    held.stop_at("pool-ended");
    CHECK(held.player->ask("end-pool-aside 0") == "ok");
    REQUIRE(held.is_at("pool-ended"));
    CHECK(held.player->ask("pool host") == "ok 2");
    held.go_on("pool-ended");
    CHECK(held.player->ask("end-aside") == "ok");
    CHECK(held.used() == 0);
    // On the host, and so it counts for no vGPU.
    CHECK(held.player->ask("async-from 2 " + bytes(2 * kQuota)) == "ok 3");
    CHECK(held.used() == 0);
}

TEST_CASE("a new pool counts for its own GPU, whichever pool had its handle before") {
    Held held;
    CHECK(held.player->ask("pool host") == "ok 0");
    held.stop_at("pool-ended");
    CHECK(held.player->ask("end-pool-aside 0") == "ok");
    REQUIRE(held.is_at("pool-ended"));
    CHECK(held.player->ask("pool device") == "ok 1");
    CHECK(held.player->ask("async-from 1 " + bytes(kMiB)) == "ok 2");
    CHECK(held.used() == 2 * kMiB);
    held.go_on("pool-ended");
    CHECK(held.player->ask("end-aside") == "ok");
    CHECK(held.used() == 2 * kMiB);
    CHECK(held.player->ask("end-pool 1") == "ok");
    CHECK(held.used() == 0);
}

TEST_CASE("mapped memory counts until its handles and its mappings are gone") {
    Scene scene;
    scene.does("create " + bytes(4 * kMiB), "ok 0", 4 * kMiB);
    scene.does("create " + bytes(64 * kMiB) + " host", "ok 1", 4 * kMiB);
    scene.does("map 0", "ok 2", 4 * kMiB);
    scene.does("retain 2", "ok 3", 4 * kMiB);
    scene.does("release 0", "ok", 4 * kMiB);
    scene.does("unmap 2", "ok", 4 * kMiB);
    scene.does("release 3", "ok", 0);
    scene.does("create " + bytes(2 * kMiB), "ok 4", 2 * kMiB);
    scene.does("map 4", "ok 5", 2 * kMiB);
    scene.does("release 4", "ok", 2 * kMiB);
    scene.does("unmap 5", "ok", 0);
}

TEST_CASE(
    "memory of others counts for the process that opens it, and what is too large stays closed") {
    Scene scene;
    CHECK(scene.player->ask("import 7") == "ok 0");
    CHECK(scene.player->ask("map 0 " + bytes(kQuota + kMiB)) == kOutOfMemory);
    CHECK(scene.player->ask("map 0 " + bytes(4 * kMiB)) == "ok 1");
    CHECK(scene.used() == 4 * kMiB);
    CHECK(scene.player->ask("open " + bytes(kQuota)) == kOutOfMemory);
    CHECK(scene.player->ask("open " + bytes(2 * kMiB)) == "ok 2");
    CHECK(scene.used() == 6 * kMiB);
    // Once more: the driver counts the openings, and what it maps is the same.
    CHECK(scene.player->ask("open " + bytes(2 * kMiB)) == "ok 3");
    CHECK(scene.used() == 6 * kMiB);
    CHECK(scene.player->ask("close 3") == "ok");
    CHECK(scene.used() == 6 * kMiB);
    CHECK(scene.player->ask("close 2") == "ok");
    CHECK(scene.player->ask("close 2") == "1");
    CHECK(scene.player->ask("unmap 1") == "ok");
    CHECK(scene.player->ask("release 0") == "ok");
    CHECK(scene.used() == 0);
    scene.does("external " + bytes(2 * kMiB), "ok 4", 2 * kMiB);
    scene.does("end-external 4", "ok", 0);
}

TEST_CASE("memory that lies on a peer GPU counts there, whichever GPU is the current one") {
    constexpr std::uint64_t kOnPeer = std::uint64_t{1} << 40;
    auto peer = slice("peer", 8 * kMiB);
    peer.gpu = "1";
    Stage stage({slice("half", kQuota), peer});
    const auto player = stage.player("half,peer", {"FABRIC_MOCK_DEVICES=2"});
    const auto used = [&](const char* name) { return stage.view(name).used_bytes; };
    // The current device is the first one.
    CHECK(player->ask("open " + bytes(kOnPeer + 2 * kMiB)) == "ok 0");
    CHECK(player->ask("open-pooled " + bytes(kOnPeer + kMiB)) == "ok 1");
    CHECK(used("half") == 0);
    CHECK(used("peer") == 4 * kMiB);
    CHECK(player->ask("import " + bytes(kOnPeer + 7)) == "ok 2");
    CHECK(player->ask("map 2 " + bytes(6 * kMiB)) == kOutOfMemory);
    CHECK(player->ask("map 2 " + bytes(4 * kMiB)) == "ok 3");
    CHECK(used("half") == 0);
    CHECK(used("peer") == 8 * kMiB);
    CHECK(player->ask("open " + bytes(kOnPeer + kMiB)) == "ok 4");  // as open as the pooled one
    CHECK(player->ask("open " + bytes(kOnPeer + 512)) == kOutOfMemory);
    CHECK(player->ask("close 0") == "ok");
    CHECK(player->ask("unmap 3") == "ok");
    CHECK(player->ask("release 2") == "ok");
    CHECK(used("peer") == 2 * kMiB);
    // A peer without a vGPU counts for none.
    const auto other = stage.player("half", {"FABRIC_MOCK_DEVICES=2"});
    CHECK(other->ask("open " + bytes(kOnPeer + 2 * kMiB)) == "ok 0");
    CHECK(used("half") == 0);
}

TEST_CASE("memory of others that is imported again counts once, until the last of it is gone") {
    Scene scene;
    const auto ask = [&](const std::string& command) { return scene.player->ask(command); };
    const std::string mapped = " " + bytes(4 * kMiB);
    CHECK(ask("import 7") == "ok 0");
    CHECK(ask("map 0" + mapped) == "ok 1");
    CHECK(ask("import 7") == "ok 2");
    CHECK(ask("map 2" + mapped) == "ok 3");
    CHECK(scene.used() == 4 * kMiB);
    CHECK(ask("unmap 1") == "ok");
    CHECK(ask("release 0") == "ok");
    CHECK(scene.used() == 4 * kMiB);
    // No handle is left, and the memory is still here.
    CHECK(ask("release 2") == "ok");
    CHECK(ask("import 7") == "ok 4");
    CHECK(ask("map 4" + mapped) == "ok 5");
    CHECK(scene.used() == 4 * kMiB);
    CHECK(ask("unmap 3") == "ok");
    CHECK(ask("release 4") == "ok");
    CHECK(scene.used() == 4 * kMiB);
    CHECK(ask("unmap 5") == "ok");
    CHECK(scene.used() == 0);
    // Gone: the same name is other memory now.
    CHECK(ask("import 7") == "ok 6");
    CHECK(ask("map 6" + mapped) == "ok 7");
    CHECK(scene.used() == 4 * kMiB);
}

TEST_CASE("a process that imports its own memory is charged for it once") {
    Scene scene;
    scene.does("create " + bytes(4 * kMiB), "ok 0", 4 * kMiB);
    scene.does("import-own 0", "ok 1", 4 * kMiB);
    scene.does("map 0", "ok 2", 4 * kMiB);
    scene.does("map 1 " + bytes(4 * kMiB), "ok 3", 4 * kMiB);
    scene.does("unmap 2", "ok", 4 * kMiB);
    scene.does("release 0", "ok", 4 * kMiB);
    scene.does("unmap 3", "ok", 4 * kMiB);
    scene.does("release 1", "ok", 0);
}

TEST_CASE("a pointer into another process's pool that is opened again counts once, to the last") {
    Scene scene;
    CHECK(scene.player->ask("open-pooled " + bytes(2 * kQuota)) == kOutOfMemory);
    CHECK(scene.player->ask("open-pooled " + bytes(4 * kMiB)) == "ok 0");
    CHECK(scene.player->ask("open-pooled " + bytes(4 * kMiB)) == "ok 1");
    CHECK(scene.used() == 4 * kMiB);
    CHECK(scene.player->ask("free 0") == "ok");
    CHECK(scene.used() == 4 * kMiB);
    CHECK(scene.player->ask("free-async 1") == "ok");
    CHECK(scene.used() == 0);
    CHECK(scene.player->ask("free 1") == "1");
}

TEST_CASE("arrays and mipmaps count with their rows") {
    Scene scene;
    scene.does("array 100 50", "ok 0", 512 * 50);
    scene.does("mipmap 256 3", "ok 1",
               512 * 50 + mock_gpu::taken_by(4096 * 256 + 2048 * 128 + 1024 * 64));
    scene.does("end-array 0", "ok", mock_gpu::taken_by(4096 * 256 + 2048 * 128 + 1024 * 64));
    scene.does("end-mipmap 1", "ok", 0);
    scene.does("array 1000000 100", kOutOfMemory, 0);
}

TEST_CASE("each level of a mipmap has all layers and faces, and part of a third dimension") {
    constexpr std::uint64_t kLevels = 4096 * 256 + 2048 * 128 + 1024 * 64;
    Scene scene;
    scene.does("mipmap 256 3 6 4", "ok 0", mock_gpu::taken_by(6 * kLevels));  // a cube
    scene.does("end-mipmap 0", "ok", 0);
    scene.does("mipmap 256 3 5 1", "ok 1", mock_gpu::taken_by(5 * kLevels));  // layers
    scene.does("end-mipmap 1", "ok", 0);
    scene.does("mipmap 256 3 5 0", "ok 2",
               mock_gpu::taken_by(5 * 4096 * 256 + 2 * 2048 * 128 + 1024 * 64));
}

TEST_CASE("a graph counts with its allocations as long as it can be launched") {
    Scene scene;
    scene.does("graph " + bytes(6 * kMiB) + " 100", "ok 0", 6 * kMiB);
    scene.does("graph " + bytes(28 * kMiB) + " 100", kOutOfMemory, 6 * kMiB);
    scene.does("launch-graph 0", "ok", 6 * kMiB);
    scene.does("end-graph 0", "ok", 0);
    scene.does("graph 0 100", "ok 1", 0);
}

TEST_CASE("what is captured from the thread's own default stream counts with the graph as well") {
    Scene scene;
    scene.does("graph-of-own " + bytes(6 * kMiB) + " 100", "ok 0", 6 * kMiB);
    // Refused when it would be taken, not when it is captured.
    scene.does("graph-of-own " + bytes(28 * kMiB) + " 100", kOutOfMemory, 6 * kMiB);
    CHECK(scene.stage.view("half").denied == 1);
}

TEST_CASE("a graph's memory is given back also where its GPU is not the current one any more") {
    Scene scene;
    scene.player = scene.stage.player("half", {"FABRIC_MOCK_DEVICES=2"});
    scene.does("graph " + bytes(6 * kMiB) + " 100", "ok 0", 6 * kMiB);
    scene.does("context 1", "ok", 6 * kMiB);
    scene.does("end-graph 0", "ok", 0);
}

TEST_CASE("the end of a context frees what was allocated in it") {
    Scene scene;
    scene.does("alloc " + bytes(4 * kMiB), "ok 0", 4 * kMiB);
    scene.does("end-context", "ok", 0);
    scene.does("retain-primary", "ok", 0);
    scene.does("alloc " + bytes(4 * kMiB), "ok 1", 4 * kMiB);
    scene.does("retain-primary", "ok", 4 * kMiB);
    scene.does("release-primary", "ok", 4 * kMiB);
    scene.does("release-primary", "ok", 0);
}

TEST_CASE("a primary context is charged as long as it is retained") {
    constexpr std::uint64_t kContext = 3 * kMiB;
    fabricd::VgpuSpec spec = slice("half", kQuota);
    spec.context_bytes = kContext;
    Stage stage({spec}, 1U << 30, kContext);
    const auto player = stage.player("half");
    CHECK(player->ask("race-primary 30000 " + bytes(2 * kContext)) == "ok 0");
    CHECK(stage.view("half").used_bytes == kContext);
}

TEST_CASE("where NVML does not report what a process holds nothing is charged for code") {
    Scene scene;
    scene.player = scene.stage.player("half", {"FABRIC_MOCK_NVML_MUTE=1"});
    CHECK(scene.player->ask("hidden-module") == "ok");
    CHECK(scene.player->ask("launch 1") == "ok");
    CHECK(scene.used() == 0);
    CHECK(scene.player->ask("alloc " + bytes(kQuota)) == "ok 0");
}

TEST_CASE("contexts and modules count, as configured or as NVML sees them") {
    constexpr std::uint64_t kContext = 3 * kMiB;
    fabricd::VgpuSpec configured = slice("given", kQuota);
    configured.context_bytes = kContext;
    Stage stage({configured, slice("seen", kQuota)}, 1U << 30, kContext);
    const auto told = stage.player("given");
    CHECK(stage.view("given").used_bytes == kContext);
    CHECK(told->ask("end-context") == "ok");
    CHECK(stage.view("given").used_bytes == 0);
    const auto seen = stage.player("seen");
    CHECK(stage.view("seen").used_bytes == kContext);
    CHECK(seen->ask("module") == "ok");
    CHECK(stage.view("seen").used_bytes == kContext + 4 * kMiB);
}

TEST_CASE("the heap of malloc and the buffer of printf count as their limits, a stack by NVML") {
    Scene scene;
    scene.does("limit 2 " + bytes(8 * kMiB), "ok", 8 * kMiB);
    scene.does("limit 1 " + bytes(kMiB), "ok", 10 * kMiB);
    scene.does("limit 2 " + bytes(40 * kMiB), kOutOfMemory, 10 * kMiB);
    scene.does("limit 2 " + bytes(4 * kMiB), "ok", 6 * kMiB);
    scene.does("limit 3 7", "1", 6 * kMiB);
    scene.does("limit 0 4096", "ok", 10 * kMiB);
    scene.does("alloc " + bytes(22 * kMiB), "ok 0", 32 * kMiB);
    CHECK(scene.player->ask("end-context") == "ok");
    CHECK(scene.used() == 4 * kMiB);  // what NVML measured goes with the process
    // Where contexts count as configured NVML is not asked, and so a stack counts for nothing.
    auto configured = slice("half", kQuota);
    configured.context_bytes = kMiB;
    Stage stage({configured});
    const auto player = stage.player("half");
    CHECK(player->ask("limit 2 " + bytes(8 * kMiB)) == "ok");
    CHECK(player->ask("limit 0 4096") == "ok");
    CHECK(stage.view("half").used_bytes == 9 * kMiB);
}

TEST_CASE("code that came past the shim counts from the first launch on") {
    Stage stage({slice("half", kQuota)});
    const auto player = stage.player("half");
    CHECK(player->ask("hidden-module") == "ok");
    CHECK(stage.view("half").used_bytes == 0);
    CHECK(player->ask("launch 1") == "ok");
    CHECK(stage.view("half").used_bytes == 4 * kMiB);
    CHECK(player->ask("launch 1") == "ok");
    CHECK(stage.view("half").used_bytes == 4 * kMiB);
}

TEST_CASE("code that does not fit into the quota counts before anything else is granted") {
    Stage stage({slice("half", 16 * kMiB)});
    const auto player = stage.player("half");
    const auto used = [&] { return stage.view("half").used_bytes; };
    CHECK(player->ask("hidden-module") == "ok");
    CHECK(player->ask("alloc " + bytes(14 * kMiB)) == "ok 0");
    CHECK(player->ask("launch 1") == "ok");
    CHECK(used() == 16 * kMiB);  // of 18
    CHECK(player->ask("free 0") == "ok");
    CHECK(used() == 4 * kMiB);
    CHECK(player->ask("alloc " + bytes(16 * kMiB)) == kOutOfMemory);
    CHECK(player->ask("alloc " + bytes(12 * kMiB)) == "ok 1");
    CHECK(used() == 16 * kMiB);
    CHECK(mock_gpu::used_by_all(stage.gpu()) == 16 * kMiB);
}

TEST_CASE("code that did not fit takes the room that another process leaves") {
    Stage stage({slice("half", 16 * kMiB)});
    const auto used = [&] { return stage.view("half").used_bytes; };
    auto other = stage.player("half");
    CHECK(other->ask("alloc " + bytes(14 * kMiB)) == "ok 0");
    const auto launches = stage.player("half");
    CHECK(launches->ask("hidden-module") == "ok");
    CHECK(launches->ask("launch 1") == "ok");
    CHECK(used() == 16 * kMiB);
    other->kill();
    REQUIRE(stage.settles_at("half", 2 * kMiB));
    // Before it allocates.
    CHECK(launches->ask("alloc " + bytes(14 * kMiB)) == kOutOfMemory);
    CHECK(used() == 4 * kMiB);
    CHECK(launches->ask("alloc " + bytes(12 * kMiB)) == "ok 0");
    // Or, if it never does, with a launch of later.
    const auto silent = stage.player("half");
    CHECK(silent->ask("hidden-module") == "ok");
    CHECK(silent->ask("launch 1") == "ok");
    CHECK(used() == 16 * kMiB);
    CHECK(launches->ask("free 0") == "ok");
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (used() == 4 * kMiB && std::chrono::steady_clock::now() < until) {
        silent->ask("launch-for 20 1");
    }
    CHECK(used() == 8 * kMiB);
}

TEST_CASE("what another thread frees while NVML is asked is not taken for code") {
    Held held;
    CHECK(held.player->ask("alloc " + bytes(6 * kMiB)) == "ok 0");
    CHECK(held.player->ask("hidden-module") == "ok");
    held.stop_at("answered");
    CHECK(held.player->ask("launch-aside") == "ok");
    REQUIRE(held.is_at("answered"));
    CHECK(held.player->ask("free 0") == "ok");
    held.go_on("answered");
    CHECK(held.player->ask("end-aside") == "ok");
    CHECK(held.used() == 4 * kMiB);
}

TEST_CASE("what comes and goes while NVML is asked is not taken for code") {
    Held held;
    CHECK(held.player->ask("hidden-module") == "ok");
    held.stop_at("asked");
    CHECK(held.player->ask("launch-aside") == "ok");
    // As often as it asks for a quiet moment.
    for (const char* number : {"0", "1", "2", "3"}) {
        REQUIRE(held.is_at("asked"));
        CHECK(held.player->ask("alloc " + bytes(6 * kMiB)) == std::string("ok ") + number);
        held.stop_at("answered");
        held.go_on("asked");
        REQUIRE(held.is_at("answered"));
        CHECK(held.player->ask(std::string("free ") + number) == "ok");
        if (*number != '3') held.stop_at("asked");
        held.go_on("answered");
    }
    CHECK(held.player->ask("end-aside") == "ok");
    CHECK(held.used() == 4 * kMiB);
}

TEST_CASE("a GPU that NVML counts by another number is found by its name") {
    Scene scene;
    const auto player = scene.stage.player("half", {"FABRIC_MOCK_NVML_INDEX=3"});
    CHECK(player->ask("alloc " + bytes(6 * kMiB)) == "ok 0");
    const std::vector<std::uint64_t> nvml = {26 * kMiB, kQuota, 2, 6 * kMiB};
    CHECK(player->numbers("nvml 3") == nvml);
}

TEST_CASE("a slice of a GPU in MIG mode is found by its name, its older one, and its number") {
    for (const char* gpu : {"MIG-00112233-4455-6677-8899-aabbccddeeff",
                            "MIG-GPU-a0a1a2a3-b0b1-c0c1-d0d1-e0e1e2e3e4e5/1/0", "0"}) {
        CAPTURE(gpu);
        auto spec = slice("half", kQuota);
        spec.gpu = gpu;
        Stage stage({spec});
        const auto player = stage.player("half", {"FABRIC_MOCK_MIG=1"});
        CHECK(player->ask("alloc " + bytes(kQuota + 1)) == kOutOfMemory);
        CHECK(player->ask("alloc " + bytes(6 * kMiB)) == "ok 0");
        const std::vector<std::uint64_t> nvml = {26 * kMiB, kQuota, 1, 6 * kMiB};
        CHECK(player->numbers("nvml") == nvml);
        // NVML is asked about the same device.
        CHECK(player->ask("hidden-module") == "ok");
        CHECK(player->ask("launch 1") == "ok");
        CHECK(stage.view("half").used_bytes == 10 * kMiB);
    }
}

TEST_CASE("the driver and NVML report the same, and it is the vGPU") {
    Scene scene;
    const auto other = scene.stage.player("half");
    const auto stranger = scene.stage.player("");
    CHECK(stranger->ask("alloc " + bytes(100 * kMiB)) == "ok 0");
    CHECK(scene.player->ask("alloc " + bytes(6 * kMiB)) == "ok 0");
    CHECK(other->ask("alloc " + bytes(4 * kMiB)) == "ok 0");
    const std::vector<std::uint64_t> driver = {22 * kMiB, kQuota, kQuota};
    CHECK(scene.player->numbers("info") == driver);
    CHECK(other->numbers("info") == driver);
    const std::vector<std::uint64_t> nvml = {22 * kMiB, kQuota, 2, 10 * kMiB};
    CHECK(scene.player->numbers("nvml") == nvml);
    // A process on none sees the GPU.
    CHECK(stranger->numbers("info").at(1) == 1U << 30);
    CHECK(stranger->numbers("nvml").at(2) == 3);
}

TEST_SUITE_END();
