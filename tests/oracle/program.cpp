#include "tests/oracle/program.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>

namespace oracle {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    std::uint64_t z = a + (b + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

std::uint64_t Random::next() {
    state_ += 0x9e3779b97f4a7c15u;
    return mix(state_, 0);
}

int Operation::group_rank(int rank) const {
    const auto found = std::find(members.begin(), members.end(), rank);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

namespace {

constexpr const char* kKindNames[] = {
    "allreduce",  "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "barrier",        "message",    "recv",      "scan",   "exscan"};
constexpr const char* kTypeNames[] = {
    "f64", "f32", "f16",     "bf16",    "i8",      "u8",      "i32",     "u32",
    "i64", "u64", "f64_int", "f32_int", "i32_int", "i64_int", "f8_e4m3", "f8_e5m2"};
constexpr const char* kOpNames[] = {"sum",  "avg",  "min", "max",  "prod",   "band",  "bor",
                                    "bxor", "land", "lor", "lxor", "minloc", "maxloc"};
constexpr const char* kAlgorithmNames[] = {"auto", "flat", "direct", "ring", "staged", "host"};
constexpr const char* kActionNames[] = {"run",  "start", "wait",   "overwrite", "inspect", "verify",
                                        "kill", "probe", "shrink", "quiesce",   "leave"};

std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

std::string list_of(const std::vector<int>& numbers) {
    std::string text;
    for (const int number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
    return text;
}

std::string describe(const Buffer& buffer) {
    constexpr const char* kSlabNames[] = {"null", "arena", "private", "common"};
    if (buffer.slab == Slab::kNone) return "null";
    return format("%s+%llu", kSlabNames[static_cast<int>(buffer.slab)],
                  static_cast<unsigned long long>(buffer.offset));
}

}  // namespace

std::string describe(const Operation& operation) {
    std::string text = kKindNames[operation.kind];
    if (operation.kind != FABRICSHM_BARRIER) text += format(" %s", kTypeNames[operation.dtype]);
    if (operation.kind == FABRICSHM_ALLREDUCE || operation.kind == FABRICSHM_REDUCE ||
        operation.kind == FABRICSHM_REDUCE_SCATTER || operation.kind == FABRICSHM_SCAN ||
        operation.kind == FABRICSHM_EXSCAN) {
        text += format(" %s", kOpNames[operation.op]);
    }
    if (!operation.matrix.empty()) {
        text += " counts";
        for (const auto& row : operation.matrix) {
            text += " [";
            for (const auto count : row) text += " " + std::to_string(count);
            text += " ]";
        }
    } else if (!operation.counts.empty()) {
        text += " counts";
        for (const auto count : operation.counts) text += " " + std::to_string(count);
    } else {
        text += format(" %llu elements", static_cast<unsigned long long>(operation.count));
    }
    if (operation.is_message()) {
        text +=
            format(" rank %d to %d tag %d", operation.sender, operation.receiver, operation.tag);
        if (operation.pool >= 0) text += format(" any peer (pool %d)", operation.pool);
    } else {
        text += format(" root %d %s", operation.root, kAlgorithmNames[operation.algorithm]);
    }
    if (operation.trigger == FABRICSHM_SYNC) text += " sync";
    text += format(", group %d (%s)", operation.group, list_of(operation.members).c_str());
    if (operation.shared) {
        text += format(", shared output, rank %d overwrites it %s", operation.writer,
                       operation.readers == Readers::kOne ? "at once" : "after a barrier");
    }
    if (!operation.victims.empty()) text += ", dying " + list_of(operation.victims);
    return text;
}

std::string describe(const Program& program, const Action& action) {
    std::string text = kActionNames[static_cast<int>(action.type)];
    if (action.operation >= 0) {
        text += format(" %d: ", action.operation) +
                describe(program.operations[static_cast<std::size_t>(action.operation)]);
    }
    if (action.group >= 0) text += format(" group %d", action.group);
    if (!action.victims.empty()) text += " victims " + list_of(action.victims);
    if (!action.members.empty()) text += " then " + list_of(action.members);
    return text;
}

std::string describe(const Program& program) {
    std::string text =
        format("program %llu: %d ranks, slabs of %llu bytes, FABRIC_ALGORITHM=%s%s\n",
               static_cast<unsigned long long>(program.seed), program.world,
               static_cast<unsigned long long>(program.slab_bytes), program.algorithm.c_str(),
               program.check ? " FABRIC_CHECK=buffers" : "");
    text += program.tuning;
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
        const Operation& operation = program.operations[i];
        text += format("%zu: ", i) + describe(operation) + ":";
        for (const Part& part : operation.parts) {
            text += " " + describe(part.input) + ">" + describe(part.output);
        }
        text += "\n";
    }
    for (std::size_t rank = 0; rank < program.scripts.size(); ++rank) {
        text += format("rank %zu:", rank);
        for (const Action& action : program.scripts[rank]) {
            text += std::string(" ") + kActionNames[static_cast<int>(action.type)];
            if (action.operation >= 0) text += format(" %d", action.operation);
            if (action.group >= 0) text += format(" g%d", action.group);
            text += ";";
        }
        text += "\n";
    }
    return text;
}

Program without(const Program& program, const std::vector<bool>& kept) {
    Program smaller = program;
    for (auto& script : smaller.scripts) {
        std::vector<Action> actions;
        for (const Action& action : script) {
            if (action.operation < 0 || kept[static_cast<std::size_t>(action.operation)]) {
                actions.push_back(action);
            }
        }
        script = std::move(actions);
    }
    for (auto& pool : smaller.pools) {
        pool.erase(std::remove_if(
                       pool.begin(), pool.end(),
                       [&](int operation) { return !kept[static_cast<std::size_t>(operation)]; }),
                   pool.end());
    }
    return smaller;
}

}  // namespace oracle
