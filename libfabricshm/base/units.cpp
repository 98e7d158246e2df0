#include "libfabricshm/base/units.hpp"

#include <time.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace fabricshm {

namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr Unit kByteUnits[] = {
    {"", 1},       {"B", 1},        {"KiB", 0x1p10}, {"K", 0x1p10},   {"MiB", 0x1p20},
    {"M", 0x1p20}, {"GiB", 0x1p30}, {"G", 0x1p30},   {"TiB", 0x1p40}, {"T", 0x1p40},
};
constexpr Unit kTimeUnits[] = {{"ns", 1},     {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                               {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};

// How many letters of `text` are its number: digits, and digits behind a point. 0: it begins with
// none. Signs, exponents and "inf", which from_chars() takes, are no part of a size.
std::size_t number_length(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789";
    const std::size_t whole = std::min(text.find_first_not_of(kDigits), text.size());
    if (whole == 0 || whole == text.size() || text[whole] != '.') return whole;
    const std::size_t end = std::min(text.find_first_not_of(kDigits, whole + 1), text.size());
    return end == whole + 1 ? 0 : end;
}

// Splits "1.5GiB" into a number and the factor of its unit; NaN when either is not understood.
template <std::size_t N>
double scaled(std::string_view text, const Unit (&units)[N]) {
    double number = 0;
    const std::size_t length = number_length(text);
    const char* end = text.data() + length;
    if (std::from_chars(text.data(), end, number).ec != std::errc{}) return std::nan("");
    std::string_view name = text.substr(length);
    if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    for (const Unit& unit : units) {
        if (unit.name == name) return number * unit.factor;
    }
    return std::nan("");
}

std::string with_unit(double value, const char* unit) {
    char text[48];
    const bool whole = value >= 100 || std::abs(value - std::round(value)) < 0.05;
    std::snprintf(text, sizeof text, whole ? "%.0f %s" : "%.1f %s", value, unit);
    return text;
}

}  // namespace

TimePoint deadline_after(TimePoint now, Duration length) noexcept {
    return length > TimePoint::max() - now ? TimePoint::max() : now + length;
}

TimePoint deadline_from_now(Duration length) noexcept {
    // The timer's longest tick (CONFIG_HZ=100): the coarse clock is behind by less than that.
    constexpr auto kTick = std::chrono::milliseconds(10);
    if (length < std::chrono::seconds(1)) return deadline_after(Clock::now(), length);
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const auto since_boot =
        std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
    return deadline_after(TimePoint(since_boot) + kTick, length);
}

Result<Bytes> parse_bytes(std::string_view text) {
    const double bytes = scaled(text, kByteUnits);
    // Comparing with 2^63 keeps the conversion defined; NaN fails the comparison too.
    if (!(bytes < 0x1p63)) return Error{Errc::kInvalid, 0, "parse size"};
    return static_cast<Bytes>(bytes);
}

Result<Duration> parse_duration(std::string_view text) {
    const double nanoseconds = scaled(text, kTimeUnits);
    if (!(nanoseconds < 0x1p62)) return Error{Errc::kInvalid, 0, "parse duration"};
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double, std::nano>(nanoseconds));
}

std::string format_bytes(Bytes bytes) {
    const auto value = static_cast<double>(bytes);
    if (value >= 0x1p40) return with_unit(value / 0x1p40, "TiB");
    if (value >= 0x1p30) return with_unit(value / 0x1p30, "GiB");
    if (value >= 0x1p20) return with_unit(value / 0x1p20, "MiB");
    if (value >= 0x1p10) return with_unit(value / 0x1p10, "KiB");
    return with_unit(value, "B");
}

std::string format_duration(Duration length) {
    const double nanoseconds = std::chrono::duration<double, std::nano>(length).count();
    if (nanoseconds >= 1e9) return with_unit(nanoseconds / 1e9, "s");
    if (nanoseconds >= 1e6) return with_unit(nanoseconds / 1e6, "ms");
    if (nanoseconds >= 1e3) return with_unit(nanoseconds / 1e3, "us");
    return with_unit(nanoseconds, "ns");
}

}  // namespace fabricshm
