// write = "back" against a bucket that does not take the files for a while.

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "tests/support/data_service_bench.hpp"
#include "tests/support/s3_server.hpp"

using namespace fabricd;
using namespace fabricshm;
using nlohmann::json;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::S3Server;
using test_support::TemporaryDirectory;

namespace {

struct Scene {
    S3Server server;
    TemporaryDirectory folder;
    std::unique_ptr<DataServiceBench> bench;
    std::unique_ptr<DataClient> client;

    Scene() {
        const std::string key = folder.file("key");
        std::ofstream(key) << S3Server::credentials();
        ::chmod(key.c_str(), 0600);
        DataSpec spec;
        spec.memory = 96 * kMiB;
        SiloSpec silo;
        silo.at = "/out";
        silo.from = "s3://datasets/out";
        silo.endpoint = "http://127.0.0.1:" + std::to_string(server.port());
        silo.region = S3Server::kRegion;
        silo.credentials = key;
        silo.refresh = std::chrono::hours(1);
        silo.write = WritePolicy::kBack;
        spec.silos = {silo};
        bench = std::make_unique<DataServiceBench>(spec);
        REQUIRE(bench->problem == "");
        client = std::make_unique<DataClient>(bench->folder.file("data.sock"));
    }
    json status() { return json::parse(client->command(R"({"command": "status"})")); }
    json flush() { return json::parse(client->command(R"({"command": "flush"})")); }
    bool has(const DataEntry& entry, const std::string& content) const {
        std::string found;
        for (std::uint64_t chunk = 0; chunk < data_chunks(entry.bytes); ++chunk) {
            const auto& line =
                data_line(bench->arena.get(), bench->tables, entry.first_line + chunk);
            const auto extent = read_data_line(line, bench->tables);
            if (data_state(line.word.load()) != DataLineState::kReady || !extent) return false;
            found.append(reinterpret_cast<const char*>(bench->arena.get() + extent->offset),
                         extent->bytes);
        }
        return found == content;
    }
};

}  // namespace

TEST_SUITE("net.write_back") {
    TEST_CASE("a commit is answered by the cache; the bucket has the file when it takes it") {
        Scene scene;
        std::map<std::string, std::string> texts;
        for (int i = 0; i < 5; ++i) {
            const std::string name = "a/f" + std::to_string(i);
            texts[name] = data_content(name, 1, static_cast<std::size_t>(1000 * i + 1));
        }
        texts["large"] = data_content("large", 1, 9 * kMiB);
        scene.server.fault("403", 1'000'000, "PUT");
        for (const auto& [name, text] : texts) {
            REQUIRE(scene.client->write("/out/" + name, text).status == Errc::kOk);
        }
        // Seen, read and listed by folders, before the bucket has them.
        const auto before = scene.client->list("/out", true, scene.bench->tables.lines);
        CHECK(before.entries.size() == texts.size());
        for (const auto& [name, text] : texts) {
            REQUIRE(before.find(name) != nullptr);
            CHECK(scene.has(*before.find(name), text));
            CHECK(scene.server.object("out/" + name).md5.empty());
        }
        CHECK(scene.client->list("/out", false, scene.bench->tables.lines).entries.size() == 2);
        CHECK(scene.client->list("/out/a", false, scene.bench->tables.lines).entries.size() == 5);
        CHECK(scene.client->write("/out/a/f1", "again").status == Errc::kExists);
        // What only the cache has is not dropped.
        scene.client->command(R"({"command": "drop", "path": "/out"})");
        CHECK(scene.has(*before.find("large"), texts["large"]));
        json writes = scene.flush();
        for (int turn = 0; turn < 100'000 && writes["failed_uploads"] == 0; ++turn) {
            writes = scene.flush();
        }
        CHECK(writes["pending"] == texts.size());
        CHECK(writes["failed_uploads"].get<int>() > 0);
        const std::string failure = writes["last_failure"];
        CHECK(failure.find("AccessDenied") != std::string::npos);
        CHECK(failure.find(S3Server::kSecret) == std::string::npos);
        scene.server.fault("none", 0);
        for (int turn = 0; turn < 1'000'000 && scene.flush()["pending"] != 0; ++turn) {
            std::this_thread::yield();
        }
        CHECK(scene.flush()["committed"] == texts.size());
        CHECK(scene.server.uploads() == 0);
        scene.client->command(R"({"command": "refresh", "path": "/out"})");
        const auto after = scene.client->list("/out", true, scene.bench->tables.lines);
        REQUIRE(after.entries.size() == texts.size());
        for (const auto& [name, text] : texts) {
            CHECK(scene.server.object("out/" + name).bytes == text.size());
            CHECK(after.find(name)->file == before.find(name)->file);
            CHECK(scene.has(*after.find(name), text));
        }
        CHECK(scene.status()["silos"][0]["fetches"] == 0);
    }
}
