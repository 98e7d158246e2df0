// fabricd, `fabric-data serve` over a folder, and readers made of the layout alone, while files
// change and the service is killed.

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/data_reader.hpp"
#include "tests/support/data_serve_process.hpp"
#include "tests/support/data_service_bench.hpp"
#include "tests/support/program.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::Child;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataReader;
using test_support::DataServeProcess;
using test_support::Gate;
using test_support::put_file;
using test_support::TemporaryDirectory;

namespace {

// The version is in the first eight letters, so that a reader knows what has to follow.
std::string versioned(const std::string& name, int version, std::size_t bytes) {
    char head[9];
    std::snprintf(head, sizeof head, "%08d", version);
    std::string content = data_content(name, version, bytes);
    return content.replace(0, 8, head);
}

bool is_whole(const std::string& name, const std::string& content) {
    if (content.size() < 8) return false;
    return content == versioned(name, std::atoi(content.substr(0, 8).c_str()), content.size());
}

struct Scene {
    TemporaryDirectory folder;
    test_support::Daemon daemon;
    std::string silo = folder.file("silo");
    std::string socket = folder.file("data.sock");
    std::string file = folder.file("data.toml");

    explicit Scene(const std::string& memory) {
        std::filesystem::create_directory(silo);
        std::ofstream(file) << "[cache]\nmemory = \"" << memory
                            << "\"\nsilo_timeout = \"20s\"\n[[silo]]\nat = \"/set\"\nfrom = \""
                            << silo << "\"\nrefresh = \"100ms\"\n";
    }
    std::string put(int number, int version) const {
        const std::string name = "f" + std::to_string(number);
        // Some of two chunks.
        const std::size_t bytes = number % 3 == 0 ? 5'000'000 : 20'000 + 1000 * number;
        put_file(silo + "/" + name, versioned(name, version, bytes));
        return name;
    }
    DataServeProcess serve() const {
        return DataServeProcess(FABRIC_DATA_PATH, file, socket, daemon.socket());
    }
    nlohmann::json status() const {
        return nlohmann::json::parse(run({"status", "--json"}).out, nullptr, false);
    }
    template <typename Condition>
    bool becomes(const Condition& condition) const {
        const auto deadline = Clock::now() + 60s;
        while (!condition()) {
            if (Clock::now() > deadline) return false;
            ::usleep(10'000);
        }
        return true;
    }
    test_support::Output run(std::vector<std::string> words) const {
        words.insert(words.begin(), FABRIC_DATA_PATH);
        words.insert(words.end(), {"--socket", socket});
        return test_support::run_program(words);
    }
};

}  // namespace

TEST_SUITE("multiproc.data.serve") {
    TEST_CASE("a reader finds every byte, and the commands say what is there") {
        Scene scene("32MiB");
        for (int i = 0; i < 10; ++i) scene.put(i, 1);
        DataServeProcess service(FABRIC_DATA_PATH, scene.file, scene.socket, scene.daemon.socket());
        REQUIRE(service.is_up());
        DataReader reader(scene.daemon.socket(), scene.socket);
        const auto listed = reader.list("/set");
        REQUIRE(listed.entries.size() == 10);
        for (const auto& [name, entry] : listed.entries) {
            std::string content;
            REQUIRE(reader.read(entry, content) == DataReader::Read::kRight);
            CHECK(is_whole(name, content));
        }
        const auto status = scene.run({"status", "--json"});
        CHECK(status.code == 0);
        const auto json = nlohmann::json::parse(status.out, nullptr, false);
        CHECK(json["silos"][0]["files_in_memory"] == 10);
        CHECK(json["cache"]["readers"] == 1);
        CHECK(scene.run({"status"}).out.find("/set  " + scene.silo + "  10 files") !=
              std::string::npos);
        CHECK(scene.run({"why", "/set/f0"}).out.find("chunk 1: ready") != std::string::npos);
        CHECK(scene.run({"drop", "/set"}).out == "dropped 14 chunks, pinned 0\n");
        const auto queued = scene.run({"load", "/set"});
        CHECK(queued.code == 0);
        CHECK(queued.out.rfind("/set: queued 10 files, 19.2 MiB; ", 0) == 0);
        const auto loaded = scene.run({"load", "/set", "--wait", "100%"});
        CHECK(loaded.code == 0);
        CHECK(loaded.out.find("10 of 10 files") != std::string::npos);
        CHECK(scene.run({"verify", "/set", "--silo"}).code == 0);
        CHECK(scene.run({"refresh", "/set"}).out == "10 files\n");
        CHECK(scene.run({"flush", "--timeout", "10"}).code == 0);
        CHECK(scene.run({"why", "set"}).code == 2);
        CHECK(scene.run({"why", "set"}).error ==
              "fabric-data: set: paths of the namespace begin with \"/\", as /images/a\n");
        CHECK(scene.run({"why", "/set/none"}).code == 1);
        CHECK(scene.run({"why", "/set/none"}).error.find("none is not there") != std::string::npos);
        CHECK(scene.run({"load", "/set", "--wait", "much"}).code == 2);
        // A second service is refused; the first one ends in order.
        const auto second = test_support::run_program({FABRIC_DATA_PATH, "serve", "--config",
                                                       scene.file, "--socket", scene.socket,
                                                       "--daemon", scene.daemon.socket()});
        CHECK(second.code == 1);
        CHECK(second.error.find("a service has " + scene.socket + " already") != std::string::npos);
        CHECK(WEXITSTATUS(service.stop()) == 0);
        CHECK(scene.run({"status"}).code == 2);
    }

    TEST_CASE("a start that can't be leaves nothing, and names the line where there is one") {
        Scene scene("32MiB");
        const std::string folder = scene.folder.path() + "/" + std::string(120, 'x');
        const std::string place = folder + "/data.sock";
        std::filesystem::create_directory(folder);
        const auto start = [&](const std::string& socket) {
            return test_support::run_program({FABRIC_DATA_PATH, "serve", "--config", scene.file,
                                              "--socket", socket, "--daemon",
                                              scene.daemon.socket()});
        };
        const auto long_one = start(place);
        CHECK(long_one.code == 2);
        CHECK(long_one.error ==
              "fabric-data: " + place + ": a socket's path has at most 107 bytes (--socket)\n");
        CHECK(std::filesystem::is_empty(folder));

        std::ofstream(scene.file, std::ios::app) << "[service]\ngroup = \"no-such-group\"\n";
        const auto bad_group = start(scene.socket);
        CHECK(bad_group.code == 2);
        CHECK(bad_group.error == scene.file + ":9: group: this host has no group no-such-group\n");
        const auto checked =
            test_support::run_program({FABRIC_DATA_PATH, "check", "--config", scene.file});
        CHECK(checked.code == 2);
        CHECK(checked.out.find(bad_group.error) != std::string::npos);
        CHECK_FALSE(std::filesystem::exists(scene.socket + ".lock"));
    }

    TEST_CASE("a plan goes on after SIGKILL of the service, as long as its process lives") {
        const TemporaryDirectory state;
        Scene scene("32MiB\"\nstate = \"" + state.path());
        for (int i = 0; i < 30; ++i) {
            put_file(scene.silo + "/g" + std::to_string(i), std::string(2'000'000, 'x'));
        }
        DataServeProcess service = scene.serve();
        REQUIRE(service.is_up());
        const auto announce = [&](std::uint64_t seed) {
            auto client = std::make_unique<DataClient>(scene.socket);
            const auto listed = client->list("/set", true, 1'000'000);
            proto::DataPlanRequest plan{};
            plan.listing = listed.id;
            plan.seed = seed;
            plan.world = 1;
            const auto answer = client->ask(proto::DataType::kPlan, data_payload(plan));
            return answer.status == Errc::kOk ? std::move(client) : nullptr;
        };
        const auto seeds = [&] {
            std::vector<std::uint64_t> found;
            const auto status = scene.status();
            for (const auto& plan : status["plans"]) found.push_back(plan["seed"]);
            return found;
        };
        using Seeds = std::vector<std::uint64_t>;
        auto client = announce(5);
        REQUIRE(client != nullptr);
        Gate is_announced;
        Child other([&] {
            const auto its = announce(77);
            if (its == nullptr) return 1;
            is_announced.open();
            for (;;) ::pause();
        });
        REQUIRE(is_announced.wait());
        CHECK(seeds() == Seeds{5, 77});
        CHECK(scene.becomes([&] {
            std::ifstream log(state.file("data-catalogue-wal"), std::ios::binary);
            const std::string text{std::istreambuf_iterator<char>(log), {}};
            return text.find("plan1 77 ") != text.npos;
        }));
        service.kill();
        other.kill();
        service.start();
        REQUIRE(service.is_up());
        // Without an announcement and without a read.
        CHECK(scene.becomes([&] { return seeds() == Seeds{5}; }));
        CHECK(scene.becomes([&] { return scene.status()["silos"][0]["fetches"] > 0; }));
        // Its next epoch ends what was taken up for it.
        client = announce(6);
        REQUIRE(client != nullptr);
        CHECK(scene.becomes([&] { return seeds() == Seeds{6}; }));
        client.reset();
        CHECK(scene.becomes([&] { return seeds().empty(); }));
        CHECK(WEXITSTATUS(service.stop()) == 0);
        service.start();
        REQUIRE(service.is_up());
        CHECK(seeds().empty());
    }

    TEST_CASE("no byte is wrong while files change and the service is killed again and again") {
        Scene scene("32MiB");
        constexpr int kFiles = 20;
        for (int i = 0; i < kFiles; ++i) scene.put(i, 1);
        DataServeProcess service(FABRIC_DATA_PATH, scene.file, scene.socket, scene.daemon.socket());
        REQUIRE(service.is_up());
        std::atomic<bool> stop{false};
        struct Seen {
            std::uint64_t right = 0, changed = 0, wrong = 0, failed = 0;
            std::string problem;
        };
        std::array<Seen, 2> seen;
        std::atomic<std::uint64_t> whole{0};  // of both
        std::vector<std::thread> threads;
        for (std::size_t who = 0; who < seen.size(); ++who) {
            threads.emplace_back([&, who] {
                Seen& mine = seen[who];
                std::mt19937 random(static_cast<unsigned>(who));
                DataReader reader(scene.daemon.socket(), scene.socket);
                while (!stop) {
                    const auto listed = reader.list("/set");
                    if (listed.entries.empty()) {
                        ++mine.failed;
                        mine.problem = listed.text + reader.problem;
                        return;
                    }
                    for (int turn = 0; turn < 20 && !stop; ++turn) {
                        const auto& [name, entry] =
                            listed.entries[random() % listed.entries.size()];
                        // What put_file() is still writing is listed, too.
                        if (name.ends_with(".part")) continue;
                        std::string content;
                        const auto read = reader.read(entry, content);
                        if (read == DataReader::Read::kChanged) {
                            ++mine.changed;
                            break;
                        }
                        if (read == DataReader::Read::kFailed) {
                            ++mine.failed;
                            mine.problem = reader.problem;
                            return;
                        }
                        const bool is_right = is_whole(name, content);
                        ++(is_right ? mine.right : mine.wrong);
                        ++whole;
                        if (!is_right) mine.problem = "wrong bytes in " + name;
                    }
                }
            });
        }
        std::mt19937 random(7);
        constexpr int kKills = 12;
        for (int kill = 0; kill < kKills; ++kill) {
            for (int change = 0; change < 5; ++change) {
                scene.put(static_cast<int>(random() % kFiles), 2 + kill * 5 + change);
            }
            // At another point of its work each time.
            ::usleep(static_cast<useconds_t>(20'000 + random() % 150'000));
            service.kill();
            service.start();
            if (!service.is_up()) break;
        }
        const bool is_up = service.is_up();
        // Between the kills a slow machine may read nothing.
        const auto deadline = Clock::now() + 60s;
        while (whole <= 50 && Clock::now() < deadline) ::usleep(1000);
        stop = true;
        for (auto& thread : threads) thread.join();
        CHECK(is_up);
        std::uint64_t right = 0;
        for (const Seen& mine : seen) {
            CAPTURE(mine.problem);
            CHECK(mine.wrong == 0);
            CHECK(mine.failed == 0);
            right += mine.right;
        }
        CHECK(right > 50);
        MESSAGE("files read: ", right, ", versions that went: ", seen[0].changed + seen[1].changed);
        CHECK(WEXITSTATUS(service.stop()) == 0);
    }
}
