// MetricsText: the text format that Prometheus reads, version 0.0.4.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace fabricd {

enum class MetricType { kGauge, kCounter, kHistogram };

/// Builds a page family by family: family(), then its samples, then the next family. Names are ours
/// and valid; label values and helps may be anything and are escaped.
class MetricsText {
  public:
    struct Label {
        std::string_view name;
        std::string value;
    };
    using Labels = std::initializer_list<Label>;

    /// Begins a family: one HELP and one TYPE line. A counter's name ends in "_total".
    void family(std::string_view name, MetricType type, std::string_view help);

    /// One sample of the family begun last. NaN is written as such: "not known".
    void sample(Labels labels, double value);
    void sample(Labels labels, std::uint64_t value);

    /// "{a=\"1\",b=\"2\"}": for labels that come again in many families.
    static std::string labels_text(Labels labels);
    /// The same with labels that are text already.
    void sample_with(const std::string& labels, double value);
    void sample_with(const std::string& labels, std::uint64_t value);

    /// The same with a suffix of the family's name: "_bucket", "_sum" and "_count" of a histogram.
    void part(std::string_view suffix, Labels labels, double value);
    void part(std::string_view suffix, Labels labels, std::uint64_t value);

    const std::string& text() const noexcept { return text_; }

  private:
    void begin(std::string_view suffix, std::string_view labels);
    void end(double value);
    void end(std::uint64_t value);

    std::string name_;
    std::string text_;
};

/// "12.5", "NaN", "+Inf": the shortest decimal that reads back the same.
std::string metric_value(double value);

}  // namespace fabricd
