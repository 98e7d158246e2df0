#include "fabricd/data/serve/data_service.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "fabricd/data/plan/sample_order.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "tests/support/data_service_bench.hpp"

using namespace fabricd;
using namespace fabricshm;
using namespace fabricshm::proto;
using namespace std::chrono_literals;
using nlohmann::json;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::put_file;
using test_support::TemporaryDirectory;

namespace {

struct Scene {
    TemporaryDirectory data;
    std::unique_ptr<DataServiceBench> bench;
    std::unique_ptr<DataClient> client;

    explicit Scene(Bytes memory = 32 * kMiB, std::uint64_t files = 0) {
        DataSpec spec;
        spec.memory = memory;
        spec.files = files;
        spec.silo_timeout = 5s;
        SiloSpec silo;
        silo.at = "/set/a";
        silo.from = data.file("silo");
        silo.refresh = std::chrono::hours(1);  // until a test says refresh
        spec.silos = {silo};
        std::filesystem::create_directory(silo.from);
        bench = std::make_unique<DataServiceBench>(spec);
        REQUIRE(bench->problem == "");
        connect();
    }
    void connect() { client = std::make_unique<DataClient>(bench->folder.file("data.sock")); }
    void put(const std::string& name, int version, std::size_t bytes) const {
        const std::filesystem::path path = data.path() + "/silo/" + name;
        std::filesystem::create_directories(path.parent_path());
        put_file(path, data_content(name, version, bytes));
    }
    DataClient::Listed list(const std::string& path = "/set/a", bool is_recursive = true) {
        return client->list(path, is_recursive, bench->tables.lines);
    }
    // What a reader finds in the line, when it is ready with right checksum and the wanted bytes.
    bool has(const DataEntry& entry, const std::string& content, std::uint64_t chunk = 0) const {
        const auto& line = data_line(bench->arena.get(), bench->tables, entry.first_line + chunk);
        if (data_state(line.word.load()) != DataLineState::kReady) return false;
        const auto extent = read_data_line(line, bench->tables);
        if (!extent || extent->file != entry.file || extent->chunk != chunk) return false;
        const std::string wanted = content.substr(chunk * kDataChunkBytes, kDataChunkBytes);
        const std::string found(reinterpret_cast<const char*>(bench->arena.get() + extent->offset),
                                extent->bytes);
        return found == wanted && extent->checksum == crc32c(found.data(), found.size());
    }
    DataLineState state(std::uint64_t line) const {
        return data_state(data_line(bench->arena.get(), bench->tables, line).word.load());
    }
    json command(const std::string& name, const std::string& path = "", bool silo = false) {
        return json::parse(
            client->command(json{{"command", name}, {"path", path}, {"silo", silo}}.dump()),
            nullptr, false);
    }
    json walked(const std::string& name, bool silo = false) {
        json view = command(name, "/set/a", silo);
        for (int turn = 0; turn < 60'000 && view["over"] != true; ++turn) {
            view = json::parse(
                client->command(json{{"command", "walk"}, {"walk", view["walk"]}}.dump()));
        }
        return view;
    }
};

template <typename Condition>
bool becomes_true(const Condition& condition) {
    const auto deadline = Clock::now() + 60s;
    while (!condition()) {
        if (Clock::now() > deadline) return false;
        std::this_thread::yield();
    }
    return true;
}

}  // namespace

TEST_SUITE("data.data_service") {
    TEST_CASE("a file is listed, fetched and read in the arena, chunk by chunk") {
        Scene scene;
        scene.put("small", 1, 1000);
        scene.put("deep/large", 1, 2 * kDataChunkBytes + 5000);
        scene.put("empty", 1, 0);
        const auto hello = scene.client->ask(DataType::kHello, "");
        REQUIRE(hello.status == Errc::kOk);
        const auto reply = data_fixed<DataHelloReply>(hello.payload);
        REQUIRE(reply);
        CHECK(std::string(reply->arena) == "data-test");
        CHECK(reply->generation == 1);

        const auto listed = scene.list();
        REQUIRE(listed.status == Errc::kOk);
        REQUIRE(listed.entries.size() == 3);
        CHECK(listed.find("empty")->first_line == kNoLine);
        const DataEntry& small = *listed.find("small");
        CHECK(small.bytes == 1000);
        CHECK(small.mtime_ns > 0);
        CHECK(scene.client->fetch(small).status == Errc::kOk);
        CHECK(scene.has(small, data_content("small", 1, 1000)));
        const DataEntry& large = *listed.find("deep/large");
        const std::string content = data_content("deep/large", 1, 2 * kDataChunkBytes + 5000);
        for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
            CHECK(scene.client->fetch(large, chunk).status == Errc::kOk);
            CHECK(scene.has(large, content, chunk));
        }
        CHECK(scene.client->fetch(large, 3).status == Errc::kInvalid);

        const auto flat = scene.list("/set/a", false);
        REQUIRE(flat.entries.size() == 3);
        CHECK((flat.find("deep")->flags & kEntryFolder) != 0);
        CHECK(flat.find("small")->file == small.file);
        CHECK(scene.list("/set", false).find("a") != nullptr);
        CHECK(scene.list("/", false).find("set") != nullptr);
        CHECK(scene.list("/other").status == Errc::kNotFound);
        CHECK(scene.list("/set/a/nothing").status == Errc::kNotFound);
        CHECK(scene.list("/set/a/../a").status == Errc::kNotFound);

        const auto stat = scene.client->ask(DataType::kStat, "/set/a/small");
        REQUIRE(stat.status == Errc::kOk);
        CHECK(data_fixed<DataStatReply>(stat.payload)->file == small.file);
        const auto folder = scene.client->ask(DataType::kStat, "/set/a/deep");
        CHECK((data_fixed<DataStatReply>(folder.payload)->flags & kEntryFolder) != 0);
        CHECK(scene.client->ask(DataType::kStat, "/set/a/none").status == Errc::kNotFound);
    }

    TEST_CASE("a file that changed has other lines, and the old version is said to be gone") {
        Scene scene;
        scene.put("x", 1, 1000);
        const auto before = scene.list();
        const DataEntry old = *before.find("x");
        REQUIRE(scene.client->fetch(old).status == Errc::kOk);
        scene.put("x", 2, 1200);
        // Its name is not looked at again yet.
        CHECK(scene.list().find("x")->file == old.file);
        CHECK(scene.command("refresh", "/set/a")["files"] == 1);
        const auto after = scene.list();
        const DataEntry fresh = *after.find("x");
        CHECK(fresh.file != old.file);
        CHECK(scene.client->fetch(old).status == Errc::kChanged);
        CHECK(scene.client->fetch(fresh).status == Errc::kOk);
        CHECK(scene.has(fresh, data_content("x", 2, 1200)));

        // Found while it is fetched.
        scene.command("drop", "/set/a");
        scene.put("x", 3, 1200);
        CHECK(scene.client->fetch(fresh).status == Errc::kChanged);
        std::filesystem::remove(scene.data.file("silo/x"));
        scene.command("refresh", "/set/a");
        CHECK(scene.list().entries.empty());
    }

    TEST_CASE("a silo that fails is an error with its text, and never an empty folder") {
        Scene scene;
        scene.put("x", 1, 1000);
        const auto listed = scene.list();
        std::filesystem::rename(scene.data.file("silo"), scene.data.file("away"));
        const auto lost = scene.list("/set/a/sub");
        CHECK(lost.status != Errc::kOk);
        scene.client->command(R"({"command":"refresh","path":"/set/a"})");
        // What was known goes on.
        CHECK(scene.list().entries.size() == 1);
        CHECK(scene.list().find("x")->file == listed.find("x")->file);
        CHECK(scene.command("status")["silos"][0]["failing_for_s"] > 0);
    }

    TEST_CASE("what readers hold stays while all else passes through the memory") {
        Scene scene(2 * kMiB + 16 * kMiB);
        for (int i = 0; i < 12; ++i) scene.put("f" + std::to_string(i), 1, 3 * kMiB);
        const auto listed = scene.list();
        const DataEntry& held = *listed.find("f0");
        REQUIRE(scene.client->fetch(held).status == Errc::kOk);
        {
            const std::lock_guard lock(scene.bench->memory.mutex);
            scene.bench->memory.pins.insert(held.first_line);
        }
        for (int round = 0; round < 3; ++round) {
            for (int i = 1; i < 12; ++i) {
                const std::string name = "f" + std::to_string(i);
                CHECK(scene.client->fetch(*listed.find(name)).status == Errc::kOk);
                CHECK(scene.has(*listed.find(name), data_content(name, 1, 3 * kMiB)));
            }
        }
        CHECK(scene.has(held, data_content("f0", 1, 3 * kMiB)));
        const json why = scene.command("why", "/set/a/f0");
        CHECK(why["chunks"][0]["state"] == "ready");
        CHECK(why["chunks"][0]["pinned_by"][0]["pins"] == 1);
        const json status = scene.command("status");
        CHECK(status["cache"]["evicted"] > 10);
        CHECK(status["silos"][0]["files"] == 12);
    }

    TEST_CASE("more files than the table has lines are refused with the key that helps") {
        Scene scene(16 * kMiB, 4);
        for (int i = 0; i < 5; ++i) scene.put("f" + std::to_string(i), 1, 10);
        const auto listed = scene.list();
        CHECK(listed.status == Errc::kNoMemory);
        CHECK(listed.text.find("cache.files") != std::string::npos);
    }

    TEST_CASE("load, verify and drop do what they say, and find a byte that is wrong") {
        Scene scene;
        for (int i = 0; i < 20; ++i) scene.put("f" + std::to_string(i), 1, 100'000);
        const json loaded = scene.walked("load");
        CHECK(loaded["done_files"] == 20);
        CHECK(loaded["done_bytes"] == 2'000'000);
        CHECK(loaded["failed"] == 0);
        CHECK(scene.walked("verify")["failed"] == 0);
        CHECK(scene.walked("verify", true)["done_bytes"] == 2'000'000);
        const DataEntry entry = *scene.list().find("f7");
        const auto& line =
            data_line(scene.bench->arena.get(), scene.bench->tables, entry.first_line);
        scene.bench->arena.get()[line.offset + 5] ^= std::byte{1};
        const json wrong = scene.walked("verify");
        CHECK(wrong["failed"] == 1);
        CHECK(wrong["first_failure"] == "/set/a/f7: its bytes in memory are wrong");
        CHECK(scene.command("drop", "/set/a")["dropped"] == 20);
        CHECK(scene.walked("verify")["not_in_memory"] == 20);
        CHECK(scene.client->fetch(entry).status == Errc::kOk);
        CHECK(scene.has(entry, data_content("f7", 1, 100'000)));
    }

    TEST_CASE("a plan fetches ahead of its readers, and keeps what fits") {
        Scene scene(2 * kMiB + 16 * kMiB);
        constexpr int kFiles = 40;
        for (int i = 0; i < kFiles; ++i) scene.put("f" + std::to_string(i), 1, kMiB);
        const auto listed = scene.list();
        DataPlanRequest plan{};
        plan.listing = listed.id;
        plan.world = 1;
        for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
            plan.seed = 10 + epoch;
            REQUIRE(scene.client->ask(DataType::kPlan, data_payload(plan)).status == Errc::kOk);
            const auto order = sample_order({kFiles, plan.seed, true});
            int hits = 0;
            for (const auto sample : order) {
                const DataEntry& entry = listed.entries[sample].second;
                // A reader that computes as long as the silo takes.
                hits += becomes_true(
                    [&] { return scene.state(entry.first_line) == DataLineState::kReady; });
                const auto& line =
                    data_line(scene.bench->arena.get(), scene.bench->tables, entry.first_line);
                CHECK(line.file == entry.file);
                scene.bench->memory.view(entry.first_line);
            }
            CHECK(hits == kFiles);
            const json view = scene.command("status")["plans"].back();
            CHECK(view["seed"] == plan.seed);
            CHECK(view["kept_bytes"] >= 8 * kMiB);
        }
        // Another job's end lets go of what was kept.
        scene.client.reset();
        scene.connect();
        CHECK(becomes_true([&] { return scene.command("status")["plans"].empty(); }));
        CHECK(scene.command("status")["cache"]["kept_bytes"] == 0);
        plan.listing = 12345;
        CHECK(scene.client->ask(DataType::kPlan, data_payload(plan)).status == Errc::kNotFound);
    }

    TEST_CASE("a service that is started again finds what is in memory, under the same numbers") {
        Scene scene;
        scene.put("x", 1, 1000);
        scene.put("y", 1, 1000);
        const auto before = scene.list();
        REQUIRE(scene.client->fetch(*before.find("x")).status == Errc::kOk);
        scene.bench->stop();
        scene.put("y", 2, 1000);
        scene.bench->start(false);
        REQUIRE(scene.bench->problem == "");
        scene.connect();
        // A reader of before has its listing, and goes on with it.
        CHECK(scene.client->fetch(*before.find("x")).status == Errc::kOk);
        CHECK(scene.client->fetch(*before.find("y")).status == Errc::kChanged);
        const auto after = scene.list();
        CHECK(after.find("x")->file == before.find("x")->file);
        CHECK(after.find("x")->first_line == before.find("x")->first_line);
        CHECK(after.find("y")->file > before.find("y")->file);
        CHECK(scene.has(*after.find("x"), data_content("x", 1, 1000)));
        CHECK(scene.command("status")["silos"][0]["fetches"] == 0);
    }

    TEST_CASE("requests that are malformed, or of a type that is not served, are answered") {
        Scene scene;
        for (const auto type : {DataType::kList, DataType::kFetch, DataType::kPlan}) {
            CHECK(scene.client->ask(type, "xyz").status == Errc::kInvalid);
        }
        CHECK(scene.client->ask(DataType::kCreate, "/set/a/new").status == Errc::kDenied);
        CHECK(scene.client->ask(DataType::kStat, "").status == Errc::kOk);
        for (const char* text :
             {"", "{", "[]", "{\"command\":3}", "{\"command\":\"status\"", "{\"command\":\"drop\"}",
              "{\"command\":\"walk\",\"walk\":\"x\"}"}) {
            CHECK(scene.client->ask(DataType::kCommand, text).status != Errc::kOk);
        }
    }
}
