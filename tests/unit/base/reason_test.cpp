#include "libfabricshm/base/reason.hpp"

#include <doctest/doctest.h>

#include <string>
#include <thread>

using fabricshm::describe;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::reason_of;

TEST_SUITE("base.reason") {
    TEST_CASE("a description gives the reason in place of the code's own words") {
        const Error plain{Errc::kNoMemory, 0, "open arena"};
        CHECK(describe(plain) == "open arena: no memory left in the pool or quota");
        const Error error = explain(plain, "wanted %d MiB, %d are free", 8, 3);
        CHECK(describe(error) == "open arena: wanted 8 MiB, 3 are free");
    }

    TEST_CASE("a reason speaks for the error that it was given for and for no other") {
        const Error error = explain({Errc::kNoMemory, 0, "open arena"}, "full");
        CHECK(std::string(reason_of({Errc::kBusy, 0, "open arena"})).empty());
        CHECK(std::string(reason_of({Errc::kNoMemory, 0, "grow arena"})).empty());
        (void)explain({Errc::kNoMemory, 0, "grow arena"}, "another");
        CHECK(std::string(reason_of(error)).empty());
        CHECK(std::string(reason_of({Errc::kOk, 0, ""})).empty());
    }

    TEST_CASE("threads keep their own reasons") {
        const Error error = explain({Errc::kNoMemory, 0, "open arena"}, "full");
        std::string seen = "not run";
        std::thread([&] { seen = reason_of(error); }).join();
        CHECK(seen.empty());
        CHECK(std::string(reason_of(error)) == "full");
    }

    TEST_CASE("a reason may be made of the one before, and is cut where it is too long") {
        Error error = explain({Errc::kInvalid, 0, "a"}, "%s", std::string(1000, 'x').c_str());
        CHECK(std::string(reason_of(error)).size() == fabricshm::kReasonBytes - 1);
        error = explain({Errc::kInvalid, 0, "b"}, "short");
        error = explain({Errc::kInvalid, 0, "c"}, "very %s", reason_of(error));
        CHECK(std::string(reason_of(error)) == "very short");
    }
}
