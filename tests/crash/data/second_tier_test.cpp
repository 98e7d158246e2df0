// A data service that is killed: its successor finds what was spilled again, also while the silo is
// away.

#include "fabricd/data/serve/second_tier.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "libfabricshm/base/crc32c.hpp"
#include "tests/support/children.hpp"
#include "tests/support/data_service_bench.hpp"

using namespace fabricd;
using namespace fabricshm;
using namespace std::chrono_literals;
using nlohmann::json;
using test_support::Child;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::Gate;
using test_support::put_file;
using test_support::TemporaryDirectory;

namespace {

struct Disks {
    TemporaryDirectory data{"/dev/shm"};
    TemporaryDirectory spill{"/dev/shm"};

    std::string silo() const { return data.file("silo"); }
    DataSpec spec() const {
        DataSpec spec;
        spec.memory = 32 * kMiB;
        spec.silo_timeout = 10s;
        spec.spill = spill.path();
        spec.spill_bytes = 64 * kMiB;
        SiloSpec one;
        one.at = "/set";
        one.from = silo();
        spec.silos = {one};
        return spec;
    }
};

json ask(DataClient& client, const std::string& command, const std::string& path = "") {
    return json::parse(client.command(json{{"command", command}, {"path", path}}.dump()), nullptr,
                       false);
}

const std::pair<const char*, std::size_t> kFiles[] = {
    {"a", 10'000}, {"b", 3}, {"large", 5 * kMiB}, {"sub/c", 70'000}};

std::string content_of(const std::string& name) {
    for (const auto& [one, bytes] : kFiles) {
        if (name == one) return data_content(name, 1, bytes);
    }
    return "";
}

// Fetches each chunk of each file; how many were not as they have to be.
int fetch_all(DataServiceBench& bench, DataClient& client) {
    const auto listed = client.list("/set", true, bench.tables.lines);
    int wrong = listed.entries.size() == std::size(kFiles) ? 0 : 100;
    for (const auto& [name, entry] : listed.entries) {
        const std::string content = content_of(name);
        for (std::uint64_t chunk = 0; chunk * kDataChunkBytes < content.size(); ++chunk) {
            wrong += client.fetch(entry, chunk).status == Errc::kOk ? 0 : 1;
            const auto& line = data_line(bench.arena.get(), bench.tables, entry.first_line + chunk);
            const auto extent = read_data_line(line, bench.tables);
            const std::string wanted = content.substr(chunk * kDataChunkBytes, kDataChunkBytes);
            const bool is_right =
                extent && extent->bytes == wanted.size() &&
                std::memcmp(bench.arena.get() + extent->offset, wanted.data(), wanted.size()) == 0;
            wrong += is_right ? 0 : 1;
        }
    }
    return wrong;
}

int serve_until_killed(const Disks& disks, Gate& is_saved) {
    DataServiceBench bench(disks.spec());
    if (!bench.problem.empty()) return 1;
    DataClient client(bench.folder.file("data.sock"));
    if (fetch_all(bench, client) != 0) return 2;
    if (ask(client, "drop", "/set")["dropped"] != 5) return 3;
    for (;;) {
        const json spill = ask(client, "status")["spill"];
        if (spill["stored"] == 5 && spill["unsaved"] == 0) break;
        ::usleep(1000);
    }
    is_saved.open();
    for (;;) ::pause();
}

}  // namespace

TEST_SUITE("crash.data.second_tier") {
    TEST_CASE("after SIGKILL files are read from the spill while their silo is away") {
        const Disks disks;
        for (const auto& [name, bytes] : kFiles) {
            const std::filesystem::path path = disks.silo() + "/" + name;
            std::filesystem::create_directories(path.parent_path());
            put_file(path, data_content(name, 1, bytes));
        }
        Gate is_saved;
        Child service([&] { return serve_until_killed(disks, is_saved); });
        REQUIRE(is_saved.wait());
        service.kill();
        std::filesystem::rename(disks.silo(), disks.data.file("away"));

        DataServiceBench bench(disks.spec());
        REQUIRE(bench.problem == "");
        DataClient client(bench.folder.file("data.sock"));
        CHECK(ask(client, "status")["spill"]["chunks"] == 5);
        CHECK(fetch_all(bench, client) == 0);
        const json status = ask(client, "status");
        CHECK(status["silos"][0]["failing_for_s"] > 0);
        CHECK(status["silos"][0]["last_failure"] == disks.silo() + " is not there");
        CHECK(ask(client, "refresh", "/set").is_discarded());
        CHECK(status["spill"]["found"] == 5);
        CHECK(status["spill"]["corrupt"] == 0);
        const json why = ask(client, "why", "/set/large");
        CHECK(why["chunks"][1]["spilled"] == true);
        CHECK(why["chunks"][1]["state"] == "ready");
        // It is back.
        std::filesystem::rename(disks.data.file("away"), disks.silo());
        CHECK(ask(client, "refresh", "/set")["files"] == std::size(kFiles));
        CHECK(ask(client, "status")["silos"][0]["failing_for_s"] == 0.0);
    }

    TEST_CASE("what leaves memory comes back from the disk, and from the silo what is compared") {
        const Disks disks;
        std::filesystem::create_directories(disks.silo() + "/sub");
        for (const auto& [name, bytes] : kFiles) {
            put_file(disks.silo() + "/" + name, data_content(name, 1, bytes));
        }
        DataServiceBench bench(disks.spec());
        REQUIRE(bench.problem == "");
        DataClient client(bench.folder.file("data.sock"));
        CHECK(fetch_all(bench, client) == 0);
        CHECK(ask(client, "drop", "/set")["dropped"] == 5);
        CHECK(fetch_all(bench, client) == 0);
        CHECK(ask(client, "status")["spill"]["found"] == 5);
        json walk = json::parse(
            client.command(json{{"command", "verify"}, {"path", "/set"}, {"silo", true}}.dump()));
        while (walk["over"] != true) {
            walk = json::parse(
                client.command(json{{"command", "walk"}, {"walk", walk["walk"]}}.dump()));
        }
        CHECK(walk["failed"] == 0);
        CHECK(ask(client, "status")["spill"]["found"] == 5);
    }
}
