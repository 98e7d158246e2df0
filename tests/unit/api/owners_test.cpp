// The C++ owners of fabricshm.hpp over an ABI that only notes its calls.

#include <doctest/doctest.h>

#include <array>
#include <fabricshm/fabricshm.hpp>
#include <vector>

#include "tests/unit/api/fake_abi.hpp"

namespace fabric = fabricshm::api;
using Calls = std::vector<std::string>;

namespace {

fabric::Group joined_group() {
    fake_abi::reset();
    return fabric::Session::open()->open_arena("job")->join("world", 1, 4).value();
}

}  // namespace

TEST_SUITE("api.owners") {
    TEST_CASE("a group keeps arena and session, and they close after it in this order") {
        {
            const fabric::Group group = joined_group();
            CHECK(fake_abi::calls() == Calls{"open session", "open arena", "join"});
        }
        CHECK(fake_abi::calls() ==
              Calls{"open session", "open arena", "join", "leave", "close arena", "close session"});
    }

    TEST_CASE("survivors of a shrink keep the arena when the old group is gone") {
        {
            auto survivors = [] { return joined_group().shrink().value(); }();
            CHECK(fake_abi::calls().back() == "shrink");
        }
        CHECK(fake_abi::calls() == Calls{"open session", "open arena", "join", "shrink", "leave",
                                         "leave", "close arena", "close session"});
    }

    TEST_CASE("a buffer goes back to its arena before that is closed") {
        fake_abi::reset();
        {
            auto buffer = fabric::Session::open()->open_arena("job")->allocate<float>(10);
            REQUIRE(buffer.ok());
            CHECK(buffer->size() == 10);
        }
        CHECK(fake_abi::calls() ==
              Calls{"open session", "open arena", "alloc", "free", "close arena", "close session"});
    }

    TEST_CASE("rank and world of the launcher need no session") {
        fake_abi::reset();
        const auto here = fabric::launch();
        REQUIRE(here.ok());
        CHECK(here.value().rank == fake_abi::kRank);
        CHECK(here.value().world == fake_abi::kWorld);
        CHECK(here.value().struct_size == sizeof(fabricshm_launch));
        CHECK(fake_abi::calls() == Calls{"launcher"});
        fake_abi::fail_with(FABRICSHM_EINVAL, -1, "RANK is \"x\"");
        CHECK(fabric::launch().error().text == "RANK is \"x\"");
    }

    TEST_CASE("hosts are asked for until there is room for all that came meanwhile") {
        fake_abi::reset();
        auto session = fabric::Session::open().value();
        auto known = session.hosts();
        REQUIRE(known.ok());
        CHECK(known->admits);
        REQUIRE(known->hosts.size() == fake_abi::kHosts);
        CHECK(known->hosts[1].incarnation == 8);
        CHECK(fake_abi::calls() == Calls{"open session", "hosts", "hosts", "hosts"});
        fake_abi::fail_with(FABRICSHM_EDAEMON, -1, "gone");
        CHECK(session.hosts().error().code == FABRICSHM_EDAEMON);
    }

    TEST_CASE("a failure carries code, rank and text, and closes nothing that was not opened") {
        fake_abi::reset();
        fake_abi::fail_with(FABRICSHM_EPEER, 2, "rank 2 is gone");
        const auto session = fabric::Session::open();
        REQUIRE_FALSE(session.ok());
        CHECK(session.error().code == FABRICSHM_EPEER);
        CHECK(session.error().rank == 2);
        CHECK(session.error().text == "rank 2 is gone");
        CHECK(fake_abi::calls() == Calls{"open session"});
    }

    TEST_CASE("spans of different sizes are refused before anything is run") {
        auto group = joined_group();
        std::array<float, 8> input{};
        std::array<float, 4> output{};
        const std::span<const float> in(input);
        CHECK(group.allreduce(in, std::span<float>(output)).error().code == FABRICSHM_EINVAL);
        CHECK(group.reduce_scatter(in, std::span<float>(output)).error().code == FABRICSHM_EINVAL);
        CHECK(group.all_gather(in, std::span<float>(output)).error().code == FABRICSHM_EINVAL);
        CHECK(group.scan(in, std::span<float>(output)).error().code == FABRICSHM_EINVAL);
        CHECK(group.exscan(in, std::span<float>(output)).error().code == FABRICSHM_EINVAL);
        CHECK(fake_abi::calls().back() == "join");
    }

    TEST_CASE("the element type decides the type of the call") {
        auto group = joined_group();
        std::array<std::int64_t, 4> values{};
        CHECK(group.allreduce(std::span<std::int64_t>(values), FABRICSHM_BOR).ok());
        CHECK(fake_abi::last_call().dtype == FABRICSHM_I64);
        CHECK(fake_abi::last_call().op == FABRICSHM_BOR);
        CHECK(fake_abi::last_call().count == 4);
        CHECK(fake_abi::last_call().input == fake_abi::last_call().output);
        const std::array<fabricshm_f32_int, 3> losses{};
        std::array<fabricshm_f32_int, 3> best{};
        CHECK(group
                  .scan(std::span<const fabricshm_f32_int>(losses),
                        std::span<fabricshm_f32_int>(best), FABRICSHM_MINLOC)
                  .ok());
        CHECK(fake_abi::last_call().kind == FABRICSHM_SCAN);
        CHECK(fake_abi::last_call().dtype == FABRICSHM_F32_INT);
        CHECK(group
                  .exscan(std::span<const fabricshm_f32_int>(losses),
                          std::span<fabricshm_f32_int>(best), FABRICSHM_MINLOC)
                  .ok());
        CHECK(fake_abi::last_call().kind == FABRICSHM_EXSCAN);
        CHECK(fake_abi::last_call().count == 3);
    }

    TEST_CASE("parts are counted for one rank, and the root is passed on") {
        auto group = joined_group();
        std::array<float, 2> part{};
        std::array<float, 8> whole{};
        CHECK(group.all_gather(std::span<const float>(part), std::span<float>(whole)).ok());
        CHECK(fake_abi::last_call().count == 2);
        CHECK(group.reduce_scatter(std::span<const float>(whole), std::span<float>(part)).ok());
        CHECK(fake_abi::last_call().count == 2);
        CHECK(group.broadcast(std::span<float>(whole), 3).ok());
        CHECK(fake_abi::last_call().root == 3);
    }

    TEST_CASE("every kind has a call of its own, and what only the root has is asked of it alone") {
        auto group = joined_group();  // rank 1 of 4
        std::array<fabric::Float8E4M3, 2> part{};
        std::array<fabric::Float8E4M3, 8> whole{};
        const std::span<const fabric::Float8E4M3> from_part(part), from_whole(whole);
        const std::span<fabric::Float8E4M3> to_part(part), to_whole(whole), none;
        const auto called = [&](fabricshm_kind kind, std::uint64_t count) {
            const fabricshm_call& call = fake_abi::last_call();
            return call.kind == kind && call.count == count && call.dtype == FABRICSHM_F8_E4M3;
        };
        CHECK(group.reduce(from_part, none, 3, FABRICSHM_MAX).ok());
        CHECK(called(FABRICSHM_REDUCE, 2));
        CHECK(fake_abi::last_call().root == 3);
        CHECK(group.reduce(from_part, none, fake_abi::kRank).error().code == FABRICSHM_EINVAL);
        CHECK(group.gather(from_part, to_whole, fake_abi::kRank).ok());
        CHECK(called(FABRICSHM_GATHER, 2));
        CHECK(group.gather(from_part, none, fake_abi::kRank).error().code == FABRICSHM_EINVAL);
        CHECK(group.scatter(from_whole, to_part, fake_abi::kRank).ok());
        CHECK(called(FABRICSHM_SCATTER, 2));
        CHECK(group.scatter(from_part, to_part, fake_abi::kRank).error().code == FABRICSHM_EINVAL);
        CHECK(group.all_to_all(from_whole, to_whole).ok());
        CHECK(called(FABRICSHM_ALL_TO_ALL, 2));
        CHECK(group.all_to_all(from_part, to_part).error().code == FABRICSHM_EINVAL);
        CHECK(group.send(from_part, 2, 7).ok());
        CHECK(called(FABRICSHM_SEND, 2));
        CHECK(fake_abi::last_call().input == part.data());
        CHECK(fake_abi::last_call().peer == 2);
        CHECK(fake_abi::last_call().tag == 7);
        CHECK(group.recv(to_part, FABRICSHM_ANY_PEER).ok());
        CHECK(called(FABRICSHM_RECV, 2));
        CHECK(fake_abi::last_call().output == part.data());
        CHECK(fake_abi::last_call().peer == FABRICSHM_ANY_PEER);
    }

    TEST_CASE("what an operation reads may be a span that is written elsewhere, or an array") {
        auto group = joined_group();
        std::array<float, 2> part{};
        std::vector<float> whole(8);
        const std::span<float> to_part(part), to_whole(whole);
        CHECK(group.reduce(to_part, to_part, fake_abi::kRank).ok());
        CHECK(fake_abi::last_call().input == part.data());
        CHECK(group.allreduce(part, to_part).ok());
        CHECK(group.reduce_scatter(whole, to_part).ok());
        CHECK(group.all_gather(to_part, to_whole).ok());
        CHECK(group.gather({part.data(), 2}, to_whole, fake_abi::kRank).ok());
        CHECK(group.scatter(to_whole, to_part, fake_abi::kRank).ok());
        CHECK(group.all_to_all(to_whole, to_whole).ok());
        CHECK(group.scan(to_part, to_part).ok());
        CHECK(group.exscan(to_part, to_part).ok());
        CHECK(group.send(to_part, 2, 7).ok());
        CHECK(fake_abi::last_call().input == part.data());
        CHECK(fake_abi::last_call().dtype == FABRICSHM_F32);
        CHECK(fake_abi::last_call().tag == 7);
        CHECK(group.send(std::span(part), 2).ok());
        CHECK(fake_abi::last_call().count == 2);
    }

    TEST_CASE("a request that is dropped is waited for, once") {
        auto group = joined_group();
        { auto request = group.start(fake_abi::last_call()); }
        CHECK(fake_abi::calls().back() == "wait");

        auto request = group.start(fake_abi::last_call());
        CHECK_FALSE(request->done());
        CHECK(request->peer() == 3);
        const auto before = fake_abi::calls().size();
        CHECK(request->wait().ok());
        CHECK(request->wait().ok());
        CHECK(request->done());
        CHECK(fake_abi::calls().size() == before + 1);
    }

    TEST_CASE("a tensor is seen as its own type only") {
        fake_abi::reset();
        const std::int64_t shape[] = {1};
        auto arena = fabric::Session::open()->open_arena("job");
        auto tensor = arena->create_tensor<std::int32_t>("t", shape);
        REQUIRE(tensor.ok());
        CHECK(tensor->as<std::int32_t>().size() == 1);
        CHECK(tensor->as<float>().empty());
        CHECK(tensor->publish().value() == 7);
        CHECK(tensor->wait(4).value() == 5);
    }

    TEST_CASE("a full arena is an error with the code of a full arena") {
        fake_abi::reset();
        auto arena = fabric::Session::open()->open_arena("job");
        fake_abi::fail_with(FABRICSHM_EINTERNAL, -1, "arena full");
        CHECK(arena->allocate<double>(1).error().code == FABRICSHM_ENOMEM);
        CHECK(arena->allocate<double>(SIZE_MAX / 2).error().code == FABRICSHM_EINVAL);
        fake_abi::reset();
    }
}
