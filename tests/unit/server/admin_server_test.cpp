#include "fabricd/server/admin_server.hpp"

#include <doctest/doctest.h>
#include <grpcpp/create_channel.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "admin.grpc.pb.h"
#include "fabricd/server/admin_codec.hpp"
#include "fabricd/server/vgpu_codec.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/os/unix_socket.hpp"

using namespace fabricd;
using namespace admin::v1;
using fabricshm::Errc;

namespace {

Snapshot sample() {
    Snapshot snapshot;
    snapshot.daemon_epoch = 3;
    snapshot.uptime_ms = 1234;
    snapshot.pool = {"emu", "memfd arenas", 1 << 30, 1 << 20, "cxl_switch"};
    snapshot.sessions = {{1, 100, 1000, "train\xff.py", 50, 4096, true, "gpu0", "", false},
                         {2, 101, 1000, "gone", 60, 0, false, "", "far", true}};
    snapshot.arenas = {{7, "job", 1000, 1 << 20, 4096, 0, 1}};
    snapshot.regions = {{7, 1, 1, 0, 4096, 1, "weights", RegionState::kLive},
                        {8, 2, 1, 4096, 4096, 2, "", RegionState::kQuarantined}};
    snapshot.devices = {
        {{"gpu0", "gpu", 40.5, 50, 2 << 20, 1 << 20, 8, 2000, {0.5, 1, 1, 1}}, true, 2, 4096}};
    snapshot.devices[0].spec.numa_node = 1;
    snapshot.devices[0].faults = "ecc";
    snapshot.groups = {{7, 5, "world", 2, 4, 3, {1, 2}, GroupState::kBroken}};
    snapshot.shards.emplace_back();
    snapshot.shards.back().name = "job/weights";
    snapshot.totals = {2, 1, 1, 2, 1};
    return snapshot;
}

/// A server on a socket in a folder of its own, with hooks that note what was asked.
struct Fixture {
    Fixture() {
        REQUIRE(::mkdtemp(folder) != nullptr);
        path = std::string(folder) + "/admin it's.sock";
        auto started = AdminServer::start(path, hooks());
        REQUIRE(started.ok());
        server = std::move(*started);
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
        stub = Admin::NewStub(grpc::CreateCustomChannel(
            grpc_address(path), grpc::InsecureChannelCredentials(), arguments));
    }
    ~Fixture() {
        server.reset();
        std::filesystem::remove_all(folder);
    }
    AdminHooks hooks() {
        const auto look = [this](const SnapshotParts&) {
            ++snapshots;
            return sample();
        };
        AdminHooks hooks{look, [this](bool on) { drained = on; }, [this] { ended = true; }};
        hooks.move = [](const MoveOrder&, const std::function<void(const Result<void>&)>& done) {
            done({});
            return Result<void>();
        };
        hooks.shard = [](const std::string& name) {
            ShardView shard;
            shard.name = name;
            shard.bytes = 4096;
            return std::optional(shard);
        };
        return hooks;
    }

    char folder[32] = "/tmp/fabric-admin-XXXXXX";
    std::string path;
    std::atomic<bool> drained{false};
    std::atomic<bool> ended{false};
    std::atomic<int> snapshots{0};
    std::unique_ptr<AdminServer> server;
    std::unique_ptr<Admin::Stub> stub;
};

struct Call : grpc::ClientContext {
    Call() { set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60)); }
};

}  // namespace

TEST_SUITE("server.admin_server") {
    TEST_CASE("the socket is for its user alone, and goes with the server") {
        Fixture fixture;
        struct stat status {};
        REQUIRE(::stat(fixture.path.c_str(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0600);
        CHECK(probe_socket(fixture.path) == Errc::kOk);
        fixture.server.reset();
        CHECK(std::filesystem::is_empty(fixture.folder));
        CHECK(probe_socket(fixture.path) == Errc::kNotFound);
    }

    TEST_CASE("status counts, and text that is no UTF-8 does not stop it") {
        Fixture fixture;
        StatusReply status;
        Call first;
        REQUIRE(fixture.stub->Status(&first, {}, &status).ok());
        CHECK(status.version() == FABRIC_VERSION);
        CHECK(status.pid() == ::getpid());
        CHECK(status.sessions() == 2);
        CHECK(status.sessions_connected() == 1);
        CHECK(status.pool().capacity_bytes() == 1 << 30);
        CHECK(status.pool().machine() == "cxl_switch");

        SessionsReply sessions;
        Call second;
        REQUIRE(fixture.stub->Sessions(&second, {}, &sessions).ok());
        CHECK(sessions.sessions(0).label() == "train?.py");
    }

    TEST_CASE(
        "a picture is all parts, of one snapshot, and those that there are none of are empty") {
        Fixture fixture;
        PictureRequest request;
        PictureReply reply;
        Call first;
        REQUIRE(fixture.stub->Picture(&first, request, &reply).ok());
        CHECK(reply.watch().sessions_size() == 2);
        CHECK(reply.watch().groups_size() == 1);
        CHECK(reply.watch().arenas_size() == 1);
        CHECK(reply.watch().devices_size() == 1);
        CHECK(reply.watch().status().pid() == ::getpid());
        CHECK(reply.watch().regions_size() == 0);
        CHECK_FALSE(reply.has_shards());
        CHECK_FALSE(reply.has_events());
        CHECK(fixture.snapshots == 1);
        request.set_with_rest(true);
        Call second;
        REQUIRE(fixture.stub->Picture(&second, request, &reply).ok());
        REQUIRE(reply.shards().shards_size() == 1);
        CHECK(reply.shards().shards(0).name() == "job/weights");
        // This daemon has no hooks for these.
        CHECK(reply.decisions().decisions_size() == 0);
        CHECK(reply.waiting().waiting_size() == 0);
        CHECK(reply.vgpus().vgpus_size() == 0);
        CHECK(reply.events().events_size() == 0);
        CHECK(fixture.snapshots == 2);
    }

    TEST_CASE("lists come whole, regions by arena when asked") {
        Fixture fixture;
        RegionsReply regions;
        Call first;
        REQUIRE(fixture.stub->Regions(&first, {}, &regions).ok());
        CHECK(regions.regions_size() == 2);
        RegionsRequest of_arena;
        of_arena.set_arena_id(8);
        Call second;
        REQUIRE(fixture.stub->Regions(&second, of_arena, &regions).ok());
        REQUIRE(regions.regions_size() == 1);
        CHECK(regions.regions(0).state() == "quarantined");
        CHECK(unpack(regions.regions(0)).state == RegionState::kQuarantined);
        regions.mutable_regions(0)->set_state("compressed");  // of a newer daemon
        CHECK(unpack(regions.regions(0)).state == RegionState::kUnknown);

        GroupsReply groups;
        Call third;
        REQUIRE(fixture.stub->Groups(&third, {}, &groups).ok());
        CHECK(unpack(groups.groups(0)).dead_ranks == std::vector<std::int32_t>{1, 2});

        Call another;
        DevicesReply devices;
        REQUIRE(fixture.stub->Devices(&another, {}, &devices).ok());
        const DeviceView device = unpack(devices.devices(0));
        CHECK(device.spec.name == "gpu0");
        CHECK(device.spec.quota_bytes == 1 << 20);
        CHECK(device.spec.link_latency_ns == 2000);
        CHECK(device.spec.numa_node == 1);
        CHECK(device.faults == "ecc");
        CHECK(device.spec.efficiency.convolution == 0.5);
        CHECK(device.sessions == 2);
        CHECK(device.configured);
        ArenasReply arenas;
        Call fourth;
        REQUIRE(fixture.stub->Arenas(&fourth, {}, &arenas).ok());
        CHECK(unpack(arenas.arenas(0)).name == "job");
        PoolsReply pools;
        Call fifth;
        REQUIRE(fixture.stub->Pools(&fifth, {}, &pools).ok());
        CHECK(unpack(pools.pools(0)).backend == "emu");
    }

    TEST_CASE("drain and shutdown reach the daemon") {
        Fixture fixture;
        DrainRequest on;
        on.set_on(true);
        DrainReply drained;
        Call first;
        REQUIRE(fixture.stub->Drain(&first, on, &drained).ok());
        CHECK(fixture.drained);
        ShutdownReply ended;
        Call second;
        REQUIRE(fixture.stub->Shutdown(&second, {}, &ended).ok());
        CHECK(fixture.ended);
    }

    TEST_CASE("a watch gives pictures until the server ends") {
        Fixture fixture;
        WatchRequest request;
        request.set_interval_ms(100);
        request.set_without_regions(true);
        Call context;
        auto reader = fixture.stub->Watch(&context, request);
        WatchReply reply;
        REQUIRE(reader->Read(&reply));
        REQUIRE(reader->Read(&reply));
        CHECK(reply.status().arenas() == 1);
        CHECK(reply.regions_size() == 0);
        std::thread ending([&] { fixture.server.reset(); });
        while (reader->Read(&reply)) {
        }
        reader->Finish();
        ending.join();
    }

    TEST_CASE("watches are limited, and one that ends makes room") {
        Fixture fixture;
        WatchRequest request;
        request.set_interval_ms(60000);
        std::vector<std::unique_ptr<Call>> contexts;
        std::vector<std::unique_ptr<grpc::ClientReader<WatchReply>>> readers;
        WatchReply reply;
        for (int i = 0; i < 16; ++i) {
            contexts.push_back(std::make_unique<Call>());
            readers.push_back(fixture.stub->Watch(contexts.back().get(), request));
            REQUIRE(readers.back()->Read(&reply));
        }
        Call over;
        auto refused = fixture.stub->Watch(&over, request);
        CHECK_FALSE(refused->Read(&reply));
        CHECK(refused->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
        // A move that is looked at keeps a thread as well, and is not begun.
        Call moving;
        MigrateReply progress;
        auto move = fixture.stub->Migrate(&moving, MigrateRequest());
        CHECK_FALSE(move->Read(&progress));
        CHECK(move->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
        for (auto& context : contexts) context->TryCancel();
        for (auto& reader : readers) reader->Finish();
    }
}

TEST_SUITE("server.admin_server vgpus") {
    TEST_CASE("a client that watches a move asks for its shard, and not for all that there is") {
        Fixture fixture;
        Call moving;
        MigrateRequest request;
        request.set_shard("job/s");
        auto move = fixture.stub->Migrate(&moving, request);
        MigrateReply progress;
        REQUIRE(move->Read(&progress));
        CHECK(progress.done());
        CHECK(progress.moved_bytes() == 4096);
        CHECK_FALSE(move->Read(&progress));
        CHECK(move->Finish().ok());
        CHECK(fixture.snapshots == 0);
    }

    TEST_CASE("a vGPU arrives as it was sent") {
        VgpuView sent;
        sent.spec = {"half", "GPU-1", 100, 10, 0, 0, 100, {1000, 1001}};
        sent.quota_bytes = 40;
        sent.target_bytes = 30;
        sent.share_percent = 25;
        sent.used_bytes = 35;
        sent.peak_bytes = 39;
        sent.denied = 3;
        sent.denied_bytes = 77;
        sent.busy_ns = 5;
        sent.busy_known = true;
        sent.tenants = {{100, 35, 3, 77, 5}};
        Vgpu message;
        pack(sent, message);
        const VgpuView back = unpack(message);
        CHECK(back.spec.name == "half");
        CHECK(back.spec.gpu == "GPU-1");
        CHECK(back.spec.device_bytes == 100);
        CHECK(back.spec.reserve_bytes == 10);
        CHECK(back.spec.allow_uids == std::vector<std::uint32_t>{1000, 1001});
        CHECK(back.quota_bytes == 40);
        CHECK(back.target_bytes == 30);
        CHECK(back.share_percent == 25);
        CHECK(back.used_bytes == 35);
        CHECK(back.peak_bytes == 39);
        CHECK(back.denied == 3);
        CHECK(back.denied_bytes == 77);
        CHECK(back.busy_ns == 5);
        CHECK(back.busy_known);
        REQUIRE(back.tenants.size() == 1);
        CHECK(back.tenants[0].pid == 100);
        CHECK(back.tenants[0].bytes == 35);
        CHECK(back.tenants[0].denied == 3);
        CHECK(back.tenants[0].denied_bytes == 77);
        CHECK(back.tenants[0].busy_ns == 5);
    }
}

TEST_SUITE("server.admin_server start") {
    TEST_CASE("a living server keeps its socket, a dead one's is replaced") {
        Fixture fixture;
        CHECK(AdminServer::start(fixture.path, fixture.hooks()).error().code == Errc::kBusy);
        fixture.server.reset();
        REQUIRE(fabricshm::UnixSocket::listen(fixture.path, 0600, 1).ok());  // left behind
        CHECK(probe_socket(fixture.path) == Errc::kDaemon);
        CHECK(AdminServer::start(fixture.path, fixture.hooks()).ok());
    }

    TEST_CASE("a file at the socket's path is refused, and stays") {
        Fixture fixture;
        fixture.server.reset();
        std::ofstream(fixture.path) << "precious";
        CHECK(AdminServer::start(fixture.path, fixture.hooks()).error().code == Errc::kExists);
        std::string word;
        std::ifstream(fixture.path) >> word;
        CHECK(word == "precious");
    }

    TEST_CASE("a path that no socket can have, and a folder that is not there, are refused") {
        const AdminHooks hooks{[](const SnapshotParts&) { return sample(); }, [](bool) {}, [] {}};
        const std::string long_path = "/tmp/" + std::string(100, 'x') + "/admin.sock";
        CHECK(AdminServer::start(long_path, hooks).error().code == Errc::kInvalid);
        CHECK(AdminServer::start("/nowhere/admin.sock", hooks).error().code == Errc::kNotFound);
    }

    TEST_CASE("addresses escape what a URI can't have") {
        CHECK(grpc_address("/run/fabricd/admin.sock") == "unix:/run/fabricd/admin.sock");
        CHECK(grpc_address("/a b%?") == "unix:/a%20b%25%3F");
    }
}
