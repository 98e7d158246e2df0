// fabric-data flush: what it says of files that were committed, and that no silo has.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "fabricd/data/program/service_commands.hpp"
#include "tests/support/data_service_bench.hpp"

using namespace fabricd;
using namespace fabricshm;
using test_support::DataClient;
using test_support::DataServiceBench;
using test_support::TemporaryDirectory;

TEST_SUITE("multiproc.data.flush") {
    TEST_CASE("flush fails where a committed file was given up: its name is another writer's") {
        const TemporaryDirectory data;
        std::filesystem::create_directory(data.file("out"));
        DataSpec spec;
        spec.memory = 64 * kMiB;
        SiloSpec silo;
        silo.at = "/out";
        silo.from = data.file("out");
        silo.write = WritePolicy::kBack;
        spec.silos = {silo};
        DataServiceBench bench(spec);
        REQUIRE(bench.problem == "");
        ServiceCommand flush;
        flush.name = "flush";
        flush.socket = bench.socket();
        DataClient client(bench.socket());
        REQUIRE(client.write("/out/good", "text").status == Errc::kOk);
        CHECK(run_service_command(flush) == 0);
        std::uint64_t id = 0;
        REQUIRE(client.create("/out/taken", id).status == Errc::kOk);
        REQUIRE(client.append(id, "ours").status == Errc::kOk);
        std::ofstream(data.file("out/taken")) << "another's";
        REQUIRE(client.commit(id).status == Errc::kOk);
        CHECK(run_service_command(flush) == 1);
    }
}
