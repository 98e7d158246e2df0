#include "libfabricshm/client/telemetry.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>

#include "libfabricshm/os/page_file.hpp"

using namespace fabricshm;

namespace {

PageFile telemetry_file() {
    return make_page_file("test", kTelemetryFileBytes, PageAccess::kReadWrite, format_telemetry)
        .value();
}

PageFile directive_file() {
    return make_page_file("test", kPageFileBytes, PageAccess::kReadOnly, format_directives).value();
}

TelemetryImage read(const PageFile& file) {
    TelemetryImage image = empty_telemetry();
    TelemetrySeen seen;
    (void)read_telemetry_head(file.mapping.data(), image, seen);
    return image;
}

StepInfo step_of(std::uint64_t samples, std::int64_t compute_ns = -1) {
    StepInfo info{};
    info.samples = samples;
    info.loss = info.gradient_norm = info.mean_gradient_norm = NAN;
    info.compute_ns = compute_ns;
    return info;
}

DirectiveImage order(std::uint64_t serial, std::uint32_t interval) {
    DirectiveImage image{};
    image.serial = serial;
    image.sync_interval = interval;
    return image;
}

}  // namespace

TEST_SUITE("client.telemetry") {
    TEST_CASE(
        "each page has the latencies since the one before, and those of groups that are gone") {
        const auto sum = [&](const PageFile& file) {
            const auto image = std::make_unique<LatencyImage>();
            std::uint64_t seen = 0;
            (void)read_telemetry_latencies(file.mapping.data(), *image, seen);
            std::uint64_t all = 0;
            for (const std::uint64_t count : image->rows[0].counts) all += count;
            return all;
        };
        Telemetry telemetry;
        const PageFile first = telemetry_file();
        REQUIRE(telemetry.take_telemetry(first.descriptor).ok());
        telemetry.step(step_of(1), 1'000);
        CHECK(sum(first) == 0);
        auto meter = std::make_shared<Meter>();
        telemetry.add_meter(7, meter);
        meter->end(meter->begin(8), {Kind::kAllreduce, 8, true});
        telemetry.step(step_of(1), 1'000'002'000);
        CHECK(sum(first) == 1);
        meter->end({1, Clock::now()}, {Kind::kAllreduce, 8, true});
        meter.reset();
        telemetry.step(step_of(1), 1'500'000'000);
        CHECK(sum(first) == 1);  // once per second
        telemetry.tell_latencies(1'500'000'001);
        CHECK(sum(first) == 2);
        const PageFile second = telemetry_file();
        REQUIRE(telemetry.take_telemetry(second.descriptor).ok());
        telemetry.step(step_of(1), 1'600'000'000);
        CHECK(sum(second) == 0);
        // A daemon of before has shorter pages, and gets the rest.
        const PageFile old = make_page_file("test", kShortTelemetryFileBytes,
                                            PageAccess::kReadWrite, format_telemetry)
                                 .value();
        REQUIRE(telemetry.take_telemetry(old.descriptor).ok());
        telemetry.step(step_of(1), 9'000'000'000);
        CHECK(read(old).steps == 5);
    }

    TEST_CASE(
        "a step is the time since the one before, and what nothing else claims is computing") {
        Telemetry telemetry;
        const PageFile file = telemetry_file();
        REQUIRE(telemetry.take_telemetry(file.descriptor).ok());
        telemetry.step(step_of(32), 1'000);
        CHECK(read(file).steps == 1);
        CHECK(read(file).step_ns == 0);
        telemetry.step(step_of(32), 1'500);
        telemetry.step(step_of(16, 100), 2'000);
        const TelemetryImage image = read(file);
        CHECK(image.steps == 3);
        CHECK(image.samples == 80);
        CHECK(image.batch == 16);
        CHECK(image.step_ns == 1'000);
        CHECK(image.compute_ns == 600);
        CHECK(image.written_ns == 2'000);
        CHECK(image.rank == -1);
    }

    TEST_CASE("what was counted without a page is in the next one") {
        Telemetry telemetry;
        for (int i = 1; i <= 5; ++i) telemetry.step(step_of(10), i * 100);
        const PageFile first = telemetry_file();
        REQUIRE(telemetry.take_telemetry(first.descriptor).ok());
        CHECK(read(first).samples == 50);
        const PageFile second = telemetry_file();
        REQUIRE(telemetry.take_telemetry(second.descriptor).ok());
        telemetry.step(step_of(10), 600);
        CHECK(read(second).samples == 60);
        CHECK(read(first).samples == 50);
    }

    TEST_CASE("the group is that of the last step that named one") {
        Telemetry telemetry;
        const PageFile file = telemetry_file();
        REQUIRE(telemetry.take_telemetry(file.descriptor).ok());
        StepInfo info = step_of(1);
        info.arena_id = 2;
        info.group_id = 3;
        info.rank = 1;
        info.world = 4;
        telemetry.step(info, 100);
        telemetry.step(step_of(1), 200);
        CHECK(read(file).group_id == 3);
        CHECK(read(file).rank == 1);
        CHECK(read(file).world == 4);
    }

    TEST_CASE(
        "reads of shards are reported ten times per second, with every step, and at the end") {
        Telemetry telemetry;
        const PageFile file = telemetry_file();
        const auto meter = telemetry.add_shard(2, 3);
        const auto told = [&] {
            TelemetryImage image = empty_telemetry();
            TelemetrySeen seen;
            (void)read_telemetry_shards(file.mapping.data(), image, seen);
            return image.shards[0];
        };
        constexpr std::int64_t kMs = 1'000'000;
        telemetry.count_read(*meter, 100, 1'000 * kMs);  // before there is a page
        REQUIRE(telemetry.take_telemetry(file.descriptor).ok());
        telemetry.count_read(*meter, 100, 1'001 * kMs);
        CHECK(told().arena == 2);
        CHECK(told().shard == 3);
        CHECK(told().reads == 2);
        telemetry.count_read(*meter, 100, 1'100 * kMs);
        CHECK(told().reads == 2);
        telemetry.count_read(*meter, 100, 1'101 * kMs);
        CHECK(told().reads == 4);
        CHECK(told().bytes == 400);
        telemetry.count_read(*meter, 100, 1'102 * kMs);
        telemetry.step(step_of(1), 1'201 * kMs);
        CHECK(told().reads == 5);
        telemetry.count_read(*meter, 100, 1'202 * kMs);
        telemetry.tell_shards(1'203 * kMs);
        CHECK(told().reads == 6);
    }

    TEST_CASE("waits are in the page from when there is one, each at its place until it ends") {
        Telemetry telemetry;
        WaitRecord wait{};
        wait.arena_id = wait.group_id = 9;
        wait.world = 2;
        set_kind(wait, "barrier");
        add_late(wait, 1);
        CHECK(telemetry.show_wait(-1, wait) == 0);
        const PageFile file = telemetry_file();
        REQUIRE(telemetry.take_telemetry(file.descriptor).ok());
        WaitRecord shown[kWaitsShown];
        REQUIRE(read_telemetry_waits(file.mapping.data(), shown) == PageRead::kFresh);
        CHECK(std::string(shown[0].kind) == "barrier");
        wait.bytes = 7;
        CHECK(telemetry.show_wait(0, wait) == 0);
        for (int place = 1; place < kWaitsShown; ++place) {
            CHECK(telemetry.show_wait(-1, wait) == place);
        }
        CHECK(telemetry.show_wait(-1, wait) == -1);
        telemetry.hide_wait(3);
        REQUIRE(read_telemetry_waits(file.mapping.data(), shown) == PageRead::kFresh);
        CHECK(shown[0].bytes == 7);
        CHECK(shown[3].group_id == 0);
        CHECK(shown[7].group_id == 9);
        CHECK(telemetry.show_wait(-1, wait) == 3);
    }

    TEST_CASE("the last directives hold until a new daemon has decided something") {
        Telemetry telemetry;
        CHECK(telemetry.directives().serial == 0);
        const PageFile first = directive_file();
        REQUIRE(telemetry.take_directives(first.descriptor).ok());
        CHECK(telemetry.directives().serial == 0);
        write_directives(first.mapping.data(), order(5, 4));
        CHECK(telemetry.directives().sync_interval == 4);
        const PageFile second = directive_file();
        REQUIRE(telemetry.take_directives(second.descriptor).ok());
        CHECK(telemetry.directives().sync_interval == 4);
        // The serials of a new daemon start again from 1.
        write_directives(second.mapping.data(), order(1, 2));
        CHECK(telemetry.directives().sync_interval == 2);
        const PageFile page = telemetry_file();
        REQUIRE(telemetry.take_telemetry(page.descriptor).ok());
        telemetry.step(step_of(1), 100);
        CHECK(read(page).directive_serial == 1);
        CHECK(read(page).sync_interval == 2);
    }

    TEST_CASE("the last quotas hold until others are announced") {
        Telemetry telemetry;
        CHECK(telemetry.quotas().serial == 0);
        const PageFile first = directive_file();
        REQUIRE(telemetry.take_directives(first.descriptor).ok());
        write_quotas(first.mapping.data(), {1, {100, 60, 80, 5}, {kNoLimit, kNoLimit, 1, 0}});
        CHECK(telemetry.quotas().device.target_bytes == 60);
        const PageFile second = directive_file();
        REQUIRE(telemetry.take_directives(second.descriptor).ok());
        CHECK(telemetry.quotas().device.target_bytes == 60);
        write_quotas(second.mapping.data(), {1, {60, 60, 60, 0}, {kNoLimit, kNoLimit, 1, 0}});
        CHECK(telemetry.quotas().device.limit_bytes == 60);
    }

    TEST_CASE("a file that is no page, or that could shrink, is refused") {
        Telemetry telemetry;
        const PageFile directives = directive_file();
        CHECK_FALSE(telemetry.take_telemetry(directives.descriptor).ok());
        CHECK(telemetry.take_directives(telemetry_file().descriptor).error().code ==
              Errc::kCorrupt);
        CHECK(telemetry.take_directives(Fd()).error().code == Errc::kCorrupt);
        telemetry.step(step_of(1), 100);
        CHECK(telemetry.directives().serial == 0);
    }
}
