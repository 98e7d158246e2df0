#include "fabricd/telemetry/sample_metrics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>

using namespace fabricd;

namespace {

Sample full_sample() {
    Sample sample;
    sample.number = 5;
    sample.sessions.resize(2);
    SessionSample& session = sample.sessions[0];
    session.session_id = 3;
    session.label = "a \"quoted\\\" job\nof two lines";
    session.image = fabricshm::empty_telemetry();
    session.image.steps = 12;
    session.image.samples = 18'014'398'509'481'985;  // 2^54 + 1: no double holds it
    session.image.wait_ns = 1'500'000'000;
    session.image.rank = 1;
    session.member = true;
    sample.sessions[1].session_id = 4;
    sample.sessions[1].image = fabricshm::empty_telemetry();
    sample.devices.push_back({"cpu0", "CPU", DeviceKind::kCpu, 0, 2, 0.5});
    sample.devices.push_back({"gpu0", "GPU", DeviceKind::kGpu, 0, 2, 0.9});
    sample.devices[1].stale = true;
    sample.devices[1].faults = DeviceFaults{} | DeviceFault::kEcc | DeviceFault::kXid;
    sample.paths.push_back({7, 0, 1, 100, 12e9, 9e9, 110, 300});
    return sample;
}

std::string text_of(const Sample& sample) {
    MetricsText text;
    add_sample_metrics(sample, text);
    return text.text();
}

bool has_line(const std::string& text, const std::string& line) {
    return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_SUITE("telemetry.sample_metrics") {
    TEST_CASE("values are written so that they read back the same") {
        CHECK(metric_value(0.1) == "0.1");
        CHECK(metric_value(1e300) == "1e+300");
        CHECK(metric_value(-3) == "-3");
        CHECK(metric_value(NAN) == "NaN");
        CHECK(metric_value(std::numeric_limits<double>::infinity()) == "+Inf");
        CHECK(metric_value(-std::numeric_limits<double>::infinity()) == "-Inf");
    }

    TEST_CASE(
        "latencies are a histogram by operation and size, as many series however many sessions") {
        Sample sample = full_sample();
        auto& image = sample.latencies.image;
        image.used = std::uint64_t{1} << (3 * 4 + 1);  // broadcast, 1 KiB to 64 KiB
        image.rows[13].counts[0] = 5;
        image.rows[13].counts[2] = 2;
        image.rows[13].counts[24] = 1;
        image.rows[13].sum_ns = 3'000'000'000;
        image.failures[8] = 4;
        const std::string text = text_of(sample);
        const std::string labels = "operation=\"broadcast\",size=\"1KiB-64KiB\"";
        const auto bucket = [&](const std::string& end, int count) {
            return has_line(text, "fabricd_collective_seconds_bucket{" + labels + ",le=\"" + end +
                                      "\"} " + std::to_string(count));
        };
        CHECK(bucket("2.5e-07", 5));
        CHECK(bucket("5e-07", 5));
        CHECK(bucket("1e-06", 7));
        CHECK(bucket("2.097152", 7));
        CHECK(bucket("+Inf", 8));
        CHECK(has_line(text, "fabricd_collective_seconds_sum{" + labels + "} 3"));
        CHECK(has_line(text, "fabricd_collective_seconds_count{" + labels + "} 8"));
        CHECK(has_line(text, "fabricd_collective_failures_total{operation=\"barrier\"} 4"));
        const auto series = [](const Sample& of) {
            std::istringstream lines(text_of(of));
            int count = 0;
            for (std::string line; std::getline(lines, line);) {
                count += line.starts_with("fabricd_collective_");
            }
            return count;
        };
        const int few = series(sample);
        sample.sessions.resize(1000);
        CHECK(series(sample) == few);
        image.used = UINT64_MAX;
        sample.sessions.clear();
        CHECK(series(sample) <= 1'417);  // 13 kinds x 4 sizes x 27, 12 of failures, and one
    }

    TEST_CASE("labels and helps are escaped as the format wants it") {
        MetricsText text;
        text.family("a_total", MetricType::kCounter, "back\\slash\nand \"quote\"");
        text.sample({{"label", "back\\slash\nand \"quote\""}, {"other", ""}}, std::uint64_t{1});
        CHECK(text.text() ==
              "# HELP a_total back\\\\slash\\nand \"quote\"\n"
              "# TYPE a_total counter\n"
              "a_total{label=\"back\\\\slash\\nand \\\"quote\\\"\",other=\"\"} 1\n");
    }

    TEST_CASE(
        "a sample becomes families with one HELP and one TYPE each, counters ending in _total") {
        std::istringstream lines(text_of(full_sample()));
        std::map<std::string, std::string> types;
        std::set<std::string> helped;
        std::string family;
        int wrong = 0;
        for (std::string line; std::getline(lines, line);) {
            std::istringstream words(line);
            std::string first, keyword, name, type;
            words >> first;
            if (first == "#") {
                words >> keyword >> name >> type;
                if (keyword == "HELP") wrong += helped.insert(name).second ? 0 : 1;
                if (keyword == "TYPE") wrong += types.emplace(name, type).second ? 0 : 1;
                family = name;
                continue;
            }
            wrong += first.substr(0, first.find('{')) == family ? 0 : 1;
        }
        CHECK(wrong == 0);
        CHECK(types.size() > 15);
        for (const auto& [name, type] : types) {
            CAPTURE(name);
            CHECK(helped.count(name) == 1);
            CHECK(name.ends_with("_total") == (type == "counter"));
        }
    }

    TEST_CASE("figures of sessions, devices and paths are in base units with their labels") {
        const std::string text = text_of(full_sample());
        const std::string labels =
            "{session=\"3\",label=\"a \\\"quoted\\\\\\\" job\\nof two lines\",rank=\"1\"}";
        CHECK(has_line(text, "fabricd_session_samples_total" + labels + " 18014398509481985"));
        CHECK(has_line(text, "fabricd_session_wait_seconds_total" + labels + " 1.5"));
        CHECK(has_line(text, "fabricd_session_loss" + labels + " NaN"));
        CHECK(has_line(text, "fabricd_session_stale{session=\"4\",label=\"\",rank=\"\"} 1"));
        CHECK(has_line(text, "fabricd_device_busy_share{device=\"cpu0\"} 0.5"));
        CHECK(has_line(text, "fabricd_device_fault{device=\"gpu0\",fault=\"ecc\"} 1"));
        CHECK(has_line(text, "fabricd_device_fault{device=\"gpu0\",fault=\"xid\"} 1"));
        CHECK(has_line(text, "fabricd_device_fault{device=\"gpu0\",fault=\"stopped\"} 0"));
        // Old figures are none, and the power of this processor is unknown.
        CHECK(text.find("busy_share{device=\"gpu0\"") == std::string::npos);
        CHECK(text.find("fabricd_device_power_watts") == std::string::npos);
        CHECK(has_line(text,
                       "fabricd_path_latency_p99_seconds{group=\"7\",from=\"0\",to=\"1\"} 3e-07"));
        CHECK(has_line(text, "fabricd_samples_total 5"));
    }

    // The table of docs/telemetry.md, by which a page can be reckoned before there is one.
    TEST_CASE("a session is 13 series, a path 4, a device 11 at most") {
        const auto series_of = [](const Sample& sample) {
            std::istringstream lines(text_of(sample));
            std::size_t series = 0;
            for (std::string line; std::getline(lines, line);) series += line.front() != '#';
            return series;
        };
        Sample sample;
        sample.number = 1;
        const std::size_t none = series_of(sample);
        for (const std::size_t sessions : {1, 1000}) {
            sample.sessions.resize(sessions);
            CHECK(series_of(sample) == none + 13 * sessions);
        }
        sample.sessions.clear();
        sample.paths.resize(100);
        CHECK(series_of(sample) == none + 4 * 100);
        sample.paths.clear();
        sample.devices.resize(8);
        for (DeviceSample& device : sample.devices) {
            device.busy = device.memory_busy = device.power_watts = device.temperature_c = 1;
            device.clock_mhz = 1;
            device.memory_total = device.memory_used = 1;
        }
        CHECK(series_of(sample) == none + 11 * 8);
    }

    TEST_CASE("an empty sample is a valid page") {
        const std::string text = text_of(Sample{});
        CHECK(has_line(text, "fabricd_samples_total 0"));
        CHECK(text.find("session") == text.find("sessions so far"));
    }
}
