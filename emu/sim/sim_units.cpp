#include "emu/sim/sim_units.hpp"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace emu {

namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr Unit kRates[] = {{"B/s", 1},        {"kB/s", 1e3},     {"MB/s", 1e6},
                           {"GB/s", 1e9},     {"TB/s", 1e12},    {"KiB/s", 0x1p10},
                           {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"TiB/s", 0x1p40}};
constexpr Unit kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

// NaN when the text is not a number with one of the units.
template <std::size_t N>
double scaled(std::string_view text, const Unit (&units)[N]) {
    double number = 0;
    const char* end = text.data() + text.size();
    // from_chars() and not strtod(): a locale with decimal commas would change what a file means.
    const auto [rest, failure] = std::from_chars(text.data(), end, number);
    std::string_view name(rest, static_cast<std::size_t>(end - rest));
    if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    // "64GB" is no rate: a size where a rate belongs should not pass.
    for (const Unit& unit : units) {
        if (failure == std::errc{} && unit.name == name) return number * unit.factor;
    }
    return std::nan("");
}

template <std::size_t N>
std::string with_unit(double value, const Unit (&units)[N], const char* smallest) {
    const Unit* best = &units[0];
    for (const Unit& unit : units) {
        if (value >= unit.factor && unit.factor >= best->factor) best = &unit;
    }
    // Three digits: simulated figures promise no more.
    char text[48];
    const double shown = value / best->factor;
    if (value <= 0) return std::string("0 ") + smallest;
    std::snprintf(text, sizeof text, "%.*f %.*s",
                  shown < 10    ? 2
                  : shown < 100 ? 1
                                : 0,
                  shown, static_cast<int>(best->name.size()), best->name.data());
    return text;
}

}  // namespace

fabricshm::Result<Rate> parse_rate(std::string_view text) {
    const double rate = scaled(text, kRates);
    // NaN fails here as well.
    if (!(rate >= 0 && rate <= 1e18)) return fabricshm::Error{fabricshm::Errc::kInvalid, 0, "rate"};
    return rate;
}

fabricshm::Result<Seconds> parse_seconds(std::string_view text) {
    const double length = scaled(text, kTimes);
    if (!(length >= 0 && length <= 1e9)) {
        return fabricshm::Error{fabricshm::Errc::kInvalid, 0, "time"};
    }
    return length;
}

std::string format_seconds(Seconds length) {
    return with_unit(length, kTimes, "s");
}

std::string format_rate(Rate rate) {
    // Decimal units only: they are the first five.
    constexpr Unit kDecimal[] = {kRates[0], kRates[1], kRates[2], kRates[3], kRates[4]};
    return with_unit(rate, kDecimal, "B/s");
}

}  // namespace emu
