// Send and receive of groups over several hosts: what a rank receives follows from its sender, the
// number of the message and the place in it.

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/hosts.hpp"

using test_support::Daemon;
using test_support::ExchangeBoard;
using test_support::failed;
using test_support::Gate;
using test_support::HostsRank;
using test_support::run_children;

namespace {

using Places = std::vector<int>;  // [rank]: its host
using Bytes = std::vector<std::uint8_t>;

Bytes message_of(int sender, int number, std::size_t bytes) {
    Bytes made(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        made[i] = static_cast<std::uint8_t>(i * 31 + i / 251 +
                                            static_cast<std::size_t>(sender * 17 + number * 5));
    }
    return made;
}

fabricshm_call message_call(fabricshm_kind kind, int peer, int tag, std::size_t bytes) {
    fabricshm_call call =
        fabricshm_call_make(kind, FABRICSHM_U8, FABRICSHM_SUM, nullptr, nullptr, bytes);
    call.peer = peer;
    call.tag = tag;
    return call;
}

int send(const HostsRank& member, int peer, int tag, const Bytes& data, int timeout_ms = 30'000) {
    fabricshm_call call = message_call(FABRICSHM_SEND, peer, tag, data.size());
    call.input = data.data();
    call.timeout_ms = timeout_ms;
    return fabricshm_run(member.group, &call);
}

int receive(const HostsRank& member, int peer, int tag, Bytes& data, int timeout_ms = 30'000) {
    fabricshm_call call = message_call(FABRICSHM_RECV, peer, tag, data.size());
    call.output = data.data();
    call.timeout_ms = timeout_ms;
    return fabricshm_run(member.group, &call);
}

fabricshm_request* start_receive(const HostsRank& member, int peer, int tag, Bytes& data,
                                 int timeout_ms = 30'000) {
    fabricshm_call call = message_call(FABRICSHM_RECV, peer, tag, data.size());
    call.output = data.data();
    call.timeout_ms = timeout_ms;
    fabricshm_request* request = nullptr;
    return fabricshm_start(member.group, &call, &request) == 0 ? request : nullptr;
}

fabricshm_request* start_send(const HostsRank& member, int peer, int tag, const Bytes& data) {
    fabricshm_call call = message_call(FABRICSHM_SEND, peer, tag, data.size());
    call.input = data.data();
    fabricshm_request* request = nullptr;
    return fabricshm_start(member.group, &call, &request) == 0 ? request : nullptr;
}

int barrier(const HostsRank& member) {
    return fabricshm_barrier(member.group);
}

std::vector<int> codes_of(const Places& places, const std::function<int(const HostsRank&)>& body) {
    const Daemon daemon({"--pool-capacity=1GiB"});
    ExchangeBoard board;
    const int world = static_cast<int>(places.size());
    return run_children(world, [&](int rank) -> int {
        const HostsRank member(daemon.socket(), board, places[static_cast<std::size_t>(rank)], rank,
                               world);
        if (member.group == nullptr) return 1;
        const int code = body(member);
        fabricshm_group_leave(member.group);
        return code;
    });
}

void check_all(const Places& places, const std::function<int(const HostsRank&)>& body) {
    CHECK(codes_of(places, body) == std::vector<int>(places.size(), 0));
}

constexpr std::size_t kSizes[] = {0, 1, 100, 4'000, 32'768, 32'769, 65'536, 1'000'001};

// To rank 0, each with a tag of its own.
bool send_three(const HostsRank& member) {
    bool well = true;
    for (int i = 0; i < 3; ++i) {
        well = well && send(member, 0, i, message_of(member.rank, i, 20'000)) == 0;
    }
    return well;
}

}  // namespace

TEST_SUITE("net.messages") {
    TEST_CASE("each rank sends to each other one, on its host or not, in every size") {
        for (const Places& places : {Places{0, 1}, Places{0, 0, 1, 1}, Places{0, 1, 0, 2}}) {
            check_all(places, [](const HostsRank& member) -> int {
                for (int from = 0; from < member.world; ++from) {
                    for (int to = 0; to < member.world; ++to) {
                        for (const std::size_t size : kSizes) {
                            const Bytes wanted = message_of(from, to, size);
                            if (from == to) continue;
                            if (member.rank == from && send(member, to, 3, wanted) != 0) {
                                return failed(10);
                            }
                            Bytes came(size);
                            if (member.rank != to) continue;
                            if (receive(member, from, 3, came) != 0) return failed(11);
                            if (came != wanted) return 12;
                        }
                    }
                }
                return 0;
            });
        }
    }

    TEST_CASE("all send a few messages to all before they receive") {
        check_all({0, 0, 1, 1}, [](const HostsRank& member) -> int {
            for (const auto& [messages, size] : {std::pair{16, 4'096}, std::pair{1, 65'536}}) {
                for (int peer = 0; peer < member.world; ++peer) {
                    for (int i = 0; peer != member.rank && i < messages; ++i) {
                        const Bytes data =
                            message_of(member.rank, i, static_cast<std::size_t>(size));
                        if (send(member, peer, i, data) != 0) return failed(20);
                    }
                }
                if (barrier(member) != 0) return failed(21);  // operations pass them by
                for (int peer = 0; peer < member.world; ++peer) {
                    // The last first: by tags, not by their order.
                    for (int i = messages - 1; peer != member.rank && i >= 0; --i) {
                        Bytes came(static_cast<std::size_t>(size));
                        if (receive(member, peer, i, came) != 0) return failed(22);
                        if (came != message_of(peer, i, came.size())) return 23;
                    }
                }
            }
            return 0;
        });
    }

    TEST_CASE("messages of one tag keep their order, whatever their sizes") {
        check_all({0, 1}, [](const HostsRank& member) -> int {
            const int other = 1 - member.rank;
            std::vector<Bytes> sent;
            std::vector<fabricshm_request*> requests;
            std::vector<Bytes> came;
            for (int i = 0; i < 60; ++i) {
                const std::size_t size = static_cast<std::size_t>(i * i * 97 % 70'000);
                sent.push_back(message_of(member.rank, i, size));
                came.emplace_back(size);
            }
            for (auto& data : came) requests.push_back(start_receive(member, other, 0, data));
            for (const auto& data : sent) requests.push_back(start_send(member, other, 0, data));
            for (fabricshm_request* request : requests) {
                if (request == nullptr || fabricshm_wait(request) != 0) return failed(30);
            }
            for (int i = 0; i < 60; ++i) {
                const Bytes& data = came[static_cast<std::size_t>(i)];
                if (data != message_of(other, i, data.size())) return 31;
            }
            return 0;
        });
    }

    TEST_CASE("a receive from any rank takes what comes, from this host and from others") {
        check_all({0, 0, 1, 1}, [](const HostsRank& member) -> int {
            constexpr int kEach = 20;
            if (member.rank != 0) {
                for (int i = 0; i < kEach; ++i) {
                    const std::size_t size = 50'000;
                    if (send(member, 0, 7, message_of(member.rank, i, size)) != 0) {
                        return failed(40);
                    }
                }
                return barrier(member) == 0 ? 0 : failed(41);
            }
            std::vector<int> numbers(4, 0);
            for (int i = 0; i < 3 * kEach; ++i) {
                Bytes came(50'000);
                fabricshm_request* request = start_receive(member, FABRICSHM_ANY_PEER, 7, came);
                if (request == nullptr) return failed(42);
                while (fabricshm_test(request) == 0) ::sched_yield();
                const int peer = fabricshm_request_peer(request);
                if (fabricshm_wait(request) != 0) return failed(43);
                if (peer < 1 || peer > 3) return 44;
                if (came != message_of(peer, numbers[static_cast<std::size_t>(peer)]++, 50'000)) {
                    return 45;
                }
            }
            if (numbers != std::vector<int>{0, kEach, kEach, kEach}) return 46;
            return barrier(member) == 0 ? 0 : failed(47);
        });
    }

    TEST_CASE("blocking receives from any rank, of which one is named meanwhile") {
        check_all({0, 0, 1}, [](const HostsRank& member) -> int {
            if (member.rank != 0) {
                return send(member, 0, 1, message_of(member.rank, 0, 3'000)) == 0 ? 0 : failed(50);
            }
            Bytes named(3'000);
            fabricshm_request* request = start_receive(member, 2, 1, named);
            Bytes any(3'000);
            // The message of rank 2 is the named one's, which was there first.
            if (receive(member, FABRICSHM_ANY_PEER, 1, any) != 0) return failed(51);
            if (fabricshm_wait(request) != 0) return failed(52);
            if (named != message_of(2, 0, 3'000)) return 53;
            return any == message_of(1, 0, 3'000) ? 0 : 54;
        });
    }

    TEST_CASE("a receive that asks for another size is a mismatch, and the group goes on") {
        check_all({0, 1}, [](const HostsRank& member) -> int {
            if (member.rank == 0) {
                for (const std::size_t size : {100, 200'000, 8}) {
                    if (send(member, 1, 0, message_of(0, 0, size)) != 0) return failed(60);
                }
            } else {
                for (const std::size_t size : {99, 200'001}) {
                    Bytes came(size);
                    if (receive(member, 0, 0, came) != FABRICSHM_EMISMATCH) return failed(61);
                    if (fabricshm_error_rank() != 0) return 62;
                }
                Bytes came(8);
                if (receive(member, 0, 0, came) != 0 || came != message_of(0, 0, 8)) return 63;
            }
            return barrier(member) == 0 ? 0 : failed(64);
        });
    }

    TEST_CASE("timeouts of messages leave the group as it was") {
        check_all({0, 1}, [](const HostsRank& member) -> int {
            const int other = 1 - member.rank;
            Bytes came(1'000);
            if (receive(member, other, 5, came, 20) != FABRICSHM_ETIMEOUT) return failed(70);
            if (receive(member, FABRICSHM_ANY_PEER, 5, came, 20) != FABRICSHM_ETIMEOUT) {
                return failed(71);
            }
            if (barrier(member) != 0) return failed(72);
            // No receive asks for it, and there is no room for all of it.
            const Bytes large = message_of(member.rank, 0, 10'000'000);
            if (send(member, other, 6, large, 50) != FABRICSHM_ETIMEOUT) return failed(73);
            if (barrier(member) != 0) return failed(74);
            // What was withdrawn is no message, and holds up no other.
            const Bytes small = message_of(member.rank, 1, 1'000);
            fabricshm_request* sent = start_send(member, other, 5, small);
            if (receive(member, other, 5, came) != 0) return failed(75);
            if (fabricshm_wait(sent) != 0) return failed(76);
            if (came != message_of(other, 1, 1'000)) return 77;
            return barrier(member) == 0 ? 0 : failed(78);
        });
    }

    TEST_CASE("a message stays for the next receive when one gives up in the middle") {
        const Daemon daemon;
        ExchangeBoard board;
        Gate given_up;
        const auto codes = run_children(2, [&](int rank) -> int {
            const HostsRank member(daemon.socket(), board, rank, rank, 2);
            if (member.group == nullptr) return 1;
            // Behind the first one there is no room for the second before that is received.
            const Bytes first = message_of(0, 1, 150'000);
            const Bytes second = message_of(0, 2, 900'000);
            if (rank == 0) {
                if (send(member, 1, 1, first) != 0) return failed(80);
                fabricshm_request* request = start_send(member, 1, 2, second);
                if (!given_up.wait()) return 81;
                return fabricshm_wait(request) == 0 ? 0 : failed(82);
            }
            Bytes came(900'000);
            // It may come in part, or whole, or not at all before the deadline.
            const int code = receive(member, 0, 2, came, 1);
            given_up.open();
            if (code != 0 && code != FABRICSHM_ETIMEOUT) return failed(83);
            if (code != 0 && receive(member, 0, 2, came) != 0) return failed(84);
            if (came != second) return 85;
            Bytes other(150'000);
            if (receive(member, 0, 1, other) != 0) return failed(86);
            return other == first ? 0 : 87;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("messages and operations at the same time, from two threads") {
        check_all({0, 1, 1}, [](const HostsRank& member) -> int {
            const int next = (member.rank + 1) % member.world;
            const int before = (member.rank + 2) % member.world;
            std::vector<fabricshm_request*> requests;
            std::vector<Bytes> sent;
            std::vector<Bytes> came(12, Bytes(300'000));
            for (int i = 0; i < 12; ++i) sent.push_back(message_of(member.rank, i, 300'000));
            for (int i = 0; i < 12; ++i) {
                const auto at = static_cast<std::size_t>(i);
                requests.push_back(start_receive(member, before, i % 3, came[at]));
                requests.push_back(start_send(member, next, i % 3, sent[at]));
                std::vector<std::int32_t> data(20'000, member.rank);
                if (fabricshm_allreduce(member.group, data.data(), data.data(), data.size(),
                                        FABRICSHM_I32, FABRICSHM_SUM) != 0) {
                    return failed(90);
                }
                if (data.front() != 3 || data.back() != 3) return 91;
            }
            for (fabricshm_request* request : requests) {
                if (request == nullptr || fabricshm_wait(request) != 0) return failed(92);
            }
            for (int i = 0; i < 12; ++i) {
                const Bytes& data = came[static_cast<std::size_t>(i)];
                if (data != message_of(before, i, data.size())) return 93;
            }
            return 0;
        });
    }

    TEST_CASE(
        "what had come of a rank before it died is received; then it is named, with its host") {
        const Daemon daemon;
        ExchangeBoard board;
        Gate sent;
        const auto codes = run_children(2, [&](int rank) -> int {
            const HostsRank member(daemon.socket(), board, rank, rank, 2);
            if (member.group == nullptr) return 1;
            if (rank == 1 && !send_three(member)) return failed(100);
            // What comes of the barrier comes after the messages.
            if (barrier(member) != 0) return failed(99);
            if (rank == 1) {
                sent.open();
                ::kill(::getpid(), SIGKILL);
            }
            if (!sent.wait()) return 101;
            Bytes came(20'000);
            for (int i = 2; i >= 0; --i) {
                if (receive(member, 1, i, came) != 0) return failed(102);
                if (came != message_of(1, i, 20'000)) return 103;
            }
            const std::string host = " on host ";
            if (receive(member, 1, 0, came) != FABRICSHM_EPEER) return failed(104);
            if (fabricshm_error_rank() != 1) return failed(105);
            if (std::string(fabricshm_error_text()).find(host) == std::string::npos) {
                return failed(106);
            }
            fabricshm_request* request = start_receive(member, FABRICSHM_ANY_PEER, 0, came);
            if (request == nullptr || fabricshm_wait(request) != FABRICSHM_EPEER) {
                return failed(107);
            }
            if (send(member, 1, 0, came) != FABRICSHM_EPEER) return failed(108);
            fabricshm_group* alone = nullptr;
            return fabricshm_group_shrink(member.group, 20'000, &alone) == 0 ? 0 : failed(109);
        });
        CHECK(codes[0] == 0);
    }

    // The kernel of a process that is killed may reset the connection, and the other drops what it
    // had not read.
    TEST_CASE("what was still on its way when a rank died comes whole, or the rank is named") {
        const Daemon daemon;
        ExchangeBoard board;
        Gate sent;
        const auto codes = run_children(2, [&](int rank) -> int {
            const HostsRank member(daemon.socket(), board, rank, rank, 2);
            if (member.group == nullptr) return 1;
            if (rank == 1) {
                if (!send_three(member)) return failed(120);
                sent.open();
                ::kill(::getpid(), SIGKILL);
            }
            if (!sent.wait()) return 121;
            for (int i = 0; i < 3; ++i) {
                Bytes came(20'000);
                const int code = receive(member, 1, i, came);
                if (code == FABRICSHM_EPEER && fabricshm_error_rank() == 1) continue;
                if (code != 0) return failed(122);
                if (came != message_of(1, i, 20'000)) return 123;
            }
            return 0;
        });
        CHECK(codes[0] == 0);
    }

    TEST_CASE("a rank that leaves has sent what it sent") {
        const auto codes = codes_of({0, 1}, [](const HostsRank& member) -> int {
            if (member.rank == 1) {
                return send(member, 0, 0, message_of(1, 0, 60'000)) == 0 ? 0 : failed(110);
            }
            Bytes came(60'000);
            if (receive(member, 1, 1, came, 300) == 0) return 111;  // of a tag that was not sent
            if (receive(member, 1, 0, came) != 0) return failed(112);
            return came == message_of(1, 0, 60'000) ? 0 : 113;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }
}
