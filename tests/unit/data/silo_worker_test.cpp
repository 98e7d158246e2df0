#include "fabricd/data/serve/silo_worker.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <map>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;

namespace {

// A silo with four places, whose fetches end when the test says so.
struct SlowSilo : Silo {
    struct State {
        std::mutex mutex;
        std::vector<std::uint64_t> started;  // tags, in order
        std::vector<std::uint64_t> to_end;
        std::map<std::string, SiloPage> folders;
    };
    explicit SlowSilo(State& shared) : state(shared) {}

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t,
                          TimePoint) override {
        const auto found = state.folders.find(folder);
        if (found == state.folders.end()) return Error{Errc::kNotFound, 0, "list"};
        // A name a page.
        SiloPage page;
        for (const auto& entry : found->second.entries) {
            if (entry.name <= after && !after.empty()) continue;
            page.entries.push_back(entry);
            break;
        }
        page.is_last =
            page.entries.empty() || page.entries[0].name == found->second.entries.back().name;
        return page;
    }
    Result<FileFacts> look(const std::string&, TimePoint) override {
        return Error{Errc::kNotFound, 0, "look"};
    }
    bool has_room() const noexcept override { return under_way < 4; }
    void start(const Fetch& fetch) override {
        CHECK_UNARY(has_room());
        ++under_way;
        const std::lock_guard lock(state.mutex);
        state.started.push_back(fetch.tag);
    }
    std::vector<Fetched> wait(TimePoint) override {
        std::this_thread::yield();
        const std::lock_guard lock(state.mutex);
        std::vector<Fetched> ended;
        for (const auto tag : state.to_end) {
            ended.push_back({tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, ""});
        }
        under_way -= static_cast<int>(ended.size());
        state.to_end.clear();
        return ended;
    }

    State& state;
    int under_way = 0;  // of the worker's thread
};

struct Scene {
    SlowSilo::State state;
    std::mutex mutex;
    std::vector<std::uint64_t> done;
    std::byte memory[64]{};
    std::unique_ptr<SiloWorker> worker;

    Scene() {
        SiloWorker::Options options;
        options.silo_timeout = 5s;
        options.on_fill = [this](FillDone fill) {
            const std::lock_guard lock(mutex);
            done.push_back(fill.fetched.tag);
        };
        worker = std::make_unique<SiloWorker>(std::make_unique<SlowSilo>(state),
                                              std::make_unique<SlowSilo>(state), options);
    }
    void fetch(std::uint64_t tag, FetchPriority priority) {
        Fetch fetch;
        fetch.into = memory;
        fetch.bytes = fetch.room = sizeof memory;
        fetch.tag = tag;
        worker->fetch(fetch, priority);
    }
    std::vector<std::uint64_t> started() {
        const std::lock_guard lock(state.mutex);
        return state.started;
    }
    void end(std::uint64_t tag) {
        const std::lock_guard lock(state.mutex);
        state.to_end.push_back(tag);
    }
    bool starts(std::size_t count) {
        const auto deadline = Clock::now() + 60s;
        while (started().size() < count && Clock::now() < deadline) std::this_thread::yield();
        return started().size() == count;
    }
    ListDone list(const std::string& folder, bool is_recursive) {
        std::promise<ListDone> promise;
        worker->list(folder, is_recursive,
                     [&](ListDone listed) { promise.set_value(std::move(listed)); });
        return promise.get_future().get();
    }
};

}  // namespace

TEST_SUITE("data.silo_worker") {
    TEST_CASE("what a reader waits for goes before what is ahead, which has half of the places") {
        Scene scene;
        // The places are known once they were full.
        for (std::uint64_t tag = 1; tag <= 5; ++tag) scene.fetch(tag, FetchPriority::kOnDemand);
        REQUIRE(scene.starts(4));
        for (std::uint64_t tag = 11; tag <= 14; ++tag) scene.fetch(tag, FetchPriority::kAhead);
        scene.fetch(6, FetchPriority::kOnDemand);
        for (std::uint64_t tag = 1; tag <= 4; ++tag) scene.end(tag);
        REQUIRE(scene.starts(8));
        CHECK(scene.started() == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 11, 12});
        // Two places are free of what is on demand, and stay so.
        scene.end(5);
        scene.end(6);
        scene.fetch(7, FetchPriority::kOnDemand);
        REQUIRE(scene.starts(9));
        CHECK(scene.worker->load().waiting[1] == 2);
        // One that a reader asks for now is ahead no more.
        scene.worker->promote(14);
        REQUIRE(scene.starts(10));
        CHECK(scene.started().back() == 14);
        CHECK(scene.worker->load().waiting[1] == 1);
    }

    TEST_CASE(
        "a tree is listed over its pages and folders, and one that is not there is an error") {
        Scene scene;
        SiloEntry file, folder, other;
        file.name = "a";
        folder.name = "b";
        folder.is_folder = true;
        other.name = "c";
        scene.state.folders[""].entries = {file, folder, other};
        scene.state.folders["b"].entries = {file, other};
        const auto flat = scene.list("", false);
        CHECK(flat.entries.size() == 3);
        CHECK(flat.entries[1].is_folder);
        const auto tree = scene.list("", true);
        REQUIRE(tree.entries.size() == 4);
        CHECK(tree.entries[2].path == "b/a");
        CHECK(scene.list("none", true).error.code == Errc::kNotFound);
    }
}
