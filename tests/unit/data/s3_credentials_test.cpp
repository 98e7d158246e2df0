// Files of credentials: what is taken, what is refused, and that no error shows a part of them.

#include "fabricd/data/silo/s3_credentials.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;

namespace {

const std::string kGood =
    "# of the data set\n[default]\naws_access_key_id = AKID\r\n  aws_secret_access_key=s/e+c=\n";

}  // namespace

TEST_SUITE("data.s3_credentials") {
    TEST_CASE("keys and token are read as other programs write them") {
        const auto keys = parse_s3_credentials(kGood).value();
        CHECK(keys.access_key == "AKID");
        CHECK(keys.secret == "s/e+c=");
        CHECK(keys.session_token == "");
        CHECK(parse_s3_credentials(kGood + "aws_session_token = t").value().session_token == "t");
    }

    TEST_CASE("another line is refused by its number, without its text") {
        for (const char* line : {"hunter2", "hunter2 = x", "aws_session_token = hunter2 x",
                                 "aws_secret_access_key = hunter2", "[hunter2]",
                                 "aws_session_token =", "aws_session_token = hunter2\x01"}) {
            const auto refused = parse_s3_credentials(kGood + line + "\n");
            REQUIRE(!refused.ok());
            CHECK(refused.error().code == Errc::kInvalid);
            const std::string reason = fabricshm::explanation_of(refused.error());
            CHECK(reason.starts_with("line 5 of the credentials: "));
            CHECK(reason.find("hunter2") == reason.npos);
        }
        const auto lacking = parse_s3_credentials("aws_access_key_id = AKID\n");
        CHECK(fabricshm::explanation_of(lacking.error()) ==
              "the credentials lack aws_secret_access_key");
    }

    TEST_CASE("a file that other users may open, or that is theirs, is refused") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("key");
        std::ofstream(path) << kGood;
        for (const unsigned mode : {0600U, 0400U}) {
            ::chmod(path.c_str(), mode);
            CHECK(read_s3_credentials(path).ok());
        }
        for (const unsigned mode : {0640U, 0604U, 0620U, 0602U, 0610U, 0644U}) {
            ::chmod(path.c_str(), mode);
            CHECK(read_s3_credentials(path).error().code == Errc::kDenied);
        }
        ::chmod(path.c_str(), 0600);
        if (::geteuid() == 0) {
            REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
            CHECK(read_s3_credentials(path).error().code == Errc::kDenied);
        }
        CHECK(read_s3_credentials(folder.file("nothing")).error().code == Errc::kNotFound);
        CHECK(read_s3_credentials(folder.path()).error().code == Errc::kInvalid);
        std::ofstream(folder.file("long")) << std::string(20'000, '#');
        ::chmod(folder.file("long").c_str(), 0600);
        CHECK(read_s3_credentials(folder.file("long")).error().code == Errc::kInvalid);
    }
}
