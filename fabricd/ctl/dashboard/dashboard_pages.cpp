#include "fabricd/ctl/dashboard/dashboard_pages.hpp"

#include <algorithm>

#include "fabricd/ctl/dashboard/host_header.hpp"
#include "fabricd/ctl/dashboard/page_files.hpp"

namespace fabricd {

namespace {

// Everything comes from here, nothing is inline, and no other page shows this one in a frame.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpAnswer answer_of(unsigned status, std::string type = {}, std::string body = {}) {
    HttpAnswer answer;
    answer.status = status;
    answer.type = std::move(type);
    if (!body.empty()) answer.body = std::make_shared<const std::string>(std::move(body));
    return answer;
}

HttpAnswer refusal(unsigned status, const char* why) {
    return answer_of(status, "text/plain; charset=utf-8", std::string(why) + "\n");
}

// Takes as long whatever the first wrong byte is, so that it can't be found byte by byte.
bool is_same_token(std::string_view given, std::string_view token) {
    if (given.size() != token.size()) return false;
    unsigned char difference = 0;
    for (std::size_t i = 0; i < token.size(); ++i) {
        difference =
            static_cast<unsigned char>(difference | (static_cast<unsigned char>(given[i]) ^
                                                     static_cast<unsigned char>(token[i])));
    }
    return difference == 0;
}

}  // namespace

DashboardPages::DashboardPages(DashboardDoor door, NewestPicture newest)
    : door_(std::move(door)), newest_(std::move(newest)) {}

bool DashboardPages::is_known_host(std::string_view host) const {
    // Whatever the port: through ssh -L a browser asks for another one.
    const auto name = name_of_host(host);
    if (!name) return false;
    for (const char* loopback : {"127.0.0.1", "localhost", "[::1]"}) {
        if (is_same_host_name(*name, loopback)) return true;
    }
    return std::any_of(door_.hosts.begin(), door_.hosts.end(),
                       [&](const std::string& known) { return is_same_host_name(*name, known); });
}

HttpAnswer DashboardPages::picture(const HttpRequest& request) const {
    if (!is_same_token(request.token, door_.token)) {
        return refusal(401,
                       "the token is missing or wrong: open the address that fabricctl "
                       "dashboard has printed");
    }
    const PictureQuery query = parse_picture_query(request.query);
    const auto newest = newest_(query);
    HttpAnswer answer = newest.number == 0 ? refusal(503, "the daemon has not been asked yet")
                        : newest.number == query.since ? answer_of(304)
                                                       : answer_of(200, "application/json");
    if (answer.status == 200) answer.body = newest.json;
    answer.is_known = true;
    return answer;
}

HttpAnswer DashboardPages::answer(const HttpRequest& request) {
    HttpAnswer answer = [&] {
        if (!is_known_host(request.host)) {
            return refusal(421, "this page is not known by that name (--host)");
        }
        if (request.method != "GET" && request.method != "HEAD") {
            return refusal(405, "pages are read here, and nothing else");
        }
        if (request.path == "/api/v1/picture") return picture(request);
        for (const PageFile& file : page_files()) {
            if (request.path == file.path) {
                return answer_of(200, file.type, std::string(file.text));
            }
        }
        return refusal(404, "there is no such page");
    }();
    answer.headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}};
    return answer;
}

}  // namespace fabricd
