#include "libfabricshm/optim/parameter_spec.hpp"

#include <algorithm>
#include <set>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/world_max.hpp"
#include "libfabricshm/optim/parameter_block.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

namespace {

constexpr Error kBadSpec{Errc::kInvalid, 0, "shared parameters"};

// FNV-1a over what differs between specs.
class Mixer {
  public:
    void add(std::uint64_t value) noexcept {
        for (int byte = 0; byte < 8; ++byte) add_byte(value >> 8 * byte & 0xff);
    }
    void add(const std::string& text) noexcept {
        add(text.size());
        for (const char c : text) add_byte(static_cast<unsigned char>(c));
    }
    std::uint64_t value() const noexcept { return value_ == 0 ? 1 : value_; }

  private:
    void add_byte(std::uint64_t byte) noexcept { value_ = (value_ ^ byte) * 0x100000001b3; }
    std::uint64_t value_ = 0xcbf29ce484222325;
};

bool is_gradient(kernels::DType type) noexcept {
    return type == kernels::DType::kF32 || type == kernels::DType::kF16 ||
           type == kernels::DType::kBF16;
}

// 0: more than kMaxElements, or a negative dimension.
std::uint64_t checked_elements(const std::vector<std::int64_t>& shape) noexcept {
    std::uint64_t elements = 1;
    for (const std::int64_t dimension : shape) {
        if (dimension < 0) return 0;
        const auto length = static_cast<std::uint64_t>(dimension);
        if (length != 0 && elements > kMaxElements / length) return 0;
        elements *= length;
    }
    return elements;
}

Result<void> check_parameter(const Parameter& parameter) {
    const char* name = parameter.name.c_str();
    if (parameter.name.empty() || parameter.name.size() >= proto::kNameBytes) {
        return explain(kBadSpec, "parameter '%.80s': a name has 1 to %zu bytes", name,
                       proto::kNameBytes - 1);
    }
    if (parameter.shape.size() > proto::kDimsMax) {
        return explain(kBadSpec, "parameter '%s': %zu dimensions, at most %zu", name,
                       parameter.shape.size(), proto::kDimsMax);
    }
    if (parameter.options >= kMaxOptions) {
        return explain(kBadSpec, "parameter '%s': options %u is not below %u", name,
                       parameter.options, kMaxOptions);
    }
    if (checked_elements(parameter.shape) == 0) {
        return explain(kBadSpec, "parameter '%s': its shape has no elements, or more than 2^40",
                       name);
    }
    return {};
}

}  // namespace

std::uint64_t Parameter::elements() const noexcept {
    return checked_elements(shape);
}

Result<void> check_spec(const ParameterSpec& spec) {
    if (spec.parameters.empty()) return explain(kBadSpec, "there is no parameter");
    if (spec.slots < 1 || spec.slots > kWorldMax) {
        return explain(kBadSpec, "slots %d is not 1 to %d", spec.slots, kWorldMax);
    }
    if (static_cast<int>(spec.rule) >= kernels::kRuleCount) {
        return explain(kBadSpec, "there is no optimiser %d", static_cast<int>(spec.rule));
    }
    if (!is_gradient(spec.gradients)) return explain(kBadSpec, "gradients are f32, f16 or bf16");
    if (!is_gradient(spec.copy)) return explain(kBadSpec, "a copy is f32, f16 or bf16");
    std::set<std::string> names;
    std::uint64_t elements = 0;
    for (const Parameter& parameter : spec.parameters) {
        FABRIC_TRY_VOID(check_parameter(parameter));
        if (!names.insert(parameter.name).second) {
            return explain(kBadSpec, "two parameters are named '%s'", parameter.name.c_str());
        }
        elements += parameter.elements();
        if (elements > kMaxElements) return explain(kBadSpec, "more than 2^40 elements");
    }
    return {};
}

std::uint64_t signature_of(const ParameterSpec& spec) noexcept {
    Mixer mixer;
    mixer.add(kParameterVersion);
    mixer.add(static_cast<std::uint64_t>(spec.rule));
    mixer.add(static_cast<std::uint64_t>(spec.gradients));
    mixer.add(static_cast<std::uint64_t>(spec.copy));
    mixer.add(static_cast<std::uint64_t>(spec.slots));
    for (const Parameter& parameter : spec.parameters) {
        mixer.add(parameter.name);
        mixer.add(parameter.options);
        mixer.add(parameter.shape.size());
        for (const std::int64_t length : parameter.shape) {
            mixer.add(static_cast<std::uint64_t>(length));
        }
    }
    return mixer.value();
}

ParameterLayout ParameterLayout::of(const ParameterSpec& spec) {
    ParameterLayout layout;
    std::uint64_t next = 0;
    for (const Parameter& parameter : spec.parameters) {
        layout.pieces.push_back({next, next + parameter.elements()});
        const std::uint64_t end = round_up(layout.pieces.back().end, kParameterAlign);
        if (layout.segments.empty() || layout.options.back() != parameter.options) {
            layout.segments.push_back({next, end});
            layout.options.push_back(parameter.options);
        }
        layout.segments.back().end = end;
        next = end;
    }
    layout.elements = round_up(next, kBlockElements);
    layout.segments.back().end = layout.elements;

    Bytes at = sizeof(ParameterHeader);
    const auto take = [&at](Bytes bytes) {
        const Bytes start = at;
        at += round_up(bytes, kPageBytes);
        return start;
    };
    const auto slots = static_cast<Bytes>(spec.slots);
    const Bytes array = layout.elements * sizeof(float);
    layout.states = kernels::row_of(spec.rule).states();
    layout.log_bytes = kLogElements * sizeof(float) * static_cast<Bytes>(layout.states + 1);
    layout.slots = take(slots * sizeof(SlotRecord));
    layout.logs = take(slots * layout.log_bytes);
    layout.parameters = take(array);
    for (int i = 0; i < layout.states; ++i) layout.state[i] = take(array);
    if (spec.copy != kernels::DType::kF32) {
        layout.copy = take(layout.elements * kernels::size_of(spec.copy));
    }
    layout.gradient_stride =
        round_up(layout.elements * kernels::size_of(spec.gradients), kPageBytes);
    layout.gradients = take(slots * layout.gradient_stride);
    layout.total = at;
    return layout;
}

std::vector<ElementRange> cut_shards(std::uint64_t elements, const std::vector<double>& shares,
                                     int world) {
    FABRIC_CHECK(elements % kBlockElements == 0);
    FABRIC_CHECK(shares.empty() || shares.size() == static_cast<std::size_t>(world));
    const std::uint64_t blocks = elements / kBlockElements;
    double sum = 0;
    for (const double share : shares) sum += share;
    std::vector<ElementRange> shards;
    std::uint64_t begin = 0;
    double before = 0;
    for (int rank = 0; rank < world; ++rank) {
        before += shares.empty() ? 1.0 / world : shares[static_cast<std::size_t>(rank)] / sum;
        auto end = static_cast<std::uint64_t>(static_cast<double>(blocks) * before + 0.5);
        end = std::clamp(end, begin, blocks);
        if (rank == world - 1) end = blocks;
        shards.push_back({begin * kBlockElements, end * kBlockElements});
        begin = end;
    }
    return shards;
}

}  // namespace fabricshm
