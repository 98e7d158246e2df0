#include "fabricd/slurm/job_records.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

TEST_SUITE("fabricd.slurm.job_records") {
    TEST_CASE("a record is there until it is erased, and is replaced as a whole") {
        const test_support::TemporaryDirectory folder;
        const JobRecords records(folder.file("spool"));
        CHECK_FALSE(records.find(17));
        CHECK(records.ended(9).empty());
        REQUIRE(records.write({17, 5, 1000, false}).ok());
        CHECK(records.find(17) == SlurmJobRecord{17, 5, 1000, false});
        CHECK(records.ended(9).empty());
        REQUIRE(records.write({17, 0, 4294967294U, true}).ok());
        REQUIRE(records.write({4294967295U, ~std::uint64_t{0}, 0, true}).ok());
        CHECK(records.find(4294967295U) == SlurmJobRecord{4294967295U, ~std::uint64_t{0}, 0, true});
        CHECK(records.ended(9).size() == 2);
        CHECK(records.ended(1).size() == 1);
        records.erase(4294967295U);
        REQUIRE(records.ended(9).size() == 1);
        CHECK(records.ended(9)[0] == SlurmJobRecord{17, 0, 4294967294U, true});
        records.erase(17);
        CHECK_FALSE(records.find(17));
    }

    TEST_CASE("files that are no records are passed over") {
        const test_support::TemporaryDirectory folder;
        const JobRecords records(folder.path());
        std::ofstream(folder.file("3")) << "fabric-job 1 5 6 1";
        std::ofstream(folder.file("4")) << "fabric-job 1 5 6 1 . more\n";
        std::ofstream(folder.file("5"));
        std::ofstream(folder.file("x6")) << "fabric-job 1 5 6 1 .\n";
        std::ofstream(folder.file("7.8")) << "fabric-job 1 5 6 1 .\n";
        CHECK_FALSE(records.find(3));
        CHECK_FALSE(records.find(4));
        CHECK_FALSE(records.find(5));
        CHECK(records.ended(9).empty());
    }

    TEST_CASE("a folder that can't be made is an error") {
        CHECK_FALSE(JobRecords("/proc/none/spool").write({1, 2, 3, false}).ok());
    }
}
