#include "fabricd/telemetry/sampler.hpp"

#include <doctest/doctest.h>

#include "fabricd/telemetry/rates.hpp"
#include "libfabricshm/os/mapping.hpp"

using namespace fabricd;
using fabricshm::Mapping;
using fabricshm::TelemetryImage;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

class Session {
  public:
    Session(SessionPages& pages, std::uint64_t id)
        : page_(Mapping::map(pages.open_telemetry({id, 1, 0, "job", ""}).value(), 0, 4096, {})
                    .value()) {}
    void write() {
        fabricshm::write_telemetry_head(page_.data(), image);
        fabricshm::write_telemetry_peers(page_.data(), image);
        fabricshm::write_telemetry_shards(page_.data(), image);
    }
    // Steps of 0.1 s with 32 samples, a half of it computing and a quarter waiting.
    void train(int steps) {
        for (int i = 0; i < steps; ++i) {
            ++image.steps;
            image.samples += 32;
            image.written_ns += kSecond / 10;
            image.step_ns += kSecond / 10;
            image.compute_ns += kSecond / 20;
            image.wait_ns += kSecond / 40;
        }
        write();
    }

    TelemetryImage image = fabricshm::empty_telemetry();

  private:
    Mapping page_;
};

class OneDevice final : public DeviceSource {
  public:
    void sample(std::int64_t, std::vector<DeviceSample>& devices) override {
        devices.push_back({});
        devices.back().name = "npu0";
    }
};

/// Two GPUs, the second of which does not answer any more.
class TwoGpus final : public DeviceSource {
  public:
    void sample(std::int64_t, std::vector<DeviceSample>& devices) override {
        for (const char* name : {"gpu0", "gpu1"}) {
            devices.push_back({});
            devices.back().name = name;
            devices.back().uuid = std::string("GPU-of-") + name;
        }
        devices.back().faults = DeviceFaults{} | DeviceFault::kStopped;
    }
};

SamplerOptions every_session() {
    SamplerOptions options;
    options.stale_after = std::chrono::seconds(1);
    options.details_every = 1;
    return options;
}

}  // namespace

TEST_SUITE("telemetry.sampler") {
    TEST_CASE("a faulty GPU is a faulty device of the device file, by number and by UUID") {
        SessionPages pages;
        std::vector<std::unique_ptr<DeviceSource>> sources;
        sources.push_back(std::make_unique<TwoGpus>());
        DeviceWatch devices(std::move(sources));
        SamplerOptions options = every_session();
        options.gpus = {
            {"a", "0"}, {"b", "1"}, {"c", "GPU-of-gpu1"}, {"d", "GPU-of-gpu0"}, {"e", ""}};
        Sampler sampler(pages, devices, options, {});
        devices.look(kSecond);
        sampler.take(kSecond);
        const Sample sample = sampler.latest();
        REQUIRE(sample.faulty.size() == 2);
        CHECK(sample.faulty[0].name == "b");
        CHECK(sample.faulty[1].name == "c");
        CHECK(words_of(sample.faulty[1].faults) == "stopped");
    }

    TEST_CASE("rates are those of what was done since the last sample") {
        SessionPages pages;
        Session session(pages, 1);
        DeviceWatch devices({});
        Sampler sampler(pages, devices, every_session(), {});
        CHECK(sampler.latest().number == 0);
        session.train(10);
        sampler.take(kSecond);
        session.train(20);
        sampler.take(3 * kSecond);
        const Sample sample = sampler.latest();
        CHECK(sample.number == 2);
        REQUIRE(sample.sessions.size() == 1);
        const SessionRates& rates = sample.sessions[0].rates;
        CHECK(rates.steps_per_s == doctest::Approx(10));
        CHECK(rates.samples_per_s == doctest::Approx(320));
        CHECK(rates.step_s == doctest::Approx(0.1));
        CHECK(rates.compute_share == doctest::Approx(0.5));
        CHECK(rates.wait_share == doctest::Approx(0.25));
        CHECK(rates.comm_share == 0);
        CHECK_FALSE(sample.sessions[0].stale);
        // No step since: the rates stay, and after a while they are stale.
        sampler.take(5 * kSecond);
        CHECK(sampler.latest().sessions[0].rates.steps_per_s == doctest::Approx(10));
        CHECK(sampler.latest().sessions[0].stale);
    }

    TEST_CASE("counters that fall give no negative rate and no infinite one") {
        SessionSample session;
        session.image = fabricshm::empty_telemetry();
        session.before.steps = 10;
        session.before.samples = 1'000'000;
        session.before.written_ns = 5;
        session.before.step_ns = 100;
        session.image.steps = 11;
        session.image.written_ns = 6;
        session.image.wait_ns = 1'000;
        update_rates(session);
        CHECK(session.rates.samples_per_s == 0);
        CHECK(session.rates.step_s == 0);
        CHECK(session.rates.wait_share == 0);
        CHECK(session.rates.steps_per_s >= 0);
    }

    TEST_CASE("of the shards that a session reports, those count that it has open") {
        SessionPages pages;
        Session session(pages, 1);
        session.image.shards[0] = {5, 1, 10, 1000};
        session.image.shards[1] = {5, 2, 20, 2000};
        session.image.shards[2] = {5, 3, 30, 3000};
        session.write();
        DeviceWatch devices({});
        Sampler sampler(pages, devices, every_session(), [](std::vector<SessionClaim>& claims) {
            REQUIRE(claims[0].shards[1].reads == 20);
            claims[0].shards_open = 0b101;
        });
        sampler.take(kSecond);
        const SessionSample sample = sampler.latest().sessions.at(0);
        CHECK(sample.stale);  // it makes no steps
        REQUIRE(sample.shards.size() == 2);
        CHECK(sample.shards[0].shard == 1);
        CHECK(sample.shards[1].bytes == 3000);
        Sampler unsure(pages, devices, every_session(), [](std::vector<SessionClaim>&) {});
        unsure.take(kSecond);
        CHECK(unsure.latest().sessions.at(0).shards.empty());
    }

    TEST_CASE("the daemon's records replace what a session says of itself") {
        SessionPages pages;
        Session session(pages, 1);
        session.image.group_id = 7;
        session.image.rank = 0;
        session.image.world = 2;
        session.image.memory_used = 999;
        session.train(1);
        DeviceWatch devices({});
        Sampler sampler(pages, devices, every_session(), [](std::vector<SessionClaim>& claims) {
            for (SessionClaim& claim : claims) {
                claim.member = claim.group_id == 7 && claim.rank == 0;
                claim.memory_used = 42;
            }
        });
        sampler.take(kSecond);
        session.train(1);
        sampler.take(kSecond);
        const Sample sample = sampler.latest();
        CHECK(sample.sessions[0].member);
        CHECK(sample.sessions[0].image.memory_used == 42);
    }

    TEST_CASE("what the records confirmed holds for that claim alone, until they are asked again") {
        SessionPages pages;
        Session other(pages, 1);
        Session session(pages, 2);
        const auto claim = [&](std::uint64_t group) {
            session.image.group_id = group;
            session.image.rank = 0;
            session.image.world = 2;
            session.train(1);
        };
        DeviceWatch devices({});
        SamplerOptions options = every_session();
        options.details_every = 2;  // the records are asked about it in every other sample
        Sampler sampler(pages, devices, options, [](std::vector<SessionClaim>& claims) {
            for (SessionClaim& asked : claims) asked.member = asked.group_id == 7;
        });
        claim(7);
        sampler.take(kSecond);
        sampler.take(kSecond);
        CHECK(sampler.latest().sessions[1].member);
        claim(8);  // another session's group
        sampler.take(kSecond);
        CHECK_FALSE(sampler.latest().sessions[1].member);
    }

    TEST_CASE("timed reads of members become paths") {
        SessionPages pages;
        Session session(pages, 1);
        session.image.group_id = 7;
        session.image.rank = 0;
        session.image.world = 2;
        DeviceWatch devices({});
        bool member = false;
        Sampler sampler(pages, devices, every_session(),
                        [&](std::vector<SessionClaim>& claims) { claims[0].member = member; });
        for (const bool now : {false, true}) {
            member = now;
            session.image.peers.resize(2);
            session.image.peers[1].reads += 1;
            session.image.peers[1].read_bytes += 32'000;
            session.image.peers[1].read_ns += 4'000;
            session.image.peers[1].latency_ns += 120;
            session.train(1);
            sampler.take(kSecond);
            CHECK(sampler.latest().paths.size() == (now ? 1 : 0));
        }
        const PathSample path = sampler.latest().paths[0];
        CHECK(path.from == 0);
        CHECK(path.to == 1);
        CHECK(path.bytes_per_second == doctest::Approx(8e9));
        CHECK(path.latency_ns == doctest::Approx(120));
    }

    TEST_CASE("the thread samples by itself, and devices are asked on another one") {
        SessionPages pages;
        std::vector<std::unique_ptr<DeviceSource>> sources;
        sources.push_back(std::make_unique<OneDevice>());
        DeviceWatch devices(std::move(sources));
        SamplerOptions options;
        options.period = std::chrono::milliseconds(1);
        Sampler sampler(pages, devices, options, {});
        sampler.start();
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(30);
        Sample sample = sampler.latest();
        while (fabricshm::Clock::now() < deadline &&
               (sample.number < 3 || sample.devices.empty())) {
            std::this_thread::yield();
            sample = sampler.latest();
        }
        sampler.stop();
        CHECK(sample.number >= 3);
        REQUIRE(sample.devices.size() == 1);
        CHECK(sample.devices[0].name == "npu0");
    }

    TEST_CASE("devices that were not asked for a while are stale") {
        std::vector<std::unique_ptr<DeviceSource>> sources;
        sources.push_back(std::make_unique<OneDevice>());
        DeviceWatch devices(std::move(sources));
        CHECK(devices.latest(kSecond, kSecond).empty());
        devices.look(kSecond);
        CHECK_FALSE(devices.latest(2 * kSecond, kSecond)[0].stale);
        CHECK(devices.latest(2 * kSecond + 1, kSecond)[0].stale);
    }
}
