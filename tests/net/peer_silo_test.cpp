// Chunks of other hosts: servers of two hosts on the loopback, and peers that do everything wrong.

#include "fabricd/data/peers/peer_silo.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/fd.hpp"
#include "tests/support/silo_bench.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace test_support;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Fd;

namespace {

constexpr std::size_t kSmall = 5000;
constexpr FileVersion kVersion{{11, 22, 33, 44}};

std::string content(const std::string& path, std::uint32_t number, std::size_t bytes) {
    std::string text;
    while (text.size() < bytes)
        text += path + "#" + std::to_string(number) + "." + std::to_string(text.size());
    return text.substr(0, bytes);
}

FileFacts facts(Bytes bytes) {
    return {bytes, kVersion};
}

/// What a host has, and what it was asked.
class Cache : public ChunkSource {
  public:
    std::optional<Chunk> find(const ChunkName& name) override {
        const std::lock_guard lock(mutex_);
        ++asked_;
        const auto found = chunks_.find({name.path, name.number});
        if (found == chunks_.end() || name.version != kVersion) return std::nullopt;
        return found->second;
    }
    void put(const std::string& path, std::uint32_t number, std::size_t bytes) {
        const std::string text = content(path, number, bytes);
        const auto* const first = reinterpret_cast<const std::byte*>(text.data());
        const std::lock_guard lock(mutex_);
        chunks_[{path, number}] = {{first, first + bytes}, fabricshm::crc32c(text.data(), bytes)};
    }
    int asked() const {
        const std::lock_guard lock(mutex_);
        return asked_;
    }

  private:
    mutable std::mutex mutex_;
    std::map<std::pair<std::string, std::uint32_t>, Chunk> chunks_;
    int asked_ = 0;
};

/// A silo that answers when the test says so.
class SlowSilo : public Silo {
  public:
    Result<SiloPage> list(const std::string&, const std::string&, std::size_t, TimePoint) override {
        return SiloPage{};
    }
    Result<FileFacts> look(const std::string&, TimePoint) override { return facts(kSmall); }
    bool has_room() const noexcept override { return under_way_.size() < 4; }
    void start(const Fetch& fetch) override {
        ++fetches;
        under_way_.push_back({fetch, Clock::now() + latency});
    }
    std::vector<Fetched> wait(TimePoint deadline) override {
        if (under_way_.empty()) return {};
        const auto due = under_way_.front().second;
        if (due > deadline) {
            if (deadline > Clock::now()) std::this_thread::sleep_until(deadline);
            return {};
        }
        if (due > Clock::now()) std::this_thread::sleep_until(due);
        const Fetch fetch = under_way_.front().first;
        under_way_.erase(under_way_.begin());
        if (fails)
            return {{fetch.tag, FetchOutcome::kFailed, {Errc::kSystem, 5, "silo"}, "broken"}};
        const auto number = static_cast<std::uint32_t>(fetch.offset / kPeerChunk);
        const std::string text = content("/at/" + fetch.path, number, fetch.bytes);
        std::memcpy(fetch.into, text.data(), fetch.bytes);
        return {{fetch.tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, ""}};
    }

    std::chrono::milliseconds latency{0};
    bool fails = false;
    int fetches = 0;

  private:
    std::vector<std::pair<Fetch, TimePoint>> under_way_;
};

/// Hosts with servers; the last member is this host, which has none.
class Hosts {
  public:
    explicit Hosts(int count, const PeerTrust& trust = {})
        : caches(static_cast<std::size_t>(count)) {
        for (auto& cache : caches) {
            ChunkServerOptions server;
            server.listen = "127.0.0.1:0";
            server.trust = trust;
            // No question is too late, however slow the machine is; a test that wants one says so.
            server.header_time = server.idle_time = 60'000ms;
            servers.push_back(ChunkServer::start(server, cache).value());
            options.members.push_back({"127.0.0.1:" + std::to_string(servers.back()->port()), ""});
        }
        options.at = "/at";
        options.self = "127.0.0.1:9";
        options.members.push_back({options.self, ""});
        options.copies = 8;
        options.trust = trust;
        options.head_start = options.peer_time = 60'000ms;
    }
    std::unique_ptr<PeerSilo> open() {
        auto base = std::make_unique<SlowSilo>();
        silo = base.get();
        return PeerSilo::open(options, std::move(base)).value();
    }

    std::vector<Cache> caches;
    std::vector<std::unique_ptr<ChunkServer>> servers;
    PeerSiloOptions options;
    SlowSilo* silo = nullptr;
};

/// Answers each connection with the same bytes, whatever is asked, and keeps it open.
class Liar {
  public:
    explicit Liar(std::string answer) : answer_(std::move(answer)) {
        listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in place{};
        place.sin_family = AF_INET;
        place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof place;
        auto* const address = reinterpret_cast<sockaddr*>(&place);
        if (::bind(listener_.get(), address, length) != 0) std::abort();
        if (::listen(listener_.get(), 16) != 0) std::abort();
        ::getsockname(listener_.get(), address, &length);
        port_ = ntohs(place.sin_port);
        int ends[2];
        if (::pipe(ends) != 0) std::abort();
        stop_ = Fd(ends[1]);
        thread_ = std::thread([this, stopped = Fd(ends[0])] { serve(stopped.get()); });
    }
    ~Liar() {
        stop_.reset();
        thread_.join();
    }
    std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  private:
    void serve(int stopped) {
        std::vector<Fd> open;
        for (;;) {
            pollfd both[] = {{stopped, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
            ::poll(both, 2, -1);
            if (both[0].revents != 0) return;
            open.emplace_back(::accept(listener_.get(), nullptr, nullptr));
            char question[4096];
            if (::recv(open.back().get(), question, sizeof question, 0) <= 0) continue;
            if (!answer_.empty()) {
                static_cast<void>(
                    ::send(open.back().get(), answer_.data(), answer_.size(), MSG_NOSIGNAL));
            }
            if (answer_.ends_with("close")) ::shutdown(open.back().get(), SHUT_RDWR);
        }
    }

    std::string answer_;
    Fd listener_;
    int port_ = 0;
    Fd stop_;
    std::thread thread_;
};

std::string answer_of(const std::string& body, const std::string& etag, std::uint32_t checksum,
                      std::size_t length) {
    const std::string last = std::to_string(length - 1);
    return "HTTP/1.1 206 Partial Content\r\nETag: \"" + etag + "\"\r\nContent-Range: bytes 0-" +
           last + "/" + std::to_string(length) + "\r\nx-fabric-crc32c: " + checksum_text(checksum) +
           "\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n" + body;
}

std::string send_to(std::uint16_t port, const std::string& text) {
    const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(port);
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0)
        return "";
    static_cast<void>(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL));
    std::string all;
    char part[4096];
    for (ssize_t got; (got = ::recv(fd.get(), part, sizeof part, 0)) > 0;) {
        all.append(part, static_cast<std::size_t>(got));
    }
    return all;
}

}  // namespace

TEST_SUITE("net.peer_silo") {
    TEST_CASE("a chunk that an owner has comes from it, and the silo is not asked") {
        Hosts hosts(2);
        constexpr std::size_t kLast = 77'777;
        hosts.caches[1].put("/at/big", 0, kPeerChunk);
        hosts.caches[1].put("/at/big", 1, kLast);
        const auto silo = hosts.open();
        for (std::uint32_t number = 0; number < 2; ++number) {
            const std::size_t bytes = number == 0 ? kPeerChunk : kLast;
            const FetchedText got =
                fetch_text(*silo, "big", facts(kPeerChunk + kLast), number * kPeerChunk, bytes);
            CHECK(got.ended.outcome == FetchOutcome::kWhole);
            CHECK(got.ended.tag == 7);
            CHECK(got.text == content("/at/big", number, bytes));
            CHECK(got.around == std::string(128, '.'));
        }
        CHECK(hosts.silo->fetches == 0);
        CHECK(silo->stats().from_peers == 2);
        CHECK(hosts.servers[1]->stats().served == 2);
    }

    TEST_CASE("what no owner has comes from the silo at once, as does what is no whole chunk") {
        Hosts hosts(2);
        const auto silo = hosts.open();
        const FetchedText got = fetch_all(*silo, "file", facts(kSmall));
        CHECK(got.text == content("/at/file", 0, kSmall));
        CHECK(hosts.silo->fetches == 1);
        CHECK(silo->stats().missing == 2);
        hosts.caches[0].put("/at/part", 0, kSmall);
        CHECK(fetch_text(*silo, "part", facts(kSmall), 0, 100).ended.outcome ==
              FetchOutcome::kWhole);
        CHECK(fetch_text(*silo, "part", facts(kSmall), 0, 0).ended.outcome == FetchOutcome::kWhole);
        CHECK(hosts.silo->fetches == 3);
        CHECK(hosts.caches[0].asked() == 1);
        // Another version is not what it has.
        FileFacts other = facts(kSmall);
        other.version.words[0] = 99;
        CHECK(fetch_all(*silo, "part", other).ended.outcome == FetchOutcome::kWhole);
        CHECK(hosts.silo->fetches == 4);
    }

    TEST_CASE("only the owners are asked, and this host never asks itself") {
        Hosts hosts(3);
        hosts.options.copies = 1;
        const auto silo = hosts.open();
        std::set<std::size_t> owners;
        for (int i = 0; i < 40; ++i) {
            const std::string path = "f" + std::to_string(i);
            const auto owner = owners_of({"/at/" + path, kVersion, 0}, hosts.options.members, 1)[0];
            owners.insert(owner);
            std::vector<int> before;
            for (const auto& cache : hosts.caches) before.push_back(cache.asked());
            CHECK(fetch_all(*silo, path, facts(10)).ended.outcome == FetchOutcome::kWhole);
            for (std::size_t host = 0; host < 3; ++host) {
                CHECK(hosts.caches[host].asked() - before[host] == (host == owner ? 1 : 0));
            }
        }
        CHECK(owners.size() == 4);
    }

    TEST_CASE("a peer that lies is refused, left out for a while, and the silo answers") {
        const std::string right = content("/at/file", 0, kSmall);
        const std::string version = version_text(kVersion);
        const auto sum = fabricshm::crc32c(right.data(), right.size());
        std::string flipped = right;
        flipped[1234] ^= 1;
        const struct {
            const char* what;
            std::string answer;
            bool is_lie;
        } lies[] = {
            {"wrong bytes", answer_of(flipped, version, sum, kSmall), true},
            {"wrong checksum", answer_of(right, version, sum + 1, kSmall), true},
            {"another version", answer_of(right, std::string(64, '0'), sum, kSmall), true},
            {"shorter", answer_of(right.substr(0, 100), version, sum, 100), true},
            {"longer", answer_of(right + "x", version, sum, kSmall + 1), true},
            {"the whole file", "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + right, true},
            {"ends early", answer_of(right.substr(0, 4000) + "close", version, sum, kSmall), false},
            {"stalls", answer_of(right.substr(0, 4000), version, sum, kSmall), false},
            {"says nothing", "", false},
            {"an error", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", false},
            {"no HTTP", "SSH-2.0-OpenSSH\r\nclose", false}};
        for (const auto& lie : lies) {
            CAPTURE(std::string(lie.what));
            Hosts hosts(0);
            const Liar liar(lie.answer);
            hosts.options.members.push_back({liar.address(), ""});
            // Those that answer are judged by that, however late it comes.
            hosts.options.peer_time = lie.is_lie ? 60'000ms : 200ms;
            const auto silo = hosts.open();
            for (int i = 0; i < 3; ++i) {
                const FetchedText got = fetch_all(*silo, "file", facts(kSmall));
                CHECK(got.ended.outcome == FetchOutcome::kWhole);
                CHECK(got.text == right);
                CHECK(got.around == std::string(128, '.'));
            }
            CHECK(silo->stats().from_silo == 3);
            CHECK(silo->stats().lies + silo->stats().failures == 1);
            if (lie.is_lie) CHECK(silo->stats().lies == 1);
        }
    }

    TEST_CASE("a peer that was left out is asked again when its time is over") {
        Hosts hosts(0);
        const Liar liar(answer_of("close", version_text(kVersion), 1, 5));
        hosts.options.members.push_back({liar.address(), ""});
        hosts.options.lie_pause = 0ms;
        const auto silo = hosts.open();
        CHECK(fetch_all(*silo, "file", facts(5)).ended.outcome == FetchOutcome::kWhole);
        CHECK(fetch_all(*silo, "file", facts(5)).ended.outcome == FetchOutcome::kWhole);
        CHECK(silo->stats().lies == 2);
    }

    TEST_CASE("after the head start the silo is asked, too, and the first answer counts") {
        Hosts hosts(0);
        const Liar silent("");
        hosts.options.members.push_back({silent.address(), ""});
        hosts.options.head_start = 20ms;
        const auto silo = hosts.open();
        for (int i = 0; i < 5; ++i) {
            const auto begin = Clock::now();
            CHECK(fetch_all(*silo, "file", facts(kSmall)).text == content("/at/file", 0, kSmall));
            CHECK(Clock::now() - begin < 4s);
        }
        // Three times slower than the silo: left out.
        CHECK(silo->stats().failures == 1);
        CHECK(silo->stats().from_silo == 5);
        Hosts quick(1);
        quick.caches[0].put("/at/file", 0, kSmall);
        quick.options.head_start = 0ms;
        const auto other = quick.open();
        quick.silo->latency = 30'000ms;
        CHECK(fetch_all(*other, "file", facts(kSmall)).text == content("/at/file", 0, kSmall));
        CHECK(other->stats().from_peers == 1);
    }

    TEST_CASE(
        "a silo that fails waits for the peer, and its own words count when that fails, too") {
        Hosts hosts(1);
        hosts.caches[0].put("/at/file", 0, kSmall);
        hosts.options.head_start = 0ms;
        const auto silo = hosts.open();
        hosts.silo->fails = true;
        CHECK(fetch_all(*silo, "file", facts(kSmall)).text == content("/at/file", 0, kSmall));
        const FetchedText none = fetch_all(*silo, "other", facts(kSmall));
        CHECK(none.ended.outcome == FetchOutcome::kFailed);
        CHECK(none.ended.reason == "broken");
        hosts.servers.clear();
        CHECK(fetch_all(*silo, "file", facts(kSmall)).ended.reason == "broken");
    }

    TEST_CASE("many chunks at a time each get their own bytes, from peers and silo mixed") {
        Hosts hosts(2);
        constexpr std::size_t kFiles = 200;
        for (std::size_t i = 0; i < kFiles; ++i) {
            if (i % 3 != 2) hosts.caches[i % 3].put("/at/" + std::to_string(i), 0, kSmall);
        }
        const auto silo = hosts.open();
        FetchMemory memory(kFiles * kSmall);
        std::set<std::uint64_t> done;
        const auto take = [&] {
            for (const auto& ended : silo->wait(soon())) {
                CHECK(ended.outcome == FetchOutcome::kWhole);
                CHECK(done.insert(ended.tag).second);
            }
        };
        for (std::size_t i = 0; i < kFiles; ++i) {
            while (!silo->has_room()) take();
            silo->start(
                {std::to_string(i), facts(kSmall), 0, kSmall, memory.at(i * kSmall), kSmall, i});
        }
        while (done.size() < kFiles) take();
        for (std::size_t i = 0; i < kFiles; ++i) {
            CHECK(memory.text(i * kSmall, kSmall) ==
                  content("/at/" + std::to_string(i), 0, kSmall));
        }
        CHECK(silo->stats().from_peers == 134);
        CHECK(silo->stats().from_silo == 66);
    }

    TEST_CASE("a server answers what it can't with a status, and bounds headers and connections") {
        Cache cache;
        cache.put("/at/a", 0, 10);
        ChunkServerOptions options;
        options.listen = "127.0.0.1:0";
        options.connections = 2;
        // What comes in time has an answer, however slow the machine is.
        options.header_time = options.idle_time = 60'000ms;
        const auto server = ChunkServer::start(options, cache).value();
        const std::string good = chunk_target({"/at/a", kVersion, 0});
        const auto ask = [&](const std::string& line, const std::string& more) {
            return send_to(server->port(),
                           line + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + more + "\r\n");
        };
        CHECK(ask("GET " + good, "").starts_with("HTTP/1.1 206 "));
        CHECK(ask("GET " + good, "").ends_with(content("/at/a", 0, 10)));
        CHECK(ask("GET " + good + "1", "").starts_with("HTTP/1.1 404 "));
        for (const std::string& line :
             {"POST " + good, std::string("GET /"), "GET " + good + "&x"}) {
            CHECK(ask(line, "").starts_with("HTTP/1.1 400 "));
        }
        CHECK(ask("GET " + good, "X: " + std::string(9000, 'x') + "\r\n")
                  .starts_with("HTTP/1.1 400 "));
        CHECK(ask("GET " + good, "Content-Length: 5\r\n").starts_with("HTTP/1.1 400 "));
        CHECK(server->stats().refused == 5);
        // Closed, without a word: a header that does not end, and no header at all.
        ChunkServerOptions brief = options;
        brief.header_time = 50ms;
        const auto for_headers = ChunkServer::start(brief, cache).value();
        CHECK(send_to(for_headers->port(), "GET /v1/chu").empty());
        brief.idle_time = 100ms;
        const auto for_silence = ChunkServer::start(brief, cache).value();
        CHECK(send_to(for_silence->port(), "").empty());
        CHECK(for_headers->stats().refused + for_silence->stats().refused == 0);
        std::vector<Fd> open;
        for (int i = 0; i < 2; ++i) {
            open.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_in place{};
            place.sin_family = AF_INET;
            place.sin_port = htons(server->port());
            place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            REQUIRE(::connect(open.back().get(), reinterpret_cast<const sockaddr*>(&place),
                              sizeof place) == 0);
        }
        CHECK(send_to(server->port(), "").empty());
        CHECK(server->stats().refused == 6);
    }

    TEST_CASE("an address that others reach takes certificates, and a bad one is refused") {
        Cache cache;
        const auto start = [&](const char* listen, const PeerTrust& trust = {}) {
            ChunkServerOptions options;
            options.listen = listen;
            options.trust = trust;
            const auto server = ChunkServer::start(options, cache);
            return server.ok() ? Errc::kOk : server.error().code;
        };
        CHECK(start("0.0.0.0:0") == Errc::kDenied);
        CHECK(start("10.1.2.3:0") == Errc::kDenied);
        CHECK(start("[::]:0") == Errc::kDenied);
        for (const char* bad : {"", "127.0.0.1", "localhost:0", "127.0.0.1:x", "127.0.0.1:99999"}) {
            CAPTURE(std::string(bad));
            CHECK(start(bad) == Errc::kInvalid);
        }
        CHECK(start("127.0.0.1:0", {"/gone", "/gone", "/gone"}) == Errc::kInvalid);
        const auto one = ChunkServer::start({.listen = "127.0.0.1:0", .trust = {}}, cache).value();
        CHECK(start(("127.0.0.1:" + std::to_string(one->port())).c_str()) == Errc::kExists);
        PeerSiloOptions options;
        options.members = {{"nowhere", ""}};
        CHECK(PeerSilo::open(options, std::make_unique<SlowSilo>()).error().code == Errc::kInvalid);
    }

    TEST_CASE("by TLS only hosts of the same authority hear each other") {
        const TemporaryDirectory folder;
        const std::string script =
            "cd " + folder.path() +
            " && for a in ours other; do openssl req -x509 -newkey ec -pkeyopt "
            "ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=$a -keyout $a.key -out $a.pem "
            "&& "
            "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=h "
            "-keyout $a-host.key -out $a-host.csr && printf 'subjectAltName=IP:127.0.0.1' > ext && "
            "openssl x509 -req -days 2 -in $a-host.csr -CA $a.pem -CAkey $a.key -CAcreateserial "
            "-extfile ext -out $a-host.pem || exit 1; done";
        if (std::system(("(" + script + ") > /dev/null 2>&1").c_str()) != 0) {
            MESSAGE("openssl is not installed");
            return;
        }
        const auto trust = [&](const char* authority, const char* host) {
            return PeerTrust{folder.file((authority + std::string(".pem")).c_str()),
                             folder.file((host + std::string("-host.pem")).c_str()),
                             folder.file((host + std::string("-host.key")).c_str())};
        };
        Hosts hosts(1, trust("ours", "ours"));
        hosts.caches[0].put("/at/file", 0, kSmall);
        const auto from_peer = [&](const PeerTrust& mine) {
            hosts.options.trust = mine;
            const auto silo = hosts.open();
            CHECK(fetch_all(*silo, "file", facts(kSmall)).text == content("/at/file", 0, kSmall));
            return silo->stats().from_peers == 1;
        };
        CHECK(from_peer(trust("ours", "ours")));
        CHECK(!from_peer(trust("ours", "other")));  // the server does not trust it
        CHECK(!from_peer(trust("other", "ours")));  // it does not trust the server
        CHECK(!from_peer({}));                      // plain
    }
}
