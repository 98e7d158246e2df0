// A cache that has filled its memory gives way to jobs: a request that the pool has no room for
// waits until the cache has emptied as much, while readers compare every byte that they read; when
// the job ends the cache has its memory again. With kills of the service and of the daemon at each
// step.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/support/daemon.hpp"
#include "tests/support/data_reader.hpp"
#include "tests/support/data_serve_process.hpp"
#include "tests/support/program.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::data_content;
using test_support::DataReader;
using test_support::DataServeProcess;
using test_support::put_file;
using test_support::TemporaryDirectory;

namespace {

// Of a pool of 128 MiB the cache takes 96; a job of 64 fits when it gives half of them.
constexpr std::uint64_t kPool = 128 * kMiB;
constexpr std::uint64_t kJob = 64 * kMiB;
constexpr std::uint64_t kCache = 96 * kMiB;
constexpr int kFiles = 27;

std::size_t bytes_of(int number) {
    return number % 3 == 0 ? 5'000'000 : 2'500'000 + 1000 * static_cast<std::size_t>(number);
}

struct Scene {
    TemporaryDirectory folder;
    test_support::Daemon daemon{{"--pool-capacity=128MiB"}};
    std::string silo = folder.file("silo");
    std::string socket = folder.file("data.sock");
    std::string file;

    Scene() {
        std::filesystem::create_directory(silo);
        file = write_file("data.toml", "96MiB", "16MiB");
        for (int i = 0; i < kFiles; ++i) {
            const std::string name = "f" + std::to_string(i);
            put_file(silo + "/" + name, data_content(name, 1, bytes_of(i)));
        }
    }
    // A data file for a cache of these files; its path.
    std::string write_file(const char* name, const char* memory, const char* least) const {
        std::string path = folder.file(name);
        std::ofstream(path) << "[cache]\nmemory = \"" << memory << "\"\nmemory_min = \"" << least
                            << "\"\n[[silo]]\nat = \"/set\"\nfrom = \"" << silo << "\"\n";
        return path;
    }
    nlohmann::json cache() const {
        const auto status =
            test_support::run_program({FABRIC_DATA_PATH, "status", "--json", "--socket", socket});
        return nlohmann::json::parse(status.out, nullptr, false)["cache"];
    }
    // What it may use, once it is `wanted` or when the time is over.
    std::uint64_t wait_for_capacity(std::uint64_t wanted) const {
        const auto deadline = Clock::now() + 60s;
        std::uint64_t now = 0;
        do {
            const auto json = cache();
            now = json.is_object() ? json["capacity_bytes"].get<std::uint64_t>() : 0;
            if (now >= wanted) return now;
            ::usleep(50'000);
        } while (Clock::now() < deadline);
        return now;
    }
};

struct Seen {
    std::uint64_t right = 0, wrong = 0, failed = 0;
    std::string problem;
};

// Reads and compares until it is stopped.
class Readers {
  public:
    explicit Readers(const Scene& scene) {
        for (std::size_t i = 0; i < seen_.size(); ++i) {
            threads_.emplace_back([this, i, &scene] { read(scene, i); });
        }
        // Each has attached: a daemon that is to die later may die at once.
        while (attached_ < seen_.size()) std::this_thread::yield();
    }
    ~Readers() { stop(); }
    /// How many files were right; not before that are `least`, or a minute has passed.
    std::uint64_t stop(std::uint64_t least = 0) {
        const auto deadline = Clock::now() + 60s;
        while (compared_ < least && Clock::now() < deadline) ::usleep(1000);
        stopped_ = true;
        for (auto& thread : threads_) thread.join();
        threads_.clear();
        std::uint64_t right = 0;
        for (const Seen& mine : seen_) {
            CAPTURE(mine.problem);
            CHECK(mine.wrong == 0);
            CHECK(mine.failed == 0);
            right += mine.right;
        }
        return right;
    }

  private:
    void read(const Scene& scene, std::size_t which) {
        Seen& mine = seen_[which];
        std::mt19937 random(static_cast<unsigned>(which));
        DataReader reader(scene.daemon.socket(), scene.socket);
        ++attached_;
        while (!stopped_) {
            const auto listed = reader.list("/set");
            if (listed.entries.empty()) {
                ++mine.failed;
                mine.problem = listed.text + reader.problem;
                return;
            }
            for (int turn = 0; turn < 100 && !stopped_; ++turn) {
                const auto& [name, entry] = listed.entries[random() % listed.entries.size()];
                std::string content;
                const auto read = reader.read(entry, content);
                if (read == DataReader::Read::kChanged) break;  // another table, after a kill
                if (read == DataReader::Read::kFailed) {
                    ++mine.failed;
                    mine.problem = reader.problem;
                    return;
                }
                const int number = std::atoi(name.c_str() + 1);
                const bool is_right = content == data_content(name, 1, bytes_of(number));
                ++(is_right ? mine.right : mine.wrong);
                ++compared_;
                if (!is_right) mine.problem = "wrong bytes in " + name;
            }
        }
    }

    std::array<Seen, 2> seen_;
    std::atomic<bool> stopped_{false};
    std::atomic<std::size_t> attached_{0};
    std::atomic<std::uint64_t> compared_{0};
    std::vector<std::thread> threads_;
};

// A job that takes a region and fills it.
struct Tenant {
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    fabricshm_region region{};
    int code = 0;
    Duration took{};

    Tenant(const std::string& daemon, const char* name, std::uint64_t bytes) {
        const TimePoint begin = Clock::now();
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.c_str();
        code = fabricshm_session_open(&options, &session);
        if (code == 0) code = fabricshm_arena_open(session, name, bytes + 4 * kMiB, 0, &arena);
        if (code == 0) code = fabricshm_region_create(arena, bytes, &region);
        took = Clock::now() - begin;
        if (code == 0) std::memset(region.base, 0x5a, bytes);
    }
    ~Tenant() {
        if (arena != nullptr) fabricshm_arena_close(arena);
        if (session != nullptr) fabricshm_session_close(session);
    }
    // What another one was granted twice would have been overwritten.
    bool is_intact() const {
        const auto* bytes = static_cast<const unsigned char*>(region.base);
        for (std::uint64_t at = 0; at < region.bytes; at += 64) {
            if (bytes[at] != 0x5a) return false;
        }
        return true;
    }
};

std::uint64_t load_all(const Scene& scene) {
    const auto loaded = test_support::run_program(
        {FABRIC_DATA_PATH, "load", "/set", "--wait", "90%", "--socket", scene.socket});
    return loaded.code == 0 ? scene.cache()["used_bytes"].get<std::uint64_t>() : 0;
}

void fault_or_not(const char* fault) {
    if (*fault != 0) {
        ::setenv("FABRIC_FAULT", fault, 1);
    } else {
        ::unsetenv("FABRIC_FAULT");
    }
}

}  // namespace

TEST_SUITE("multiproc.data.gives_way") {
    TEST_CASE("a full cache gives way to a job in time, and has its memory again afterwards") {
        Scene scene;
        DataServeProcess service(FABRIC_DATA_PATH, scene.file, scene.socket, scene.daemon.socket());
        REQUIRE(service.is_up());
        const std::uint64_t whole = scene.wait_for_capacity(1);
        CHECK(whole > kCache - 16 * kMiB);
        CHECK(load_all(scene) > 70 * kMiB);
        Readers readers(scene);
        for (int round = 0; round < 3; ++round) {
            {
                const Tenant job(scene.daemon.socket(), "job", kJob);
                CAPTURE(job.code);
                REQUIRE(job.code == 0);
                CHECK(job.took < 5s);
                MESSAGE("admitted after ", job.took / 1ms, " ms");
                // Two phases: what the job has the cache has not.
                CHECK(scene.cache()["capacity_bytes"].get<std::uint64_t>() <= kPool - kJob);
                ::usleep(200'000);
                CHECK(job.is_intact());
            }
            CHECK(scene.wait_for_capacity(whole) == whole);
        }
        CHECK(readers.stop(21) > 20);
        CHECK(WEXITSTATUS(service.stop()) == 0);
    }

    TEST_CASE("what the cache keeps, and what readers have pinned, is refused within the time") {
        Scene scene;
        DataServeProcess service(FABRIC_DATA_PATH, scene.file, scene.socket, scene.daemon.socket());
        REQUIRE(service.is_up());
        CHECK(load_all(scene) > 70 * kMiB);
        // With it the cache would have less than memory_min.
        const Tenant large(scene.daemon.socket(), "large", 120 * kMiB);
        CHECK(large.code == FABRICSHM_ENOMEM);
        CHECK(large.took < 5s);
        CHECK(WEXITSTATUS(service.stop()) == 0);
    }

    TEST_CASE("a cache that can't have the least that it needs says so when it starts") {
        const Scene scene;
        const Tenant job(scene.daemon.socket(), "job", kJob);
        REQUIRE(job.code == 0);
        const auto refused =
            test_support::run_program({FABRIC_DATA_PATH, "serve", "--config",
                                       scene.write_file("large.toml", "94MiB", "90MiB"), "--socket",
                                       scene.socket, "--daemon", scene.daemon.socket()});
        CAPTURE(refused.error);
        CHECK(refused.code == 1);
        CHECK(refused.error.find("of 128 MiB (pool.capacity); the cache can't do without 94 MiB "
                                 "(tables and memory_min)") != std::string::npos);
        CHECK(std::count(refused.error.begin(), refused.error.end(), '\n') == 1);
    }

    TEST_CASE("kills of either side at each step lose nothing and grant nothing twice") {
        struct Kill {
            const char* fault;
            bool daemon;
        };
        constexpr Kill kKills[] = {{"share.before", false},   {"share.emptied", false},
                                   {"share.kept", false},     {"elastic.before", true},
                                   {"elastic.written", true}, {"elastic.gone", true}};
        for (const Kill& kill : kKills) {
            CAPTURE(kill.fault);
            const Scene scene;
            auto& daemon = const_cast<test_support::Daemon&>(scene.daemon);
            if (kill.daemon) {
                daemon.kill();
                fault_or_not(kill.fault);
                daemon.start();
            }
            fault_or_not(kill.daemon ? "" : kill.fault);
            DataServeProcess service(FABRIC_DATA_PATH, scene.file, scene.socket, daemon.socket());
            fault_or_not("");
            REQUIRE(service.is_up());
            const std::uint64_t whole = scene.wait_for_capacity(1);
            CHECK(load_all(scene) > 70 * kMiB);
            Readers readers(scene);
            std::unique_ptr<Tenant> job;
            std::thread asks([&] { job = std::make_unique<Tenant>(daemon.socket(), "job", kJob); });
            // What was to die is dead by then, and begins again.
            ::usleep(700'000);
            if (kill.daemon) {
                daemon.kill();
                daemon.start();
            } else {
                service.kill();
                service.start();
            }
            asks.join();
            // One that lost its daemon in the middle asks again. What the killed service was
            // filling is given a minute later.
            for (int again = 0; job->code != 0 && again < 25; ++again) {
                job.reset();
                job = std::make_unique<Tenant>(daemon.socket(), "job", kJob);
            }
            CAPTURE(job->code);
            CHECK(job->code == 0);
            if (job->code == 0) {
                CHECK(scene.wait_for_capacity(1) <= kPool - kJob);
                ::usleep(200'000);
                CHECK(job->is_intact());
            }
            job.reset();
            CHECK(scene.wait_for_capacity(whole) == whole);
            CHECK(readers.stop(6) > 5);
            service.kill();
        }
    }
}
