#include "emu/sim/topology_file.hpp"

#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts what files say: "[.a]"
#include <toml++/toml.h>

#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "emu/sim/sim_units.hpp"

namespace emu {

namespace {

// A value of a node: its key and where it goes. Which kinds have it does not matter: a node that
// makes no use of a value is harmless, an unknown key is not.
struct RateKey {
    const char* key;
    Rate Node::*field;
};
struct TimeKey {
    const char* key;
    Seconds Node::*field;
};
constexpr RateKey kRateKeys[] = {{"up", &Node::up},         {"down", &Node::down},
                                 {"inside", &Node::inside}, {"read", &Node::read},
                                 {"write", &Node::write},   {"media", &Node::media}};
constexpr TimeKey kTimeKeys[] = {{"latency", &Node::latency},
                                 {"media_latency", &Node::media_latency}};

class Reader {
  public:
    Reader(const toml::table& root, std::string name) : root_(root), name_(std::move(name)) {}

    TopologyOrError read() {
        read_top();
        for (const char* kind : {"switch", "host", "device", "pool"}) collect(kind);
        // A file may name children before parents, so groups are placed as their parents appear; a
        // round that places none ends it.
        while (!failed_ && place_some()) {
        }
        for (const Group& group : groups_) {
            if (!group.placed) report(*group.table, "no node of that name is the parent");
        }
        // Last, and by the full name ("device[3]"): one node of a group may differ from its like.
        read_overrides();
        if (!failed_) {
            const std::string found = topology_.error_message();
            if (!found.empty()) report(root_, found);
        }
        if (failed_) return error_message_;
        return std::move(topology_);
    }

  private:
    struct Group {
        NodeKind kind;
        const toml::table* table;
        bool placed = false;
    };

    // Nothing is read after the first error message, but for what is harmless: later ones would
    // often follow from it.
    void report(const toml::node& where, const std::string& what) {
        if (failed_) return;
        failed_ = true;
        const auto line = where.source().begin.line;
        error_message_ = name_ + (line > 0 ? ":" + std::to_string(line) : "") + ": " + what;
    }

    void read_top() {
        topology_.name = root_["name"].value_or(name_);
        const std::string placement = root_["placement"].value_or(std::string("interleaved"));
        if (placement == "home") topology_.placement = Placement::kHome;
        if (placement == "device") topology_.placement = Placement::kDevice;
        if (placement != "home" && placement != "device" && placement != "interleaved") {
            report(root_, "placement is one of interleaved, home, device");
        }
        topology_.lines_in_flight = root_["lines_in_flight"].value_or(topology_.lines_in_flight);
        // A misspelt key would otherwise silently leave a default in force.
        for (const auto& [key, value] : root_) {
            const std::string_view word = key.str();
            const bool known = word == "name" || word == "placement" || word == "lines_in_flight" ||
                               word == "switch" || word == "host" || word == "device" ||
                               word == "pool" || word == "override";
            if (!known) report(value, "unknown key " + std::string(word));
        }
    }

    void collect(const char* word) {
        const std::map<std::string, NodeKind> kinds = {{"switch", NodeKind::kSwitch},
                                                       {"host", NodeKind::kHost},
                                                       {"device", NodeKind::kDevice},
                                                       {"pool", NodeKind::kPool}};
        const toml::array* list = root_[word].as_array();
        if (list == nullptr) {
            if (root_.contains(word)) report(root_, std::string("write [[") + word + "]]");
            return;
        }
        for (const toml::node& item : *list) {
            const toml::table* table = item.as_table();
            if (table == nullptr) return report(item, std::string("write [[") + word + "]]");
            groups_.push_back({kinds.at(word), table, false});
        }
    }

    // Places the groups whose parents are there already; false when there was none.
    bool place_some() {
        bool any = false;
        for (Group& group : groups_) {
            if (group.placed || failed_) continue;
            const auto parent = (*group.table)["parent"].value<std::string>();
            if (parent && by_name_.count(*parent) == 0) continue;
            if (!parent && !topology_.nodes.empty()) {
                report(*group.table, "a second node without a parent");
                continue;
            }
            place(group, parent ? by_name_[*parent] : std::vector<int>{-1});
            group.placed = any = true;
        }
        return any;
    }

    void place(const Group& group, const std::vector<int>& parents) {
        Node node;
        node.kind = group.kind;
        int count = 1;
        fill(node, *group.table, &count);
        const auto name = (*group.table)["name"].value<std::string>();
        if (!name) return report(*group.table, "name is missing");
        if (by_name_.count(*name) != 0) return report(*group.table, "the name is taken");
        // Groups below groups multiply: eight switches of eight hosts of eight devices each.
        const std::size_t all =
            topology_.nodes.size() + static_cast<std::size_t>(count) * parents.size();
        if (count < 1 || all > 100'000) {
            return report(*group.table, "count: 1 to 100000 in all");
        }
        std::vector<int>& made = by_name_[*name];
        // Under each parent `count` of them, numbered through: the third device of the second host
        // is not [2].
        for (const int parent : parents) {
            for (int i = 0; i < count; ++i) {
                node.parent = parent;
                node.name = *name + "[" + std::to_string(made.size()) + "]";
                made.push_back(static_cast<int>(topology_.nodes.size()));
                topology_.nodes.push_back(node);
            }
        }
    }

    // `count` is where the number of nodes goes; nullptr for an override, which has none.
    void fill(Node& node, const toml::table& table, int* count) {
        for (const auto& [key, value] : table) {
            const std::string word(key.str());
            // Both are read before; an override has no parent to give, and a key of that name is
            // then unknown.
            if (word == "name" || (word == "parent" && count != nullptr)) continue;
            if (!fill_text(node, word, value) && !fill_number(node, word, value, count)) {
                report(value, word + ": unknown key, or a value without a unit or of another kind");
            }
        }
    }

    bool fill_text(Node& node, const std::string& word, const toml::node& value) {
        const auto text = value.value_exact<std::string>();
        if (!text) return false;
        const auto rate = parse_rate(*text);
        // `bandwidth` is short for both directions.
        if (word == "bandwidth" && rate.ok()) node.up = node.down = *rate;
        if (word == "bandwidth") return rate.ok();
        for (const RateKey& known : kRateKeys) {
            if (word == known.key && rate.ok()) node.*known.field = *rate;
            if (word == known.key) return rate.ok();
        }
        const auto length = parse_seconds(*text);
        for (const TimeKey& known : kTimeKeys) {
            if (word == known.key && length.ok()) node.*known.field = *length;
            if (word == known.key) return length.ok();
        }
        const auto bytes = fabricshm::parse_bytes(*text);
        if (word != "window" || !bytes.ok()) return false;
        node.window_bytes = static_cast<double>(*bytes);
        return true;
    }

    bool fill_number(Node& node, const std::string& word, const toml::node& value, int* count) {
        const auto number = value.value<double>();
        // A number without a unit is only for what has none.
        if (!number || value.is_string()) return false;
        if (word == "speed" && std::isfinite(*number)) {
            node.speed = *number;
        } else if (word == "cores" && *number >= 1 && *number <= 4096) {
            node.cores = static_cast<int>(*number);
        } else if (word == "count" && count != nullptr && *number >= 1 && *number <= 8192) {
            *count = static_cast<int>(*number);
        } else {
            return false;
        }
        return true;
    }

    void read_overrides() {
        const toml::array* list = root_["override"].as_array();
        if (list == nullptr) return;
        for (const toml::node& item : *list) {
            const toml::table* table = item.as_table();
            if (table == nullptr) return report(item, "write [[override]]");
            const std::string name = (*table)["name"].value_or(std::string());
            bool found = false;
            for (Node& node : topology_.nodes) {
                if (node.name != name) continue;
                fill(node, *table, nullptr);
                found = true;
            }
            if (!found) report(*table, "override: there is no node \"" + name + "\"");
        }
    }

    const toml::table& root_;
    std::string name_;
    Topology topology_;
    std::vector<Group> groups_;
    std::map<std::string, std::vector<int>> by_name_;
    bool failed_ = false;
    std::string error_message_;
};

}  // namespace

TopologyOrError parse_topology(const std::string& text, const std::string& name) {
    const toml::parse_result parsed = toml::parse(text);
    if (!parsed) {
        return name + ":" + std::to_string(parsed.error().source().begin.line) + ": " +
               std::string(parsed.error().description());
    }
    return Reader(parsed.table(), name).read();
}

TopologyOrError read_topology_file(const std::string& path) {
    std::ifstream file(path);
    if (!file) return path + ": cannot be read";
    std::stringstream text;
    text << file.rdbuf();
    return parse_topology(text.str(), path);
}

}  // namespace emu
