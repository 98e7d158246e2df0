// Two services over the same files, each host's cache asked before the silo.

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "fabricd/data/serve/cache_chunks.hpp"
#include "tests/support/data_service_bench.hpp"

using namespace fabricd;
using namespace fabricshm;
using nlohmann::json;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::put_file;
using test_support::TemporaryDirectory;

namespace {

/// A silo that is asked and does not have the bytes: what comes came from a peer.
class NoBytes : public Silo {
  public:
    explicit NoBytes(std::unique_ptr<Silo> silo) : silo_(std::move(silo)) {}

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override {
        return silo_->list(folder, after, most, deadline);
    }
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override {
        return silo_->look(path, deadline);
    }
    bool has_room() const noexcept override { return true; }
    void start(const Fetch& fetch) override { asked_.push_back(fetch); }
    std::vector<Fetched> wait(TimePoint) override {
        std::vector<Fetched> ended;
        for (const Fetch& fetch : asked_) {
            ended.push_back({fetch.tag, FetchOutcome::kFailed, {Errc::kSystem, 5, "read"}, "away"});
        }
        asked_.clear();
        return ended;
    }

  private:
    std::unique_ptr<Silo> silo_;
    std::vector<Fetch> asked_;
};

DataSpec spec_of(const std::string& folder) {
    DataSpec spec;
    spec.memory = 64 * kMiB;
    SiloSpec silo;
    silo.at = "/set";
    silo.from = folder;
    silo.refresh = std::chrono::hours(1);
    spec.silos = {silo};
    return spec;
}

}  // namespace

TEST_SUITE("net.peer_services") {
    TEST_CASE("what one host has cached another reads without its silo, and only that") {
        const TemporaryDirectory data;
        std::map<std::string, std::string> texts;
        for (int i = 0; i < 20; ++i) {
            const std::string name = "f" + std::to_string(i);
            texts[name] = data_content(name, 1, static_cast<std::size_t>(3000 * i + 1));
        }
        texts["large"] = data_content("large", 1, 9 * kMiB);
        for (const auto& [name, text] : texts) put_file(data.path() + "/" + name, text);
        DataServiceBench first(spec_of(data.path()));
        REQUIRE(first.problem == "");
        CacheChunks chunks(first.service->parts(), *first.loop);
        PeersSpec peers;
        peers.listen = "127.0.0.1:0";
        auto server = serve_peers(peers, chunks).value();
        const std::string address = "127.0.0.1:" + std::to_string(server->port());
        peers.self = "127.0.0.1:9";
        peers.members = {{address, ""}, {peers.self, ""}};
        DataServiceBench second(
            spec_of(data.path()), "", [&](const SiloSpec& spec, std::unique_ptr<Silo> silo) {
                return with_peers(peers, spec, std::make_unique<NoBytes>(std::move(silo)));
            });
        REQUIRE(second.problem == "");
        DataClient here(second.socket());
        DataClient there(first.socket());
        const auto listed = here.list("/set", true, second.tables.lines);
        const auto of_first = there.list("/set", true, first.tables.lines);
        REQUIRE(listed.entries.size() == texts.size());
        // The peer knows the file and has none of it: it fetches it for the next one that asks.
        CHECK(here.fetch(*listed.find("f3")).status == Errc::kSystem);
        CHECK(there.fetch(*of_first.find("f3")).status == Errc::kOk);
        for (const auto& [name, entry] : of_first.entries) {
            for (std::uint64_t chunk = 0; chunk < data_chunks(entry.bytes); ++chunk) {
                CHECK(there.fetch(entry, chunk).status == Errc::kOk);
            }
        }
        std::size_t count = 0;
        for (const auto& [name, entry] : listed.entries) {
            std::string found;
            for (std::uint64_t chunk = 0; chunk < data_chunks(entry.bytes); ++chunk, ++count) {
                CHECK(here.fetch(entry, chunk).status == Errc::kOk);
                const auto& line =
                    data_line(second.arena.get(), second.tables, entry.first_line + chunk);
                const auto extent = read_data_line(line, second.tables);
                REQUIRE(extent.has_value());
                found.append(reinterpret_cast<const char*>(second.arena.get() + extent->offset),
                             extent->bytes);
            }
            CHECK(found == texts[name]);
        }
        CHECK(server->stats().served == count);
        // Before the service whose cache it shows.
        server = nullptr;
    }
}
