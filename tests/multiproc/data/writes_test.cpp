// New files from jobs: into the cache as they come, under their name after their commit.

#include "fabricd/data/serve/writes.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "libfabricshm/base/crc32c.hpp"
#include "tests/support/data_service_bench.hpp"

using namespace fabricd;
using namespace fabricshm;
using namespace fabricshm::proto;
using nlohmann::json;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::TemporaryDirectory;

namespace {

struct Scene {
    TemporaryDirectory data;
    std::unique_ptr<DataServiceBench> bench;
    std::unique_ptr<DataClient> client;

    explicit Scene(WritePolicy policy, Bytes memory = 64 * kMiB) {
        DataSpec spec;
        spec.memory = memory;
        spec.silo_timeout = std::chrono::seconds(20);
        for (const char* name : {"out", "fixed"}) {
            SiloSpec silo;
            silo.at = "/" + std::string(name);
            silo.from = data.file(name);
            silo.refresh = std::chrono::hours(1);
            if (silo.at == "/out") silo.write = policy;
            spec.silos.push_back(silo);
            std::filesystem::create_directory(silo.from);
        }
        bench = std::make_unique<DataServiceBench>(spec);
        REQUIRE(bench->problem == "");
        client = connect();
    }
    std::unique_ptr<DataClient> connect() const {
        return std::make_unique<DataClient>(bench->folder.file("data.sock"));
    }
    DataClient::Listed list(const std::string& path = "/out", bool is_recursive = true) {
        return client->list(path, is_recursive, bench->tables.lines);
    }
    std::string in_silo(const std::string& path) const {
        std::ifstream file(data.path() + "/out/" + path, std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    std::size_t files_in_silo() const {
        std::size_t count = 0;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(data.file("out"))) {
            count += entry.is_regular_file() ? 1 : 0;
        }
        return count;
    }
    // What a reader finds in the cache, without asking for it.
    bool has(const DataEntry& entry, const std::string& content) const {
        if (entry.bytes != content.size()) return false;
        for (std::uint64_t chunk = 0; chunk < data_chunks(entry.bytes); ++chunk) {
            const auto& line =
                data_line(bench->arena.get(), bench->tables, entry.first_line + chunk);
            if (data_state(line.word.load()) != DataLineState::kReady) return false;
            const auto extent = read_data_line(line, bench->tables);
            if (!extent || extent->file != entry.file || extent->chunk != chunk) return false;
            const std::string found(
                reinterpret_cast<const char*>(bench->arena.get() + extent->offset), extent->bytes);
            if (found != content.substr(chunk * kDataChunkBytes, kDataChunkBytes)) return false;
            if (extent->checksum != crc32c(found.data(), found.size())) return false;
        }
        return true;
    }
    json status() { return json::parse(client->command(R"({"command": "status"})")); }
    json settled() {
        json view;
        for (int turn = 0; turn < 100'000; ++turn) {
            view = status()["writes"];
            if (view["pending"] == 0 && view["open"] == 0) break;
            std::this_thread::yield();
        }
        return view;
    }
    // What was given up is swept up a moment later.
    bool is_empty_soon() {
        for (int turn = 0; turn < 100'000; ++turn) {
            if (status()["cache"]["used_bytes"] == 0) return true;
            std::this_thread::yield();
        }
        return false;
    }
    std::string problems() const { return bench->service->parts().cache.problems(); }
};

Errc create(DataClient& client, const std::string& path) {
    std::uint64_t id = 0;
    return client.create(path, id).status;
}

}  // namespace

TEST_SUITE("multiproc.data.writes") {
    TEST_CASE("what one job writes the next reads from the cache: the silo is asked for no byte") {
        for (const auto policy : {WritePolicy::kThrough, WritePolicy::kBack}) {
            CAPTURE(static_cast<int>(policy));
            Scene scene(policy);
            std::map<std::string, std::string> texts;
            for (int i = 0; i < 100; ++i) {
                const std::string name = "part" + std::to_string(i % 7) + "/f" + std::to_string(i);
                texts[name] = data_content(name, 1, static_cast<std::size_t>(500 * i));
            }
            texts["large"] = data_content("large", 1, 9 * kMiB + 7);
            for (const auto& [name, text] : texts) {
                const auto answer = scene.client->write("/out/" + name, text);
                CAPTURE(answer.payload);
                REQUIRE(answer.status == Errc::kOk);
            }
            const auto reader = scene.connect();
            const auto listed = reader->list("/out", true, scene.bench->tables.lines);
            CHECK(listed.entries.size() == texts.size());
            const json settled = scene.settled();
            CHECK(settled["committed"] == texts.size());
            for (const auto& [name, text] : texts) {
                CAPTURE(name);
                const auto* entry = listed.find(name);
                REQUIRE(entry != nullptr);
                CHECK(scene.has(*entry, text));
                CHECK(scene.in_silo(name) == text);
            }
            CHECK(scene.status()["silos"][0]["fetches"] == 0);
            // As the silo has them now they are the same files.
            scene.client->command(R"({"command": "refresh", "path": "/out"})");
            const auto again = scene.list();
            REQUIRE(again.entries.size() == texts.size());
            for (const auto& [name, text] : texts) {
                CHECK(again.find(name)->file == listed.find(name)->file);
            }
            CHECK(scene.list("/out", false).entries.size() == 8);
            scene.bench->stop();
            scene.bench->start(false);
            REQUIRE(scene.bench->problem == "");
            CHECK(scene.problems() == "");
        }
    }

    TEST_CASE("before its commit a file has no name, and an abort leaves nothing") {
        Scene scene(WritePolicy::kThrough);
        std::uint64_t id = 0;
        REQUIRE(scene.client->create("/out/a/b", id).status == Errc::kOk);
        REQUIRE(scene.client->append(id, data_content("b", 1, 5 * kMiB)).status == Errc::kOk);
        CHECK(scene.list().entries.empty());
        CHECK(scene.status()["writes"]["open"] == 1);
        CHECK(scene.client->abort(id).status == Errc::kOk);
        CHECK(scene.settled()["aborted"] == 1);
        CHECK(scene.client->commit(id).status == Errc::kNotFound);
        CHECK(scene.files_in_silo() == 0);
        CHECK(scene.is_empty_soon());
        CHECK(scene.client->write("/out/a/b", "text").status == Errc::kOk);
    }

    TEST_CASE("a name has one writer, and a file is never written again") {
        Scene scene(WritePolicy::kThrough);
        const auto other = scene.connect();
        std::uint64_t id = 0;
        REQUIRE(scene.client->create("/out/name", id).status == Errc::kOk);
        CHECK(create(*other, "/out/name") == Errc::kExists);
        REQUIRE(scene.client->append(id, "first").status == Errc::kOk);
        REQUIRE(scene.client->commit(id).status == Errc::kOk);
        CHECK(create(*other, "/out/name") == Errc::kExists);
        CHECK(create(*other, "/out/name/below") == Errc::kExists);
        CHECK(create(*other, "/fixed/name") == Errc::kDenied);
        CHECK(create(*other, "/nowhere/name") == Errc::kNotFound);
        std::uint64_t none = 0;
        CHECK(scene.client->create("/out", none).payload == "/out is a silo, and no file of it");
        CHECK(scene.client->create("", none).payload == "a file to write needs a path");
        CHECK(create(*other, "/out/../x") != Errc::kOk);
        CHECK(scene.settled()["open"] == 0);
        // A file that comes past the service, between begin and commit.
        REQUIRE(scene.client->create("/out/late", id).status == Errc::kOk);
        std::ofstream(scene.data.file("out/late")) << "other";
        CHECK(scene.client->commit(id).status == Errc::kExists);
        CHECK(scene.in_silo("late") == "other");
        CHECK(scene.in_silo("name") == "first");
    }

    TEST_CASE("a name is free again as soon as its write is refused or given up") {
        Scene scene(WritePolicy::kThrough);
        std::ofstream(scene.data.file("out/file")) << "no folder";
        for (int turn = 0; turn < 50; ++turn) {
            std::string text;
            for (int attempt = 0; attempt < 2; ++attempt) {
                std::uint64_t id = 0;
                const auto answer = scene.client->create("/out/file/below", id);
                text += answer.payload + "\n";
            }
            CHECK(text == "file is no folder\nfile is no folder\n");
            // One that its client aborts.
            std::uint64_t id = 0;
            auto other = scene.connect();
            REQUIRE(other->create("/out/name", id).status == Errc::kOk);
            REQUIRE(other->append(id, "text").status == Errc::kOk);
            CHECK(other->abort(id).status == Errc::kOk);
            CHECK(other->create("/out/name", id).status == Errc::kOk);
            CHECK(other->abort(id).status == Errc::kOk);
        }
        CHECK(scene.settled()["committed"] == 0);
        CHECK(scene.files_in_silo() == 1);
        CHECK(scene.problems() == "");
    }

    TEST_CASE("a request that makes no sense is refused, whatever descriptor comes with it") {
        Scene scene(WritePolicy::kThrough);
        const auto other = scene.connect();
        std::uint64_t id = 0;
        REQUIRE(scene.client->create("/out/name", id).status == Errc::kOk);
        CHECK(other->append(id, "x").status == Errc::kNotFound);
        CHECK(other->commit(id).status == Errc::kNotFound);
        CHECK(other->abort(id).status == Errc::kNotFound);
        CHECK(scene.client->append(id + 77, "x").status == Errc::kNotFound);
        const std::string wanted = data_payload(DataWriteRequest{id, 10});
        CHECK(scene.client->ask(DataType::kWrite, wanted).status == Errc::kInvalid);
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        CHECK(scene.client->ask(DataType::kWrite, wanted, ends[0]).status == Errc::kInvalid);
        const std::string much = data_payload(DataWriteRequest{id, ~0ULL});
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        CHECK(scene.client->ask(DataType::kWrite, much, file.get()).status == Errc::kInvalid);
        CHECK(scene.client->ask(DataType::kWrite, "short").status == Errc::kInvalid);
        CHECK(scene.client->ask(DataType::kCommit, "short").status == Errc::kInvalid);
        CHECK(scene.client->append(id, "ten bytes.").status == Errc::kOk);
        // Fewer bytes than it says: the file can only be aborted.
        CHECK(scene.client->append(id, "x", 100).status == Errc::kInvalid);
        CHECK(scene.client->append(id, "x").status == Errc::kInvalid);
        CHECK(scene.client->commit(id).status == Errc::kInvalid);
        CHECK(scene.settled()["open"] == 0);
        CHECK(scene.files_in_silo() == 0);
        ::close(ends[0]);
        ::close(ends[1]);
    }

    TEST_CASE("a client that goes in the middle leaves nothing, and its name is free") {
        for (const auto policy : {WritePolicy::kThrough, WritePolicy::kBack}) {
            Scene scene(policy);
            auto other = scene.connect();
            std::uint64_t id = 0;
            REQUIRE(other->create("/out/name", id).status == Errc::kOk);
            REQUIRE(other->append(id, data_content("x", 1, 6 * kMiB)).status == Errc::kOk);
            other = nullptr;
            CHECK(scene.settled()["aborted"] == 1);
            CHECK(scene.files_in_silo() == 0);
            CHECK(scene.is_empty_soon());
            CHECK(scene.client->write("/out/name", "text").status == Errc::kOk);
        }
    }

    TEST_CASE("more than the cache has is written, too: bytes wait for the silo") {
        for (const auto policy : {WritePolicy::kThrough, WritePolicy::kBack}) {
            Scene scene(policy, 32 * kMiB);
            const std::string text = data_content("large", 1, 48 * kMiB + 1);
            REQUIRE(scene.client->write("/out/large", text).status == Errc::kOk);
            scene.settled();
            CHECK(scene.in_silo("large") == text);
            const auto listed = scene.list();
            REQUIRE(listed.entries.size() == 1);
            CHECK(listed.entries[0].second.bytes == text.size());
            CHECK(scene.client->fetch(listed.entries[0].second, 3).status == Errc::kOk);
        }
    }

    TEST_CASE("the log names what is open, whatever its paths are, and nothing else") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("log");
        std::string odd = "a ";
        for (int byte = 1; byte < 256; ++byte) odd += static_cast<char>(byte);
        {
            std::vector<LoggedWrite> left;
            auto log = WriteLog::open(path, left).value();
            CHECK(left.empty());
            REQUIRE(log.begin("/a", {"one", 1}).ok());
            REQUIRE(log.begin("/b b", {odd, ~0ULL}).ok());
            REQUIRE(log.begin("/a", {"two", 2}).ok());
            REQUIRE(log.answered(2).ok());
            log.end(1);
        }
        // Torn, and of others.
        std::ofstream(path, std::ios::app) << "end 000000000000000\nbegin x y z\n\nbegin "
                                              "0000000000000009 /a torn";
        for (int start = 0; start < 2; ++start) {
            std::vector<LoggedWrite> left;
            auto log = WriteLog::open(path, left).value();
            REQUIRE(left.size() == 2);
            CHECK(left[0].name == WriteName{"two", 2});
            CHECK(left[0].is_answered);
            CHECK(left[1].name == WriteName{odd, ~0ULL});
            CHECK(left[1].at == "/b b");
            CHECK(!left[1].is_answered);
        }
    }
}
