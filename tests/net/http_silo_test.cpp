// A web server's files as a silo: by an index, with ETags and with times alone, and over TLS.

#include "fabricd/data/silo/http_silo.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/s3_server.hpp"
#include "tests/support/silo_bench.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace test_support;
using fabricshm::Errc;

namespace {

S3Server& server() {
    static S3Server the_one;
    return the_one;
}

HttpOptions options_of(const S3Server& of, const char* scheme = "http://") {
    HttpOptions options;
    options.place = scheme + std::string("127.0.0.1:") + std::to_string(of.port()) + "/web/set";
    options.web = quick_options();
    return options;
}

std::unique_ptr<HttpSilo> open() {
    server().fault("none", 0);
    return HttpSilo::open(options_of(server())).value();
}

}  // namespace

TEST_SUITE("net.http_silo") {
    TEST_CASE("the index is a tree, whose files have their facts and bytes from the server") {
        std::string index;
        for (int i = 0; i < 25; ++i) {
            const std::string path = "train/f " + std::to_string(i) + "%.bin";
            // Each second one without an ETag.
            const std::string more = i % 2 == 0 ? "" : "time " + std::to_string(1'600'000'000 + i);
            server().put("set/" + path, i, static_cast<std::uint64_t>(i * 500), more);
            index += std::to_string(i * 500) + " " + path + "\n";
        }
        server().put("set/readme", 1, 10);
        index += "10 readme\n11 ../out\n12 train\nno line\n7 gone\n";
        server().text("set/fabric-index.txt", index);
        const auto silo = open();
        for (const std::size_t most : {1U, 10U, 100U}) {
            CAPTURE(most);
            const SiloPage root = list_all(*silo, "", most);
            REQUIRE(root.entries.size() == 2);
            CHECK(root.entries[0].name == "readme");
            CHECK(root.entries[1].is_folder);
            // "../out", "no line", the file "train", and "gone".
            CHECK(root.left_out == 4);
            const SiloPage page = list_all(*silo, "train", most);
            CHECK(page.entries.size() == 25);
            for (const auto& entry : page.entries) {
                const std::string path = "train/" + entry.name;
                CHECK(silo->look(path, soon()).value() == entry.facts);
                if (most != 100) continue;
                const int number = static_cast<int>(entry.facts.bytes / 500);
                const FetchedText got = fetch_all(*silo, path, entry.facts);
                CHECK(got.ended.outcome == FetchOutcome::kWhole);
                CHECK(got.text == s3_content("set/" + path, number, entry.facts.bytes));
            }
        }
        CHECK(silo->list("nowhere", "", 10, soon()).error().code == Errc::kNotFound);
        CHECK(silo->look("gone", soon()).error().code == Errc::kNotFound);
    }

    TEST_CASE("a file that changed is another version: by its ETag, or by its time") {
        const auto silo = open();
        for (const char* before : {"", "time 1600000000"}) {
            server().put("set/data", 1, 1000, before);
            const FileFacts facts = silo->look("data", soon()).value();
            CHECK(fetch_all(*silo, "data", facts).text == s3_content("set/data", 1, 1000));
            server().put("set/data", 2, 1000, *before == '\0' ? "" : "time 1600000001");
            CHECK(fetch_all(*silo, "data", facts).ended.outcome == FetchOutcome::kChanged);
            server().remove("set/data");
            CHECK(fetch_all(*silo, "data", facts).ended.outcome == FetchOutcome::kChanged);
        }
    }

    TEST_CASE("changed twice in a second, and without an ETag: its bytes are never a mixture") {
        const auto silo = open();
        const std::string just_now = "time " + std::to_string(std::time(nullptr));
        server().put("set/young", 1, 1000, just_now);
        const FileFacts facts = silo->look("young", soon()).value();
        FetchMemory memory(1000);
        silo->start({"young", facts, 0, 500, memory.at(0), 500, 1});
        CHECK(silo->wait(fabricshm::Clock::now() + std::chrono::milliseconds(200)).empty());
        server().put("set/young", 2, 1000, just_now);
        silo->start({"young", facts, 500, 500, memory.at(500), 500, 2});
        for (std::size_t ended = 0; ended < 2;) {
            const auto some = silo->wait(soon());
            REQUIRE(!some.empty());
            for (const Fetched& one : some) CHECK(one.outcome == FetchOutcome::kWhole);
            ended += some.size();
        }
        CHECK(memory.text(0, 1000) == s3_content("set/young", 2, 1000));
    }

    TEST_CASE(
        "an index that can't be one is an error, and what is left out for a wrong answer said") {
        const auto silo = open();
        server().put("set/a", 1, 10);
        for (const char* text : {"", "<html>\nlog in\n</html>\n", "a 10\n"}) {
            CAPTURE(std::string(text));
            server().text("set/fabric-index.txt", text);
            const auto page = silo->list("", "", 10, soon());
            CHECK(page.error().code == Errc::kCorrupt);
            CHECK(fabricshm::explanation_of(page.error()).find("fabric-index.txt") !=
                  std::string::npos);
        }
        server().text("set/fabric-index.txt", "10 a\n11 b\n");
        server().put("set/b", 1, 10);
        const SiloPage page = silo->list("", "", 10, soon()).value();
        CHECK(page.entries.size() == 1);
        CHECK(page.wrong == 1);
        CHECK(page.first_wrong == "b: of another length than in the index");
    }

    TEST_CASE("an index that is not there or refused is an error, and a new one is noticed") {
        const auto silo = open();
        server().put("set/a", 1, 10);
        server().put("set/b", 1, 10);
        server().text("set/fabric-index.txt", "10 a\n");
        CHECK(list_all(*silo, "", 10).entries.size() == 1);
        const unsigned before = server().stats().requests;
        CHECK(list_all(*silo, "", 10).entries.size() == 1);
        CHECK(server().stats().requests - before == 2);
        server().text("set/fabric-index.txt", "10 a\n10 b\n");
        CHECK(list_all(*silo, "", 10).entries.size() == 2);
        server().text("set/fabric-index.txt", "10 a\n11 b\n");
        const SiloPage page = list_all(*silo, "", 10);
        CHECK(page.entries.size() == 1);
        CHECK(page.first_left_out == "b: of another length than in the index");
        server().fault("403", 1000, "HEAD");
        CHECK(silo->list("", "", 10, soon()).error().code == Errc::kDenied);
        server().fault("none", 0);
        server().remove("set/fabric-index.txt");
        CHECK(silo->list("", "", 10, soon()).error().code == Errc::kUnsupported);
    }

    TEST_CASE("a certificate is verified, and the bytes are the same over TLS") {
        const TemporaryDirectory folder;
        const std::string cert = folder.file("cert.pem");
        const std::string key = folder.file("key.pem");
        const std::string make =
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout " +
            key + " -out " + cert + " >/dev/null 2>&1";
        REQUIRE(std::system(make.c_str()) == 0);
        S3Server secure(cert, key);
        secure.put("set/data", 3, 70'000);
        HttpOptions options = options_of(secure, "https://");
        const auto refused = HttpSilo::open(options).value()->look("data", soon());
        CHECK(refused.error().code == Errc::kDenied);
        CHECK(fabricshm::explanation_of(refused.error()).find("certificate") != std::string::npos);
        options.web.transfers.ca_file = cert;
        const auto silo = HttpSilo::open(options).value();
        const FileFacts facts = silo->look("data", soon()).value();
        CHECK(fetch_all(*silo, "data", facts).text == s3_content("set/data", 3, 70'000));
    }

    TEST_CASE("a place that is no folder of a web server is refused") {
        for (const char* place : {"", "s3://x", "http://", "http:///x", "https://u:p@h/x",
                                  "http://h/x?y", "http://h/x#y", "http://h/x y"}) {
            CAPTURE(std::string(place));
            HttpOptions options;
            options.place = place;
            CHECK(HttpSilo::open(options).error().code == Errc::kInvalid);
        }
    }
}
