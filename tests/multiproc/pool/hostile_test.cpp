// A client that does everything wrong, on purpose, next to a job that must not notice.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>

#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "tests/support/children.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wire_client.hpp"

using namespace test_support;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Fd;
using fabricshm::kMiB;
using fabricshm::UnixSocket;
namespace proto = fabricshm::proto;
using proto::Message;
using proto::Type;

namespace {

/// Of the last type of request that there is, by the protocol's own table: a new one is attacked,
/// too.
int last_type() {
    int last = 0;
    while (proto::name_of(static_cast<Type>(last + 1)) != proto::name_of(Type{})) ++last;
    return last;
}

/// Any but the first, and none that ends the session: it is to live through it.
Type random_type(std::mt19937_64& random) {
    static const auto more = static_cast<std::uint64_t>(last_type() - 1);
    for (;;) {
        const auto type = static_cast<Type>(2 + random() % more);
        if (type != Type::kBye) return type;
    }
}

fabricshm::TimePoint at_once() {
    return {};
}

void send_raw(const UnixSocket& socket, const void* data, std::size_t bytes,
              std::span<const int> descriptors = {}) {
    [[maybe_unused]] const auto sent =
        socket.send({static_cast<const std::byte*>(data), bytes}, descriptors, at_once());
}

/// Reads what the daemon answers, so that it has no reason to hang up for that.
void drain(const UnixSocket& socket) {
    Message reply;
    Fd descriptors[2];
    while (socket.receive(proto::writable_bytes_of(reply), descriptors, at_once()).ok()) {
    }
}

/// The daemon still serves a session that behaves. Of a user that had as many connections as a user
/// may have, it refuses the next one until it has seen them end: then once more.
bool serves(const std::string& socket) {
    const auto timeout = Clock::now() + WireClient::kTimeout;
    for (;;) {
        auto client = WireClient::attach(socket, "probe");
        if (client.ok()) return client->open_arena("probe", 4096).ok();
        if (client.error().code != Errc::kClosed || Clock::now() > timeout) return false;
    }
}

int garbage(const std::string& socket) {
    std::mt19937 random(1);
    for (std::size_t size = 0; size < 1200; size += 7) {
        auto client = WireClient::connect(socket);
        if (!client.ok()) return 1;
        std::vector<unsigned char> bytes(size);
        for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
        send_raw(client->socket(), bytes.data(), bytes.size());
        drain(client->socket());
    }
    return serves(socket) ? 0 : 2;
}

int other_versions(const std::string& socket) {
    for (const int version : {0, 2, 0xffff}) {
        auto client = WireClient::connect(socket);
        if (!client.ok()) return 1;
        Message hello = proto::make_request(Type::kHello, 1);
        hello.header.version = static_cast<std::uint16_t>(version);
        const auto reply = client->ask(hello);
        if (reply.ok() || reply.error().code != Errc::kVersion) return 2;
    }
    return serves(socket) ? 0 : 3;
}

int before_hello_and_twice(const std::string& socket) {
    for (int type = 2; type <= last_type(); ++type) {
        auto client = WireClient::connect(socket);
        if (!client.ok()) return 1;
        const auto reply = client->ask(proto::make_request(static_cast<Type>(type), 1));
        if (reply.ok()) return 2;
    }
    auto client = WireClient::attach(socket);
    if (!client.ok() || client->hello("again").ok()) return 3;
    return serves(socket) ? 0 : 4;
}

// Every field of every request full of random bits, from a session that is attached.
int random_fields(const std::string& socket) {
    std::mt19937_64 random(2);
    for (int round = 0; round < 300; ++round) {
        auto client = WireClient::attach(socket, "fuzz");
        if (!client.ok()) return 1;
        const auto arena = client->open_arena("fuzz", kMiB);
        if (!arena.ok()) return 2;
        for (int i = 0; i < 20; ++i) {
            Message request = proto::make_request(random_type(random), 1);
            for (auto& byte : request.raw) byte = static_cast<std::uint8_t>(random());
            // Half of them get past the first check: an arena that exists, names that end.
            if (random() % 2 == 0) {
                request.region.arena_id = arena->arena_id;
                std::memset(request.raw + 40, 'x', 8);
                std::memset(request.raw + 48, 0, 56);
                request.region.bytes = random() >> (random() % 64);
            }
            send_raw(client->socket(), &request, sizeof request);
        }
        drain(client->socket());
    }
    return serves(socket) ? 0 : 3;
}

int ids_of_others(const std::string& socket, std::uint64_t arena, const proto::Region& region,
                  std::uint64_t group, std::uint64_t session) {
    auto client = WireClient::attach(socket, "thief");
    if (!client.ok()) return 1;
    const auto refused = [](const auto& result) {
        return !result.ok() && result.error().code == Errc::kNotFound;
    };
    // Not opened, so for this session they do not exist.
    if (!refused(client->create_region(arena, 4096))) return 2;
    if (!refused(client->open_region(region))) return 3;
    if (!refused(client->free_region(region))) return 4;
    if (!refused(client->join(arena, "job", 0, 1))) return 5;
    if (!refused(client->leave(group))) return 6;
    if (!refused(client->shrink(group, 0))) return 7;
    if (!refused(client->close_arena(arena))) return 8;
    // Of a session that did not come back no descriptor is taken, whatever it names.
    if (client->adopt(arena, STDIN_FILENO).ok()) return 9;
    proto::Region far = region;
    far.region_id = ~std::uint64_t{0};
    if (!refused(client->free_region(far))) return 10;
    // With the arena open its regions can be seen, but they are still not this session's.
    if (!client->open_arena("job", 0).ok()) return 11;
    if (client->free_region(region).error().code != Errc::kDenied) return 12;
    if (!refused(client->leave(group))) return 13;
    WireClient impostor = WireClient::connect(socket).value();
    WireClient guess;
    guess.session.session_id = session;
    return impostor.hello_again(guess).error().code == Errc::kDenied ? 0 : 14;
}

/// A session that lost its connection and came back: it may present arenas, so that what it sends
/// arrives on kernels that keep descriptors of all others away.
fabricshm::Result<WireClient> come_back(const std::string& socket, WireClient& first) {
    first.socket().reset();
    FABRIC_TRY(WireClient again, WireClient::connect(socket));
    FABRIC_TRY_VOID(again.hello_again(first));
    return again;
}

int foreign_descriptors(const std::string& socket) {
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return 1;
    const Fd read_end(pipe_ends[0]), write_end(pipe_ends[1]);
    const Fd directory(::open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Fd forged(::memfd_create("fabric-arena-1", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::ftruncate(forged.get(), kMiB) != 0) return 2;
    auto first = WireClient::attach(socket, "fds");
    if (!first.ok()) return 3;
    const auto arena = first->open_arena("fds", kMiB);
    if (!arena.ok()) return 4;
    auto client = come_back(socket, *first);
    if (!client.ok()) return 10;
    for (const Fd* fd : {&read_end, &directory, &forged}) {
        if (client->adopt(arena->arena_id, fd->get()).error().code != Errc::kCorrupt) return 5;
    }
    if (client->adopt(arena->arena_id, -1).error().code != Errc::kInvalid) return 6;
    // A pipe's other end shows when the daemon has closed what it did not ask for.
    for (int type = 1; type <= last_type(); ++type) {
        auto session = WireClient::attach(socket, "fds");
        if (!session.ok()) return 7;
        auto sender = come_back(socket, *session);
        if (!sender.ok()) return 11;
        Message request = proto::make_request(static_cast<Type>(type), 1);
        const int many[] = {write_end.get(), write_end.get(), write_end.get(), write_end.get(),
                            write_end.get(), write_end.get(), write_end.get(), write_end.get()};
        for (const std::size_t count : {1, 2, 8}) {
            send_raw(sender->socket(), &request, sizeof request, std::span(many, count));
        }
        drain(sender->socket());
    }
    if (!serves(socket)) return 8;
    const_cast<Fd&>(write_end).reset();
    return fabricshm::wait_ready(read_end.get(), POLLHUP, Clock::now() + WireClient::kTimeout,
                                 "wait for the pipe's end")
                   .ok()
               ? 0
               : 9;
}

// Asks and asks and never reads.
int floods(const std::string& socket) {
    for (int round = 0; round < 20; ++round) {
        auto client = WireClient::attach(socket, "flood");
        if (!client.ok()) return 1;
        const Message request = arena_request("flood", kMiB);
        for (int i = 0; i < 2000; ++i) send_raw(client->socket(), &request, sizeof request);
    }
    std::vector<WireClient> idle;
    for (int i = 0; i < 1500; ++i) {
        auto client = WireClient::connect(socket, fabricshm::Duration::zero());
        if (client.ok()) idle.push_back(std::move(client).value());
    }
    idle.clear();
    return serves(socket) ? 0 : 2;
}

// Writes over everything it can: its arena, with the group block that the daemon marks deaths in.
int scribbles(const std::string& socket) {
    std::mt19937_64 random(3);
    for (int round = 0; round < 10; ++round) {
        auto a = WireClient::attach(socket, "scribbler");
        if (!a.ok()) return 1;
        const auto arena = a->open_arena("scribble", 16 * kMiB);
        if (!arena.ok()) return 2;
        const Fd fd = std::move(a->descriptor);
        const auto mapping = fabricshm::Mapping::map(fd, 0, arena->bytes, fabricshm::MapOptions{});
        if (!mapping.ok()) return 3;
        const auto scribble = [&] {
            auto* words = reinterpret_cast<std::uint64_t*>(mapping->data());
            for (std::size_t i = 0; i < mapping->size() / sizeof *words; ++i) words[i] = random();
        };
        {
            Child other([&]() -> int {
                auto b = WireClient::attach(socket, "scribbler");
                if (!b.ok() || !b->open_arena("scribble", 0).ok()) return 1;
                if (!b->create_region(arena->arena_id, 4096).ok()) return 2;
                [[maybe_unused]] const auto joined = b->join(arena->arena_id, "g", 1, 2);
                Gate forever;
                forever.wait();
                return 0;
            });
            const auto group = a->join(arena->arena_id, "g", 0, 2);
            if (!group.ok()) return 4;
            scribble();
            ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(group->block_offset), 4096);
            if (::ftruncate(fd.get(), 0) == 0) return 5;  // sealed
            other.kill();  // the daemon writes into what was scribbled over
            if (!a->shrink(group->group_id).ok()) return 6;
            scribble();
            if (!a->close_arena(arena->arena_id).ok()) return 7;
        }
    }
    return serves(socket) ? 0 : 8;
}

/// The job that must not notice: two ranks in a group, and one that makes and frees regions.
struct GoodJob {
    explicit GoodJob(const std::string& socket)
        : a(WireClient::attach(socket, "good").value()),
          b(WireClient::attach(socket, "good").value()),
          arena(a.open_arena("job", 16 * kMiB).value()) {
        REQUIRE(b.open_arena("job", 0).ok());
        mapping = fabricshm::Mapping::map(a.descriptor, 0, arena.bytes, {}).value();
        region = a.create_region(arena.arena_id, kMiB).value();
        std::memset(mapping.data() + region.offset, 0x5a, region.bytes);
        REQUIRE(b.send(join_request(arena.arena_id, "job", 1, 2)).ok());
        group = a.join(arena.arena_id, "job", 0, 2).value();
        REQUIRE(b.receive().ok());
    }
    void check() {
        for (int i = 0; i < 50; ++i) {
            const auto extra = b.create_region(arena.arena_id, 10000);
            REQUIRE(extra.ok());
            REQUIRE(b.free_region(extra.value()).ok());
        }
        REQUIRE(a.open_region(region).ok());
        for (std::uint64_t i = 0; i < region.bytes; ++i) {
            if (mapping.data()[region.offset + i] != std::byte{0x5a})
                FAIL("the job's data changed");
        }
    }
    WireClient a, b;
    proto::ArenaOpen arena;
    fabricshm::Mapping mapping;
    proto::Region region;
    proto::Group group;
};

}  // namespace

TEST_SUITE("multiproc.pool.hostile") {
    TEST_CASE("every type of request is attacked") {
        CHECK(last_type() >= static_cast<int>(Type::kShardMove));
        CHECK(std::string(proto::name_of(static_cast<Type>(last_type()))) !=
              proto::name_of(static_cast<Type>(last_type() + 1)));
    }

    TEST_CASE("nothing a client does harms the daemon or another job") {
        const TemporaryDirectory directory;
        const std::string socket = FabricdProcess::socket_in(directory.path());
        FabricdProcess daemon(directory.path());
        GoodJob job(socket);
        const auto attack = [&](const std::string& name, const std::function<int()>& body) {
            CAPTURE(name);
            Child hostile(body);
            job.check();
            CHECK(hostile.wait() == 0);
            REQUIRE_FALSE(daemon.ended());
            job.check();
        };
        attack("garbage", [&] { return garbage(socket); });
        attack("other versions", [&] { return other_versions(socket); });
        attack("before hello and twice", [&] { return before_hello_and_twice(socket); });
        attack("random fields", [&] { return random_fields(socket); });
        attack("ids of others", [&] {
            return ids_of_others(socket, job.arena.arena_id, job.region, job.group.group_id,
                                 job.a.session.session_id);
        });
        attack("foreign descriptors", [&] { return foreign_descriptors(socket); });
        attack("floods", [&] { return floods(socket); });
        attack("scribbles", [&] { return scribbles(socket); });
        CHECK(daemon.stop() == 0);  // also what the sanitizers have to say
    }

    TEST_CASE("another user gets neither in nor at an arena") {
        if (::geteuid() != 0) return;  // only root can be two users
        const TemporaryDirectory directory;
        REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
        const std::string socket = FabricdProcess::socket_in(directory.path());
        FabricdProcess daemon(directory.path(), "",
                              {"--server-socket-mode=0666", "--server-allow-uids=65534"});
        GoodJob job(socket);
        const auto as_user = [&](uid_t uid) {
            Child child([&]() -> int {
                if (::setresuid(uid, uid, uid) != 0) return 1;
                auto client = WireClient::connect(socket);
                if (!client.ok()) return 2;
                const auto hello = client->hello("stranger");
                if (!hello.ok()) return hello.error().code == Errc::kDenied ? 3 : 4;
                const auto arena = client->open_arena("job", 0);
                return !arena.ok() && arena.error().code == Errc::kDenied ? 5 : 6;
            });
            return child.wait();
        };
        CHECK(as_user(65534) == 5);
        CHECK(as_user(65533) == 3);
        job.check();
    }
}
