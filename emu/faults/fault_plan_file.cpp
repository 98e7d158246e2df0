// Reading a fault plan: the TOML, and every rule about what goes together.

#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts what files say: "[.a]"
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "emu/faults/fault_plan.hpp"

namespace emu {

namespace {

using Text = std::optional<std::string>;

/// Reads one table; the first thing that is wrong stays in `error_message`.
class Reader {
  public:
    Reader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

    // Each returns nothing for a key that is not there, and for one that is wrong, which is kept.
    Text text(const char* key) {
        const toml::node* node = take(key);
        if (node == nullptr) return std::nullopt;
        if (const auto* value = node->as_string()) return value->get();
        report(key, "takes a text");
        return std::nullopt;
    }
    std::optional<std::int64_t> count(const char* key, std::int64_t least) {
        const toml::node* node = take(key);
        if (node == nullptr) return std::nullopt;
        const auto* value = node->as_integer();
        if (value != nullptr && value->get() >= least) return value->get();
        report(key, "takes a whole number, at least " + std::to_string(least));
        return std::nullopt;
    }
    std::optional<bool> flag(const char* key) {
        const toml::node* node = take(key);
        if (node == nullptr) return std::nullopt;
        if (const auto* value = node->as_boolean()) return value->get();
        report(key, "takes true or false");
        return std::nullopt;
    }
    std::optional<Duration> duration(const char* key) {
        const Text value = text(key);
        if (!value) return std::nullopt;
        const auto parsed = fabricshm::parse_duration(*value);
        if (parsed.ok()) return *parsed;
        report(key, "takes a duration with its unit (us, ms, s, min)");
        return std::nullopt;
    }
    std::optional<Bytes> bytes(const char* key) {
        const Text value = text(key);
        if (!value) return std::nullopt;
        const auto parsed = fabricshm::parse_bytes(*value);
        if (parsed.ok()) return *parsed;
        report(key, "takes a size with its unit (KiB, MiB, GiB)");
        return std::nullopt;
    }

    void report(const std::string& key, const std::string& what) {
        if (error_message.empty()) error_message = where_ + ": " + key + " " + what;
    }
    // A misspelt key would otherwise be a fault that never happens, and a test that proves nothing.
    void no_others() {
        for (const auto& [key, value] : table_) {
            const std::string name(key.str());
            const bool known = std::find(taken_.begin(), taken_.end(), name) != taken_.end();
            if (!known) report("\"" + name + "\"", "is no key here");
        }
    }

    std::string error_message;

  private:
    // Every key that was asked for is a known one, whether it is there or not: so the list of known
    // keys can't differ from what is read.
    const toml::node* take(const char* key) {
        taken_.emplace_back(key);
        return table_.get(key);
    }
    const toml::table& table_;
    std::string where_;
    std::vector<std::string> taken_;
};

// "rank 1", "device NAME", "host NAME" or "daemon". A host has to be in the plan, since nothing
// else could identify its ranks.
// One word for the kind and one for the name: a third would be a name with a blank.
bool read_target(const std::string& text, const FaultPlan& plan, Target& target) {
    std::istringstream words(text);
    std::string kind;
    std::string rest;
    words >> kind >> target.name >> rest;
    if (!rest.empty()) return false;
    if (kind == "daemon") {
        target.kind = TargetKind::kDaemon;
        return target.name.empty();
    }
    if (kind == "rank") {
        const auto* end = target.name.data() + target.name.size();
        const auto [stop, error] = std::from_chars(target.name.data(), end, target.rank);
        return error == std::errc{} && stop == end && target.rank >= 0 && !target.name.empty();
    }
    target.kind = kind == "host" ? TargetKind::kHost : TargetKind::kDevice;
    if (kind == "host") return plan.hosts.count(target.name) != 0;
    // FABRIC_FAULT is cut at these.
    const bool plain = target.name.find_first_of("@;") == std::string::npos;
    return kind == "device" && !target.name.empty() && plain;
}

// By the names that are written, so that reading and writing can't differ.
bool read_action(const std::string& text, Action& action) {
    for (const Action known : {Action::kKill, Action::kStop, Action::kSlow, Action::kPoison,
                               Action::kFill, Action::kTear}) {
        if (text != text_of(known)) continue;
        action = known;
        return true;
    }
    return false;
}

// What can't be, whatever the values are.
// Each rule names the key to change. What depends on values alone is checked where they are read.
void check_together(const Fault& fault, bool timed, const FaultPlan& plan, Reader& reader) {
    const bool at_point = !fault.point.empty();
    const bool daemon = fault.target.kind == TargetKind::kDaemon;
    if (at_point && timed) reader.report("after", "and point or operations exclude each other");
    if (!at_point && !timed) reader.report("point", "is missing (or operations, or after)");
    if (daemon && !plan.own_daemon) {
        reader.report("target", "daemon needs a [daemon] table: faults need a daemon of their own");
    }
    switch (fault.action) {
        case Action::kSlow:
            if (!at_point) reader.report("point", "is what slow needs");
            if (fault.delay <= Duration::zero()) reader.report("delay", "is missing");
            break;
        case Action::kPoison:
            if (!at_point) reader.report("point", "is what poison needs");
            if (daemon) reader.report("target", "of poison is a rank, a device or a host");
            break;
        case Action::kFill:
            if (at_point) reader.report("after", "is what fill needs");
            break;
        case Action::kTear: {
            if (!daemon) reader.report("target", "of tear is the daemon");
            // A record that was answered is never lost by a crash of the daemon alone, so only the
            // one that is being written may be damaged.
            const bool own_record = fault.point == "journal.append.after";
            if (fault.damage != Damage::kGarbage && !own_record) {
                reader.report("point", "is journal.append.after for damage cut and flip");
            }
            break;
        }
        default:
            break;
    }
}

void read_fault(const toml::table& table, const std::string& where, FaultPlan& plan,
                std::string& error_message) {
    Reader reader(table, where);
    Fault fault;
    // Kept to the end of the run: a fault that never happened is named by its line.
    fault.line = static_cast<int>(table.source().begin.line);
    const Text action = reader.text("action");
    if (!action || !read_action(*action, fault.action)) {
        reader.report("action", "is one of kill, stop, slow, poison, fill, tear");
    }
    const Text target = reader.text("target");
    // A full pool is full for all.
    const bool needs_target = fault.action != Action::kFill;
    if (needs_target && (!target || !read_target(*target, plan, fault.target))) {
        reader.report("target",
                      "is \"rank N\", \"device NAME\", \"host NAME\" of [hosts], or \"daemon\"");
    }
    fault.point = reader.text("point").value_or("");
    // FABRIC_FAULT is cut at these: another fault would be armed, or none.
    if (fault.point.find_first_of(":;") != std::string::npos) {
        reader.report("point", "is the name of a fault point");
    }
    fault.passage = reader.count("passage", 1).value_or(1);
    // `operations` is a way to say point and passage for the most usual place.
    if (const auto operations = reader.count("operations", 0)) {
        fault.point = "operation.begin";  // the next one begins when so many are over
        constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
        fault.passage = std::min(*operations, kMax - 1) + 1;
    }
    const auto after = reader.duration("after");
    fault.after = after.value_or(Duration::zero());
    fault.length = reader.duration("for");
    fault.delay = reader.duration("delay").value_or(Duration::zero());
    fault.offset = reader.bytes("offset").value_or(0);
    fault.restart = reader.flag("restart").value_or(true);
    const std::string damage = reader.text("damage").value_or("cut");
    if (damage != "cut" && damage != "flip" && damage != "garbage") {
        reader.report("damage", "is one of cut, flip, garbage");
    }
    fault.damage = damage == "flip"      ? Damage::kFlip
                   : damage == "garbage" ? Damage::kGarbage
                                         : Damage::kCut;
    reader.no_others();
    check_together(fault, after.has_value(), plan, reader);
    // The first of the file.
    if (error_message.empty()) error_message = reader.error_message;
    plan.faults.push_back(fault);
}

// name = [ranks]
void read_ranks(const toml::table* table, const std::string& where,
                std::map<std::string, std::vector<int>>& ranks, std::string& error_message) {
    if (table == nullptr) return;
    for (const auto& [key, value] : *table) {
        std::vector<int>& of = ranks[std::string(key.str())];
        const toml::array* list = value.as_array();
        bool good = list != nullptr && !list->empty();
        for (std::size_t i = 0; good && i < list->size(); ++i) {
            const auto* number = list->get(i)->as_integer();
            good = number != nullptr && number->get() >= 0 && number->get() < 1 << 20;
            if (good) of.push_back(static_cast<int>(number->get()));
        }
        if (!good && error_message.empty()) {
            error_message = where + ": " + std::string(key.str()) + " takes a list of ranks";
        }
    }
}

void read_daemon(const toml::table* table, const std::string& where, FaultPlan& plan,
                 std::string& error_message) {
    if (table == nullptr) return;
    // The table alone says it: a plan with an empty [daemon] wants one with its defaults.
    plan.own_daemon = true;
    Reader reader(*table, where);
    plan.daemon_program = reader.text("program").value_or("fabricd");
    if (const toml::array* list = (*table)["arguments"].as_array()) {
        for (const auto& item : *list) {
            const auto* word = item.as_string();
            if (word == nullptr) reader.report("arguments", "takes a list of texts");
            if (word != nullptr) plan.daemon_arguments.push_back(word->get());
        }
    }
    const bool unknown = std::any_of(table->begin(), table->end(), [](const auto& entry) {
        return entry.first != "program" && entry.first != "arguments";
    });
    if (unknown) reader.report("[daemon]", "has program and arguments, nothing else");
    if (error_message.empty()) error_message = reader.error_message;
}

}  // namespace

ParsedPlan parse_plan(const std::string& text, const std::string& name) {
    // Without exceptions (see above): a wrong file is an answer here, not an accident.
    const toml::parse_result parsed = toml::parse(text);
    if (!parsed) {
        const auto line = std::to_string(parsed.error().source().begin.line);
        return {std::nullopt, name + ":" + line + ": " + std::string(parsed.error().description())};
    }
    const toml::table& root = parsed.table();
    FaultPlan plan;
    std::string error_message;
    for (const auto& [key, value] : root) {
        const bool known = key == "hosts" || key == "devices" || key == "daemon" || key == "fault";
        // [fault] for [[fault]] is the usual slip, and would read as no fault at all.
        const bool form = key == "fault" ? value.is_array_of_tables() : value.is_table();
        if (known && form) continue;
        error_message = name + ": \"" + std::string(key.str()) +
                        "\" is not [hosts], [devices], [daemon] or [[fault]]";
    }
    read_ranks(root["hosts"].as_table(), name + ": [hosts]", plan.hosts, error_message);
    read_ranks(root["devices"].as_table(), name + ": [devices]", plan.devices, error_message);
    read_daemon(root["daemon"].as_table(), name + ": [daemon]", plan, error_message);
    if (const toml::array* faults = root["fault"].as_array(); faults != nullptr) {
        for (const auto& node : *faults) {
            const toml::table* table = node.as_table();
            if (table == nullptr) continue;  // refused above
            const std::string where = name + ":" + std::to_string(table->source().begin.line);
            read_fault(*table, where, plan, error_message);
        }
    }
    if (error_message.empty() && plan.faults.empty())
        error_message = name + ": there is no [[fault]]";
    if (!error_message.empty()) return {std::nullopt, error_message};
    return {std::move(plan), ""};
}

ParsedPlan read_plan(const std::string& path) {
    std::ifstream file(path);
    if (!file) return {std::nullopt, path + ": can't be read"};
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return parse_plan(text, path);
}

}  // namespace emu
