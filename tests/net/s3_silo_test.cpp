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

    S3Options options;

  private:
    TemporaryDirectory folder_;
};

[[maybe_unused]] std::string reason_of(const Result<FileFacts>& facts) {
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
}
