#include "fabricd/data/silo/web_error.hpp"

#include <cerrno>

#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;

namespace {

constexpr std::size_t kShownPath = 100;  // bytes

// Without what may be signed or secret in it.
std::string without_query(const std::string& url) {
    const std::size_t at = url.find("://");
    const std::size_t host = at == url.npos ? 0 : at + 3;
    const std::string path = url.substr(0, url.find_first_of("?#"));
    const std::size_t user = path.substr(0, path.find('/', host)).rfind('@');
    return printable(user == path.npos ? path : path.substr(0, host) + path.substr(user + 1));
}

Error code_for_status(int status, const char* step) {
    switch (status) {
        case 401:
        case 403:
            return {Errc::kDenied, 0, step};
        case 404:
        case 410:
            return {Errc::kNotFound, 0, step};
        case 429:
        case 503:
            return {Errc::kBusy, 0, step};
        case 412:
        case 416:
            return {Errc::kCorrupt, 0, step};
        default:
            break;
    }
    if (status >= 500) return {Errc::kSystem, EREMOTEIO, step};
    return {Errc::kUnsupported, 0, step};
}

Error code_for(const TransferAnswer& answer, const char* step) {
    switch (answer.end) {
        case HttpEnd::kAnswered:
            return code_for_status(answer.status, step);
        case HttpEnd::kDeadline:
        case HttpEnd::kStalled:
            return {Errc::kTimeout, 0, step};
        case HttpEnd::kConnection:
            return {Errc::kSystem, ECONNABORTED, step};
        case HttpEnd::kTrust:
            return {Errc::kDenied, 0, step};
        case HttpEnd::kBroken:
            break;
    }
    return {Errc::kCorrupt, 0, step};
}

}  // namespace

// Both ends of a long one: the words before it have to fit next to it.
std::string shown_path(const std::string& path) {
    std::string text = printable(path);
    if (text.size() <= kShownPath) return text;
    return text.substr(0, kShownPath / 2) + "..." + text.substr(text.size() - kShownPath / 2);
}

std::string web_words(const TransferAnswer& answer, const std::string& code) {
    std::string words;
    const auto add = [&](const std::string& more) { words += (words.empty() ? "" : ", ") + more; };
    if (answer.status != 0) add("status " + std::to_string(answer.status));
    if (!code.empty()) words += " " + code;
    if (answer.status >= 300 && answer.status < 400) {
        add("a redirect to " + without_query(answer.fields.location) + " is not followed");
        if (!answer.fields.region.empty()) add("region " + printable(answer.fields.region));
    }
    if (code == "RequestTimeTooSkewed") add("the clock of this host or of the server is wrong");
    if (!answer.problem.empty()) add(answer.problem);
    if (!answer.fields.request_id.empty()) {
        add("request " + printable(answer.fields.request_id).substr(0, 64));
    }
    return words;
}

Error web_error(const std::string& silo, const TransferAnswer& answer, const std::string& code,
                const std::string& path, const char* step) {
    return fabricshm::explain(code_for(answer, step), "%s: %s: %s", silo.c_str(),
                              shown_path(path).c_str(), web_words(answer, code).c_str());
}

}  // namespace fabricd
