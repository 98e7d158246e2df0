// An S3 bucket as a silo, against a server that verifies each signature by botocore. What objects
// have to contain follows from key, version and offset.

#include "fabricd/data/silo/s3_silo.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/s3_server.hpp"
#include "tests/support/silo_bench.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace test_support;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::kKiB;

namespace {

/// One for all tests: it takes a while to start.
S3Server& server() {
    static S3Server the_one;
    return the_one;
}

class Bucket {
  public:
    Bucket() {
        options.place = "s3://datasets/set one";
        options.endpoint = "http://127.0.0.1:" + std::to_string(server().port());
        options.region = S3Server::kRegion;
        options.credentials = folder_.file("key");
        options.web = quick_options();
        write_credentials(S3Server::credentials());
        server().fault("none", 0);
    }

    void write_credentials(const std::string& text) const {
        std::ofstream(options.credentials) << text;
        ::chmod(options.credentials.c_str(), 0600);
    }
    std::unique_ptr<S3Silo> open() const { return S3Silo::open(options).value(); }
    static void put(const std::string& path, int version, std::uint64_t bytes) {
        server().put("set one/" + path, version, bytes);
    }
    static std::string content(const std::string& path, int version, std::uint64_t bytes) {
        return s3_content("set one/" + path, version, bytes);
    }

    // First: where botocore is missing it ends the program.
    S3Server& server_of = server();
    S3Options options;

  private:
    TemporaryDirectory folder_;
};

std::string reason_of(const Result<FileFacts>& facts) {
    return facts.ok() ? "" : fabricshm::explanation_of(facts.error());
}

}  // namespace

TEST_SUITE("net.s3_silo") {
    TEST_CASE("a folder is listed over the server's pages, and each file has its bytes") {
        const Bucket bucket;
        std::map<std::string, int> expected;
        for (int i = 0; i < 30; ++i) {
            const std::string name = "file " + std::to_string(i * 7919 % 1000) + "+&=%.bin";
            expected[name] = 1000 * i + 1;
            Bucket::put("images/" + name, i, static_cast<std::uint64_t>(1000 * i + 1));
        }
        Bucket::put("images/more/below", 1, 10);
        const auto silo = bucket.open();
        for (const std::size_t most : {1U, 6U, 1000U}) {
            CAPTURE(most);
            const SiloPage page = list_all(*silo, "images", most);
            CHECK(page.left_out == 0);
            CHECK(page.entries.size() == expected.size() + 1);
            for (const auto& entry : page.entries) {
                CAPTURE(entry.name);
                CHECK(entry.is_folder == (entry.name == "more"));
                if (entry.is_folder) continue;
                const int bytes = expected.at(entry.name);
                CHECK(entry.facts.bytes == static_cast<Bytes>(bytes));
                const std::string path = "images/" + entry.name;
                CHECK(silo->look(path, soon()).value() == entry.facts);
                if (most != 1000) continue;
                const FetchedText got = fetch_all(*silo, path, entry.facts);
                CHECK(got.ended.outcome == FetchOutcome::kWhole);
                CHECK(got.text == Bucket::content(path, bytes / 1000, entry.facts.bytes));
            }
        }
    }

    TEST_CASE("keys that are no paths are left out and counted, and the rest is there") {
        Bucket bucket;
        bucket.options.place = "s3://datasets/keys";
        for (const char* key : {"keys/a", "keys/a/b", "keys/a-", "keys//x", "keys/..", "keys/.",
                                "keys/good", "keys/ ", "keys/\xc3\xa4\x01", "/keys/absolute"}) {
            server().text(key, "x");
        }
        server().text("keys/", "");
        server().text("keys/" + std::string(256, 'n'), "x");
        const auto silo = bucket.open();
        for (const std::size_t most : {1U, 2U, 100U}) {
            const SiloPage page = list_all(*silo, "", most);
            std::vector<std::string> names;
            for (const auto& entry : page.entries) names.push_back(entry.name);
            CHECK(names == std::vector<std::string>{" ", "a", "a-", "good", "\xc3\xa4\x01"});
            CHECK(page.entries[1].is_folder);
            // "", "..", ".", the long one and the file "a".
            CHECK(page.left_out == 5);
            CHECK(page.first_left_out == "keys/.: no name that a path can have");
        }
        CHECK(silo->look("../keys/a", soon()).error().code == Errc::kInvalid);
        CHECK(silo->look("", soon()).error().code == Errc::kInvalid);
    }

    TEST_CASE("parts of an object arrive whole, and no byte is written next to them") {
        const Bucket bucket;
        constexpr std::size_t kBytes = 300'001;
        Bucket::put("parts", 5, kBytes);
        const auto silo = bucket.open();
        const FileFacts facts = silo->look("parts", soon()).value();
        CHECK(facts.bytes == kBytes);
        const std::string all = Bucket::content("parts", 5, kBytes);
        const struct {
            std::size_t offset, bytes;
        } parts[] = {{0, kBytes}, {0, 1}, {kBytes - 1, 1}, {4096, 8192}, {77'777, 200'000}, {9, 0}};
        for (const auto& part : parts) {
            CAPTURE(part.offset);
            const FetchedText got = fetch_text(*silo, "parts", facts, part.offset, part.bytes);
            CHECK(got.ended.outcome == FetchOutcome::kWhole);
            CHECK(got.ended.tag == 7);
            CHECK(got.text == all.substr(part.offset, part.bytes));
            CHECK(got.around == std::string(128, '.'));
        }
    }

    TEST_CASE(
        "an object that was written again or taken away is another version, also for no byte") {
        const Bucket bucket;
        const auto silo = bucket.open();
        for (const char* etag : {"", "etag \"short\"", "etag W/\"weak\"",
                                 "etag \"longer-than-the-thirty-bytes-of-a-version\""}) {
            CAPTURE(std::string(etag));
            for (const bool gone : {false, true}) {
                server().put("set one/data", 1, 1000, etag);
                const FileFacts facts = silo->look("data", soon()).value();
                REQUIRE(fetch_all(*silo, "data", facts).ended.outcome == FetchOutcome::kWhole);
                server().put("set one/data", 2, 1000);
                if (gone) server().remove("set one/data");
                // A weak ETag is none: the time of change, which this server does not move.
                const bool is_blind = std::strstr(etag, "weak") != nullptr && !gone;
                const auto expected = is_blind ? FetchOutcome::kWhole : FetchOutcome::kChanged;
                CHECK(fetch_all(*silo, "data", facts).ended.outcome == expected);
                CHECK(fetch_text(*silo, "data", facts, 0, 0).ended.outcome == expected);
            }
        }
        Bucket::put("data", 1, 1000);
        FileFacts shorter = silo->look("data", soon()).value();
        shorter.bytes = 2000;
        CHECK(fetch_text(*silo, "data", shorter, 0, 10).ended.outcome == FetchOutcome::kChanged);
        CHECK(fetch_text(*silo, "data", shorter, 1500, 10).ended.outcome == FetchOutcome::kChanged);
    }

    TEST_CASE("what a server does wrong is an error in words, without a secret") {
        const Bucket bucket;
        Bucket::put("data", 1, 100'000);
        const auto silo = bucket.open();
        const FileFacts facts = silo->look("data", soon()).value();
        const struct {
            const char* fault;
            Errc code;
            const char* words;
        } faults[] = {
            {"403", Errc::kDenied, "status 403 AccessDenied"},
            {"416", Errc::kCorrupt, "status 416 InvalidRange"},
            {"clock_skew", Errc::kDenied, "the clock of this host or of the server is wrong"},
            {"bucket_gone", Errc::kNotFound, "status 404 NoSuchBucket"},
            {"redirect", Errc::kUnsupported,
             "a redirect to http://127.0.0.1:1/elsewhere is not followed, region eu-other-2"},
            {"whole", Errc::kCorrupt, "the whole file (200) for a part of it (206)"},
            {"wrong_range", Errc::kCorrupt, "another part: bytes 101 to 5100 for 100 to 5099"},
            {"no_range", Errc::kCorrupt, "a part (206) without a Content-Range"},
            {"long", Errc::kCorrupt, "a body of 5004 bytes for a part of 5000"},
            {"long_chunked", Errc::kCorrupt, "more than the 5000 bytes that were asked for"},
            {"no_version", Errc::kCorrupt, "does not say of which version it is"}};
        for (const auto& fault : faults) {
            CAPTURE(std::string(fault.fault));
            server().fault(fault.fault, 1000);
            const std::uint64_t before = silo->retries();
            const FetchedText got = fetch_text(*silo, "data", facts, 100, 5000);
            CAPTURE(got.ended.reason);
            // A total that differs by one is a change; the wrong range has it, too.
            const bool is_other = std::strcmp(fault.fault, "wrong_range") == 0;
            CHECK(got.ended.outcome == (is_other ? FetchOutcome::kChanged : FetchOutcome::kFailed));
            if (is_other) continue;
            CHECK(got.ended.error.code == fault.code);
            CHECK(got.ended.reason.find(fault.words) != std::string::npos);
            CHECK(got.ended.reason.starts_with("s3://datasets/set one: data: "));
            CHECK(got.ended.reason.find(S3Server::kSecret) == std::string::npos);
            CHECK(got.ended.reason.find("request REQ") != std::string::npos);
            CHECK(got.around == std::string(128, '.'));
            CHECK(silo->retries() == before);
        }
        for (const char* fault : {"404", "412", "wrong_etag", "wrong_total"}) {
            CAPTURE(std::string(fault));
            server().fault(fault, 1);
            CHECK(fetch_all(*silo, "data", facts).ended.outcome == FetchOutcome::kChanged);
        }
        server().fault("none", 0);
        CHECK(fetch_all(*silo, "data", facts).text == Bucket::content("data", 1, 100'000));
    }

    TEST_CASE("what may pass is tried again: until it does, or until there were enough attempts") {
        const Bucket bucket;
        Bucket::put("data", 1, 100'000);
        const auto silo = bucket.open();
        const FileFacts facts = silo->look("data", soon()).value();
        for (const char* fault : {"429", "500", "503", "hang_up", "short", "stall"}) {
            CAPTURE(std::string(fault));
            const bool is_slow = std::strcmp(fault, "stall") == 0;
            const std::uint64_t before = silo->retries();
            server().fault(fault, is_slow ? 1 : 3, "GET");
            // Few bytes, since libcurl compares the mean of some seconds with the limit.
            const FetchedText got = fetch_text(*silo, "data", facts, 98'000, 2000);
            CHECK(got.ended.outcome == FetchOutcome::kWhole);
            CHECK(got.text == Bucket::content("data", 1, 100'000).substr(98'000));
            const std::uint64_t retries = silo->retries() - before;
            // libcurl itself asks again when a connection that it kept turns out to be closed.
            const bool by_curl = std::strcmp(fault, "hang_up") == 0 && retries == 2;
            CHECK((by_curl || retries == (is_slow ? 1U : 3U)));
        }
        server().fault("503", 1000);
        const std::uint64_t before = silo->retries();
        const auto refused = silo->look("data", soon());
        CHECK(refused.error().code == Errc::kBusy);
        CHECK(reason_of(refused).find("status 503") != std::string::npos);
        CHECK(silo->retries() - before == 7);
        CHECK(silo->list("", "", 10, soon()).error().code == Errc::kBusy);
        server().fault("short", 1000);
        const FetchedText got = fetch_all(*silo, "data", facts);
        CHECK(got.ended.error.code == Errc::kSystem);
        CHECK(got.ended.reason.find("ended after 50000 of 100000 bytes") != std::string::npos);
    }

    TEST_CASE(
        "a listing that is cut, refused or does not end is an error, never a shorter folder") {
        const Bucket bucket;
        for (int i = 0; i < 20; ++i) Bucket::put("cut/f" + std::to_string(i), 1, 10);
        const auto silo = bucket.open();
        const struct {
            const char* fault;
            Errc code;
        } faults[] = {{"truncated_xml", Errc::kCorrupt},
                      {"same_token", Errc::kCorrupt},
                      {"403", Errc::kDenied},
                      {"bucket_gone", Errc::kNotFound},
                      {"redirect", Errc::kUnsupported},
                      {"500", Errc::kSystem}};
        for (const auto& fault : faults) {
            CAPTURE(std::string(fault.fault));
            server().fault(fault.fault, 1000);
            CHECK(silo->list("cut", "", 1000, soon()).error().code == fault.code);
            server().fault("none", 0);
            CHECK(silo->list("cut", "", 1000, soon()).value().entries.size() == 20);
        }
        CHECK(silo->list("nowhere", "", 10, soon()).error().code == Errc::kNotFound);
        CHECK(silo->list("cut/../cut", "", 10, soon()).error().code == Errc::kInvalid);
    }

    TEST_CASE(
        "many fetches at a time each get their own bytes, over a bounded number of connections") {
        const Bucket bucket;
        constexpr std::size_t kFiles = 100;
        constexpr std::size_t kBytes = 20'000;
        for (std::size_t i = 0; i < kFiles; ++i) {
            Bucket::put("many/" + std::to_string(i), static_cast<int>(i), kBytes);
        }
        const auto silo = bucket.open();
        const SiloPage page = list_all(*silo, "many", 1000);
        REQUIRE(page.entries.size() == kFiles);
        const unsigned before = server().stats().connections;
        FetchMemory memory(kFiles * kBytes);
        std::set<std::uint64_t> done;
        const auto take = [&] {
            for (const auto& ended : silo->wait(soon())) {
                CHECK(ended.outcome == FetchOutcome::kWhole);
                CHECK(done.insert(ended.tag).second);
            }
        };
        for (std::size_t i = 0; i < kFiles; ++i) {
            while (!silo->has_room()) take();
            const auto& entry = page.entries[i];
            silo->start(
                {"many/" + entry.name, entry.facts, 0, kBytes, memory.at(i * kBytes), kBytes, i});
            // A listing does not wait for fetches, and takes nothing from them.
            if (i == 50) CHECK(silo->look("many/1", soon()).value().bytes == kBytes);
        }
        while (done.size() < kFiles) take();
        CHECK(server().stats().connections - before <= 4);
        for (std::size_t i = 0; i < kFiles; ++i) {
            const std::string& name = page.entries[i].name;
            CHECK(memory.text(i * kBytes, kBytes) ==
                  Bucket::content("many/" + name, std::stoi(name), kBytes));
        }
    }

    TEST_CASE("a deadline ends what hangs, and a silo that goes leaves the memory alone") {
        Bucket bucket;
        bucket.options.web.transfers.stalled_seconds = 60;
        bucket.options.web.fetch_timeout = 200ms;
        Bucket::put("data", 1, 10'000);
        auto silo = bucket.open();
        const FileFacts facts = silo->look("data", soon()).value();
        server().fault("stall", 1000, "GET");
        // Again where a busy machine took the time before the bytes were here.
        const TimePoint until = soon();
        bool has_bytes = false;
        while (!has_bytes && fabricshm::Clock::now() < until) {
            const FetchedText got = fetch_all(*silo, "data", facts);
            CHECK(got.ended.outcome == FetchOutcome::kFailed);
            CHECK(got.ended.error.code == Errc::kTimeout);
            has_bytes = got.ended.reason.find("no end before the deadline, after 5000 bytes") !=
                        std::string::npos;
        }
        CHECK(has_bytes);
        // Another one, whose fetch is under way still when it goes.
        bucket.options.web.fetch_timeout = 60'000ms;
        silo = bucket.open();
        FetchMemory memory(10'000);
        silo->start({"data", facts, 0, 10'000, memory.at(0), 10'000, 1});
        CHECK(silo->wait(fabricshm::kNoWait).empty());
        silo.reset();
        server().fault("none", 0);
    }

    TEST_CASE("a bucket may be a part of the host's name, and a wrong secret is refused") {
        Bucket bucket;
        Bucket::put("data", 1, 1000);
        bucket.options.endpoint = "http://localhost:" + std::to_string(server().port());
        bucket.options.addressing = S3Addressing::kHost;
        {
            const auto silo = bucket.open();
            CHECK(list_all(*silo, "", 1000).entries.size() >= 1);
            const FileFacts facts = silo->look("data", soon()).value();
            CHECK(fetch_all(*silo, "data", facts).text == Bucket::content("data", 1, 1000));
        }
        std::string wrong = S3Server::credentials();
        wrong.replace(wrong.find("sec+ret"), 7, "another");
        bucket.write_credentials(wrong);
        const auto listed = bucket.open()->list("", "", 10, soon());
        CHECK(listed.error().code == Errc::kDenied);
        CHECK(fabricshm::explanation_of(listed.error()).find("SignatureDoesNotMatch") !=
              std::string::npos);
        bucket.options.credentials = "";
        CHECK(bucket.open()->list("", "", 10, soon()).error().code == Errc::kDenied);
    }

    TEST_CASE("no server at all is an error that says so, within the deadline") {
        Bucket bucket;
        bucket.options.endpoint = "http://127.0.0.1:1";
        const auto silo = bucket.open();
        const auto looked = silo->look("data", soon());
        CHECK(looked.error().code == Errc::kSystem);
        CHECK(reason_of(looked).find("127.0.0.1 port 1") != std::string::npos);
        CHECK(!silo->list("", "", 10, soon()).ok());
    }

    TEST_CASE("an option that cannot be used is refused before a server is asked") {
        const auto refused = [](auto change) {
            Bucket bucket;
            change(bucket.options);
            const auto silo = S3Silo::open(bucket.options);
            return silo.ok() ? Errc::kOk : silo.error().code;
        };
        CHECK(refused([](S3Options&) {}) == Errc::kOk);
        for (const char* place :
             {"", "datasets", "s3://", "s3://Data", "s3://a/../b", "s3://a/b//c"}) {
            CAPTURE(std::string(place));
            CHECK(refused([&](S3Options& options) { options.place = place; }) == Errc::kInvalid);
        }
        for (const char* url :
             {"", "127.0.0.1", "ftp://h", "http://", "http://u:p@h", "http://h/p"}) {
            CAPTURE(std::string(url));
            CHECK(refused([&](S3Options& options) { options.endpoint = url; }) == Errc::kInvalid);
        }
        CHECK(refused([](S3Options& options) { options.region = "eu:x"; }) == Errc::kInvalid);
        CHECK(refused([](S3Options& options) { ::chmod(options.credentials.c_str(), 0640); }) ==
              Errc::kDenied);
    }
}
