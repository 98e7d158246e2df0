// New objects of an S3 bucket, against a server that verifies each signature, and with it the
// SHA-256 of each body, by botocore.

#include "fabricd/data/silo/s3_writer.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "fabricd/data/silo/s3_silo.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "tests/support/children.hpp"
#include "tests/support/s3_server.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/writer_bench.hpp"

using namespace fabricd;
using namespace test_support;
using namespace std::chrono_literals;
using fabricshm::Errc;
using fabricshm::kMiB;

namespace {

/// One for all tests: it takes a while to start.
S3Server& server() {
    static S3Server the_one;
    return the_one;
}

class Bucket {
  public:
    Bucket() {
        server().fault("none", 0);
        options.place = "s3://datasets/out";
        options.endpoint = "http://127.0.0.1:" + std::to_string(server().port());
        options.region = S3Server::kRegion;
        options.credentials = folder_.file("key");
        options.web = quick_options();
        std::ofstream(options.credentials) << S3Server::credentials();
        ::chmod(options.credentials.c_str(), 0600);
    }

    std::unique_ptr<S3Writer> open() const { return S3Writer::open(options).value(); }
    std::string read(const std::string& path, const FileFacts& facts) const {
        const auto silo = S3Silo::open(options).value();
        return fetch_all(*silo, path, facts).text;
    }

    S3Options options;

  private:
    TemporaryDirectory folder_;
};

std::string content(std::size_t bytes) {
    return s3_content("written", 7, bytes);
}

bool is_there(const std::string& path) {
    return !server().object("out/" + path).md5.empty();
}

}  // namespace

TEST_SUITE("net.s3_writer") {
    TEST_CASE("what is written in pieces is there whole after the commit, with what look() says") {
        const Bucket bucket;
        const auto writer = bucket.open();
        WriterBench bench(*writer);
        // Around one part, and parts that end within a piece.
        const std::size_t sizes[] = {0, 1, 100'000, 8 * kMiB, 8 * kMiB + 1, 21 * kMiB + 77};
        for (const std::size_t bytes : sizes) {
            CAPTURE(bytes);
            const std::string path = "sizes/a +&=%/" + std::to_string(bytes);
            const std::string text = content(bytes);
            const Written written = bench.write(bytes, path, text, 3 * kMiB + 1);
            CAPTURE(written.reason);
            REQUIRE(written.ok());
            CHECK(written.facts.bytes == bytes);
            const auto silo = S3Silo::open(bucket.options).value();
            CHECK(silo->look(path, soon()).value() == written.facts);
            if (bytes != 0) CHECK(bucket.read(path, written.facts) == text);
        }
        CHECK(server().uploads() == 0);
    }

    TEST_CASE("a name that is taken is refused: by a file, as a folder, below a file") {
        const Bucket bucket;
        const auto writer = bucket.open();
        WriterBench bench(*writer);
        REQUIRE(bench.write(1, "taken/file", "first").ok());
        for (const char* path : {"taken/file", "taken", "taken/file/below"}) {
            CAPTURE(std::string(path));
            const Written refused = bench.begin(2, path);
            CHECK(refused.error.code == Errc::kExists);
            CHECK(bench.append(2, "x").error.code == Errc::kExists);
            CHECK(bench.commit(2).error.code == Errc::kExists);
            CHECK(bench.abort(2).ok());
        }
        for (const char* path : {"", "../out", "a//b", "/a"}) {
            CHECK(bench.begin(3, path).error.code == Errc::kInvalid);
            CHECK(bench.abort(3).ok());
        }
        CHECK(server().object("out/taken/file").bytes == 5);
    }

    TEST_CASE("of two writers of one name the second to commit is refused, and replaces nothing") {
        const Bucket bucket;
        for (const std::size_t bytes : {std::size_t{10}, std::size_t{9 * kMiB}}) {
            CAPTURE(bytes);
            const std::string path = "race/" + std::to_string(bytes);
            const auto one = bucket.open();
            const auto two = bucket.open();
            WriterBench first(*one);
            WriterBench second(*two);
            REQUIRE(first.begin(1, path).ok());
            REQUIRE(second.begin(2, path).ok());
            for (std::size_t at = 0; at < bytes; at += 3 * kMiB) {
                const std::size_t more = std::min<std::size_t>(bytes - at, 3 * kMiB);
                REQUIRE(first.append(1, std::string(more, '1')).ok());
                REQUIRE(second.append(2, std::string(more, '2')).ok());
            }
            const Written won = first.commit(1);
            REQUIRE(won.ok());
            CHECK(second.commit(2).error.code == Errc::kExists);
            CHECK(second.abort(2).ok());
            CHECK(bucket.read(path, won.facts) == std::string(bytes, '1'));
            CHECK(server().uploads() == 0);
        }
    }

    TEST_CASE("what passes is tried again, and an answer that got lost is looked up") {
        const Bucket bucket;
        const auto writer = bucket.open();
        WriterBench bench(*writer);
        const struct {
            const char* fault;
            const char* method;
            std::size_t bytes;
        } faults[] = {{"503", "PUT", 10},
                      {"hang_up", "PUT", 10},
                      {"hang_up_after", "PUT", 10},
                      {"500", "INITIATE", 9 * kMiB},
                      {"500", "PART", 17 * kMiB},
                      {"hang_up", "PART", 17 * kMiB},
                      {"503", "COMPLETE", 9 * kMiB},
                      {"hang_up", "COMPLETE", 9 * kMiB},
                      {"hang_up_after", "COMPLETE", 9 * kMiB},
                      {"hidden_passing", "COMPLETE", 9 * kMiB}};
        std::uint64_t file = 0;
        for (const auto& fault : faults) {
            CAPTURE(std::string(fault.fault));
            CAPTURE(std::string(fault.method));
            const std::string path = "again/" + std::to_string(++file);
            const std::string text = content(fault.bytes);
            server().fault(fault.fault, 2, fault.method);
            const Written written = bench.write(file, path, text);
            CAPTURE(written.reason);
            REQUIRE(written.ok());
            CHECK(bucket.read(path, written.facts) == text);
            CHECK(server().object("out/" + path).write == token_text(WriterBench::token_of(file)));
        }
        CHECK(writer->retries() > 10);
        CHECK(server().uploads() == 0);
    }

    TEST_CASE("what a server refuses is an error in words without a secret, and leaves nothing") {
        const Bucket bucket;
        const auto writer = bucket.open();
        WriterBench bench(*writer);
        const struct {
            const char* fault;
            const char* method;
            Errc code;
            const char* words;
        } faults[] = {{"403", "HEAD", Errc::kDenied, "status 403"},
                      {"403", "PUT", Errc::kDenied, "status 403 AccessDenied"},
                      {"503", "PUT", Errc::kBusy, "status 503 SlowDown"},
                      {"redirect", "PUT", Errc::kUnsupported, "is not followed"},
                      {"403", "INITIATE", Errc::kDenied, "status 403 AccessDenied"},
                      {"500", "PART", Errc::kSystem, "status 500 InternalError"},
                      {"hang_up", "PART", Errc::kSystem, ""},
                      {"403", "COMPLETE", Errc::kDenied, "status 403 AccessDenied"},
                      {"hidden_passing", "COMPLETE", Errc::kCorrupt, "status 200 InternalError"},
                      {"hidden_refusal", "COMPLETE", Errc::kCorrupt, "status 200 AccessDenied"}};
        std::uint64_t file = 100;
        for (const auto& fault : faults) {
            CAPTURE(std::string(fault.fault));
            CAPTURE(std::string(fault.method));
            const bool in_parts = std::strlen(fault.method) > 4 || fault.method[1] == 'A';
            const std::string path = "refused/" + std::to_string(++file);
            server().fault(fault.fault, 1000, fault.method);
            const Written refused = bench.write(file, path, content(in_parts ? 17 * kMiB : 1000));
            server().fault("none", 0);
            CAPTURE(refused.reason);
            CHECK(refused.error.code == fault.code);
            CHECK(refused.reason.find(fault.words) != std::string::npos);
            CHECK(refused.reason.starts_with("s3://datasets/out: refused/"));
            CHECK(refused.reason.find(S3Server::kSecret) == std::string::npos);
            CHECK(!is_there(path));
            CHECK(server().uploads() == 0);
        }
    }

    TEST_CASE("an abort at any time leaves nothing, and one that fails says so") {
        const Bucket bucket;
        const auto writer = bucket.open();
        WriterBench bench(*writer);
        REQUIRE(bench.begin(1, "aborted").ok());
        CHECK(bench.abort(1).ok());
        REQUIRE(bench.begin(1, "aborted").ok());
        REQUIRE(bench.append(1, content(8 * kMiB)).ok());
        REQUIRE(bench.append(1, content(8 * kMiB)).ok());
        CHECK(bench.abort(1).ok());
        CHECK(server().uploads() == 0);
        // Before the server has answered anything.
        writer->begin(2, {"aborted", 5}, 1001);
        writer->abort(2, 1002);
        std::map<std::uint64_t, Errc> ended;
        while (ended.size() < 2) {
            for (const auto& one : writer->wait(soon())) ended[one.tag] = one.error.code;
        }
        CHECK(ended[1001] == Errc::kClosed);
        CHECK(ended[1002] == Errc::kOk);
        REQUIRE(bench.begin(3, "aborted").ok());
        REQUIRE(bench.append(3, content(8 * kMiB)).ok());
        REQUIRE(bench.append(3, "more").ok());
        server().fault("403", 1000, "DELETE");
        CHECK(bench.abort(3).error.code == Errc::kDenied);
        server().fault("none", 0);
        CHECK(server().uploads() == 1);
        CHECK(!is_there("aborted"));
        // What a crash leaves looks the same; pages of one.
        server().begin("out/aborted");
        server().begin("out/aborted/more");
        const auto after = bucket.open();
        CHECK(after->clear({"aborted", WriterBench::token_of(3)}, soon()).ok());
        CHECK(server().uploads() == 1);
        CHECK(after->clear({"aborted/more", 1}, soon()).ok());
        CHECK(server().uploads() == 0);
    }

    TEST_CASE(
        "a writer that is killed leaves the object whole or not at all, and clear() the rest") {
        const Bucket bucket;
        const char* const points[] = {"data.upload.initiated", "data.upload.part",
                                      "data.upload.part:kill:2", "data.upload.completing",
                                      "data.upload.completed"};
        const std::string text = content(17 * kMiB);
        std::uint64_t file = 0;
        for (const char* point : points) {
            CAPTURE(std::string(point));
            const std::string path = "killed/" + std::to_string(++file);
            Child victim([&] {
                fabricshm::fault::arm(point);
                const auto writer = bucket.open();
                WriterBench(*writer).write(file, path, text);
                return 0;
            });
            CHECK(victim.wait() == 128 + SIGKILL);
            const auto writer = bucket.open();
            CHECK(writer->clear({path, WriterBench::token_of(file)}, soon()).ok());
            CHECK(server().uploads() == 0);
            const bool is_whole = std::strcmp(point, "data.upload.completed") == 0;
            CHECK(server().object("out/" + path).bytes == (is_whole ? text.size() : 0));
            WriterBench again(*writer);
            CHECK(again.write(file, path, text).error.code ==
                  (is_whole ? Errc::kExists : Errc::kOk));
        }
    }

    TEST_CASE("many files are written side by side within bounded memory") {
        const Bucket bucket;
        const auto writer = bucket.open();
        constexpr std::uint64_t kFiles = 40;
        std::map<std::uint64_t, std::string> texts;
        std::size_t answers = 0;
        std::size_t committed = 0;
        const auto take = [&] {
            for (const auto& one : writer->wait(soon())) {
                CHECK_MESSAGE(one.ok(), one.reason);
                ++answers;
                if (one.tag % 3 == 2) ++committed;
            }
        };
        for (std::uint64_t file = 0; file < kFiles; ++file) {
            texts[file] = content(1000 * file + 1);
            writer->begin(file, {"many/" + std::to_string(file), file}, 3 * file);
        }
        while (answers < kFiles) take();
        for (auto& [file, text] : texts) {
            const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
            writer->append(file, bytes, text.size(), 3 * file + 1);
            writer->commit(file, 3 * file + 2);
        }
        while (committed < kFiles) take();
        for (std::uint64_t file = 0; file < kFiles; ++file) {
            CHECK(server().object("out/many/" + std::to_string(file)).bytes == 1000 * file + 1);
        }
    }
}
