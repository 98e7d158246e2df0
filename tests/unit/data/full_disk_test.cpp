// The data cache over a disk that is full.

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fabricd/data/spill/slot_files.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/data_service_bench.hpp"
#include "tests/support/small_disk.hpp"

using namespace fabricd;
using namespace fabricshm;
using nlohmann::json;
using test_support::data_content;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::put_file;
using test_support::SmallDisk;
using test_support::TemporaryDirectory;

namespace {

struct SpillScene {
    TemporaryDirectory folder{"/dev/shm"};
    SmallDisk disk{folder.file("disk"), 80};

    SpillScene() {
        std::filesystem::create_directory(folder.file("silo"));
        put_file(folder.file("silo/x"), data_content("x", 1, 5000));
    }
    DataSpec spec() const {
        DataSpec spec;
        spec.memory = 32 * kMiB;
        spec.spill = folder.file("disk");
        spec.spill_bytes = 64 * kMiB;
        SiloSpec silo;
        silo.at = "/set";
        silo.from = folder.file("silo");
        spec.silos = {silo};
        return spec;
    }
};

json status_of(const DataServiceBench& bench) {
    DataClient client(bench.socket());
    return json::parse(client.command(R"({"command":"status"})"))["spill"];
}

// Whether the file's bytes come, from wherever they are.
bool reads(const DataServiceBench& bench) {
    DataClient client(bench.socket());
    const auto listed = client.list("/set", true, bench.tables.lines);
    const DataEntry* entry = listed.find("x");
    return entry != nullptr && client.fetch(*entry).status == Errc::kOk;
}

}  // namespace

TEST_SUITE("data.full_disk") {
    TEST_CASE("a service starts without the spill of a full disk, and finds it again later") {
        const SpillScene scene;
        if (!scene.disk.is_there) return;
        DataServiceBench bench(scene.spec());
        REQUIRE(bench.problem == "");
        CHECK(reads(bench));
        DataClient(bench.socket()).command(R"({"command":"drop","path":"/set"})");
        CHECK(status_of(bench)["chunks"] == 1);
        bench.stop();

        scene.disk.fill();
        bench.start(false);
        REQUIRE(bench.problem == "");
        CHECK(status_of(bench)["off"] != "");
        CHECK(reads(bench));
        bench.stop();

        scene.disk.make_space();
        bench.start(false);
        REQUIRE(bench.problem == "");
        CHECK(status_of(bench)["off"] == "");
        CHECK(status_of(bench)["chunks"] == 1);
    }

    TEST_CASE("a spill beyond the limit of a file's size is off, and the cache goes on") {
        const TemporaryDirectory folder;
        std::filesystem::create_directory(folder.file("silo"));
        std::filesystem::create_directory(folder.file("disk"));
        put_file(folder.file("silo/x"), data_content("x", 1, 5000));
        DataSpec spec;
        spec.memory = 32 * kMiB;
        spec.spill = folder.file("disk");
        spec.spill_bytes = 64 * kMiB;
        spec.silos = {{"/set", folder.file("silo"), 0, "", "", "", ""}};
        std::signal(SIGXFSZ, SIG_IGN);
        rlimit before{};
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
        const rlimit small{16 * kMiB, before.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
        {
            DataServiceBench bench(spec);
            CHECK(bench.problem == "");
            if (bench.problem.empty()) {
                CHECK(status_of(bench)["off"] != "");
                CHECK(reads(bench));
            }
        }
        ::setrlimit(RLIMIT_FSIZE, &before);
    }

    TEST_CASE("a larger budget than the disk has leaves the spill as large as it was") {
        const SpillScene scene;
        if (!scene.disk.is_there) return;
        const std::string folder = scene.folder.file("disk");
        CHECK(SlotFiles::open(folder, 16 * kMiB).ok());
        {
            const auto files = SlotFiles::open(folder, kGiB);
            REQUIRE(files.ok());
            CHECK(files->slots() == 4);
            CHECK(files->shortage() ==
                  folder + ": has not the room for spill_bytes 1 GiB, but for 16 MiB");
        }
        CHECK(std::filesystem::file_size(folder + "/slots-000") == 16 * kMiB);
        CHECK(std::filesystem::space(folder).free >= 60 * kMiB);
        std::filesystem::remove(folder + "/slots-000");
        const auto none = SlotFiles::open(folder, kGiB);
        REQUIRE_FALSE(none.ok());
        CHECK(explanation_of(none.error()) == folder + ": has not the room for spill_bytes 1 GiB");
        CHECK_FALSE(std::filesystem::exists(folder + "/slots-000"));
    }
}
