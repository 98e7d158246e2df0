#include "fabricd/net/host_record.hpp"

#include <algorithm>
#include <charconv>
#include <map>

namespace fabricd {

namespace {

constexpr std::string_view kHostHeading = "fabricd-host 1\n";
constexpr std::string_view kFenceHeading = "fabricd-fence 1\n";
constexpr std::size_t kMaxText = 256;     // of one value
constexpr std::size_t kMaxRecord = 4096;  // what a store gives that is longer is none of ours

using Fields = std::map<std::string_view, std::string_view>;

// A line break would begin a field of its own.
std::string printable(std::string_view text) {
    std::string kept(text.substr(0, kMaxText));
    std::ranges::replace_if(
        kept, [](char letter) { return letter < 0x20 || letter > 0x7e; }, '?');
    return kept;
}

std::optional<Fields> fields_of(std::string_view text, std::string_view heading) {
    if (text.size() > kMaxRecord || !text.starts_with(heading)) return std::nullopt;
    text.remove_prefix(heading.size());
    Fields fields;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) return std::nullopt;  // cut off
        const std::string_view line = text.substr(0, end);
        const std::size_t sign = line.find('=');
        if (sign == std::string_view::npos) return std::nullopt;
        // Twice the same name: two readers could take different ones.
        if (!fields.emplace(line.substr(0, sign), line.substr(sign + 1)).second) {
            return std::nullopt;
        }
        text.remove_prefix(end + 1);
    }
    return fields;
}

bool read_whole(std::string_view text, std::uint64_t& number) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    return error == std::errc{} && at == end && !text.empty();
}

bool read_number(const Fields& fields, std::string_view name, std::uint64_t& number) {
    const auto found = fields.find(name);
    return found != fields.end() && read_whole(found->second, number);
}

bool read_text(const Fields& fields, std::string_view name, std::string& value) {
    const auto found = fields.find(name);
    if (found == fields.end()) return false;
    value = printable(found->second);
    return value == found->second;
}

}  // namespace

std::string encode(const HostRecord& record) {
    return std::string(kHostHeading) + "incarnation=" + std::to_string(record.incarnation) +
           "\nmachine=" + std::to_string(record.machine) + "\nboot=" + std::to_string(record.boot) +
           "\ninstance=" + std::to_string(record.instance) + "\npool=" + printable(record.pool) +
           "\naddress=" + printable(record.address) + "\nttl_ms=" + std::to_string(record.ttl_ms) +
           "\n";
}

std::string encode(const FenceRecord& record) {
    return std::string(kFenceHeading) + "state=" + (record.is_fenced ? "fenced" : "lost") +
           "\nby=" + printable(record.by) + "\nhow=" + printable(record.how) +
           "\nmachine=" + std::to_string(record.machine) + "\nboot=" + std::to_string(record.boot) +
           "\n";
}

bool read_incarnation(std::string_view text, Incarnation& incarnation) {
    std::uint64_t number = 0;
    if (!read_whole(text, number) || number == 0 || number > kMaxIncarnation) return false;
    incarnation = number;
    return true;
}

std::optional<HostRecord> decode_host(std::string_view text) {
    const auto fields = fields_of(text, kHostHeading);
    HostRecord record;
    const bool all = fields && read_number(*fields, "incarnation", record.incarnation) &&
                     read_number(*fields, "machine", record.machine) &&
                     read_number(*fields, "boot", record.boot) &&
                     read_number(*fields, "instance", record.instance) &&
                     read_text(*fields, "pool", record.pool) &&
                     read_text(*fields, "address", record.address) &&
                     read_number(*fields, "ttl_ms", record.ttl_ms);
    return all && record.incarnation <= kMaxIncarnation ? std::optional(record) : std::nullopt;
}

std::optional<FenceRecord> decode_fence(std::string_view text) {
    const auto fields = fields_of(text, kFenceHeading);
    FenceRecord record;
    std::string state;
    const bool all = fields && read_text(*fields, "state", state) &&
                     read_text(*fields, "by", record.by) && read_text(*fields, "how", record.how) &&
                     read_number(*fields, "machine", record.machine) &&
                     read_number(*fields, "boot", record.boot);
    if (!all || (state != "fenced" && state != "lost")) return std::nullopt;
    record.is_fenced = state == "fenced";
    return record;
}

bool is_host_name(std::string_view text) {
    const auto is_letter = [](char letter) {
        return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
               (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-';
    };
    return !text.empty() && text.size() < 64 && text[0] != '.' && text[0] != '-' &&
           std::ranges::all_of(text, is_letter);
}

}  // namespace fabricd
