// What the real fabricd says of processes that train: through fabricctl, through its metrics, over
// a restart, and next to a session that writes rubbish into its page.

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/page_file.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"
#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/children.hpp"
#include "tests/support/job.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wire_client.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::becomes_true;
using test_support::Child;
using test_support::failed;
using test_support::Gate;
using test_support::has;
using test_support::Job;
using test_support::TemporaryDirectory;
using test_support::WireClient;

namespace {

json top(const Daemon& daemon) {
    const auto output = test_support::run_program({FABRICCTL_PATH, "top", "--count", "1", "--json",
                                                   "--socket=" + daemon.folder() + "/admin.sock"});
    // While the daemon is being restarted none answers.
    if (output.code != 0 || !json::accept(output.out)) return json::object();
    return json::parse(output.out)["telemetry"];
}

// The session that the daemon's records confirm as this rank; null when there is none.
json member(const json& telemetry, int rank) {
    const json sessions = telemetry.value("training", json::array());
    for (const json& session : sessions) {
        if (session["member"] == true && session["rank"] == rank) return session;
    }
    return nullptr;
}

std::string get_metrics(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    const fabricshm::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        return "";
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: fabricd\r\n\r\n";
    (void)::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    std::string answer;
    char piece[4096];
    for (ssize_t got = 1; got > 0;) {
        got = ::recv(socket.get(), piece, sizeof piece, 0);
        if (got > 0) answer.append(piece, static_cast<std::size_t>(got));
    }
    return answer;
}

// Computes for the time that 32 samples take this rank: rank 1 is the slow one.
void compute(int rank) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(rank * 5);
    while (std::chrono::steady_clock::now() < until) {
    }
}

// Trains until the gate is open on both ranks; the last sum says that it is.
int train(const std::string& socket, int rank, Gate& stop, bool* asked_to_stop) {
    const Job job(socket);
    fabricshm_group* group = nullptr;
    if (!job.ok || fabricshm_group_join(job.arena, "world", rank, 2, 60'000, &group) != 0)
        return failed(1);
    fabricshm_region region;
    if (fabricshm_region_create(job.arena, 100'000, &region) != 0) return failed(5);
    std::vector<float> gradient(16 * 1024, 1.0F);
    for (gradient[0] = 0; gradient[0] == 0;) {
        compute(rank);
        gradient[0] = *asked_to_stop ? 1.0F : 0.0F;
        if (fabricshm_allreduce(group, gradient.data(), gradient.data(), gradient.size(),
                                FABRICSHM_F32, FABRICSHM_AVG) != 0) {
            return failed(2);
        }
        fabricshm_step_info info = fabricshm_step_info_make(32);
        info.group = group;
        info.loss = 0.5;
        if (fabricshm_step(job.session, &info) != 0) return failed(3);
    }
    return stop.wait() ? 0 : 4;
}

}  // namespace

TEST_SUITE("multiproc.fabricd.telemetry") {
    TEST_CASE("a slow rank makes the other one wait, and a restart is survived by the counters") {
        const TemporaryDirectory folder;
        const std::string metrics = folder.file("metrics.sock");
        Daemon daemon({"--telemetry-metrics-socket", metrics, "--telemetry-stale-after", "60s"});
        // Shared with the children: rank 0 reads it, and rank 1 has it from the sum.
        const auto flag = fabricshm::make_page_file("flag", 4096, fabricshm::PageAccess::kReadOnly,
                                                    [](std::byte*) noexcept {})
                              .value();
        auto* stop_flag = reinterpret_cast<bool*>(flag.mapping.data());
        Gate stop;
        std::vector<Child> ranks;
        for (const int rank : {0, 1}) {
            ranks.emplace_back([&, rank] { return train(daemon.socket(), rank, stop, stop_flag); });
        }

        json seen;
        CHECK(becomes_true([&] {
            seen = top(daemon);
            const json fast = member(seen, 0), slow = member(seen, 1);
            return !fast.is_null() && !slow.is_null() && fast["steps_per_s"] > 0 &&
                   fast["wait_share"] > slow["wait_share"] &&
                   slow["compute_share"] > fast["compute_share"];
        }));
        CAPTURE(seen.dump());
        CHECK(member(seen, 0)["loss"] == 0.5);
        CHECK(member(seen, 0)["stale"] == false);
        CHECK(member(seen, 0)["memory_used_bytes"].get<std::uint64_t>() > 0);
        CHECK_FALSE(seen["devices"].empty());
        CHECK(becomes_true([&] { return top(daemon)["paths"].size() == 2; }));
        const std::string page = get_metrics(metrics);
        CHECK(has(page, "HTTP/1.1 200 OK"));
        CHECK(has(page, "# TYPE fabricd_session_steps_total counter"));
        CHECK(has(page, "rank=\"1\""));

        const auto before = member(seen, 0)["steps"].get<std::uint64_t>();
        daemon.kill();
        daemon.start();
        daemon.await_ready(2);
        CHECK(becomes_true([&] {
            const json rank = member(top(daemon), 0);
            return !rank.is_null() && rank["steps"] > before;
        }));
        *stop_flag = true;
        stop.open();
        for (Child& rank : ranks) CHECK(rank.wait() == 0);
    }

    TEST_CASE("a page full of rubbish is read without harm, and its claims are not believed") {
        Daemon daemon;
        auto hostile = WireClient::attach(daemon.socket(), "hostile").value();
        auto reply =
            hostile.ask(fabricshm::proto::make_request(fabricshm::proto::Type::kTelemetryOpen, 0));
        REQUIRE(reply.ok());
        const auto page =
            fabricshm::Mapping::map(hostile.descriptor, 0, fabricshm::kTelemetryFileBytes, {})
                .value();
        auto image = fabricshm::empty_telemetry();
        image.group_id = image.arena_id = 1;
        image.rank = 0;
        image.world = 1;
        image.steps = image.samples = ~std::uint64_t{0};
        image.written_ns = std::int64_t{1} << 62;
        fabricshm::write_telemetry_head(page.data(), image);
        json seen;
        CHECK(becomes_true([&] {
            seen = top(daemon)["training"];
            return seen.size() == 1 && seen[0]["steps"] > 0;
        }));
        CHECK(seen[0]["member"] == false);
        CHECK(seen[0]["stale"] == true);
        CHECK(seen[0]["memory_used_bytes"] == 0);

        std::mt19937_64 random(11);
        auto* words = reinterpret_cast<std::uint64_t*>(page.data());
        const auto looks = top(daemon)["number"].get<std::uint64_t>();
        CHECK(becomes_true([&] {
            for (int i = 0; i < 100'000; ++i) words[random() % 512] = random();
            return top(daemon).value("number", std::uint64_t{0}) > looks + 3;
        }));

        // A wait in a group that it is not in, and then anything.
        fabricshm::WaitRecord waits[fabricshm::kWaitsShown] = {};
        waits[0].arena_id = waits[0].group_id = 1;
        waits[0].world = 2;
        add_late(waits[0], 1);
        fabricshm::write_telemetry_waits(page.data(), waits);
        auto& shared = *reinterpret_cast<fabricshm::TelemetryPage*>(page.data());
        const auto waiting = [&] { return test_support::ctl(daemon, {"waiting", "--json"}).out; };
        CHECK(waiting() == "{\"waiting\":[]}\n");
        for (fabricshm::SharedWord& word : shared.waits) word.store(random());
        shared.waits_sequence.store(2);
        CHECK(waiting() == "{\"waiting\":[]}\n");
        shared.waits_sequence.store(1);
        CHECK(waiting() == "{\"waiting\":[]}\n");
    }

    TEST_CASE("a GPU that says it is faulty is a faulty device, for people and for programs") {
        const TemporaryDirectory folder;
        // By the name that the daemon searches for.
        REQUIRE(::symlink(FAKE_NVML_PATH, folder.file("libnvidia-ml.so.1").c_str()) == 0);
        std::ofstream(folder.file("devices.toml"))
            << "[[device]]\nname = 'a'\nkind = 'gpu'\ngflops = 1\nmemory = '1GiB'\n"
               "link_gbytes_per_s = 1\ngpu = 'GPU-fake-a'\n";
        ::setenv("LD_LIBRARY_PATH", folder.path().c_str(), 1);
        ::setenv("FAKE_NVML_ECC", "1", 1);
        const Daemon daemon({"--devices-file", folder.file("devices.toml")});
        ::unsetenv("LD_LIBRARY_PATH");
        ::unsetenv("FAKE_NVML_ECC");
        CHECK(becomes_true(
            [&] { return has(test_support::ctl(daemon, {"devices"}).out, "faulty: ecc"); }));
        const auto health = test_support::ctl(daemon, {"health"});
        CHECK(health.code == 1);
        CHECK(has(health.out, "device a is faulty: ecc"));
        CHECK(has(test_support::ctl(daemon, {"events"}).out, "device gpu0: faults: ecc"));
    }
}
