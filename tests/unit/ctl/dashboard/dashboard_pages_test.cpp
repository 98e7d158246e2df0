#include "fabricd/ctl/dashboard/dashboard_pages.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "fabricd/ctl/dashboard/page_files.hpp"

using namespace fabricd;

namespace {

constexpr const char* kToken = "0123456789abcdef";

PictureKeeper::Newest newest_of(const PictureQuery& query) {
    return {7, std::make_shared<const std::string>(query.since == 0 ? "long" : "short")};
}

HttpRequest request_of(std::string_view path, std::string_view query = "") {
    return {"GET", path, query, "127.0.0.1:8765", kToken};
}

std::string header_of(const HttpAnswer& answer, const std::string& name) {
    for (const auto& [key, value] : answer.headers) {
        if (key == name) return value;
    }
    return "";
}

DashboardPages make_pages() {
    return DashboardPages({kToken, {"fabric.example"}}, newest_of);
}

TEST_SUITE("ctl.dashboard.dashboard_pages") {
    TEST_CASE("the picture is for those that know the token") {
        DashboardPages pages = make_pages();
        HttpRequest request = request_of("/api/v1/picture");
        CHECK(pages.answer(request).status == 200);
        for (const char* wrong : {"", "0123456789abcdee", "0123456789abcde", "0123456789abcdef0"}) {
            CAPTURE(wrong);
            request.token = wrong;
            const HttpAnswer answer = pages.answer(request);
            CHECK(answer.status == 401);
            CHECK(answer.body->find(kToken) == std::string::npos);
        }
    }

    TEST_CASE(
        "a page has the history at first, then what is new, then nothing until there is more") {
        DashboardPages pages = make_pages();
        CHECK(*pages.answer(request_of("/api/v1/picture")).body == "long");
        CHECK(*pages.answer(request_of("/api/v1/picture", "since=6")).body == "short");
        CHECK(*pages.answer(request_of("/api/v1/picture", "since=8")).body == "short");
        const HttpAnswer same = pages.answer(request_of("/api/v1/picture", "since=7"));
        CHECK(same.status == 304);
        CHECK(same.body == nullptr);
        // What is no number is none.
        for (const char* odd : {"since=", "since=x", "since=-1", "since=7x", "till=7",
                                "since=99999999999999999999999"}) {
            CAPTURE(odd);
            CHECK(*pages.answer(request_of("/api/v1/picture", odd)).body == "long");
        }
    }

    TEST_CASE("the rest of the question gets to the picture") {
        PictureQuery asked;
        DashboardPages pages({kToken, {}}, [&](const PictureQuery& query) {
            asked = query;
            return newest_of(query);
        });
        const auto answer =
            pages.answer(request_of("/api/v1/picture", "since=3&match=a%20job&sessions=500"));
        CHECK(answer.status == 200);
        CHECK(asked.since == 3);
        CHECK(asked.match == "a job");
        CHECK(asked.from_of(PagedList::kSessions) == 500);
    }

    TEST_CASE("before the daemon was asked there is no picture") {
        DashboardPages pages({kToken, {}},
                             [](const PictureQuery&) { return PictureKeeper::Newest{}; });
        CHECK(pages.answer(request_of("/api/v1/picture")).status == 503);
    }

    TEST_CASE("a page of another name is refused, whatever its port") {
        DashboardPages pages = make_pages();
        HttpRequest request = request_of("/");
        for (const char* known : {"127.0.0.1:8765", "localhost:1", "localhost", "LocalHost:80",
                                  "[::1]:8765", "fabric.example", "fabric.example:443"}) {
            CAPTURE(known);
            request.host = known;
            CHECK(pages.answer(request).status == 200);
        }
        for (const char* strange :
             {"", "evil.example", "evil.example:8765", "127.0.0.1.evil.example",
              "localhost.evil.example:8765", "[::2]:8765", "[::1", "fabric.example.evil.example",
              "127.0.0.1:abc", "127.0.0.1:1@evil.example", "localhost:", "[::1]evil.example",
              "[::1]:1@evil.example", "fabric.example:443@evil.example"}) {
            CAPTURE(strange);
            request.host = strange;
            CHECK(pages.answer(request).status == 421);
        }
    }

    TEST_CASE("nothing can be changed") {
        DashboardPages pages = make_pages();
        HttpRequest request = request_of("/");
        for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"}) {
            CAPTURE(method);
            request.method = method;
            CHECK(pages.answer(request).status == 405);
        }
    }

    TEST_CASE("each answer forbids what is inline, foreign or framed") {
        DashboardPages pages = make_pages();
        for (const char* path :
             {"/", "/dashboard.js", "/nothing", "/api/v1/picture", "/../etc/passwd"}) {
            CAPTURE(path);
            const HttpAnswer answer = pages.answer(request_of(path));
            const std::string policy = header_of(answer, "Content-Security-Policy");
            CHECK(policy.find("default-src 'none'") == 0);
            CHECK(policy.find("unsafe") == std::string::npos);
            CHECK(policy.find("frame-ancestors 'none'") != std::string::npos);
            CHECK(header_of(answer, "X-Content-Type-Options") == "nosniff");
            CHECK(header_of(answer, "Cache-Control") == "no-store");
        }
        CHECK(pages.answer(request_of("/nothing")).status == 404);
    }

    TEST_CASE(
        "what the page refers to is there, nothing of it is elsewhere, and it weighs little") {
        DashboardPages pages = make_pages();
        std::size_t bytes = 0;
        for (const PageFile& file : page_files()) {
            bytes += file.text.size();
            CHECK(pages.answer(request_of(file.path)).status == 200);
            // But for the names of XML's spaces.
            std::string text(file.text);
            for (const std::string space : {"http://www.w3.org/2000/svg"}) {
                for (auto at = text.find(space); at != text.npos; at = text.find(space)) {
                    text.erase(at, space.size());
                }
            }
            CAPTURE(file.path);
            CHECK(text.find("://") == text.npos);
            CHECK(text.find("innerHTML") == text.npos);
            CHECK(text.find("eval(") == text.npos);
        }
        CHECK(bytes <= 150 * 1000);
        const std::string page = *pages.answer(request_of("/")).body;
        for (const std::string kind : {"href=\"/", "src=\"/"}) {
            for (auto at = page.find(kind); at != page.npos; at = page.find(kind, at + 1)) {
                const auto begin = at + kind.size() - 1;
                const std::string path = page.substr(begin, page.find('"', begin) - begin);
                CAPTURE(path);
                CHECK(pages.answer(request_of(path)).status == 200);
            }
        }
    }
}

}  // namespace
