#include "fabricd/data/serve/data_service.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fabricd/data/plan/sample_order.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/log.hpp"
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

// A silo of files that are all damaged.
struct BadFiles : Silo {
    Result<SiloPage> list(const std::string&, const std::string&, std::size_t, TimePoint) override {
        return SiloPage{};
    }
    Result<FileFacts> look(const std::string&, TimePoint) override {
        return Error{Errc::kNotFound, 0, "look"};
    }
    bool has_room() const noexcept override { return true; }
    void start(const Fetch& fetch) override { tags.push_back(fetch.tag); }
    std::vector<Fetched> wait(TimePoint) override {
        std::vector<Fetched> ended;
        for (const auto tag : std::exchange(tags, {})) {
            ended.push_back({tag,
                             FetchOutcome::kFailed,
                             {Errc::kCorrupt, 0, "read"},
                             "x: damaged",
                             false,
                             true});
        }
        return ended;
    }
    std::vector<std::uint64_t> tags;
};

// A file that comes right after the silo was first asked for it.
struct LateFile : BadFiles {
    static inline std::atomic<int> looks{0};

    Result<SiloPage> list(const std::string& folder, const std::string&, std::size_t,
                          TimePoint) override {
        if (!folder.empty()) return Error{Errc::kNotFound, 0, "list"};
        return SiloPage{};
    }
    Result<FileFacts> look(const std::string&, TimePoint) override {
        if (looks++ == 0) return Error{Errc::kNotFound, 0, "look"};
        return FileFacts{10, {{1, 2, 3, 4}}};
    }
};

// A folder of so many small files. Says when the last page of them was given.
struct LargeSilo : BadFiles {
    static inline std::size_t names = 0;
    static inline std::atomic<bool> is_listed{false};

    Result<SiloPage> list(const std::string&, const std::string& after, std::size_t most,
                          TimePoint) override {
        SiloPage page;
        std::size_t next = after.empty() ? 0 : std::stoul(after.substr(1)) + 1;
        for (; next < names && page.entries.size() < most; ++next) {
            char name[32];
            std::snprintf(name, sizeof name, "f%08zu", next);
            page.entries.push_back({name, false, {10, {{next + 1, 0, 0, 0}}}});
        }
        page.is_last = next == names;
        if (page.is_last) is_listed = true;
        return page;
    }
};

// Files of one version whose bytes are others with each fetch of them.
struct RestlessFiles : BadFiles {
    static inline std::atomic<char> letter{'a'};

    Result<SiloPage> list(const std::string&, const std::string&, std::size_t, TimePoint) override {
        SiloPage page;
        page.entries.push_back({"x", false, {10, {{1, 0, 0, 0}}}});
        return page;
    }
    Result<FileFacts> look(const std::string&, TimePoint) override {
        return FileFacts{10, {{1, 0, 0, 0}}};
    }
    void start(const Fetch& fetch) override {
        std::memset(fetch.into, letter.load(), fetch.bytes);
        tags.push_back(fetch.tag);
    }
    std::vector<Fetched> wait(TimePoint) override {
        std::vector<Fetched> ended;
        for (const auto tag : std::exchange(tags, {})) {
            ended.push_back({tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, ""});
        }
        return ended;
    }
};

// A folder of which the silo says what can't be right.
struct WrongFiles : BadFiles {
    static inline std::atomic<bool> has_one{false};

    Result<SiloPage> list(const std::string&, const std::string&, std::size_t, TimePoint) override {
        SiloPage page;
        if (has_one) page.entries.push_back({"x", false, {10, {{1, 0, 0, 0}}}});
        page.left_out = page.wrong = 2;
        page.first_left_out = page.first_wrong = "y: of another length than in the index";
        return page;
    }
};

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
    // From now on that silo.
    template <typename Files>
    void serve() {
        bench->stop();
        bench->open_ = [](const SiloSpec&, std::span<std::byte>) {
            return Result<std::unique_ptr<Silo>>(std::make_unique<Files>());
        };
        bench->start(false);
        connect();
    }
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

    TEST_CASE("a file's own path is a listing of that file alone") {
        Scene scene;
        scene.put("deep/x.jpg", 1, 1000);
        scene.put("deep/y.jpg", 1, 1000);
        const auto folder = scene.list();
        for (const bool is_recursive : {false, true}) {
            const auto listed = scene.list("/set/a/deep/x.jpg", is_recursive);
            REQUIRE(listed.status == Errc::kOk);
            REQUIRE(listed.entries.size() == 1);
            CHECK(listed.entries[0].first == "x.jpg");
            CHECK(listed.entries[0].second.file == folder.find("deep/x.jpg")->file);
            CHECK(scene.client->fetch(listed.entries[0].second).status == Errc::kOk);
        }
        CHECK(scene.list("/set/a/deep/z.jpg").status == Errc::kNotFound);
        CHECK(scene.list("/set/a/deep/x.jpg/y").status == Errc::kNotFound);
        // Gone: its listing is, too, and its lines.
        std::filesystem::remove(scene.data.file("silo/deep/x.jpg"));
        scene.command("refresh", "/set/a");
        CHECK(scene.list("/set/a/deep/x.jpg").status == Errc::kNotFound);
    }

    TEST_CASE("a file that can't be had is its own error, and its silo answers") {
        Scene scene;
        scene.put("x", 1, 1000);
        const auto listed = scene.list();
        scene.bench->stop();
        scene.bench->before_ = [](const SiloSpec&, std::unique_ptr<Silo>) {
            return Result<std::unique_ptr<Silo>>(std::make_unique<BadFiles>());
        };
        scene.bench->start(false);
        scene.connect();
        const auto answer = scene.client->fetch(*listed.find("x"));
        CHECK(answer.status == Errc::kCorrupt);
        CHECK(answer.payload == "x: damaged");
        CHECK(scene.command("status")["silos"][0]["failing_for_s"] == 0.0);
    }

    TEST_CASE("what verify finds wrong is not read again") {
        Scene scene;
        scene.serve<RestlessFiles>();
        const DataEntry before = *scene.list().find("x");
        REQUIRE(scene.client->fetch(before).status == Errc::kOk);
        RestlessFiles::letter = 'b';
        CHECK(scene.walked("verify", true)["failed"] == 1);
        CHECK(scene.client->fetch(before).status == Errc::kChanged);
        const DataEntry after = *scene.list().find("x");
        CHECK(after.file != before.file);
        REQUIRE(scene.client->fetch(after).status == Errc::kOk);
        CHECK(scene.has(after, "bbbbbbbbbb"));
    }

    TEST_CASE("a silo's wrong answers are failures, and an error where nothing else is there") {
        Scene scene;
        scene.serve<WrongFiles>();
        CHECK(scene.list().status == Errc::kCorrupt);
        WrongFiles::has_one = true;
        CHECK(scene.list().status == Errc::kOk);
        const json silo = scene.command("status")["silos"][0];
        CHECK(silo["failures"] == 3);
        CHECK(silo["failing_for_s"] == 0.0);
        CHECK(silo["last_failure"] ==
              "/set/a: 2 left out for a wrong answer, the first y: of another length than in the "
              "index");
    }

    TEST_CASE("a file that comes while it is looked for is a file, not a folder") {
        Scene scene;
        scene.bench->stop();
        LateFile::looks = 0;
        scene.bench->open_ = [](const SiloSpec&, std::span<std::byte>) {
            return Result<std::unique_ptr<Silo>>(std::make_unique<LateFile>());
        };
        scene.bench->start(false);
        scene.connect();
        const auto answer = scene.client->ask(DataType::kStat, "/set/a/x");
        REQUIRE(answer.status == Errc::kOk);
        const auto reply = data_fixed<DataStatReply>(answer.payload);
        REQUIRE(reply.has_value());
        CHECK(LateFile::looks == 2);
        CHECK((reply->flags & kEntryFolder) == 0);
        CHECK(reply->bytes == 10);
        CHECK(reply->file != 0);
    }

    TEST_CASE("packets that are no requests end their connections, with a line now and then") {
        Scene scene;
        static std::vector<std::string> lines;
        set_log_sink([](LogLevel, const char* line) { lines.emplace_back(line); });
        for (int i = 0; i < 50; ++i) {
            const auto socket = UnixSocket::connect(scene.bench->socket(), Clock::now() + 60s);
            REQUIRE(socket.ok());
            const std::byte nonsense[40] = {};
            REQUIRE(socket->send(nonsense, {}, Clock::now() + 60s).ok());
            std::byte answer[40];
            std::array<Fd, 1> descriptors;
            CHECK_FALSE(socket->receive(answer, descriptors, Clock::now() + 60s).ok());
        }
        scene.bench->stop();
        set_log_sink(nullptr);
        const auto is_of_packet = [](const std::string& line) {
            return line.find("no request of this protocol") != std::string::npos;
        };
        CHECK(std::count_if(lines.begin(), lines.end(), is_of_packet) == 1);
    }

    TEST_CASE("while a large listing is made other requests are answered") {
        const char* const wanted = std::getenv("FABRIC_TEST_NAMES");  // for a measurement
        LargeSilo::names = wanted != nullptr ? std::stoul(wanted) : 60'000;
        Scene scene((32 + LargeSilo::names / 8000) * kMiB, LargeSilo::names + 1);
        scene.bench->stop();
        scene.bench->open_ = [](const SiloSpec&, std::span<std::byte>) {
            return Result<std::unique_ptr<Silo>>(std::make_unique<LargeSilo>());
        };
        scene.bench->start(false);
        scene.connect();
        // One that is made at once takes nearly all of the time; a loaded machine some of it.
        bool is_shared = false;
        for (int attempt = 0; attempt < 3 && !is_shared; ++attempt) {
            LargeSilo::is_listed = false;
            std::atomic<bool> is_answered{false};
            std::size_t entries = 0;
            std::thread lister([&] {
                DataClient other(scene.bench->socket());
                json refresh{{"command", "refresh"}, {"path", "/set/a"}};
                entries = json::parse(other.command(refresh.dump()))["files"];
                is_answered = true;
            });
            while (!LargeSilo::is_listed) std::this_thread::yield();
            const auto begin = Clock::now();
            auto longest = Duration::zero();
            while (!is_answered) {
                const auto asked = Clock::now();
                CHECK(scene.client->ask(DataType::kHello, "").status == Errc::kOk);
                longest = std::max(longest, Clock::now() - asked);
            }
            const Duration all = Clock::now() - begin;
            lister.join();
            CHECK(entries == LargeSilo::names);
            is_shared = longest < all / 2;
            if (wanted == nullptr) continue;
            const auto ms = [](Duration time) {
                return 1e3 * std::chrono::duration<double>(time).count();
            };
            std::printf("%zu names: %.0f ms, no answer meanwhile for %.1f ms at most\n", entries,
                        ms(all), ms(longest));
        }
        CHECK(is_shared);
        CHECK(scene.list().entries.size() == LargeSilo::names);
        const auto asked = Clock::now();
        const json silo = scene.command("status")["silos"][0];
        if (wanted != nullptr) {
            std::printf("status: %.0f ms\n",
                        1e3 * std::chrono::duration<double>(Clock::now() - asked).count());
        }
        CHECK(silo["files"] == LargeSilo::names);
        CHECK(silo["bytes"] == 10 * LargeSilo::names);
        CHECK(silo["files_in_memory"] == 0);
    }

    TEST_CASE("a path without a leading slash is refused with how paths look") {
        Scene scene;
        std::string error;
        scene.client->command(R"({"command":"why","path":"a"})", &error);
        CHECK(error == "a: paths of the namespace begin with \"/\", as /images/a");
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
        // A request for the silo's own word is an error.
        for (const char* path : {"/set/a", "/set/a/sub"}) {
            std::string error;
            const json refresh{{"command", "refresh"}, {"path", path}};
            CHECK(scene.client->command(refresh.dump(), &error) == "");
            CHECK(error == scene.data.file("silo") + " is not there");
            const json verify{{"command", "verify"}, {"path", path}, {"silo", true}};
            CHECK(scene.client->command(verify.dump(), &error) == "");
            CHECK(error == scene.data.file("silo") + " is not there");
        }
        CHECK(scene.command("verify", "/set/a")["files"] == 1);
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
        // It is out already.
        CHECK(scene.command("drop", "/set/a")["dropped"] == 19);
        CHECK(scene.walked("verify")["not_in_memory"] == 20);
        CHECK(scene.client->fetch(entry).status == Errc::kOk);
        CHECK(scene.has(entry, data_content("f7", 1, 100'000)));
        // Counted as they come, change and go.
        scene.put("f7", 2, 50'000);
        scene.put("large", 1, kDataChunkBytes + 1);
        scene.put("empty", 1, 0);
        std::filesystem::remove(scene.data.file("silo/f1"));
        scene.command("refresh", "/set/a");
        CHECK(scene.client->fetch(*scene.list().find("large"), 1).status == Errc::kOk);
        const json silo = scene.command("status")["silos"][0];
        CHECK(silo["files"] == 21);
        CHECK(silo["bytes"] == 18 * 100'000 + 50'000 + kDataChunkBytes + 1);
        CHECK(silo["files_in_memory"] == 1);
        CHECK(silo["bytes_in_memory"] == 1);
    }

    TEST_CASE("a plan fetches ahead of its readers, and keeps what fits") {
        Scene scene(2 * kMiB + 16 * kMiB);
        constexpr int kFiles = 40;
        for (int i = 0; i < kFiles; ++i) scene.put("f" + std::to_string(i), 1, kMiB);
        const auto listed = scene.list();
        DataPlanRequest plan{};
        plan.listing = listed.id;
        plan.world = 1;
        int fetched_before = 0;
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
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
            // What was fetched ahead came in the place of what the epoch had read: no more of what
            // was kept is fetched again than was set aside at its start.
            const int fetched = scene.command("status")["silos"][0]["fetches"];
            if (epoch > 0) CHECK(fetched - fetched_before <= kFiles - 8);
            fetched_before = fetched;
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
