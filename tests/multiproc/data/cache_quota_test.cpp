// The control loop and a cache in the real fabricd: what a job had to wait for does not go back to
// the cache, and a cache whose readers wait for what it had before gets more; and what fabricctl
// says about both.

#include <doctest/doctest.h>
#include <fabricshm/data.h>
#include <fabricshm/fabricshm.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "libfabricshm/base/units.hpp"
#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/support/data_serve_process.hpp"
#include "tests/support/data_service_bench.hpp"
#include "tests/support/temporary_directory.hpp"

using fabricshm::kMiB;
using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::becomes_true;
using test_support::ctl;
using test_support::data_content;
using test_support::DataServeProcess;
using test_support::has;
using test_support::Output;
using test_support::put_file;
using test_support::TemporaryDirectory;

namespace {

// Of a pool of 128 MiB the cache takes 96; the files are 95 MiB.
constexpr std::uint64_t kJobBytes = 64 * kMiB;
constexpr std::uint64_t kFileBytes = 2'500'000;
constexpr int kFiles = 40;

json parsed(const Output& output) {
    INFO(output.error);
    REQUIRE(output.code == 0);
    return json::parse(output.out);
}

struct Scene {
    TemporaryDirectory folder;
    Daemon daemon;
    std::string silo = folder.file("silo");
    std::string socket = folder.file("data.sock");
    std::string file = folder.file("data.toml");

    Scene()
        : daemon({"--pool-capacity=128MiB", "--control-mode=on", "--control-window=300ms",
                  "--control-actions=cache", "--control-cache-stall=0.001",
                  "--control-cache-min=0.25", "--control-quota-step=0.5", "--control-cool-down=2",
                  "--control-imbalance-windows=1"}) {
        std::filesystem::create_directory(silo);
        std::ofstream(file) << "[cache]\nmemory = \"96MiB\"\nmemory_min = \"16MiB\"\n"
                            << "[[silo]]\nat = \"/set\"\nfrom = \"" << silo << "\"\n";
        for (int i = 0; i < kFiles; ++i) {
            const std::string name = "f" + std::to_string(i);
            put_file(silo + "/" + name, data_content(name, 1, kFileBytes));
        }
    }
    json cache() const {
        const json caches = parsed(ctl(daemon, {"status", "--json"})).at("status").at("caches");
        return caches.empty() ? json() : caches[0];
    }
    std::uint64_t figure(const char* name) const {
        const json now = cache();
        return now.is_object() ? now.at(name).get<std::uint64_t>() : 0;
    }
    /// The newest last.
    json decisions() const { return parsed(ctl(daemon, {"decisions", "--json"}))["decisions"]; }
    std::string why(const json& decision) const {
        return ctl(daemon, {"why", std::to_string(decision["id"].get<int>())}).out;
    }
};

// Reads all files in turn until it is stopped.
class Reader {
  public:
    explicit Reader(const Scene& scene) : thread_([this, &scene] { code_ = read(scene); }) {}
    ~Reader() { stop(); }
    int stop() {
        is_over_ = true;
        if (thread_.joinable()) thread_.join();
        return code_;
    }

  private:
    int read(const Scene& scene) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = scene.daemon.socket().c_str();
        fabricshm_session* session = nullptr;
        fabricshm_data* data = nullptr;
        fabricshm_data_set* set = nullptr;
        int code = fabricshm_session_open(&options, &session);
        if (code == 0) code = fabricshm_data_open(session, scene.socket.c_str(), &data);
        if (code == 0) code = fabricshm_data_list(data, "/set", 0, 60'000, &set);
        for (std::uint64_t i = 0; code == 0 && !is_over_; ++i) {
            fabricshm_data_view view{};
            code = fabricshm_data_acquire(set, i % kFiles, 0, 60'000, &view);
            if (code == 0) fabricshm_data_release(set, &view);
        }
        fabricshm_data_set_close(set);
        fabricshm_data_close(data);
        if (session != nullptr) fabricshm_session_close(session);
        return code;
    }

    std::atomic<bool> is_over_{false};
    int code_ = 0;
    std::thread thread_;
};

// A job that takes a region, and waits for it until the cache has given way.
int run_job(const Scene& scene) {
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = scene.daemon.socket().c_str();
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    fabricshm_region region{};
    int code = fabricshm_session_open(&options, &session);
    if (code == 0) code = fabricshm_arena_open(session, "job", kJobBytes + 4 * kMiB, 0, &arena);
    if (code == 0) code = fabricshm_region_create(arena, kJobBytes, &region);
    if (arena != nullptr) fabricshm_arena_close(arena);
    if (session != nullptr) fabricshm_session_close(session);
    return code;
}

}  // namespace

TEST_SUITE("multiproc.data.cache_quota") {
    TEST_CASE("what a job lacked is kept for jobs, and readers that wait get it back") {
        Scene scene;
        DataServeProcess service(FABRIC_DATA_PATH, scene.file, scene.socket, scene.daemon.socket());
        REQUIRE(service.is_up());
        REQUIRE(becomes_true([&] { return !scene.cache().empty(); }));
        const std::uint64_t whole = scene.figure("bytes");
        CHECK(scene.figure("quota_bytes") == whole);
        CHECK(scene.decisions().empty());

        REQUIRE(run_job(scene) == 0);
        REQUIRE(becomes_true([&] { return !scene.decisions().empty(); }));
        const json given = scene.decisions()[0];
        CHECK(given["kind"] == "cache quota");
        CHECK(given["outcome"] == "done");
        CHECK(given["before"][0] == static_cast<double>(whole));
        const std::uint64_t less = scene.figure("quota_bytes");
        CHECK(given["after"][0] == static_cast<double>(less));
        CHECK(less < whole);
        // The job is over, and the pool has room for all of it: it has no more than its quota.
        REQUIRE(becomes_true([&] { return scene.figure("bytes_committed") <= less; }));
        const std::string why_given = scene.why(given);
        CHECK(has(why_given, "MiB were lacking to jobs: caches keep"));
        CHECK(has(why_given, "requests lacked: "));

        Reader reader(scene);
        REQUIRE(becomes_true([&] { return scene.decisions().size() > 1; }));
        const json got = scene.decisions()[1];
        CHECK(got["kind"] == "cache quota");
        CHECK(got["before"][0] == static_cast<double>(less));
        const auto more = got["after"][0].get<double>();
        CHECK(more > static_cast<double>(less));
        REQUIRE(becomes_true([&] { return scene.figure("bytes_committed") > less; }));
        CHECK(scene.figure("bytes_committed") <= scene.figure("quota_bytes"));
        // No job trains: there is nothing to judge it by.
        REQUIRE(becomes_true([&] { return has(scene.why(got), "no job trained meanwhile"); }));
        CHECK(has(scene.why(got), "for what it had before"));
        CHECK(has(ctl(scene.daemon, {"decisions"}).out, "cache quota"));
        CHECK(reader.stop() == 0);
        CHECK(WEXITSTATUS(service.stop()) == 0);

        scene.daemon.stop();
        const json replayed = parsed(test_support::run_program(
            {FABRICCTL_PATH, "replay", scene.daemon.folder() + "/state/decisions", "--json"}));
        CHECK(replayed["decisions"].size() >= 2);
        for (const json& one : replayed["decisions"]) CHECK(one["replay"] == "same");
    }
}
