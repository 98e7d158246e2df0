// Ranks that step a set each for itself. What order they came in is not known beforehand, so the
// oracle are sums that are the same in every order: small whole numbers, which are never rounded.

#include "libfabricshm/optim/stale_steps.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <string>
#include <thread>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

TimePoint soon() {
    return Clock::now() + std::chrono::seconds(60);
}

class SharedMemory {
  public:
    explicit SharedMemory(Bytes bytes) : bytes_(round_up(bytes, kPageBytes)) {
        void* memory =
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        FABRIC_CHECK(memory != MAP_FAILED);
        data_ = static_cast<std::byte*>(memory);
    }
    ~SharedMemory() { ::munmap(data_, bytes_); }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    std::byte* data() const { return data_; }
    Bytes bytes() const { return bytes_; }

  private:
    Bytes bytes_;
    std::byte* data_;
};

// Two parameters that lie across the ranges of up to four ranks.
ParameterSpec plain_spec(int slots) {
    ParameterSpec spec;
    spec.parameters = {{"a", {3, 1500}, 0}, {"b", {17}, 0}};
    spec.rule = kernels::Rule::kSgd;
    spec.slots = slots;
    return spec;
}

StepCall descent(double rate = 1) {
    StepCall call;
    call.hyper.resize(1);
    call.hyper[0].learning_rate = rate;
    call.deadline = soon();
    return call;
}

using Body = std::function<bool(RankContext&, ParameterSet&, StaleSteps&)>;

int failures_over(int world, const Body& body) {
    const ParameterSpec spec = plain_spec(world);
    const SharedMemory memory(ParameterLayout::of(spec).total);
    ParameterSet::format(memory.data(), spec);
    return failures_in_threads(world, kMiB, [&](RankContext& context) {
        auto set =
            ParameterSet::attach(context.group, {}, memory.data(), memory.bytes(), spec, soon());
        if (!set.ok()) return report(context, "%s", describe(set.error()).c_str());
        StaleSteps stale(**set);
        return body(context, **set, stale);
    });
}

void fill(const ParameterSet& set, float value) {
    for (std::size_t k = 0; k < set.spec().parameters.size(); ++k) {
        auto* gradients = reinterpret_cast<float*>(set.gradient(k));
        std::fill_n(gradients, set.spec().parameters[k].elements(), value);
    }
}

// The one value that all elements have; NaN when they differ.
float only_value(const std::vector<std::vector<float>>& values) {
    for (const auto& of : values) {
        for (const float value : of) {
            if (value != values[0][0]) return NAN;
        }
    }
    return values[0][0];
}

struct Pulled {
    std::vector<std::vector<float>> values{std::vector<float>(4500), std::vector<float>(17)};
    std::vector<float*> places{values[0].data(), values[1].data()};
};

}  // namespace

TEST_SUITE("optim.stale_steps") {
    TEST_CASE("every push is applied once to every element, in whatever order ranks come") {
        for (const int world : {1, 2, 3, 4}) {
            CAPTURE(world);
            constexpr int kPushes = 40;
            CHECK(failures_over(
                      world, [&](RankContext& context, ParameterSet& set, StaleSteps& stale) {
                          fill(set, static_cast<float>(context.rank + 1));
                          for (int i = 0; i < kPushes; ++i) {
                              const auto pushed = stale.push(descent());
                              if (!pushed.ok()) return false;
                              if (!stale.advance(3, soon()).ok()) return false;
                          }
                          if (!stale.finish(soon()).ok()) return false;
                          Pulled pulled;
                          if (!stale.pull(pulled.places, soon()).ok()) return false;
                          const int sum = kPushes * world * (world + 1) / 2;
                          if (only_value(pulled.values) != static_cast<float>(-sum)) {
                              return report(context, "%g, not %d",
                                            static_cast<double>(pulled.values[0][0]), -sum);
                          }
                          return set.steps() == static_cast<std::uint64_t>(kPushes * world);
                      }) == 0);
        }
    }

    TEST_CASE("a range is copied whole: no rank sees half of a push in it") {
        // One range: each copy is one number.
        CHECK(failures_over(2, [&](RankContext& context, ParameterSet& set, StaleSteps& stale) {
                  if (!set.share({1, 0}).ok()) return false;
                  fill(set, 1);
                  float last = 1;
                  for (int i = 0; i < 200; ++i) {
                      if (context.rank == 0 && !stale.push(descent()).ok()) return false;
                      Pulled pulled;
                      if (!stale.pull(pulled.places, soon()).ok()) return false;
                      const float now = only_value(pulled.values);
                      if (!(now <= last)) return report(context, "torn, or backwards");
                      last = now;
                  }
                  return stale.finish(soon()).ok();
              }) == 0);
    }

    TEST_CASE("no rank is more than the staleness ahead of one that computes") {
        constexpr std::uint64_t kIdle = std::uint64_t{1} << 60;
        for (const std::uint64_t staleness : {0, 1, 3}) {
            CAPTURE(staleness);
            std::atomic<std::uint64_t> computing[3] = {kIdle, kIdle, kIdle};
            CHECK(failures_over(3, [&](RankContext& context, ParameterSet&, StaleSteps& stale) {
                      std::atomic<std::uint64_t>& mine = computing[context.rank];
                      std::uint64_t last = 0;
                      for (int i = 0; i < 300; ++i) {
                          const auto version = stale.advance(staleness, soon());
                          if (!version.ok() || *version <= last) return false;
                          last = *version;
                          mine.store(last);
                          for (const auto& other : computing) {
                              if (other.load() + staleness < last) {
                                  return report(context, "too far ahead");
                              }
                          }
                          // Of unequal speed.
                          for (int spin = 0; spin < context.rank * 20; ++spin)
                              std::this_thread::yield();
                          mine.store(kIdle);
                      }
                      return stale.finish(soon()).ok();
                  }) == 0);
        }
    }

    TEST_CASE("a rank that was behind goes on where the others are") {
        std::atomic<bool> ahead{false};
        CHECK(failures_over(2, [&](RankContext& context, ParameterSet&, StaleSteps& stale) {
                  if (context.rank == 0) {
                      for (std::uint64_t i = 1; i <= 5; ++i) {
                          const auto version = stale.advance(5, soon());
                          if (!version.ok() || *version != i) return false;
                      }
                      ahead.store(true);
                      return stale.finish(soon()).ok();
                  }
                  while (!ahead.load()) std::this_thread::yield();
                  // Not 1; rank 0 may have finished meanwhile, and counts no more then.
                  const auto version = stale.advance(5, soon());
                  if (!version.ok() || (*version != 5 && *version != 1)) return false;
                  return stale.finish(soon()).ok();
              }) == 0);
    }

    TEST_CASE("a rank that does not come is named when the deadline has passed") {
        std::atomic<bool> over{false};
        CHECK(failures_over(2, [&](RankContext& context, ParameterSet&, StaleSteps& stale) {
                  while (context.rank == 1 && !over.load()) std::this_thread::yield();
                  if (context.rank == 1) return true;
                  const auto version =
                      stale.advance(0, Clock::now() + std::chrono::milliseconds(20));
                  over.store(true);
                  return !version.ok() && version.error().code == Errc::kTimeout;
              }) == 0);
    }

    TEST_CASE("what a push can't do is refused, and changes nothing") {
        CHECK(failures_over(1, [&](RankContext&, ParameterSet& set, StaleSteps& stale) {
                  fill(set, 1);
                  StepCall clips = descent();
                  clips.clip_norm = 1;
                  StepCall checks = descent();
                  checks.skip_nonfinite = true;
                  for (const StepCall& call : {clips, checks, StepCall{}}) {
                      const auto pushed = stale.push(call);
                      if (pushed.ok() || pushed.error().code != Errc::kInvalid) return false;
                  }
                  return !stale.pull({}, soon()).ok() && set.values(0)[0] == 0;
              }) == 0);
    }

    TEST_CASE("a rank that died while it held a range is named") {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(0);
        FABRIC_CHECK(::waitpid(child, nullptr, 0) == child);
        std::atomic<bool> over{false};
        CHECK(failures_over(2, [&](RankContext& context, ParameterSet& set, StaleSteps& stale) {
                  while (context.rank == 1 && !over.load()) std::this_thread::yield();
                  if (context.rank == 1) return true;
                  auto* records =
                      reinterpret_cast<SlotRecord*>(reinterpret_cast<std::byte*>(set.values(0)) -
                                                    set.layout().parameters + set.layout().slots);
                  const std::uint64_t owner = records[1].owner.load();
                  records[1].owner.store(static_cast<std::uint64_t>(child));
                  records[0].holder.store(2);
                  const auto pushed = stale.push(descent());
                  records[1].owner.store(owner);
                  over.store(true);
                  return !pushed.ok() && pushed.error().code == Errc::kPeer &&
                         pushed.error().detail == 1;
              }) == 0);
    }

    TEST_CASE("a range whose holder is unknown is corrupt, and one whose holder lives a timeout") {
        const ParameterSpec spec = plain_spec(2);
        const SharedMemory memory(ParameterLayout::of(spec).total);
        ParameterSet::format(memory.data(), spec);
        CHECK(failures_in_threads(1, kMiB, [&](RankContext& context) {
                  auto set = ParameterSet::attach(context.group, {}, memory.data(), memory.bytes(),
                                                  spec, soon());
                  if (!set.ok()) return false;
                  StaleSteps stale(**set);
                  auto& record =
                      reinterpret_cast<SlotRecord*>(memory.data() + (*set)->layout().slots)[0];
                  StepCall call = descent();
                  call.deadline = Clock::now();
                  record.holder.store(77, std::memory_order_relaxed);
                  auto pushed = stale.push(call);
                  if (pushed.ok() || pushed.error().code != Errc::kCorrupt) return false;
                  record.holder.store(1, std::memory_order_relaxed);
                  pushed = stale.push(call);
                  return !pushed.ok() && pushed.error().code == Errc::kTimeout;
              }) == 0);
    }
}
