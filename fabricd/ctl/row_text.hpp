// RowText: the JSON text of an object, without a tree of it.

#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabricd/ctl/json.hpp"

namespace fabricd {

/// Appends to a text what one_line() makes of the same fields. A page has some thousand rows of a
/// dozen fields each second: as trees they cost five times as much.
class RowText {
  public:
    explicit RowText(std::string& text) : text_(text), begin_(text.size()) { text_ += '{'; }
    ~RowText() { text_ += '}'; }
    RowText(const RowText&) = delete;
    RowText& operator=(const RowText&) = delete;

    template <typename Value>
    void operator()(std::string_view name, const Value& value) {
        if (text_.size() > begin_ + 1) text_ += ',';
        text_ += '"';
        text_ += name;
        text_ += "\":";
        append(value);
    }

  private:
    void append(bool value) { text_ += value ? "true" : "false"; }
    void append(std::integral auto value) { append_digits(value); }
    void append(double value) {
        if (!std::isfinite(value)) {
            text_ += "null";
            return;
        }
        const std::size_t begin = text_.size();
        append_digits(value);
        // A number without a point would be another type to the reader of the tree's text.
        if (text_.find_first_of(".e", begin) == text_.npos) text_ += ".0";
    }
    void append(std::string_view value) {
        const auto is_plain = [](unsigned char c) {
            return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
        };
        for (const char c : value) {
            if (is_plain(static_cast<unsigned char>(c)) || c == '"' || c == '\\') continue;
            // Letters of several bytes, or none at all: the library knows.
            text_ += one_line(Json(value));
            return;
        }
        text_ += '"';
        for (const char c : value) {
            if (c == '"' || c == '\\') text_ += '\\';
            text_ += c;
        }
        text_ += '"';
    }
    void append(const std::same_as<Json> auto& value) { text_ += one_line(value); }
    template <typename Value>
    void append(const std::vector<Value>& values) {
        text_ += '[';
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (i != 0) text_ += ',';
            append(values[i]);
        }
        text_ += ']';
    }
    void append_digits(auto value) {
        char digits[40];
        text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
    }

    std::string& text_;
    const std::size_t begin_;
};

/// The same fields as a tree.
class RowJson {
  public:
    template <typename Value>
    void operator()(std::string_view name, const Value& value) {
        if constexpr (std::same_as<Value, double>) {
            json_.push_back({std::string(name), std::isfinite(value) ? Json(value) : Json()});
        } else {
            json_.push_back({std::string(name), Json(value)});
        }
    }
    Json take() { return std::move(json_); }

  private:
    Json json_ = Json::object();
};

}  // namespace fabricd
