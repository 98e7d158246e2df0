// The data service over S3 and over a web server that refuse, stall and change.

#include "fabricd/data/serve/data_service.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/data_service_bench.hpp"
#include "tests/support/s3_server.hpp"

using namespace fabricd;
using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::S3Server;

namespace {

struct Scene {
    S3Server server;
    test_support::TemporaryDirectory folder;
    std::unique_ptr<DataServiceBench> bench;
    std::unique_ptr<DataClient> client;

    explicit Scene(Duration timeout = 3s) {
        const std::string key = folder.file("key");
        std::ofstream(key) << S3Server::credentials();
        ::chmod(key.c_str(), 0600);
        DataSpec spec;
        spec.memory = 32 * kMiB;
        spec.silo_timeout = timeout;
        SiloSpec silo;
        silo.at = "/bucket";
        silo.from = "s3://datasets/set";
        silo.endpoint = "http://127.0.0.1:" + std::to_string(server.port());
        silo.region = S3Server::kRegion;
        silo.credentials = key;
        spec.silos = {silo};
        for (int i = 0; i < 20; ++i) server.put(key_of(i), 1, 1000 + 100'000 * i);
        bench = std::make_unique<DataServiceBench>(spec);
        REQUIRE(bench->problem == "");
        client = std::make_unique<DataClient>(bench->folder.file("data.sock"));
    }
    static std::string key_of(int i) {
        return "set/d" + std::to_string(i % 3) + "/f" + std::to_string(i);
    }
    bool has(const DataEntry& entry, const std::string& wanted) const {
        const auto& line = data_line(bench->arena.get(), bench->tables, entry.first_line);
        if (data_state(line.word.load()) != DataLineState::kReady) return false;
        const auto extent = read_data_line(line, bench->tables);
        return extent && extent->file == entry.file &&
               std::string(reinterpret_cast<const char*>(bench->arena.get() + extent->offset),
                           extent->bytes) == wanted;
    }
    DataClient::Listed list() { return client->list("/bucket", true, bench->tables.lines); }
};

}  // namespace

TEST_SUITE("net.data_service") {
    TEST_CASE("objects of a bucket come into the arena, and a new version has other lines") {
        Scene scene;
        const auto listed = scene.list();
        REQUIRE(listed.entries.size() == 20);
        for (int i = 0; i < 20; ++i) {
            const auto* entry = listed.find(Scene::key_of(i).substr(4));
            REQUIRE(entry != nullptr);
            REQUIRE(scene.client->fetch(*entry).status == Errc::kOk);
            CHECK(scene.has(*entry,
                            test_support::s3_content(Scene::key_of(i), 1, 1000 + 100'000 * i)));
        }
        const DataEntry old = *listed.find("d1/f1");
        scene.client->command(R"({"command":"drop","path":"/bucket"})");
        scene.server.put("set/d1/f1", 2, 5000);
        CHECK(scene.client->fetch(old).status == Errc::kChanged);
        scene.client->command(R"({"command":"refresh","path":"/bucket"})");
        const DataEntry fresh = *scene.list().find("d1/f1");
        CHECK(fresh.file != old.file);
        REQUIRE(scene.client->fetch(fresh).status == Errc::kOk);
        CHECK(scene.has(fresh, test_support::s3_content("set/d1/f1", 2, 5000)));
    }

    TEST_CASE("a server that stalls is an error in time, and what is in memory goes on") {
        Scene scene(400ms);
        // Again where the server took as long as that without a fault, on a busy machine.
        const auto until = Clock::now() + 60s;
        auto listed = scene.list();
        while (listed.entries.size() != 20 && Clock::now() < until) listed = scene.list();
        REQUIRE(listed.entries.size() == 20);
        const DataEntry here = *listed.find("d1/f1");
        Errc kept = scene.client->fetch(here).status;
        while (kept == Errc::kTimeout && Clock::now() < until) {
            kept = scene.client->fetch(here).status;
        }
        REQUIRE(kept == Errc::kOk);
        scene.server.fault("stall", 1000, "GET");
        const auto begin = Clock::now();
        const auto late = scene.client->fetch(*listed.find("d0/f0"));
        CHECK(late.status == Errc::kTimeout);
        CHECK(late.payload == "/bucket: the silo has not answered in time");
        CHECK(Clock::now() - begin < 10s);
        CHECK(scene.client->fetch(here).status == Errc::kOk);
        // The listing of before goes on, though it should be asked for again.
        scene.client->command(R"({"command":"refresh","path":"/bucket"})");
        CHECK(scene.list().entries.size() == 20);
        scene.server.fault("none", 0);
    }

    TEST_CASE("a server that refuses is an error in its words, and no deletion") {
        Scene scene;
        const auto listed = scene.list();
        REQUIRE(listed.entries.size() == 20);
        scene.server.fault("403", 1000);
        const auto refused = scene.client->fetch(*listed.find("d0/f0"));
        CHECK(refused.status == Errc::kDenied);
        CHECK(refused.payload.find("403") != std::string::npos);
        scene.client->command(R"({"command":"refresh","path":"/bucket"})");
        CHECK(scene.list().entries.size() == 20);
        const auto status =
            nlohmann::json::parse(scene.client->command(R"({"command":"status"})"), nullptr, false);
        CHECK(status["silos"][0]["last_failure"].get<std::string>().find("403") !=
              std::string::npos);
        scene.server.fault("none", 0);
        CHECK(scene.client->fetch(*listed.find("d0/f0")).status == Errc::kOk);
    }
}
