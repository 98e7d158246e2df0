// The service is killed at each fault point of a write. Its successor clears what was begun; the
// file is in the silo whole or not at all; a commit that was answered and did not come there is
// reported as lost.

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "libfabricshm/base/fault_point.hpp"
#include "tests/support/children.hpp"
#include "tests/support/data_service_bench.hpp"

using namespace fabricd;
using namespace test_support;
using fabricshm::Errc;
using fabricshm::kMiB;
using nlohmann::json;

namespace {

DataSpec spec_of(const std::string& folder, WritePolicy policy) {
    DataSpec spec;
    spec.memory = 64 * kMiB;
    SiloSpec silo;
    silo.at = "/out";
    silo.from = folder;
    silo.write = policy;
    spec.silos = {silo};
    return spec;
}

std::vector<std::string> files_below(const std::string& root) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
        if (entry.is_regular_file()) found.push_back(entry.path().filename().string());
    }
    return found;
}

struct Point {
    const char* fault;
    bool is_there;         // in the silo
    bool is_back = false;  // the commit is answered before it
};
constexpr Point kPoints[] = {
    {"data.write.begun", false},          {"data.write.cached", false},
    {"data.write.cached:kill:2", false},  {"data.write.appended", false},
    {"data.write.synced", false},         {"data.write.foldered", false},
    {"data.write.named", true},           {"data.write.published", true},
    {"data.write.appended", false, true}, {"data.write.synced", false, true},
    {"data.write.named", true, true}};

void kill_at(const Point& point) {
    const TemporaryDirectory silo;
    const TemporaryDirectory state;
    const std::string text = data_content("file", 1, 9 * kMiB);
    const auto policy = point.is_back ? WritePolicy::kBack : WritePolicy::kThrough;
    Child victim([&] {
        fabricshm::fault::arm(point.fault);
        DataServiceBench bench(spec_of(silo.path(), policy), state.path());
        DataClient client(bench.socket());
        client.write("/out/new/file", text);
        for (int turn = 0; turn < 100'000; ++turn) client.command(R"({"command": "flush"})");
        return 0;
    });
    CHECK(victim.wait() == 128 + SIGKILL);
    DataServiceBench bench(spec_of(silo.path(), policy), state.path());
    REQUIRE(bench.problem == "");
    DataClient client(bench.socket());
    CHECK(files_below(silo.path()).size() == (point.is_there ? 1 : 0));
    const json status = json::parse(client.command(R"({"command": "status"})"));
    CHECK(status["writes"]["lost"] == (point.is_back ? 1 : 0));
    const auto again = client.write("/out/new/file", text);
    CHECK(again.status == (point.is_there ? Errc::kExists : Errc::kOk));
    while (json::parse(client.command(R"({"command": "flush"})"))["pending"] != 0) {
    }
    CHECK(files_below(silo.path()) == std::vector<std::string>{"file"});
    std::ifstream file(silo.file("new/file"), std::ios::binary);
    std::ostringstream found;
    found << file.rdbuf();
    CHECK(found.str() == text);
}

}  // namespace

TEST_SUITE("crash.data.killed_writes") {
    TEST_CASE("after a death of the service the file is there whole or not at all") {
        for (const Point& point : kPoints) {
            CAPTURE(std::string(point.fault));
            CAPTURE(point.is_back);
            kill_at(point);
        }
    }
}
