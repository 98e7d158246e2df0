#include "libfabricshm/base/result.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>

#include "libfabricshm/base/late_rank.hpp"
#include "tests/support/aborts.hpp"

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

Result<int> half(int number) {
    if (number % 2 != 0) return Error{Errc::kInvalid, 0, "halve"};
    return number / 2;
}

Result<int> quarter(int number) {
    FABRIC_TRY(const int once, half(number));
    FABRIC_TRY(const int twice, half(once));
    return twice;
}

Result<void> only_even(int number) {
    FABRIC_TRY_VOID([&]() -> Result<void> {
        FABRIC_TRY([[maybe_unused]] const int once, half(number));
        return {};
    }());
    return {};
}

}  // namespace

TEST_SUITE("base.result") {
    TEST_CASE("a value passes through FABRIC_TRY and an error returns from it") {
        CHECK(quarter(12).value() == 3);
        CHECK(quarter(6).error().code == Errc::kInvalid);
        CHECK(only_even(2).ok());
        CHECK_FALSE(only_even(3).ok());
    }

    TEST_CASE("asking an error for its value is a bug that prints the error") {
        const std::string text = test_support::aborts_with([] { (void)half(3).value(); });
        CHECK(text.find("halve: invalid argument (kInvalid)") != std::string::npos);
        const Result<int> odd = half(5);
        CHECK_FALSE(test_support::aborts_with([&] { (void)*odd; }).empty());
        CHECK(test_support::aborts_with([] { (void)half(4).value(); }).empty());
    }

    TEST_CASE("a description names the step, the meaning and the rank or the errno") {
        CHECK(fabricshm::describe({Errc::kPeer, 3, "allreduce"}) ==
              "allreduce: a peer died, failed or left (rank 3)");
        CHECK(fabricshm::describe({Errc::kSystem, EIO, "read"}).find("Input/output") !=
              std::string::npos);
        CHECK(std::string(fabricshm::name_of(Errc::kInternal)) == "kInternal");
    }

    TEST_CASE("only an error of a wait for a peer names the rank that did not come") {
        using fabricshm::late_rank_of;
        const Error waited{Errc::kTimeout, 2, fabricshm::kPeerWaitStep};
        const Error was_ended{Errc::kBroken, 0, fabricshm::kPeerLateStep};
        CHECK(late_rank_of(waited) == 2);
        CHECK(late_rank_of(was_ended) == 0);
        CHECK(late_rank_of({Errc::kTimeout, 2, "wait for a message"}) == -1);
        CHECK(late_rank_of({Errc::kBroken, 2, "collective"}) == -1);
        CHECK(fabricshm::describe(was_ended) ==
              "a rank did not come in time: the group failed earlier (rank 0)");
    }

    TEST_CASE("the usual errno values become codes of their own") {
        CHECK(fabricshm::error_from_errno(ENOENT, "").code == Errc::kNotFound);
        CHECK(fabricshm::error_from_errno(ENOSPC, "").code == Errc::kNoMemory);
        CHECK(fabricshm::error_from_errno(EIO, "").detail == EIO);
    }
}
