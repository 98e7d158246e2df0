#include "fabricd/telemetry/metrics_text.hpp"

#include <charconv>
#include <cmath>
#include <cstdint>

namespace fabricd {

namespace {

// A label's value may not hold a bare backslash, quote or line end; a help no backslash or line
// end.
std::string escaped(std::string_view text, bool quotes) {
    std::string out;
    for (const char c : text) {
        if (c == '\n') {
            out += "\\n";
        } else if (c == '\\' || (quotes && c == '"')) {
            out += '\\';
            out += c;
        } else {
            out += c;
        }
    }
    return out;
}

}  // namespace

std::string metric_value(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
    // The shortest text that reads back as the same double, whatever the locale.
    char text[32];
    const auto [end, error] = std::to_chars(text, text + sizeof text, value);
    return error == std::errc{} ? std::string(text, end) : "NaN";
}

void MetricsText::family(std::string_view name, MetricType type, std::string_view help) {
    name_ = name;
    text_ += "# HELP " + name_ + " " + escaped(help, false) + "\n";
    const char* kind = type == MetricType::kCounter     ? " counter"
                       : type == MetricType::kHistogram ? " histogram"
                                                        : " gauge";
    text_ += "# TYPE " + name_ + kind + "\n";
}

std::string MetricsText::labels_text(Labels labels) {
    if (labels.size() == 0) return "";
    std::string text;
    char separator = '{';
    for (const Label& label : labels) {
        text += separator;
        text += label.name;
        text += "=\"" + escaped(label.value, true) + "\"";
        separator = ',';
    }
    return text + '}';
}

void MetricsText::begin(std::string_view suffix, std::string_view labels) {
    text_ += name_;
    text_ += suffix;
    text_ += labels;
    text_ += ' ';
}

void MetricsText::end(double value) {
    text_ += metric_value(value);
    text_ += '\n';
}

// Not as a double: a counter of bytes has more digits than that holds.
void MetricsText::end(std::uint64_t value) {
    text_ += std::to_string(value);
    text_ += '\n';
}

void MetricsText::sample(Labels labels, double value) {
    part("", labels, value);
}

void MetricsText::sample(Labels labels, std::uint64_t value) {
    part("", labels, value);
}

void MetricsText::sample_with(const std::string& labels, double value) {
    begin("", labels);
    end(value);
}

void MetricsText::sample_with(const std::string& labels, std::uint64_t value) {
    begin("", labels);
    end(value);
}

void MetricsText::part(std::string_view suffix, Labels labels, double value) {
    begin(suffix, labels_text(labels));
    end(value);
}

void MetricsText::part(std::string_view suffix, Labels labels, std::uint64_t value) {
    begin(suffix, labels_text(labels));
    end(value);
}

}  // namespace fabricd
