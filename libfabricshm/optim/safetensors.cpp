#include "libfabricshm/optim/safetensors.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

constexpr Error kBadHeader{Errc::kCorrupt, 0, "read snapshot"};
constexpr std::string_view kZeros = "00000000";
constexpr std::string_view kOwnChecksum = "\"fabricshm.header_crc32c\":\"";

// Reads what a header is made of from the front of a text. After a failure the rest means nothing,
// and every further call fails, too.
class Cursor {
  public:
    explicit Cursor(std::string_view text) : rest_(text) {}

    bool failed() const noexcept { return failed_; }
    bool at_end() noexcept {
        skip_space();
        return rest_.empty();
    }

    // Whether `mark` comes next; then it is passed.
    bool passes(char mark) noexcept {
        skip_space();
        if (failed_ || rest_.empty() || rest_.front() != mark) return false;
        rest_.remove_prefix(1);
        return true;
    }
    void expect(char mark) noexcept {
        if (!passes(mark)) failed_ = true;
    }

    std::string text() {
        expect('"');
        std::string found;
        while (!failed_) {
            const char c = take();
            if (c == '"') return found;
            if (static_cast<unsigned char>(c) < 0x20) failed_ = true;
            if (c != '\\') {
                found.push_back(c);
            } else {
                add_escaped(found);
            }
        }
        return found;
    }

    std::int64_t number() noexcept {
        skip_space();
        constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
        std::int64_t value = 0;
        bool any = false;
        while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
            const int digit = take() - '0';
            if (value > (kMost - digit) / 10) failed_ = true;
            if (failed_) return 0;
            value = value * 10 + digit;
            any = true;
        }
        failed_ = failed_ || !any;
        return value;
    }

    std::vector<std::int64_t> numbers() {
        std::vector<std::int64_t> found;
        expect('[');
        if (passes(']')) return found;
        do {
            found.push_back(number());
        } while (passes(','));
        expect(']');
        return found;
    }

    // Calls `member` with each key; it reads the value.
    template <typename Member>
    void object(const Member& member) {
        expect('{');
        if (passes('}')) return;
        do {
            const std::string key = text();
            expect(':');
            if (!failed_) member(key);
        } while (passes(','));
        expect('}');
    }

    void fail() noexcept { failed_ = true; }

  private:
    void skip_space() noexcept {
        const auto at = rest_.find_first_not_of(" \t\r\n");
        rest_.remove_prefix(std::min(at, rest_.size()));
    }
    char take() noexcept {
        if (rest_.empty()) {
            failed_ = true;
            return 0;
        }
        const char c = rest_.front();
        rest_.remove_prefix(1);
        return c;
    }
    // Of \uXXXX those below 0x80 alone: others are written as they are.
    void add_escaped(std::string& found) {
        constexpr std::string_view kNames = "\"\\/bfnrt";
        constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
        const char c = take();
        if (const auto at = kNames.find(c); at != std::string_view::npos) {
            found.push_back(kMeanings[at]);
            return;
        }
        unsigned value = 0;
        for (int digit = 0; c == 'u' && digit < 4; ++digit) {
            constexpr std::string_view kDigits = "0123456789abcdef";
            const auto at = kDigits.find(static_cast<char>(take() | 0x20));
            if (at == std::string_view::npos) failed_ = true;
            value = value * 16 + static_cast<unsigned>(at);
        }
        if (c != 'u' || value >= 0x80) failed_ = true;
        found.push_back(static_cast<char>(value));
    }

    std::string_view rest_;
    bool failed_ = false;
};

StoredTensor read_tensor(Cursor& cursor, const std::string& name) {
    StoredTensor tensor;
    tensor.name = name;
    std::vector<std::int64_t> offsets;
    cursor.object([&](const std::string& key) {
        if (key == "dtype") {
            tensor.dtype = cursor.text();
        } else if (key == "shape") {
            tensor.shape = cursor.numbers();
        } else if (key == "data_offsets") {
            offsets = cursor.numbers();
        } else {
            cursor.fail();
        }
    });
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        cursor.fail();
        return tensor;
    }
    tensor.begin = static_cast<Bytes>(offsets[0]);
    tensor.end = static_cast<Bytes>(offsets[1]);
    return tensor;
}

// The place of the digits of the header's own checksum; npos: it has none.
std::size_t own_checksum_at(std::string_view json) noexcept {
    const auto at = json.find(kOwnChecksum);
    if (at == std::string_view::npos) return at;
    const std::size_t digits = at + kOwnChecksum.size();
    return digits + kZeros.size() <= json.size() ? digits : std::string_view::npos;
}

// The digits themselves count as zeros.
std::uint32_t checksum_of(std::string_view json, std::size_t digits) noexcept {
    std::uint32_t value = crc32c(json.data(), digits);
    value = crc32c(kZeros.data(), kZeros.size(), value);
    const std::string_view rest = json.substr(digits + kZeros.size());
    return crc32c(rest.data(), rest.size(), value);
}

}  // namespace

std::string checksum_text(std::uint32_t checksum) {
    char text[9];
    (void)std::snprintf(text, sizeof text, "%08x", checksum);
    return text;
}

std::string json_text(std::string_view text) {
    std::string made = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            made += {'\\', c};
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[7];
            (void)std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
            made += escaped;
        } else {
            made.push_back(c);
        }
    }
    return made + "\"";
}

std::string format_header(const StoredHeader& header) {
    std::string json = "{\"__metadata__\":{";
    // First, so that no name of a tensor can be taken for it.
    json += std::string(kOwnChecksum) + std::string(kZeros) + "\"";
    for (const auto& [key, value] : header.metadata) {
        json += "," + json_text(key) + ":" + json_text(value);
    }
    json += "}";
    for (const StoredTensor& tensor : header.tensors) {
        json += "," + json_text(tensor.name) + ":{\"dtype\":" + json_text(tensor.dtype);
        json += ",\"shape\":[";
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
            json += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
        }
        json += "],\"data_offsets\":[" + std::to_string(tensor.begin) + "," +
                std::to_string(tensor.end) + "]}";
    }
    json += "}";
    std::uint64_t length = round_up(json.size() + sizeof length, kHeaderUnit) - sizeof length;
    json.resize(length, ' ');
    const std::size_t digits = own_checksum_at(json);
    json.replace(digits, kZeros.size(), checksum_text(checksum_of(json, digits)));
    std::string bytes;
    for (; bytes.size() < sizeof length; length >>= 8) {
        bytes.push_back(static_cast<char>(length & 0xff));
    }
    return bytes + json;
}

Result<StoredHeader> parse_header(std::string_view json) {
    const std::size_t digits = own_checksum_at(json);
    if (digits != std::string_view::npos &&
        json.substr(digits, kZeros.size()) != checksum_text(checksum_of(json, digits))) {
        return explain(kBadHeader, "the header's checksum does not hold");
    }
    StoredHeader header;
    Cursor cursor(json);
    cursor.object([&](const std::string& key) {
        if (key != "__metadata__") {
            header.tensors.push_back(read_tensor(cursor, key));
            return;
        }
        cursor.object([&](const std::string& name) { header.metadata[name] = cursor.text(); });
    });
    if (cursor.failed() || !cursor.at_end()) {
        return explain(kBadHeader, "the header is not that of a safetensors file");
    }
    // Of ours, a checksum whose key was damaged.
    const bool is_ours = std::ranges::any_of(
        header.metadata, [](const auto& entry) { return entry.first.starts_with("fabricshm."); });
    if (is_ours && digits == std::string_view::npos) {
        return explain(kBadHeader, "the header's checksum is not there");
    }
    std::ranges::sort(header.tensors, {}, &StoredTensor::begin);
    Bytes at = 0;
    for (const StoredTensor& tensor : header.tensors) {
        if (tensor.begin != at) {
            return explain(kBadHeader, "tensor '%.80s' does not begin where the one before ends",
                           tensor.name.c_str());
        }
        at = tensor.end;
    }
    return header;
}

}  // namespace fabricshm
