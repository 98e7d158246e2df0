// Steps of ranks over one set: against a model that moves one long array by the formulas, written
// apart from the kernels and in the order in which the ranks' gradients are added.

#include "libfabricshm/optim/parameter_set.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

TimePoint soon() {
    return Clock::now() + std::chrono::seconds(60);
}

// Memory that forked ranks share.
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

ParameterSpec spec_of(kernels::Rule rule, int slots) {
    ParameterSpec spec;
    // Sizes that end inside of blocks, logs and vectors.
    spec.parameters = {{"a", {3, 1000}, 0}, {"b", {17}, 1}, {"c", {2, 2, 1500}, 0}, {"d", {}, 1}};
    spec.rule = rule;
    spec.slots = slots;
    return spec;
}

std::vector<kernels::Hyper> hyper() {
    kernels::Hyper first;
    first.learning_rate = 0.01;
    first.weight_decay = 0.1;
    first.momentum = 0.9;
    kernels::Hyper second = first;
    second.learning_rate = 0.05;
    second.weight_decay = 0;
    return {first, second};
}

float gradient_at(std::uint64_t seed, int slot, std::uint64_t step, std::uint64_t index) {
    std::uint64_t x =
        seed * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(slot) * 7919 + step * 104729 + index;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-53 - 0.5);
}

// AdamW over all parameters, one after the other, in doubles but for what is stored.
struct Model {
    struct Element {
        float p, m = 0, v = 0;
        std::uint32_t options;
    };
    std::vector<Element> elements;
    std::uint64_t steps = 0;

    explicit Model(const ParameterSpec& spec) {
        for (const Parameter& parameter : spec.parameters) {
            for (std::uint64_t i = 0; i < parameter.elements(); ++i) {
                elements.push_back({start_of(elements.size()), 0, 0, parameter.options});
            }
        }
    }
    static float start_of(std::size_t index) {
        return static_cast<float>(static_cast<int>(index % 201) - 100) / 50;
    }

    void step(const std::vector<kernels::Hyper>& options, const std::vector<double>& merged) {
        ++steps;
        for (std::size_t i = 0; i < elements.size(); ++i) {
            Element& e = elements[i];
            const kernels::Hyper& h = options[e.options];
            const double g = merged[i];
            const double m = h.beta1 * e.m + (1 - h.beta1) * g;
            const double v = h.beta2 * e.v + (1 - h.beta2) * g * g;
            const double mean = m / (1 - std::pow(h.beta1, static_cast<double>(steps)));
            const double spread = v / (1 - std::pow(h.beta2, static_cast<double>(steps)));
            const double p = e.p * (1 - h.learning_rate * h.weight_decay);
            e.p = static_cast<float>(p - h.learning_rate * mean / (std::sqrt(spread) + h.epsilon));
            e.m = static_cast<float>(m);
            e.v = static_cast<float>(v);
        }
    }
};

std::vector<double> merged(const Model& model, std::uint64_t seed, const std::vector<int>& slots,
                           const std::vector<double>& weights, std::uint64_t step) {
    std::vector<double> sum(model.elements.size(), 0);
    for (std::size_t i = 0; i < sum.size(); ++i) {
        for (std::size_t r = 0; r < slots.size(); ++r) {
            sum[i] += weights[r] * static_cast<double>(gradient_at(seed, slots[r], step, i));
        }
    }
    return sum;
}

void fill_gradients(const ParameterSet& set, std::uint64_t seed, std::uint64_t step) {
    std::uint64_t index = 0;
    for (std::size_t k = 0; k < set.spec().parameters.size(); ++k) {
        auto* gradients = reinterpret_cast<float*>(set.gradient(k));
        for (std::uint64_t i = 0; i < set.spec().parameters[k].elements(); ++i) {
            gradients[i] = gradient_at(seed, set.slot(), step, index++);
        }
    }
}

void fill_start(const ParameterSet& set) {
    std::size_t index = 0;
    for (std::size_t k = 0; k < set.spec().parameters.size(); ++k) {
        for (std::uint64_t i = 0; i < set.spec().parameters[k].elements(); ++i) {
            set.values(k)[i] = Model::start_of(index++);
        }
    }
}

bool is_like(const ParameterSet& set, const Model& model, const RankContext& context) {
    std::size_t index = 0;
    for (std::size_t k = 0; k < set.spec().parameters.size(); ++k) {
        for (std::uint64_t i = 0; i < set.spec().parameters[k].elements(); ++i, ++index) {
            const Model::Element& e = model.elements[index];
            const double off = std::abs(static_cast<double>(set.values(k)[i]) - e.p);
            const double m_off = std::abs(static_cast<double>(set.state(k, 0)[i]) - e.m);
            if (off <= 1e-5 && m_off <= 1e-5) continue;
            return report(context, "step %llu: %s[%llu] is %.9g, the model has %.9g",
                          static_cast<unsigned long long>(model.steps),
                          set.spec().parameters[k].name.c_str(), static_cast<unsigned long long>(i),
                          static_cast<double>(set.values(k)[i]), static_cast<double>(e.p));
        }
    }
    return true;
}

StepCall plain_call() {
    StepCall call;
    call.hyper = hyper();
    call.deadline = soon();
    return call;
}

// Runs `body` on each rank, with a set of `spec` that all have attached to.
int failures_over(const ParameterSpec& spec, int world,
                  const std::function<bool(RankContext&, ParameterSet&)>& body) {
    const SharedMemory memory(ParameterLayout::of(spec).total);
    ParameterSet::format(memory.data(), spec);
    return failures_in_threads(world, kMiB, [&](RankContext& context) {
        auto set =
            ParameterSet::attach(context.group, {}, memory.data(), memory.bytes(), spec, soon());
        if (!set.ok()) return report(context, "%s", describe(set.error()).c_str());
        if (context.rank == 0) fill_start(**set);
        Call barrier;
        barrier.kind = Kind::kBarrier;
        barrier.deadline = soon();
        if (!context.group.run(barrier).ok()) return report(context, "barrier");
        return body(context, **set);
    });
}

std::vector<int> first_slots(int world) {
    std::vector<int> slots;
    for (int slot = 0; slot < world; ++slot) slots.push_back(slot);
    return slots;
}

}  // namespace

TEST_SUITE("optim.parameter_set") {
    TEST_CASE("ranks that step together do what one process does with all their gradients") {
        for (const int world : {1, 2, 3, 5}) {
            CAPTURE(world);
            const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 5);
            CHECK(failures_over(spec, world, [&](RankContext& context, ParameterSet& set) {
                      Model model(spec);
                      const std::vector<double> equal(static_cast<std::size_t>(world), 1.0 / world);
                      for (std::uint64_t step = 0; step < 20; ++step) {
                          fill_gradients(set, 1, step);
                          const auto stepped = set.step(plain_call());
                          if (!stepped.ok()) {
                              return report(context, "%s", describe(stepped.error()).c_str());
                          }
                          if (stepped->step != step + 1 || set.steps() != step + 1) return false;
                          model.step(hyper(), merged(model, 1, first_slots(world), equal, step));
                          if (!is_like(set, model, context)) return false;
                      }
                      return true;
                  }) == 0);
        }
    }

    TEST_CASE("the bits do not depend on how the set is cut into shards") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 3);
        std::vector<std::vector<std::byte>> results;
        for (const std::vector<double>& shares :
             std::vector<std::vector<double>>{{}, {1, 0, 0}, {0.1, 0.2, 0.7}}) {
            const ParameterLayout layout = ParameterLayout::of(spec);
            const SharedMemory memory(layout.total);
            ParameterSet::format(memory.data(), spec);
            CHECK(failures_in_threads(3, kMiB, [&](RankContext& context) {
                      auto set = ParameterSet::attach(context.group, {}, memory.data(),
                                                      memory.bytes(), spec, soon());
                      if (!set.ok()) return false;
                      if (!shares.empty() && !(*set)->share(shares).ok()) return false;
                      for (std::uint64_t step = 0; step < 5; ++step) {
                          fill_gradients(**set, 2, step);
                          StepCall call = plain_call();
                          call.clip_norm = 3;
                          call.skip_nonfinite = true;
                          const auto stepped = (*set)->step(call);
                          if (!stepped.ok() || !(stepped->norm > 3)) return false;
                      }
                      return true;
                  }) == 0);
            results.emplace_back(memory.data() + layout.parameters,
                                 memory.data() + layout.gradients);
        }
        CHECK(results[0] == results[1]);
        CHECK(results[0] == results[2]);
    }

    TEST_CASE("gradients are weighted as their ranks say") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 3);
        const std::vector<double> weights{0.5, 0.125, 0.375};
        CHECK(failures_over(spec, 3, [&](RankContext& context, ParameterSet& set) {
                  Model model(spec);
                  for (std::uint64_t step = 0; step < 5; ++step) {
                      fill_gradients(set, 3, step);
                      StepCall call = plain_call();
                      call.weight = weights[static_cast<std::size_t>(context.rank)];
                      if (!set.step(call).ok()) return false;
                      model.step(hyper(), merged(model, 3, {0, 1, 2}, weights, step));
                      if (!is_like(set, model, context)) return false;
                  }
                  return true;
              }) == 0);
    }

    TEST_CASE("clipping scales the whole gradient to the norm, on all ranks alike") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 2);
        CHECK(failures_over(spec, 2, [&](RankContext& context, ParameterSet& set) {
                  Model model(spec);
                  for (std::uint64_t step = 0; step < 5; ++step) {
                      fill_gradients(set, 4, step);
                      StepCall call = plain_call();
                      call.clip_norm = 2;
                      call.scale = 0.5;
                      const auto stepped = set.step(call);
                      if (!stepped.ok()) return false;
                      auto g = merged(model, 4, {0, 1}, {0.25, 0.25}, step);
                      double square = 0;
                      for (const double x : g) square += x * x;
                      const double norm = std::sqrt(square);
                      if (std::abs(stepped->norm - norm) > 1e-4 * norm) {
                          return report(context, "norm %g, not %g", stepped->norm, norm);
                      }
                      for (double& x : g) x *= std::min(1.0, 2 / (norm + 1e-6));
                      model.step(hyper(), g);
                      if (!is_like(set, model, context)) return false;
                  }
                  return true;
              }) == 0);
    }

    TEST_CASE("one element that is not finite skips the step on every rank, and counts none") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 3);
        CHECK(failures_over(spec, 3, [&](RankContext& context, ParameterSet& set) {
                  Model model(spec);
                  const std::vector<double> equal(3, 1.0 / 3);
                  std::uint64_t applied = 0;
                  for (std::uint64_t step = 0; step < 6; ++step) {
                      fill_gradients(set, 5, step);
                      const bool bad = step % 2 == 1;
                      if (bad && context.rank == static_cast<int>(step % 3)) {
                          const float value = step == 3 ? NAN : -INFINITY;
                          std::memcpy(set.gradient(2) + 4 * 77, &value, 4);
                      }
                      StepCall call = plain_call();
                      call.skip_nonfinite = true;
                      const auto stepped = set.step(call);
                      if (!stepped.ok() || stepped->skipped != bad) return false;
                      if (!bad) model.step(hyper(), merged(model, 5, {0, 1, 2}, equal, step));
                      applied += bad ? 0 : 1;
                      if (stepped->step != applied) return false;
                      if (!is_like(set, model, context)) return false;
                  }
                  return true;
              }) == 0);
    }

    TEST_CASE("ranks that call steps with other values get kMismatch, and nothing has changed") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 3);
        CHECK(failures_over(spec, 3, [&](RankContext& context, ParameterSet& set) {
                  Model model(spec);
                  for (int round = 0; round < 50; ++round) {
                      fill_gradients(set, 6, static_cast<std::uint64_t>(round));
                      StepCall call = plain_call();
                      if (context.rank == 1) call.hyper[1].learning_rate = 0.02;
                      const auto stepped = set.step(call);
                      if (stepped.ok() || stepped.error().code != Errc::kMismatch) return false;
                      if (!is_like(set, model, context)) return false;
                  }
                  fill_gradients(set, 6, 99);
                  if (!set.step(plain_call()).ok()) return false;
                  model.step(hyper(), merged(model, 6, {0, 1, 2}, {1.0 / 3, 1.0 / 3, 1.0 / 3}, 99));
                  return is_like(set, model, context);
              }) == 0);
    }

    TEST_CASE("what is out of its range is refused by name, and the others do not hear of it") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 1);
        CHECK(failures_over(spec, 1, [&](RankContext& context, ParameterSet& set) {
                  const auto refusal = [&](const std::function<void(StepCall&)>& change) {
                      StepCall call = plain_call();
                      change(call);
                      const auto stepped = set.step(call);
                      return stepped.ok() ? std::string() : explanation_of(stepped.error());
                  };
                  const std::array<std::string, 5> texts = {
                      refusal([](StepCall& call) { call.hyper.pop_back(); }),
                      refusal([](StepCall& call) { call.hyper[0].beta1 = 1; }),
                      refusal([](StepCall& call) { call.scale = NAN; }),
                      refusal([](StepCall& call) { call.weight = INFINITY; }),
                      refusal([](StepCall& call) { call.clip_norm = -1; })};
                  const char* words[] = {"options", "beta1", "scale", "weight", "clip_norm"};
                  for (std::size_t i = 0; i < texts.size(); ++i) {
                      if (texts[i].find(words[i]) == std::string::npos) {
                          return report(context, "'%s' does not name %s", texts[i].c_str(),
                                        words[i]);
                      }
                  }
                  for (const auto& shares :
                       std::vector<std::vector<double>>{{}, {1, 1}, {-1}, {0}, {NAN}, {INFINITY}}) {
                      if (set.share(shares).ok()) return report(context, "shares");
                  }
                  return set.steps() == 0 && set.step(plain_call()).ok();
              }) == 0);
    }

    TEST_CASE("a set of another spec is refused") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 1);
        const SharedMemory memory(2 * ParameterLayout::of(spec).total);
        CHECK(failures_in_threads(1, kMiB, [&](RankContext& context) {
                  auto none = ParameterSet::attach(context.group, {}, memory.data(), memory.bytes(),
                                                   spec, soon());
                  if (none.ok() || none.error().code != Errc::kExists) return false;
                  ParameterSet::format(memory.data(), spec);
                  ParameterSpec other = spec;
                  other.parameters[1].shape = {18};
                  auto set = ParameterSet::attach(context.group, {}, memory.data(), memory.bytes(),
                                                  other, soon());
                  if (set.ok() || set.error().code != Errc::kMismatch) return false;
                  set = ParameterSet::attach(context.group, {}, memory.data(),
                                             ParameterLayout::of(spec).total - 1, spec, soon());
                  if (set.ok()) return false;
                  set = ParameterSet::attach(context.group, {}, memory.data(), memory.bytes(), spec,
                                             soon());
                  return set.ok();
              }) == 0);
    }

    TEST_CASE("another group goes on with a set that was closed, at the step where it stood") {
        const ParameterSpec spec = spec_of(kernels::Rule::kAdamW, 4);
        const SharedMemory memory(ParameterLayout::of(spec).total);
        ParameterSet::format(memory.data(), spec);
        Model model(spec);
        std::uint64_t step = 0;
        for (const int world : {2, 4, 1, 3}) {
            const std::vector<double> equal(static_cast<std::size_t>(world), 1.0 / world);
            std::vector<std::vector<double>> sums;
            for (std::uint64_t i = step; i < step + 3; ++i) {
                sums.push_back(merged(model, 7, first_slots(world), equal, i));
            }
            CHECK(failures_in_threads(world, kMiB, [&](RankContext& context) {
                      auto set = ParameterSet::attach(context.group, {}, memory.data(),
                                                      memory.bytes(), spec, soon());
                      if (!set.ok() || (*set)->steps() != step) return false;
                      if (step == 0 && context.rank == 0) fill_start(**set);
                      Model mine = model;
                      for (std::uint64_t i = step; i < step + 3; ++i) {
                          fill_gradients(**set, 7, i);
                          if (!(*set)->step(plain_call()).ok()) return false;
                          mine.step(hyper(), sums[i - step]);
                          if (!is_like(**set, mine, context)) return false;
                      }
                      return true;
                  }) == 0);
            for (const auto& sum : sums) model.step(hyper(), sum);
            step += 3;
        }
    }
}
