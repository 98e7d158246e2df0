#include "fabricd/telemetry/path_book.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

SessionSample reader(std::uint64_t id, int rank, int world) {
    SessionSample session;
    session.session_id = id;
    session.page_number = 1;
    session.member = true;
    session.image = fabricshm::empty_telemetry();
    session.image.group_id = 7;
    session.image.rank = rank;
    session.image.world = world;
    session.image.peers.resize(static_cast<std::size_t>(world));
    return session;
}

void read(SessionSample& session, std::size_t peer, std::uint64_t bytes, std::int64_t ns,
          std::int64_t latency_ns) {
    auto& row = session.image.peers[peer];
    ++row.reads;
    row.read_bytes += bytes;
    row.read_ns += ns;
    row.latency_ns += latency_ns;
}

}  // namespace

TEST_SUITE("telemetry.path_book") {
    TEST_CASE("median and slowest are of the last reads of each path") {
        PathBook book;
        SessionSample session = reader(1, 1, 3);
        for (int i = 0; i < 200; ++i) {
            // The first hundred are forgotten: they were ten times as slow.
            const bool old = i < 100;
            read(session, 0, 10'000, old ? 10'000 : (i == 150 ? 4'000 : 1'000),
                 old ? 900 : 100 + i);
            book.look(session);
        }
        const auto paths = book.paths();
        REQUIRE(paths.size() == 1);
        CHECK(paths[0].group_id == 7);
        CHECK(paths[0].from == 1);
        CHECK(paths[0].to == 0);
        CHECK(paths[0].reads == 200);
        CHECK(paths[0].bytes_per_second == doctest::Approx(10e9));
        CHECK(paths[0].slow_bytes_per_second < 11e9);
        CHECK(paths[0].latency_ns == doctest::Approx(268).epsilon(0.01));
        CHECK(paths[0].latency_p99_ns > paths[0].latency_ns);
        CHECK(paths[0].latency_p99_ns <= 299);
    }

    TEST_CASE("a session that is no member of a group cannot claim its paths") {
        PathBook book;
        SessionSample session = reader(1, 0, 2);
        session.member = false;
        read(session, 1, 1000, 1000, 100);
        book.look(session);
        CHECK(book.paths().empty());
    }

    TEST_CASE("counters that fall, stand still or are absurd are no observation") {
        PathBook book;
        SessionSample session = reader(1, 0, 2);
        read(session, 1, 1000, 1000, 100);
        book.look(session);
        book.look(session);
        session.image.peers[1].read_ns = 0;
        ++session.image.peers[1].reads;
        book.look(session);
        session.image.peers[1].read_ns = 500;
        read(session, 1, 1000, 1000, std::int64_t{1} << 61);
        book.look(session);
        REQUIRE(book.paths().size() == 1);
        CHECK(book.paths()[0].bytes_per_second == doctest::Approx(1e9));
        CHECK(book.paths()[0].latency_ns == doctest::Approx(100));
    }

    TEST_CASE("paths go with their session") {
        PathBook book;
        SessionSample gone = reader(1, 0, 2);
        SessionSample here = reader(2, 1, 2);
        read(gone, 1, 1000, 1000, 100);
        read(here, 0, 1000, 1000, 100);
        book.look(gone);
        book.look(here);
        book.keep({here});
        REQUIRE(book.paths().size() == 1);
        CHECK(book.paths()[0].from == 1);
    }
}
